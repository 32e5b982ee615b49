//! Multishot polls of ring descriptors, and of epoll sets that contain ring descriptors. In some
//! cases the polled ring is the poll's own.

use super::reg;
use super::{IN, multishot, show_all};
use crate::files;
use crate::ring::{self, Ring};
use crate::sqe::nop;
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::io_uring as u;

/// Makes an epoll set that watches these descriptors for input.
fn set_of(numbers: &[i32]) -> std::os::fd::OwnedFd {
    // SAFETY: the descriptor is new, and nothing else owns it.
    let set = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(libc::epoll_create1(0)) };
    for number in numbers {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open, and the event is a variable of this function.
        assert_eq!(unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, *number, &mut event) }, 0);
    }
    set
}

/// A multishot polls an epoll set that contains the descriptor of the multishot's own ring. A CQE
/// of the multishot makes the ring and so the epoll set readable. This event ends the multishot.
fn set_with_own_ring(t: &mut Transcript) {
    for flags in [0, ring::DEFER, u::IORING_SETUP_COOP_TASKRUN] {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::pipe();
        let set = set_of(&[ring.fd, reader.as_raw_fd()]);
        ring.push(multishot(set.as_raw_fd(), IN, 1));
        t.result("submit", ring.submit());
        t.say("a completion");
        ring.push(nop(2));
        ring.submit();
        show_all(t, &mut ring);
        t.say("another file of the set");
        files::put(&writer, b"x");
        show_all(t, &mut ring);
        t.say("a completion");
        ring.push(nop(3));
        ring.submit();
        show_all(t, &mut ring);
    }
}
case!(set_with_own_ring => include_str!("set_with_own_ring.txt"));

/// A multishot polls the descriptor of its own ring.
fn own_ring(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(8, flags);
        ring.push(multishot(ring.fd, IN, 1));
        t.result("submit", ring.submit());
        show_all(t, &mut ring);
        for user_data in [2, 3] {
            ring.push(nop(user_data));
            ring.submit();
            show_all(t, &mut ring);
        }
    }
}
case!(own_ring => "
    submit = 1
    0 come
    2 come
    cqe 1: IN -
    cqe 2: 0
    1 come
    cqe 3: 0
    submit = 1
    0 come
    2 come
    cqe 1: IN -
    cqe 2: 0
    1 come
    cqe 3: 0
");

/// Each of two rings has a multishot poll of the other ring's descriptor.
fn ring_that_watches_back(t: &mut Transcript) {
    let (mut one, mut other) = (Ring::new(8), Ring::new(8));
    one.push(multishot(other.fd, IN, 1));
    t.result("submit", one.submit());
    other.push(multishot(one.fd, IN, 1));
    t.result("submit", other.submit());
    other.push(nop(2));
    other.submit();
    for _ in 0..2 {
        t.say("one");
        show_all(t, &mut one);
        t.say("the other");
        show_all(t, &mut other);
    }
}
case!(ring_that_watches_back => "
    submit = 1
    submit = 1
    one
    1 come
    cqe 1: IN -
    the other
    2 come
    cqe 1: IN -
    cqe 2: 0
    one
    0 come
    the other
    0 come
");

/// A multishot polls a ring whose CQ already contains CQEs. That ring is first the multishot's own,
/// and then another one.
fn ring_with_completions(t: &mut Transcript) {
    for own in [true, false] {
        let (mut ring, mut other) = (Ring::new(8), Ring::new(8));
        let watched = if own { ring.fd } else { other.fd };
        let mut complete = |ring: &mut Ring, user_data| {
            let ring = if own { ring } else { &mut other };
            ring.push(nop(user_data));
            ring.submit();
        };
        complete(&mut ring, 2);
        ring.push(multishot(watched, IN, 1));
        t.result("submit", ring.submit());
        show_all(t, &mut ring);
        complete(&mut ring, 3);
        show_all(t, &mut ring);
        complete(&mut ring, 4);
        show_all(t, &mut ring);
    }
}
case!(ring_with_completions => "
    submit = 1
    3 come
    cqe 1: IN MORE
    cqe 1: IN -
    cqe 2: 0
    1 come
    cqe 3: 0
    1 come
    cqe 4: 0
    submit = 1
    1 come
    cqe 1: IN MORE
    1 come
    cqe 1: IN -
    0 come
", usring => "
    submit = 1
    2 come
    cqe 1: IN -
    cqe 2: 0
    1 come
    cqe 3: 0
    1 come
    cqe 4: 0
    submit = 1
    1 come
    cqe 1: IN -
    0 come
    0 come
", because "older completions of a ring cannot be distinguished from new ones");

/// A multishot polls an epoll set that contains a pipe and another ring. Readiness of the pipe does
/// not end the poll. Readiness of the ring ends it.
fn set_with_another_ring(t: &mut Transcript) {
    let (mut ring, mut other) = (Ring::new(8), Ring::new(8));
    let (reader, writer) = files::pipe();
    let set = set_of(&[other.fd, reader.as_raw_fd()]);
    ring.push(multishot(set.as_raw_fd(), IN, 1));
    t.result("submit", ring.submit());
    for _ in 0..2 {
        files::put(&writer, b"x");
        show_all(t, &mut ring);
    }
    for user_data in [2, 3] {
        other.push(nop(user_data));
        other.submit();
        show_all(t, &mut ring);
    }
}
case!(set_with_another_ring => "
    submit = 1
    1 come
    cqe 1: IN MORE
    1 come
    cqe 1: IN MORE
    1 come
    cqe 1: IN -
    0 come
");

/// A multishot polls an epoll set that contains the eventfd that is registered with the poll's own
/// ring.
fn set_with_own_eventfd(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    let number = event.as_raw_fd();
    assert_eq!(ring.register(reg::EVENTFD, &raw const number, 1), 0);
    let set = set_of(&[event.as_raw_fd()]);
    ring.push(multishot(set.as_raw_fd(), IN, 1));
    t.result("submit", ring.submit());
    for user_data in [2, 3] {
        ring.push(nop(user_data));
        ring.submit();
        show_all(t, &mut ring);
    }
}
case!(set_with_own_eventfd => "
    submit = 1
    2 come
    cqe 1: IN -
    cqe 2: 0
    1 come
    cqe 3: 0
");
