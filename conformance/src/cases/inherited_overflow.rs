//! Rings that several processes use: more CQEs than the CQ has room for, and the registered
//! eventfd.

use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use usring_uapi::io_uring as u;

use super::reg;
use crate::files;
use crate::names;
use crate::ring::Ring;
use crate::shared::{self, Kind, Partner, Shared};
use crate::sqe::{nop, read_at};
use crate::time;
use crate::transcript::Transcript;

/// Submits `count` NOPs, one by one. The rings of these cases have a CQ of four entries, so a fifth
/// CQE goes to the backlog.
fn nops(ring: &mut Ring, from: u64, count: u64) {
    for user_data in from..from + count {
        ring.push(nop(user_data));
        ring.submit();
    }
}

fn state(t: &mut Transcript, ring: &Ring) {
    let flags = names::sq_flags(ring.sq_flags());
    t.say(format_args!("ready {} flags {flags} overflow {}", ring.ready(), ring.cq_overflow()));
}

/// Reaps until no CQE is left. In between, calls io_uring_enter(2) to move the backlog to the CQ.
fn reap_all(t: &mut Transcript, ring: &mut Ring) {
    loop {
        let entries = ring.reap();
        t.in_order(&entries);
        if ring.sq_flags() & u::IORING_SQ_CQ_OVERFLOW == 0 {
            break;
        }
        t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    }
}

/// A child's requests complete with more CQEs than the CQ has room for, and the child exits. The
/// parent gets all CQEs in order.
fn backlog_of_a_child(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut ring = kind.ring(2, 0);
        shared::run_child(t, |t| {
            nops(&mut ring, 1, 10);
            state(t, &ring);
        });
        state(t, &ring);
        reap_all(t, &mut ring);
        state(t, &ring);
    }
}
case!(backlog_of_a_child => include_str!("inherited_overflow/backlog_of_a_child.txt"));

