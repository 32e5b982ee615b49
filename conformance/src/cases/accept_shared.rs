//! A listener on which other threads and processes accept, too, by blocking accept4(2) calls. The
//! ring accepts the connections that it can get, and the blocking calls never block the ring.

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

/// Longest time that the ring may take to submit and reap. A longer time means that the ring's
/// accept has blocked. The case offers the next connection only after the current one is served, so
/// no later connection would end the block.
const LONGEST_TURN: Duration = Duration::from_secs(30);

/// Offers connections, one after another, to a ring and to a rival: a thread or process that
/// accepts by blocking calls on the same listener. The acceptor of a connection sends a byte. The
/// rival never blocks the ring, which completes a NOP after each connection.
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

/// Accepts connections by blocking calls until the listener is shut down.
fn rival(listener: i32) {
    loop {
        // SAFETY: no address is asked for. This function owns the descriptor.
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
    // SAFETY: the call touches no memory. The shutdown ends the rival's accept.
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
    // SAFETY: the call touches no memory. The shutdown ends the rival's accept.
    unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
    t.say(format_args!("ended {}", thread.join().is_ok()));
}
case!(other_thread => "
    served 200 of 200
    held up false
    ended true
");

/// A child process accepts from the same listener by blocking calls. The ring's multishot accepts
/// the other connections and is never blocked.
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
    // SAFETY: the call touches no memory. The shutdown ends every accept.
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

/// Serves connections until the listener is shut down. Returns their number.
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

/// Connects, one client after another, and waits for a greeting each time. Stops at the first
/// greeting that does not arrive, and returns the number of greetings.
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

/// Three threads each have a ring with a multishot on one listener. One of the rings accepts each
/// connection without a long wait.
fn several_rings(t: &mut Transcript) {
    let (listener, address) = net::listener(Family::V4);
    let number = listener.as_raw_fd();
    let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(move || serve(number))).collect();
    t.say(format_args!("greeted {}", visit(&address)));
    // SAFETY: the call touches no memory. The shutdown ends every accept.
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
    // SAFETY: the call touches no memory. The shutdown ends every accept.
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
