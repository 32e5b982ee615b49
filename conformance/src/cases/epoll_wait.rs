//! EPOLL_WAIT: a request that waits for the events of an epoll set.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::message_ring::message;
use super::reg;
use crate::files;
use crate::memory::BAD;
use crate::names;
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel, fields, link_timeout, nop, sqe};
use crate::time::milliseconds;
use crate::transcript::Transcript;

struct Set(OwnedFd);

impl Set {
    fn new() -> Set {
        // SAFETY: the call touches no memory. The descriptor is new, and nothing else owns it.
        Set(unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) })
    }

    fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn add(&self, fd: i32, events: i32, data: u64) {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: the kernel reads one event, a variable of this function.
        assert_eq!(unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }, 0);
    }
}

type Events = [libc::epoll_event; 8];

fn events() -> Events {
    [libc::epoll_event { events: 0, u64: 0 }; 8]
}

fn epoll_wait(set: i32, events: &mut Events, count: u32, user_data: u64) -> Sqe {
    Sqe { addr: events.as_mut_ptr() as u64, len: count, ..sqe(opcode::EPOLL_WAIT, set, user_data) }
}

fn show(t: &mut Transcript, events: &Events, count: usize) {
    let mut seen: Vec<(u64, u32)> = events[..count].iter().map(|event| (event.u64, event.events)).collect();
    seen.sort_unstable();
    for (data, mask) in seen {
        t.say(format_args!("event {data}: {}", names::events(mask as i32)));
    }
}

