//! Multishot ACCEPT: one CQE per connection, until the request ends.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, Timespec, io_uring as u, sqe_flags};

use super::accept::is_ready;
use super::socket::{describe, taken};
use crate::files;
use crate::memory::BAD;
use crate::net::{self, Address, FAMILIES, Family};
use crate::ring::{self, Entry, Ring};
use crate::sqe::{Change, cancel, link_timeout, nop};
use crate::transcript::Transcript;

mod ends;

pub fn multishot(fd: i32, user_data: u64) -> Sqe {
    net::accept(fd, user_data).with(|sqe| sqe.ioprio = u::IORING_ACCEPT_MULTISHOT as u16)
}

/// Prints completions and takes ownership of their descriptors.
fn all(t: &mut Transcript, entries: &[Entry]) -> Vec<OwnedFd> {
    if entries.is_empty() {
        t.say("no cqe");
    }
    entries.iter().filter_map(|entry| taken(t, entry)).collect()
}

fn connections_are_there(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = Ring::new(4);
        let (listener, address) = net::listener(family);
        let clients: Vec<OwnedFd> = (0..3).map(|_| net::connected(family, &address)).collect();
        ring.push(multishot(listener.as_raw_fd(), 1));
        t.result("submit", ring.submit());
        let servers = all(t, &ring.wait(3));
        for (client, server) in clients.iter().zip(&servers) {
            t.say(format_args!("{family:?} of its own client {}", net::delivers_byte(client, server.as_raw_fd())));
        }
    }
}
case!(connections_are_there => "
    submit = 1
    cqe 1: ok MORE|SOCK_NONEMPTY
    cqe 1: ok MORE|SOCK_NONEMPTY
    cqe 1: ok MORE
    V4 of its own client true
    V4 of its own client true
    V4 of its own client true
    submit = 1
    cqe 1: ok MORE|SOCK_NONEMPTY
    cqe 1: ok MORE|SOCK_NONEMPTY
    cqe 1: ok MORE
    V6 of its own client true
    V6 of its own client true
    V6 of its own client true
    submit = 1
    cqe 1: ok MORE
    cqe 1: ok MORE
    cqe 1: ok MORE
    Unix of its own client true
    Unix of its own client true
    Unix of its own client true
");

fn one_by_one(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = Ring::new(4);
        let (listener, address) = net::listener(family);
        ring.push(multishot(listener.as_raw_fd(), 1));
        t.result("submit", ring.submit());
        t.in_order(&ring.reap());
        for _ in 0..4 {
            let client = net::connected(family, &address);
            for server in all(t, &ring.wait(1)) {
                t.say(format_args!("{family:?} data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
            }
        }
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
    }
}
case!(one_by_one => include_str!("accept_multishot/one_by_one.txt"));

/// Several connections arrive before the program enters the kernel. The multishot accepts all of
/// them. SOCK_NONEMPTY is not printed: it depends on how many connections are queued at each
/// accept.
fn bursts(t: &mut Transcript) {
    let setup = ring::DEFER;
    for family in FAMILIES {
        let mut ring = Ring::flags(32, setup);
        let (listener, address) = net::listener(family);
        ring.push(multishot(listener.as_raw_fd(), 1));
        ring.submit();
        for count in [3, 1, 5] {
            let clients: Vec<OwnedFd> = (0..count).map(|_| net::connected(family, &address)).collect();
            let servers = all(t, &ring.wait(count));
            for (client, server) in clients.iter().zip(&servers) {
                t.say(format_args!("{family:?} of its own client {}", net::delivers_byte(client, server.as_raw_fd())));
            }
        }
    }
}
case!(bursts => include_str!("accept_multishot/bursts.txt"));

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u32;
    ring.push(multishot(listener.as_raw_fd(), 1).op_flags(flags));
    ring.submit();
    for _ in 0..2 {
        let _client = net::connected(Family::V4, &address);
        for server in all(t, &ring.wait(1)) {
            t.say(format_args!("it is {}", describe(server.as_raw_fd())));
        }
    }
}
case!(flags => "
    cqe 1: ok MORE
    it is close-on-exec non-blocking\x20
    cqe 1: ok MORE
    it is close-on-exec non-blocking\x20
");

/// A multishot with the flag DONTWAIT ends once the listener's queue is empty. A multishot with the
/// flag POLL_FIRST goes on waiting for connections.
fn with_other_flags(t: &mut Transcript) {
    for (other, ends) in [(u::IORING_ACCEPT_DONTWAIT, 1), (u::IORING_ACCEPT_POLL_FIRST, 0)] {
        for queued in [0, 2] {
            let mut ring = Ring::new(4);
            let (listener, address) = net::listener(Family::V4);
            let clients: Vec<OwnedFd> = (0..queued).map(|_| net::connected(Family::V4, &address)).collect();
            ring.push(multishot(listener.as_raw_fd(), 1).with(|sqe| sqe.ioprio |= other as u16));
            ring.submit();
            t.say(format_args!("with {queued} queued"));
            all(t, &ring.wait(queued + ends));
            let _late = net::connected(Family::V4, &address);
            t.say("then one more");
            crate::time::long_enough_to_notice();
            all(t, &ring.wait(1 - ends));
            drop(clients);
        }
    }
}
case!(with_other_flags => "
    with 0 queued
    cqe 1: -EAGAIN
    then one more
    no cqe
    with 2 queued
    cqe 1: ok MORE|SOCK_NONEMPTY
    cqe 1: ok MORE
    cqe 1: -EAGAIN
    then one more
    no cqe
    with 0 queued
    no cqe
    then one more
    cqe 1: ok MORE
    with 2 queued
    cqe 1: ok MORE|SOCK_NONEMPTY
    cqe 1: ok MORE
    then one more
    cqe 1: ok MORE
");

/// A multishot writes each peer's address over the previous peer's address. At the end the memory
/// holds the last peer's address.
fn peer_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in [Family::V4, Family::V6] {
        let (listener, address) = net::listener(family);
        let mut room = Box::new(Address::room(128));
        ring.push(multishot(listener.as_raw_fd(), 1).with(|sqe| (sqe.addr, sqe.off) = (room.at(), room.length_at())));
        ring.submit();
        for _ in 0..2 {
            let client = net::connected(family, &address);
            let servers = all(t, &ring.wait(1));
            room = std::hint::black_box(room);
            let peer = net::address_of(client.as_raw_fd());
            let length = room.length as usize;
            t.say(format_args!("{family:?} {length} {}", room.bytes[..length] == peer.bytes[..length]));
            drop(servers);
        }
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.in_order(&ring.wait(2));
    }
}
case!(peer_address => "
    cqe 1: ok MORE
    V4 16 true
    cqe 1: ok MORE
    V4 16 true
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 1: ok MORE
    V6 28 true
    cqe 1: ok MORE
    V6 28 true
    cqe 2: 0
    cqe 1: -ECANCELED
");

/// If the kernel cannot write the peer's address, the first connection is lost and the multishot
/// ends with -EFAULT. A second connection stays in the listener's queue.
fn peer_address_wrong(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1).with(|sqe| (sqe.addr, sqe.off) = (BAD, BAD)));
    ring.submit();
    t.in_order(&ring.reap());
    let client = net::connected(Family::V4, &address);
    t.in_order(&ring.wait(1));
    let late = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.say(format_args!("still queued {}", is_ready(&listener)));
    drop((client, late, listener, ring));
    let gone = crate::time::until(|| files::open_numbers() == before);
    t.say(format_args!("nothing left open {gone}"));
}
case!(peer_address_wrong => "
    no cqe
    cqe 1: -EFAULT
    no cqe
    still queued true
    nothing left open true
");

fn cancelled(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.submit();
    let client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
    let late = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.say(format_args!("still queued {}", is_ready(&listener)));
    drop((client, late, listener, ring));
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}
case!(cancelled => "
    cqe 1: ok MORE
    cqe 2: 0
    cqe 1: -ECANCELED
    no cqe
    still queued true
    nothing left open true
");

fn cancelled_by_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (listener, _address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.push(net::accept(listener.as_raw_fd(), 2));
    ring.submit();
    let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_ALL;
    ring.push(cancel(0, flags, 9).with(|sqe| sqe.fd = listener.as_raw_fd()));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(cancelled_by_descriptor => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 9: 2
");

fn link_timeout_bounds_its_life(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let time = Timespec { tv_sec: 1, tv_nsec: 0 };
    ring.push(multishot(listener.as_raw_fd(), 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
    let mut entries = ring.wait(2);
    entries.sort_by_key(|entry| entry.user_data);
    all(t, &entries);
    let _late = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(link_timeout_bounds_its_life as link_timeout => "
    cqe 1: ok MORE
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    no cqe
");

/// A request linked to a multishot starts when the multishot ends. If the multishot was cancelled,
/// the linked request is cancelled too.
fn linked(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1).linked());
    ring.push(nop(2));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    ring.push(cancel(1, 0, 3));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(linked => "
    cqe 1: ok MORE
    no cqe
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: 0
");

fn holds_drain(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
    ring.push(nop(3));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    // SAFETY: the call touches no memory.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
    t.sorted(&ring.wait(3));
}
case!(holds_drain => "
    cqe 1: ok MORE
    no cqe
    cqe 1: -EINVAL
    cqe 2: 0
    cqe 3: 0
");

fn skip_success(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    ring.submit();
    all(t, &ring.reap());
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.reap_in_memory(1));
}
case!(skip_success => "
    no cqe
    cqe 1: ok MORE
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1).forced_async());
    ring.submit();
    for _ in 0..2 {
        let _client = net::connected(Family::V4, &address);
        all(t, &ring.wait(1));
    }
}
case!(forced_async => "
    cqe 1: ok MORE
    cqe 1: ok MORE
");
