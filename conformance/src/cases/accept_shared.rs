//! A listener on which a ring and other threads or processes accept connections. In some cases the
//! others use rings, too; in the rest they call accept(2), which must never block the ring.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::accept::is_ready;
use super::accept_multishot::multishot;
use crate::files;
use crate::net::{self, Address, Family};
use crate::ring::Ring;
use crate::sqe::nop;
use crate::transcript::Transcript;

const ROUNDS: usize = 200;

/// Most time that the ring may take to submit a NOP and reap. If it takes longer, the ring's ACCEPT
/// has blocked. No later connection could end such a block, because the case makes the next
/// connection only after the current one is served.
const LONGEST_TURN: Duration = Duration::from_secs(30);

/// Makes connections, one after another, to a listener. Two acceptors compete for each: a ring, and
/// a rival that calls accept(2) in another thread or process. The acceptor of a connection sends a
/// byte. The ring completes NOPs meanwhile, which shows that the rival does not block it.
fn contest(t: &mut Transcript, listener: &OwnedFd, address: &Address) {
    let mut ring = Ring::new(8);
    let mut armed = false;
    let mut served = 0;
    let mut longest = Duration::ZERO;
    for _ in 0..ROUNDS {
        if !armed {
            ring.push(net::accept(listener.as_raw_fd(), 1));
            ring.submit();
            armed = true;
        }
        let client = net::connected(Family::V4, address);
        let mut one = libc::pollfd { fd: client.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let is_served = crate::time::until(|| {
            let start = std::time::Instant::now();
            ring.push(nop(2));
            ring.submit();
            for entry in ring.reap() {
                if entry.user_data == 1 && entry.res >= 0 {
                    armed = false;
                    // SAFETY: the descriptor is new, and nothing else owns it.
                    files::put(&unsafe { OwnedFd::from_raw_fd(entry.res) }, b"r");
                }
            }
            longest = longest.max(start.elapsed());
            // SAFETY: the array has one element.
            unsafe { libc::poll(&raw mut one, 1, 0) == 1 }
        });
        served += usize::from(is_served);
    }
    t.say(format_args!("served {served} of {ROUNDS}"));
    t.say(format_args!("held up {}", longest > LONGEST_TURN));
}

/// Accepts connections by calls of accept(2) until the listener is shut down. Sends a byte on each.
fn rival(listener: i32) {
    loop {
        // SAFETY: accept(2) gets no address pointer. This function owns the new descriptor.
        let fd = unsafe { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
        if fd < 0 {
            return;
        }
        // SAFETY: the buffer has one byte. The descriptor is new, and nothing else owns it.
        unsafe {
            libc::send(fd, b"o".as_ptr().cast(), 1, libc::MSG_NOSIGNAL);
            libc::close(fd);
        }
    }
}

fn other_process(t: &mut Transcript) {
    let (listener, address) = net::listener(Family::V4);
    let number = listener.as_raw_fd();
    let child = crate::process::start(|| {
        rival(number);
        0
    });
    contest(t, &listener, &address);
    // SAFETY: shutdown(2) touches no memory. It ends the rival's accept(2).
    unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
    t.say(crate::process::ending(child));
}
case!(other_process => "
    served 200 of 200
    held up false
    exit 0
");

fn other_thread(t: &mut Transcript) {
    let (listener, address) = net::listener(Family::V4);
    let number = listener.as_raw_fd();
    let thread = std::thread::spawn(move || rival(number));
    contest(t, &listener, &address);
    // SAFETY: shutdown(2) touches no memory. It ends the rival's accept(2).
    unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
    t.say(format_args!("ended {}", thread.join().is_ok()));
}
case!(other_thread => "
    served 200 of 200
    held up false
    ended true
");

/// A child process calls accept(2) on the listener of the ring's multishot. The multishot accepts
/// the connections that the child does not get, and the child never blocks the ring.
fn multishot_and_other_process(t: &mut Transcript) {
    let (listener, address) = net::listener(Family::V4);
    let number = listener.as_raw_fd();
    let child = crate::process::start(|| {
        rival(number);
        0
    });
    let mut ring = Ring::new(8);
    ring.push(multishot(number, 1));
    ring.submit();
    let mut served = 0;
    let mut longest = Duration::ZERO;
    for _ in 0..ROUNDS {
        let client = net::connected(Family::V4, &address);
        served += usize::from(crate::time::until(|| {
            let start = std::time::Instant::now();
            ring.push(nop(2));
            ring.submit();
            for entry in ring.reap() {
                if entry.user_data == 1 && entry.res >= 0 {
                    // SAFETY: the descriptor is new, and nothing else owns it.
                    files::put(&unsafe { OwnedFd::from_raw_fd(entry.res) }, b"r");
                }
            }
            longest = longest.max(start.elapsed());
            is_ready(&client)
        }));
    }
    t.say(format_args!("served {served} of {ROUNDS}"));
    t.say(format_args!("held up {}", longest > LONGEST_TURN));
    // SAFETY: shutdown(2) touches no memory. It ends the child's accept(2) and the ring's
    // multishot.
    unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
    t.say(crate::process::ending(child));
    let last = ring.wait(1);
    t.in_order(&last);
}
case!(multishot_and_other_process => "
    served 200 of 200
    held up false
    exit 0
    cqe 1: -EINVAL
");

/// Accepts connections by a multishot of a ring of its own, and sends a byte on each. Returns the
/// number of connections, once the listener is shut down.
fn serve(listener: i32) -> usize {
    let mut ring = Ring::new(8);
    let mut count = 0;
    ring.push(multishot(listener, 1));
    ring.submit();
    loop {
        ring.enter(0, 1, usring_uapi::io_uring::IORING_ENTER_GETEVENTS);
        for entry in ring.reap() {
            if entry.res < 0 {
                return count;
            }
            count += 1;
            // SAFETY: the descriptor is new, and nothing else owns it.
            files::put(&unsafe { OwnedFd::from_raw_fd(entry.res) }, b"r");
        }
    }
}

/// Makes connections one after another, and waits on each for the acceptor's byte. Stops at the
/// first connection without a byte. Returns the number of bytes.
fn visit(address: &Address) -> usize {
    (0..ROUNDS)
        .take_while(|_| {
            let client = net::connected(Family::V4, address);
            let mut one = libc::pollfd { fd: client.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the array has one element.
            unsafe { libc::poll(&raw mut one, 1, LONGEST_TURN.as_millis() as i32) == 1 }
        })
        .count()
}

/// Three threads each have a ring with a multishot on one listener. Each connection is accepted
/// soon by one of the three rings.
fn several_rings(t: &mut Transcript) {
    let (listener, address) = net::listener(Family::V4);
    let number = listener.as_raw_fd();
    let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(move || serve(number))).collect();
    t.say(format_args!("greeted {}", visit(&address)));
    // SAFETY: shutdown(2) touches no memory. It ends the multishots of all rings.
    unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
    let served: usize = threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
    t.say(format_args!("served {served}"));
}
case!(several_rings => "
    greeted 200
    served 200
");

fn several_processes_with_rings(t: &mut Transcript) {
    let (listener, address) = net::listener(Family::V4);
    let number = listener.as_raw_fd();
    let children: Vec<i32> = (0..3)
        .map(|_| {
            crate::process::start(|| {
                serve(number);
                0
            })
        })
        .collect();
    t.say(format_args!("greeted {}", visit(&address)));
    // SAFETY: shutdown(2) touches no memory. It ends the multishots of all rings.
    unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
    for child in children {
        t.say(crate::process::ending(child));
    }
}
case!(several_processes_with_rings => "
    greeted 200
    exit 0
    exit 0
    exit 0
");