fn ready(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let (event, other) = (files::eventfd(1), files::eventfd(0));
    set.add(event.as_raw_fd(), libc::EPOLLIN, 7);
    set.add(other.as_raw_fd(), libc::EPOLLIN | libc::EPOLLOUT, 8);
    let mut there = events();
    t.entry(&ring.one(epoll_wait(set.fd(), &mut there, 8, 1)));
    show(t, &there, 2);
    t.say("level-triggered: again");
    t.entry(&ring.one(epoll_wait(set.fd(), &mut there, 8, 2)));
}
case!(ready => "
    cqe 1: 2
    event 7: IN
    event 8: OUT
    level-triggered: again
    cqe 2: 2
");

fn waiting(t: &mut Transcript, flags: u32) {
    let mut ring = Ring::flags(4, flags);
    let set = Set::new();
    let (reader, writer) = files::pipe();
    set.add(reader.as_raw_fd(), libc::EPOLLIN, 7);
    let mut there = events();
    ring.push(epoll_wait(set.fd(), &mut there, 8, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    show(t, &there, 1);
    t.say("a thread sleeps until another one writes");
    let _ = files::take(&reader, 1);
    ring.push(epoll_wait(set.fd(), &mut there, 8, 2));
    let writing = std::thread::spawn(move || {
        crate::time::long_enough_to_notice();
        files::put(&writer, b"y");
        writer
    });
    t.result("submit and wait", ring.submit_and_wait(1));
    t.in_order(&ring.reap());
    drop(writing.join());
}

fn waits(t: &mut Transcript) {
    waiting(t, 0);
    waiting(t, u::IORING_SETUP_COOP_TASKRUN);
}
case!(waits => "
    submit = 1
    no cqe
    cqe 1: 1
    event 7: IN
    a thread sleeps until another one writes
    submit and wait = 1
    cqe 2: 1
    submit = 1
    no cqe
    cqe 1: 1
    event 7: IN
    a thread sleeps until another one writes
    submit and wait = 1
    cqe 2: 1
");

fn deferred(t: &mut Transcript) {
    waiting(t, ring::DEFER);
}
case!(deferred => "
    submit = 1
    no cqe
    cqe 1: 1
    event 7: IN
    a thread sleeps until another one writes
    submit and wait = 1
    cqe 2: 1
");

fn no_more_than_asked_for(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let files: Vec<OwnedFd> = (0..4).map(|_| files::eventfd(1)).collect();
    for (data, file) in files.iter().enumerate() {
        set.add(file.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, data as u64);
    }
    let mut there = events();
    for count in [1, 2, 8] {
        t.entry(&ring.one(epoll_wait(set.fd(), &mut there, count, u64::from(count))));
    }
    t.say(format_args!("untouched behind them {}", there[4..].iter().all(|event| { event.u64 } == 0)));
}
case!(no_more_than_asked_for => "
    cqe 1: 1
    cqe 2: 2
    cqe 8: 1
    untouched behind them true
");

fn edge_and_one_shot(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let (edge, shot) = (files::eventfd(1), files::eventfd(1));
    set.add(edge.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, 1);
    set.add(shot.as_raw_fd(), libc::EPOLLIN | libc::EPOLLONESHOT, 2);
    let mut there = events();
    t.entry(&ring.one(epoll_wait(set.fd(), &mut there, 8, 1)));
    show(t, &there, 2);
    ring.push(epoll_wait(set.fd(), &mut there, 8, 2));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&shot, &1u64.to_ne_bytes());
    files::put(&edge, &1u64.to_ne_bytes());
    t.in_order(&ring.wait(1));
    show(t, &there, 1);
}
case!(edge_and_one_shot => "
    cqe 1: 2
    event 1: IN
    event 2: IN
    no cqe
    cqe 2: 1
    event 1: IN
");

/// Two EPOLL_WAIT requests wait for one epoll set. Each event goes to only one of them.
fn several(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let (one, two) = (files::eventfd(0), files::eventfd(0));
    set.add(one.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, 1);
    set.add(two.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, 2);
    let (mut first, mut second) = (events(), events());
    ring.push(epoll_wait(set.fd(), &mut first, 8, 1));
    ring.push(epoll_wait(set.fd(), &mut second, 8, 2));
    ring.submit();
    files::put(&one, &1u64.to_ne_bytes());
    let arrived = ring.wait(1);
    t.say(format_args!("completed {}", arrived.len()));
    files::put(&two, &1u64.to_ne_bytes());
    let arrived = ring.wait(1);
    t.say(format_args!("completed {}", arrived.len()));
    let mut data = [first[0].u64, second[0].u64];
    data.sort_unstable();
    t.say(format_args!("events of {data:?}"));
}
case!(several => "
    completed 1
    completed 1
    events of [1, 2]
");

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let mut there = events();
    ring.push(epoll_wait(set.fd(), &mut there, 8, 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(cancelled => "
    cqe 1: -ECANCELED
    cqe 2: 0
");

fn time_limit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let mut there = events();
    let time = milliseconds(20);
    ring.push(epoll_wait(set.fd(), &mut there, 8, 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(time_limit => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

fn chains(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let event = files::eventfd(1);
    set.add(event.as_raw_fd(), libc::EPOLLIN, 7);
    let mut there = events();
    ring.push(epoll_wait(set.fd(), &mut there, 8, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    ring.push(epoll_wait(event.as_raw_fd(), &mut there, 8, 3).linked());
    ring.push(nop(4));
    ring.submit();
    t.sorted(&ring.wait(2));
    ring.push(epoll_wait(set.fd(), &mut there, 8, 5).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    ring.push(nop(6));
    ring.submit();
    t.sorted(&ring.wait(1));
}
case!(chains => "
    cqe 1: 1
    cqe 2: 0
    cqe 3: -EINVAL
    cqe 4: -ECANCELED
    cqe 6: 0
");

fn direct_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let event = files::eventfd(0);
    set.add(event.as_raw_fd(), libc::EPOLLIN, 7);
    let number = set.fd();
    t.result("register", ring.register(reg::FILES, &raw const number, 1));
    drop(set);
    let mut there = events();
    ring.push(epoll_wait(0, &mut there, 8, 1).fixed());
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&event, &1u64.to_ne_bytes());
    t.in_order(&ring.wait(1));
    show(t, &there, 1);
}
case!(direct_descriptor => "
    register = 0
    no cqe
    cqe 1: 1
    event 7: IN
");

fn set_is_closed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let event = files::eventfd(0);
    set.add(event.as_raw_fd(), libc::EPOLLIN, 7);
    let mut there = events();
    ring.push(epoll_wait(set.fd(), &mut there, 8, 1));
    ring.submit();
    drop(set);
    files::put(&event, &1u64.to_ne_bytes());
    t.in_order(&ring.wait(1));
    show(t, &there, 1);
}
case!(set_is_closed => "
    cqe 1: 1
    event 7: IN
");

fn nested(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (outer, inner) = (Set::new(), Set::new());
    let event = files::eventfd(0);
    inner.add(event.as_raw_fd(), libc::EPOLLIN, 7);
    outer.add(inner.fd(), libc::EPOLLIN, 8);
    let mut there = events();
    ring.push(epoll_wait(outer.fd(), &mut there, 8, 1));
    ring.submit();
    files::put(&event, &1u64.to_ne_bytes());
    t.in_order(&ring.wait(1));
    show(t, &there, 1);
}
case!(nested => "
    cqe 1: 1
    event 8: IN
");

/// An epoll set contains another ring's descriptor. An EPOLL_WAIT on the epoll set completes when
/// that other ring gets a CQE.
fn set_with_another_ring(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut watched = Ring::new(4);
    let set = Set::new();
    set.add(watched.fd, libc::EPOLLIN, 7);
    let mut there = events();
    ring.push(epoll_wait(set.fd(), &mut there, 8, 1));
    ring.submit();
    t.in_order(&ring.reap());
    Ring::new(4).one(message(watched.fd, 1, 2, 3));
    t.in_order(&ring.wait(1));
    show(t, &there, 1);
    t.in_order(&watched.reap());
    t.say("emptied: no event");
    ring.push(epoll_wait(set.fd(), &mut there, 8, 2));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(set_with_another_ring => "
    no cqe
    cqe 1: 1
    event 7: IN
    cqe 1: 2
    emptied: no event
    no cqe
");

fn refused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let event = files::eventfd(1);
    set.add(event.as_raw_fd(), libc::EPOLLIN, 7);
    let fd = set.fd();
    let mut there = events();
    let mut good = || epoll_wait(fd, &mut there, 8, 1);
    t.say("fields of others");
    t.entry(&ring.one(good().with(|sqe| sqe.off = 1)));
    t.entry(&ring.one(good().op_flags(1)));
    t.each(&mut ring, good(), &fields![buf_index = 1, file_index = 1, ioprio = 1, addr3 = 1]);
    t.entry(&ring.one(good().flagged(sqe_flags::BUFFER_SELECT)));
    t.say("counts");
    t.each(&mut ring, good(), &fields![len = 0, len = u32::MAX, len = 1 << 30]);
    t.say("memory");
    t.each(&mut ring, good(), &fields![addr = 0, addr = BAD, addr = u64::MAX - 64]);
    t.say("files");
    t.entry(&ring.one(good().with(|sqe| sqe.fd = -1)));
    t.entry(&ring.one(good().with(|sqe| sqe.fd = event.as_raw_fd())));
    let memory = files::memory_file(b"x");
    t.entry(&ring.one(good().with(|sqe| sqe.fd = memory.as_raw_fd())));
    t.say("polled ring");
    t.entry(&Ring::flags(4, u::IORING_SETUP_IOPOLL).one(good()));
}
case!(refused => "
    fields of others
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: 1
    cqe 1: -EOPNOTSUPP
    counts
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    memory
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    files
    cqe 1: -EBADF
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    polled ring
    cqe 1: -EINVAL
");

fn forced_to_a_worker(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let set = Set::new();
    let event = files::eventfd(0);
    set.add(event.as_raw_fd(), libc::EPOLLIN, 7);
    let mut there = events();
    ring.push(epoll_wait(set.fd(), &mut there, 8, 1).forced_async());
    ring.submit();
    files::put(&event, &1u64.to_ne_bytes());
    t.in_order(&ring.wait(1));
    show(t, &there, 1);
}
case!(forced_to_a_worker => "
    cqe 1: 1
    event 7: IN
");

/// EPOLL_CTL accepts the flag FIXED_FILE but ignores it: it interprets the SQE's `fd` as a
/// descriptor.
fn control_of_fixed_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for flags in [sqe_flags::FIXED_FILE, sqe_flags::BUFFER_SELECT] {
        t.entry(
            &ring.one(sqe(opcode::EPOLL_CTL, -1, 1).flagged(flags).with(|sqe| sqe.len = libc::EPOLL_CTL_DEL as u32)),
        );
    }
}
case!(control_of_fixed_file => "
    cqe 1: -EBADF
    cqe 1: -EOPNOTSUPP
");