/// The parent's requests complete with more CQEs than the CQ has room for. A child's
/// io_uring_enter(2) moves the backlog to the CQ.
fn child_flushes_the_backlog(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut ring = kind.ring(2, 0);
        nops(&mut ring, 1, 6);
        shared::run_child(t, |t| {
            state(t, &ring);
            reap_all(t, &mut ring);
        });
        state(t, &ring);
    }
}
case!(child_flushes_the_backlog => "
    ready 4 flags CQ_OVERFLOW overflow 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    get events = 0
    cqe 5: 0
    cqe 6: 0
    child: exit 0
    ready 0 flags - overflow 0
    ready 4 flags CQ_OVERFLOW overflow 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    get events = 0
    cqe 5: 0
    cqe 6: 0
    child: exit 0
    ready 0 flags - overflow 0
");

/// The backlog keeps the CQEs of two processes' requests in the order of completion.
fn backlog_keeps_the_order(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut ring = kind.ring(2, 0);
        nops(&mut ring, 1, 3);
        shared::run_child(t, |_| nops(&mut ring, 10, 3));
        ring.catch_up();
        nops(&mut ring, 20, 3);
        reap_all(t, &mut ring);
    }
}
case!(backlog_keeps_the_order => "
    child: exit 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 10: 0
    get events = 0
    cqe 11: 0
    cqe 12: 0
    cqe 20: 0
    cqe 21: 0
    get events = 0
    cqe 22: 0
    child: exit 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 10: 0
    get events = 0
    cqe 11: 0
    cqe 12: 0
    cqe 20: 0
    cqe 21: 0
    get events = 0
    cqe 22: 0
");

/// A process is killed while CQEs of its requests are in the backlog, and while another of its
/// requests is in flight. The parent gets all CQEs of these requests.
fn backlog_of_a_killed_child(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut ring = kind.ring(2, 0);
        let shared = Shared::new();
        let (reader, writer) = files::pipe();
        let partner = Partner::start(&mut ring, |ring| {
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 100));
            ring.submit();
            nops(ring, 1, 6);
        });
        partner.kill(t);
        files::put(&writer, b"x");
        t.sorted(&ring.wait(7));
    }
}
case!(backlog_of_a_killed_child => "
    child: signal 9
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 100: -ECANCELED
    child: signal 9
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 100: -ECANCELED
");

fn register(ring: &Ring, opcode: u32, event: &OwnedFd) -> i32 {
    let number = event.as_raw_fd();
    ring.register(opcode, &raw const number, 1)
}

/// The registered eventfd counts the completions of every process's requests.
fn eventfd_counts_for_all(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let event = files::eventfd(0);
        t.result("register", register(ring, reg::EVENTFD, &event));
        shared::run_child(t, |t| {
            t.entry(&ring.one(nop(1)));
            t.say(format_args!("in the child {}", files::event_count(&event)));
            t.entry(&ring.one(nop(2)));
        });
        t.say(format_args!("in the parent {}", files::event_count(&event)));
        ring.catch_up();
        t.entry(&ring.one(nop(3)));
        shared::run_child(t, |t| t.say(format_args!("in the child {}", files::event_count(&event))));
    });
}
case!(eventfd_counts_for_all => "
    a mapped ring:
    register = 0
    cqe 1: 0
    in the child 1
    cqe 2: 0
    child: exit 0
    in the parent 1
    cqe 3: 0
    in the child 1
    child: exit 0
    a ring in shared memory:
    register = 0
    cqe 1: 0
    in the child 1
    cqe 2: 0
    child: exit 0
    in the parent 1
    cqe 3: 0
    in the child 1
    child: exit 0
");

/// The parent sleeps in poll(2) on the registered eventfd. The completion of a child's read wakes
/// it.
fn eventfd_wakes_another_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let event = files::eventfd(0);
        t.result("register", register(ring, reg::EVENTFD, &event));
        let (reader, writer) = files::pipe();
        let partner = Partner::start(ring, |ring| ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1)));
        let watcher = shared::child(|| {
            time::until_process_sleeps(shared::parent());
            files::put(&writer, b"data");
            0
        });
        let readable = files::is_readable_within(event.as_raw_fd(), Duration::from_secs(30));
        t.say(format_args!("readable {readable}, count {}", files::event_count(&event)));
        t.in_order(&ring.reap());
        shared::ended(t, watcher);
        partner.leave(t);
    });
}
case!(eventfd_wakes_another_process => "
    a mapped ring:
    register = 0
    readable true, count 1
    cqe 1: 4
    child: exit 0
    child: exit 0
    a ring in shared memory:
    register = 0
    readable true, count 1
    cqe 1: 4
    child: exit 0
    child: exit 0
");

/// A child registers an eventfd that only the child has open, and exits. The eventfd stays
/// registered, until the parent unregisters it.
fn eventfd_of_a_child(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let event = files::eventfd(0);
        shared::run_child(t, |t| {
            // SAFETY: the number is unused in the child.
            let number = unsafe { libc::dup2(event.as_raw_fd(), 500) };
            t.result("register", ring.register(reg::EVENTFD, &raw const number, 1));
        });
        t.entry(&ring.one(nop(1)));
        t.say(format_args!("count {}", files::event_count(&event)));
        t.result("register again", register(ring, reg::EVENTFD, &event));
        t.result("remove", ring.register(reg::UNREGISTER_EVENTFD, std::ptr::null::<i32>(), 0));
        shared::run_child(t, |t| {
            t.result("remove again", ring.register(reg::UNREGISTER_EVENTFD, std::ptr::null::<i32>(), 0));
        });
        t.entry(&ring.one(nop(2)));
        t.say(format_args!("count {}", files::event_count(&event)));
    });
}
case!(eventfd_of_a_child => "
    a mapped ring:
    register = 0
    child: exit 0
    cqe 1: 0
    count 1
    register again = -EBUSY
    remove = 0
    remove again = -ENXIO
    child: exit 0
    cqe 2: 0
    count 0
    a ring in shared memory:
    register = 0
    child: exit 0
    cqe 1: 0
    count 1
    register again = -EBUSY
    remove = 0
    remove again = -ENXIO
    child: exit 0
    cqe 2: 0
    count 0
");
