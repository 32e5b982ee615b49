//! The ring's descriptor in poll(2), epoll(7) and select(2). It is readable while the CQ contains
//! CQEs, and writable while the SQ has room.

use usring_uapi::io_uring as u;

use crate::names;
use crate::ring::Ring;
use crate::sqe::{Change, nop, poll, timeout};
use crate::time::milliseconds;
use crate::transcript::{Transcript, timed};

mod deferred;

const IN: i16 = libc::POLLIN;

/// Calls poll(2) on the descriptor `fd`. Returns the call's result and the reported events as text.
fn poll_once(fd: i32, events: i16, timeout: i32) -> String {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the array has one entry.
    let answer = unsafe { libc::poll(&mut entry, 1, timeout) };
    format!("{answer} {}", names::events(entry.revents.into()))
}

fn complete(ring: &mut Ring, user_data: u64) {
    ring.push(nop(user_data));
    ring.submit();
}

fn by_poll(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.say(poll_once(ring.fd, IN, 0));
    complete(&mut ring, 1);
    t.say(poll_once(ring.fd, IN, 0));
    t.say(poll_once(ring.fd, IN, 1000));
    // poll(2) is level-triggered: the descriptor stays readable until the CQE is reaped.
    t.say(poll_once(ring.fd, IN, 0));
    t.in_order(&ring.reap());
    t.say(poll_once(ring.fd, IN, 0));
}
case!(by_poll as poll => "
    0 -
    1 IN
    1 IN
    1 IN
    cqe 1: 0
    0 -
");

fn by_ppoll(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let ppoll = |ring: &Ring| {
        let mut entry = libc::pollfd { fd: ring.fd, events: IN, revents: 0 };
        let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // SAFETY: the pollfd and the timeout are variables of this function.
        let answer = unsafe { libc::ppoll(&mut entry, 1, &time, std::ptr::null()) };
        format!("{answer} {}", names::events(entry.revents.into()))
    };
    t.say(ppoll(&ring));
    complete(&mut ring, 1);
    t.say(ppoll(&ring));
    ring.reap();
    t.say(ppoll(&ring));
}
case!(by_ppoll as ppoll => "
    0 -
    1 IN
    0 -
");

fn select(fd: i32, milliseconds: i64) -> i32 {
    let mut set: libc::fd_set = crate::memory::zeroed();
    let mut time = libc::timeval { tv_sec: 0, tv_usec: milliseconds * 1000 };
    let none = std::ptr::null_mut();
    // SAFETY: the descriptor is below FD_SETSIZE. The descriptor set and the timeout are variables
    // of this function.
    unsafe {
        libc::FD_SET(fd, &mut set);
        let answer = libc::select(fd + 1, &mut set, none, none, &mut time);
        if answer == 1 && !libc::FD_ISSET(fd, &set) { -1 } else { answer }
    }
}

fn by_select(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("empty", select(ring.fd, 0));
    complete(&mut ring, 1);
    t.result("one there", select(ring.fd, 0));
    t.result("one there, with time", select(ring.fd, 500));
    ring.reap();
    t.result("reaped", select(ring.fd, 0));
}
case!(by_select as select => "
    empty = 0
    one there = 1
    one there, with time = 1
    reaped = 0
");

struct Epoll {
    fd: i32,
}

impl Epoll {
    fn new() -> Epoll {
        // SAFETY: the call touches no memory. The descriptor stays open until the process ends.
        Epoll { fd: unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } }
    }

    fn control(&self, operation: i32, fd: i32, events: i32) -> i32 {
        let mut event = libc::epoll_event { events: events as u32, u64: 7 };
        // SAFETY: the event is a variable of this function.
        crate::syscalls::answer(unsafe { libc::epoll_ctl(self.fd, operation, fd, &mut event) })
    }

    fn add(&self, fd: i32, events: i32) -> i32 {
        self.control(libc::EPOLL_CTL_ADD, fd, events)
    }

    /// Calls epoll_wait(2), and repeats the call after -EINTR: on the kernel, the ring's task work
    /// interrupts a thread that sleeps in it.
    fn wait(&self, timeout: i32) -> String {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let count = loop {
            // SAFETY: the array has four events.
            let count = unsafe { libc::epoll_wait(self.fd, events.as_mut_ptr(), 4, timeout) };
            if count >= 0 || crate::syscalls::errno() != libc::EINTR {
                break count;
            }
        };
        let first = events[0];
        let (bits, data) = (first.events, first.u64);
        if count > 0 {
            format!("{count} {} data {data}", names::events(bits as i32))
        } else {
            names::result(crate::syscalls::answer(count))
        }
    }
}

fn by_epoll(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let epoll = Epoll::new();
    t.result("add", epoll.add(ring.fd, libc::EPOLLIN));
    t.say(epoll.wait(0));
    complete(&mut ring, 1);
    t.say(epoll.wait(1000));
    t.say(epoll.wait(0));
    t.in_order(&ring.reap());
    t.say(epoll.wait(0));
    complete(&mut ring, 2);
    t.say(epoll.wait(1000));
}
case!(by_epoll as epoll => "
    add = 0
    0
    1 IN data 7
    1 IN data 7
    cqe 1: 0
    0
    1 IN data 7
");

/// Edge-triggered epoll reports an event for each new CQE. It reports none for a CQE that was
/// already in the CQ.
fn epoll_edge(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let epoll = Epoll::new();
    t.result("add", epoll.add(ring.fd, libc::EPOLLIN | libc::EPOLLET));
    t.say(epoll.wait(0));
    complete(&mut ring, 1);
    t.say(epoll.wait(1000));
    t.say(epoll.wait(0));
    complete(&mut ring, 2);
    t.say(epoll.wait(1000));
    t.say(epoll.wait(0));
    ring.reap();
    t.say(epoll.wait(0));
    complete(&mut ring, 3);
    t.say(epoll.wait(1000));
}
case!(epoll_edge => "
    add = 0
    0
    1 IN data 7
    0
    1 IN data 7
    0
    0
    1 IN data 7
");

fn epoll_oneshot(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let epoll = Epoll::new();
    let once = libc::EPOLLIN | libc::EPOLLONESHOT;
    t.result("add", epoll.add(ring.fd, once));
    complete(&mut ring, 1);
    t.say(epoll.wait(1000));
    complete(&mut ring, 2);
    t.say(epoll.wait(0));
    t.result("modify", epoll.control(libc::EPOLL_CTL_MOD, ring.fd, once));
    t.say(epoll.wait(1000));
}
case!(epoll_oneshot => "
    add = 0
    1 IN data 7
    0
    modify = 0
    1 IN data 7
");

/// The program reaps a CQE without a system call, by a store to the CQ head. After that, the
/// descriptor is not readable.
fn reaped_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for user_data in 1..=3 {
        complete(&mut ring, user_data);
    }
    for _ in 0..4 {
        t.say(poll_once(ring.fd, IN, 0));
        ring.peek();
    }
}
case!(reaped_in_memory => "
    1 IN
    1 IN
    1 IN
    0 -
");

fn epoll_after_reap(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let epoll = Epoll::new();
    t.result("add", epoll.add(ring.fd, libc::EPOLLIN));
    for round in 0..5 {
        complete(&mut ring, round);
        t.say(epoll.wait(1000));
        ring.reap();
        let (answer, waited) = timed(|| epoll.wait(10));
        t.say(format_args!("empty: {answer}"));
        t.between("slept", waited, 9, 30_000);
    }
}
case!(epoll_after_reap => "
    add = 0
    1 IN data 7
    empty: 0
    slept: after 9 to 30000 ms
    1 IN data 7
    empty: 0
    slept: after 9 to 30000 ms
    1 IN data 7
    empty: 0
    slept: after 9 to 30000 ms
    1 IN data 7
    empty: 0
    slept: after 9 to 30000 ms
    1 IN data 7
    empty: 0
    slept: after 9 to 30000 ms
");

fn select_after_reap(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for round in 0..3 {
        complete(&mut ring, round);
        t.result("one there", select(ring.fd, 500));
        ring.reap();
        t.result("reaped", select(ring.fd, 10));
    }
}
case!(select_after_reap => "
    one there = 1
    reaped = 0
    one there = 1
    reaped = 0
    one there = 1
    reaped = 0
");

/// Makes a ring with a timeout request that expires after `after` milliseconds. The caller sleeps
/// in poll(2) by then, so the expiry has to wake it.
fn with_timeout(after: i64) -> (Ring, Box<usring_uapi::Timespec>) {
    let mut ring = Ring::new(8);
    let time = Box::new(milliseconds(after));
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    (ring, time)
}

fn sleeper_is_woken(t: &mut Transcript) {
    let (mut ring, _time) = with_timeout(20);
    t.say(poll_once(ring.fd, IN, 5000));
    t.in_order(&ring.reap());
    t.say(poll_once(ring.fd, IN, 0));
}
case!(sleeper_is_woken => "
    1 IN
    cqe 1: -ETIME
    0 -
");

fn epoll_sleeper_is_woken(t: &mut Transcript) {
    let (mut ring, _time) = with_timeout(20);
    let epoll = Epoll::new();
    t.result("add", epoll.add(ring.fd, libc::EPOLLIN));
    t.say(epoll.wait(5000));
    t.in_order(&ring.reap());
    t.say(epoll.wait(0));
}
case!(epoll_sleeper_is_woken => "
    add = 0
    1 IN data 7
    cqe 1: -ETIME
    0
");

fn select_sleeper_is_woken(t: &mut Transcript) {
    let (mut ring, _time) = with_timeout(20);
    t.result("select", select(ring.fd, 900));
    t.in_order(&ring.reap());
}
case!(select_sleeper_is_woken => "
    select = 1
    cqe 1: -ETIME
");

/// An event loop waits by epoll and reaps. epoll must report every completion, and must not report
/// the ring while the CQ is empty.
fn many_loops(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let epoll = Epoll::new();
    t.result("add", epoll.add(ring.fd, libc::EPOLLIN));
    let time = milliseconds(1);
    let (mut found, mut empty) = (0, 0);
    for round in 0..100 {
        ring.push(timeout(&time, 0, 0, round));
        ring.submit();
        let answer = epoll.wait(5000);
        let entries = ring.reap();
        empty += u32::from(!answer.starts_with('1') || entries.is_empty());
        found += entries.len();
    }
    t.say(format_args!("found {found} empty {empty}"));
}
case!(many_loops => "
    add = 0
    found 100 empty 0
");

/// The ring's descriptor reports POLLOUT while the SQ has room for an SQE.
fn writable(t: &mut Transcript) {
    let mut ring = Ring::new(2);
    t.say(poll_once(ring.fd, IN | libc::POLLOUT, 0));
    ring.push(nop(1));
    ring.push(nop(2));
    t.say(poll_once(ring.fd, IN | libc::POLLOUT, 0));
    t.result("submit", ring.submit());
    t.say(poll_once(ring.fd, IN | libc::POLLOUT, 0));
}
case!(writable => "
    1 OUT
    0 -
    submit = 2
    1 IN|OUT
", usring => "
    1 OUT
    1 OUT
    submit = 2
    1 IN|OUT
", because
    "a ring's descriptor is an eventfd underneath, which is always writable; that the SQ is full does not show");

/// A backlog makes the ring's descriptor readable, too.
fn backlog(t: &mut Transcript) {
    let mut ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 4;
    })
    .expect("a ring with a small CQ");
    for user_data in 0..6 {
        complete(&mut ring, user_data);
    }
    t.say(poll_once(ring.fd, IN, 0));
    t.say(format_args!("reaped {}", ring.reap().len()));
    t.say(poll_once(ring.fd, IN, 0));
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    t.say(format_args!("reaped {}", ring.reap().len()));
    t.say(poll_once(ring.fd, IN, 0));
}
case!(backlog => "
    1 IN
    reaped 4
    1 IN
    reaped 2
    0 -
");

fn epoll_modify_and_delete(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let epoll = Epoll::new();
    t.result("modify, not there", epoll.control(libc::EPOLL_CTL_MOD, ring.fd, libc::EPOLLIN));
    t.result("delete, not there", epoll.control(libc::EPOLL_CTL_DEL, ring.fd, 0));
    t.result("add", epoll.add(ring.fd, 0));
    t.result("add again", epoll.add(ring.fd, libc::EPOLLIN));
    complete(&mut ring, 1);
    t.say(epoll.wait(0));
    t.result("modify", epoll.control(libc::EPOLL_CTL_MOD, ring.fd, libc::EPOLLIN));
    t.say(epoll.wait(1000));
    t.result("delete", epoll.control(libc::EPOLL_CTL_DEL, ring.fd, 0));
    t.say(epoll.wait(0));
}
case!(epoll_modify_and_delete => "
    modify, not there = -ENOENT
    delete, not there = -ENOENT
    add = 0
    add again = -EEXIST
    0
    modify = 0
    1 IN data 7
    delete = 0
    0
");

fn watched_by_another_ring(t: &mut Transcript) {
    let (mut ring, mut other) = (Ring::new(4), Ring::new(4));
    other.push(poll(ring.fd, IN, 1));
    other.submit();
    t.in_order(&other.reap());
    complete(&mut ring, 5);
    t.in_order(&other.wait(1));
    ring.reap();
    // The program has reaped the CQE of the polled ring, so the next poll waits.
    other.push(poll(ring.fd, IN, 2));
    other.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&other.reap());
    complete(&mut ring, 6);
    t.in_order(&other.wait(1));
}
case!(watched_by_another_ring => "
    no cqe
    cqe 1: 1
    no cqe
    cqe 2: 1
");

/// A ring polls its own descriptor. The CQE of another request on the ring completes that poll.
fn watched_by_itself(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(poll(ring.fd, IN, 1));
    ring.submit();
    t.in_order(&ring.reap());
    complete(&mut ring, 2);
    t.sorted(&ring.wait(2));
    ring.push(poll(ring.fd, IN, 3).with(|sqe| sqe.len = 0));
    ring.submit();
    t.result("close", ring.close());
}
case!(watched_by_itself => "
    no cqe
    cqe 1: 1
    cqe 2: 0
    close = 0
");

fn by_another_thread(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let fd = ring.fd;
    let thread = std::thread::spawn(move || poll_once(fd, IN, 5000));
    crate::time::long_enough_to_notice();
    complete(&mut ring, 1);
    t.say(thread.join().unwrap_or_default());
    t.in_order(&ring.reap());
}
case!(by_another_thread => "
    1 IN
    cqe 1: 0
");

fn epoll_pwait_mask(t: &mut Transcript) {
    let (mut ring, _time) = with_timeout(10);
    let epoll = Epoll::new();
    t.result("add", epoll.add(ring.fd, libc::EPOLLIN));
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let mut mask: libc::sigset_t = crate::memory::zeroed();
    // SAFETY: the signal mask and the events are variables of this function.
    let count = unsafe {
        libc::sigfillset(&mut mask);
        loop {
            let count = libc::epoll_pwait(epoll.fd, events.as_mut_ptr(), 4, 5000, &mask);
            if count >= 0 || crate::syscalls::errno() != libc::EINTR {
                break count;
            }
        }
    };
    t.result("epoll_pwait", count);
    t.in_order(&ring.reap());
}
case!(epoll_pwait_mask => "
    add = 0
    epoll_pwait = 1
    cqe 1: -ETIME
");

fn sq_thread(t: &mut Transcript) {
    let mut ring = Ring::with(8, |params| {
        params.flags = u::IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 50;
    })
    .expect("a ring with a thread");
    for round in 0..3 {
        ring.push(nop(round));
        ring.forget_pending();
        ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
        t.say(poll_once(ring.fd, IN, 5000));
        t.in_order(&ring.reap());
        t.say(poll_once(ring.fd, IN, 0));
    }
}
case!(sq_thread => "
    1 IN
    cqe 0: 0
    0 -
    1 IN
    cqe 1: 0
    0 -
    1 IN
    cqe 2: 0
    0 -
");
