//! CONNECT requests that wait until the listener's queue has room for a connection.

use super::accepted;
use crate::cases::accept::is_ready;
use crate::files;
use crate::net::{self, Address, Family};
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel, link_timeout, nop};
use crate::transcript::Transcript;
use std::os::fd::{AsRawFd, OwnedFd};
use usring_uapi::{Timespec, io_uring as u};

/// Fills a listener's queue with connections, and returns their clients. While the queue is full,
/// the kernel drops the SYN of a new connection, and the client's kernel repeats the SYN after a
/// second.
fn full(listener: &OwnedFd, address: &Address) -> Vec<OwnedFd> {
    let mut clients = Vec::new();
    loop {
        let client = net::stream(Family::V4);
        files::set_nonblocking(&client, true);
        net::connect_now(client.as_raw_fd(), address);
        let mut one = libc::pollfd { fd: client.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: the array has one element.
        let done = unsafe { libc::poll(&raw mut one, 1, 30) == 1 };
        if !done {
            return clients;
        }
        clients.push(client);
        assert!(clients.len() < 64, "a queue of {} never fills", listener.as_raw_fd());
    }
}

fn waits_for_room(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    t.result("submit", ring.submit());
    t.entry(&ring.one(nop(2)));
    t.say(format_args!("it is {}", crate::cases::socket::describe(client.as_raw_fd())));
    for _ in &queued {
        drop(accepted(&listener));
    }
    t.in_order(&ring.wait(1));
    t.result("connect(2)", net::connect_now(client.as_raw_fd(), &address));
}
case!(waits_for_room => "
    submit = 1
    cqe 2: 0
    it is close-on-exec\x20
    cqe 1: 0
    connect(2) = -EISCONN
");

fn waits_cancelled(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
    drop((queued, client, listener, ring));
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}
case!(waits_cancelled => "
    cqe 2: 0
    cqe 1: -ECANCELED
    nothing left open true
");

fn waits_link_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    let time = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    ring.push(net::connect(client.as_raw_fd(), &address, 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    drop(queued);
}
case!(waits_link_timeout => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

fn waits_and_ring_closes(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    let mut ring = Ring::new(4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    ring.submit();
    t.in_order(&ring.reap());
    drop(ring);
    drop((queued, client, listener));
    let gone = crate::time::until(|| files::open_numbers() == before);
    t.say(format_args!("nothing left open {gone}"));
}
case!(waits_and_ring_closes => "
    no cqe
    nothing left open true
");

/// The program has begun a connection by connect(2), which is still in progress. A CONNECT request
/// on that socket then gets -EALREADY.
fn begun_by_a_call(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    files::set_nonblocking(&client, true);
    t.result("connect(2)", net::connect_now(client.as_raw_fd(), &address));
    t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
    drop(queued);
}
case!(begun_by_a_call => "
    connect(2) = -EINPROGRESS
    cqe 1: -EALREADY
");

/// Fills the queue of a unix listener with connections, so that further CONNECTs wait. Returns the
/// clients of the queued connections.
fn unix_full(listener: &OwnedFd) -> Vec<OwnedFd> {
    let address = net::address_of(listener.as_raw_fd());
    let mut clients = Vec::new();
    loop {
        let client = net::stream(Family::Unix);
        files::set_nonblocking(&client, true);
        if net::connect_now(client.as_raw_fd(), &address) != 0 {
            return clients;
        }
        clients.push(client);
    }
}

fn unix_waits_for_room(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::Unix, 1);
    let queued = unix_full(&listener);
    let client = net::stream(Family::Unix);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    t.result("submit", ring.submit());
    t.entry(&ring.one(nop(2)));
    for _ in 0..=queued.len() {
        crate::time::until(|| is_ready(&listener));
        drop(accepted(&listener));
    }
    t.in_order(&ring.wait(1));
}
case!(unix_waits_for_room => "
    submit = 1
    cqe 2: 0
    cqe 1: 0
");

/// CONNECT of a unix socket with O_NONBLOCK gets -EAGAIN if the listener's queue is full. It cannot
/// wait, because poll(2) of a unix socket does not report room in the queue.
fn unix_nonblocking_has_no_room(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::Unix, 1);
    let queued = unix_full(&listener);
    let client = net::stream(Family::Unix);
    files::set_nonblocking(&client, true);
    t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
    drop(queued);
}
case!(unix_nonblocking_has_no_room => "cqe 1: -EAGAIN");

fn unix_waits_and_ring_closes(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
    let (listener, address) = net::listener_for(Family::Unix, 1);
    let queued = unix_full(&listener);
    let client = net::stream(Family::Unix);
    let mut ring = Ring::new(4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    drop((ring, queued, client, listener));
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}
case!(unix_waits_and_ring_closes => "
    no cqe
    nothing left open true
");

fn unix_listener_goes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::Unix, 1);
    let queued = unix_full(&listener);
    let client = net::stream(Family::Unix);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    t.result("submit", ring.submit());
    drop(listener);
    t.in_order(&ring.wait(1));
    drop(queued);
}
case!(unix_listener_goes => "
    submit = 1
    cqe 1: -ECONNREFUSED
");

/// A worker executes a CONNECT and waits for room in the queue of a unix listener. Then a CANCEL
/// names the CONNECT.
fn cancelled_behind_a_full_queue(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(4, flags);
        let (listener, address) = net::listener_for(Family::Unix, 0);
        let clients: Vec<OwnedFd> = (0..2).map(|_| net::stream(Family::Unix)).collect();
        t.entry(&ring.one(net::connect(clients[0].as_raw_fd(), &address, 1)));
        ring.push(net::connect(clients[1].as_raw_fd(), &address, 2));
        ring.submit();
        crate::time::long_enough_to_notice();
        ring.push(cancel(2, 0, 3));
        ring.submit();
        // On a ring with deferred task work, the kernel passes the request to a worker only when
        // the ring's owner runs task work. The cancel came before that and has not found the
        // request, so the request connects.
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        drop(accepted(&listener));
        t.sorted(&ring.wait(2));
    }
}
case!(cancelled_behind_a_full_queue => "
    cqe 1: 0
    cqe 2: -EINTR
    cqe 3: -EALREADY
    cqe 1: 0
    cqe 2: 0
    cqe 3: -ENOENT
", usring => "
    cqe 1: 0
    cqe 2: -EINTR
    cqe 3: -EALREADY
    cqe 1: 0
    cqe 2: -EINTR
    cqe 3: -EALREADY
", because "the request has a worker from its submission on");
