//! Rings that several processes use: rings with setup flags, messages between rings, and poll(2) on
//! the ring's descriptor.

use std::os::fd::AsRawFd;
use std::time::Duration;

use usring_uapi::io_uring as u;

use super::inherited_wait::sleeps_in_another_call;
use super::message_ring::message;
use super::reg;
use crate::files;
use crate::names;
use crate::ring::{self, Ring};
use crate::shared::{self, Kind, Partner, Shared};
use crate::sqe::{nop, read, read_at};
use crate::time;
use crate::transcript::Transcript;

const SINGLE: u32 = u::IORING_SETUP_SINGLE_ISSUER;
const DISABLED: u32 = u::IORING_SETUP_R_DISABLED;
const GETEVENTS: u32 = u::IORING_ENTER_GETEVENTS;

fn enable(ring: &Ring) -> i32 {
    ring.register(reg::ENABLE_RINGS, std::ptr::null::<u8>(), 0)
}

fn probe(ring: &Ring) -> i32 {
    let answer = [0u8; 16 + 8 * 4];
    ring.register(reg::PROBE, answer.as_ptr(), 4)
}

/// Prints the results of several io_uring_enter(2) and io_uring_register(2) calls on a ring.
fn calls(t: &mut Transcript, ring: &Ring) {
    t.result("enter(0, 0, 0)", ring.enter(0, 0, 0));
    t.result("get events", ring.enter(0, 0, GETEVENTS));
    t.result("wait", ring.enter_for(0, 1, Duration::from_millis(10)));
    t.result("submit", ring.enter(1, 0, 0));
    t.result("register", probe(ring));
}

/// A ring with SINGLE_ISSUER refuses submissions and registrations by a child of its issuer. The
/// child can wait on a ring that has SINGLE_ISSUER alone, but not on a ring with DEFER_TASKRUN.
fn single_issuer(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        for (flags, name) in [(SINGLE, "SINGLE_ISSUER:"), (ring::DEFER, "DEFER_TASKRUN:")] {
            t.say(name);
            let mut ring = kind.ring(8, flags);
            ring.push(nop(1));
            shared::run_child(t, |t| calls(t, &ring));
            t.result("submit in the parent", ring.submit());
            t.in_order(&ring.wait(1));
        }
    }
}
case!(single_issuer => include_str!("inherited_flags/single_issuer.txt"));

/// The parent's ring has SINGLE_ISSUER. A child may nevertheless reap a CQE from it, by reading the
/// CQ in memory.
fn child_reaps_of_a_single_issuer(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut ring = kind.ring(8, SINGLE);
        ring.push(nop(1));
        t.result("submit", ring.submit());
        shared::run_child(t, |t| {
            t.result("wait", ring.enter(0, 1, GETEVENTS));
            t.in_order(&ring.reap());
        });
        t.in_order(&ring.reap());
    }
}
case!(child_reaps_of_a_single_issuer => "
    submit = 1
    wait = 0
    cqe 1: 0
    child: exit 0
    no cqe
    submit = 1
    wait = 0
    cqe 1: 0
    child: exit 0
    no cqe
");

/// The process that enables a disabled ring becomes the ring's single issuer. Here that process is
/// a child of the process that made the ring.
fn child_enables(t: &mut Transcript) {
    for (flags, name) in [(0, "plain:"), (SINGLE, "SINGLE_ISSUER:"), (ring::DEFER, "DEFER_TASKRUN:")] {
        t.say(name);
        let mut ring = Kind::OwnMemory.ring(8, flags | DISABLED);
        ring.push(nop(1));
        ring.push(nop(2));
        shared::run_child(t, |t| {
            t.result("submit before", ring.enter(1, 0, 0));
            t.result("enable", enable(&ring));
            t.result("submit", ring.enter(1, 0, GETEVENTS));
        });
        t.result("enable in the parent", enable(&ring));
        t.result("submit in the parent", ring.enter(1, 0, 0));
        t.in_order(&ring.reap());
    }
}
case!(child_enables => "
    plain:
    submit before = -EBADFD
    enable = 0
    submit = 1
    child: exit 0
    enable in the parent = -EBADFD
    submit in the parent = 1
    cqe 1: 0
    cqe 2: 0
    SINGLE_ISSUER:
    submit before = -EBADFD
    enable = 0
    submit = 1
    child: exit 0
    enable in the parent = -EEXIST
    submit in the parent = -EEXIST
    cqe 1: 0
    DEFER_TASKRUN:
    submit before = -EBADFD
    enable = 0
    submit = 1
    child: exit 0
    enable in the parent = -EEXIST
    submit in the parent = -EEXIST
    cqe 1: 0
");

/// The ring has COOP_TASKRUN. The process that has submitted a request sleeps in some other system
/// call. The request completes nevertheless, and the other call goes on.
fn cooperative_submitter_sleeps(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut ring = kind.ring(8, u::IORING_SETUP_COOP_TASKRUN);
        sleeps_in_another_call(t, &mut ring, &Shared::new());
    }
}
case!(cooperative_submitter_sleeps => "
    cqe 1: 4
    data
    child: exit 1
    cqe 1: 4
    data
    child: exit 1
");

/// The SQ thread submits for all processes. Its requests use the descriptors of the process that
/// made the ring.
fn sq_thread_has_the_creators_files(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut ring = kind.ring(8, u::IORING_SETUP_SQPOLL);
        let shared = Shared::new();
        let file = files::memory_file(b"of the parent");
        let fd = file.as_raw_fd();
        shared::run_child(t, |t| {
            let other = files::memory_file(b"of the child");
            // SAFETY: both descriptors are open and belong to this case. dup2(2) replaces the
            // child's `fd` only.
            unsafe { libc::dup2(other.as_raw_fd(), fd) };
            ring.push(read_at(fd, shared.slot(0), 64, 0, 1));
            ring.push(read_at(500, shared.slot(1), 64, 0, 2));
            // SAFETY: the number is unused in the child.
            unsafe { libc::dup2(other.as_raw_fd(), 500) };
            let count = ring.forget_pending();
            t.result("enter", ring.enter(count, 0, u::IORING_ENTER_SQ_WAKEUP));
            t.sorted(&ring.wait(2));
        });
        t.say(shared.text(0));
    }
}
case!(sq_thread_has_the_creators_files => "
    enter = 2
    cqe 1: 13
    cqe 2: -EBADF
    child: exit 0
    of the parent
    enter = 2
    cqe 1: 13
    cqe 2: -EBADF
    child: exit 0
    of the parent
");

/// The SQ thread submits a request for a child. The request accesses private memory of the process
/// that made the ring, not the child's.
fn sq_thread_has_the_creators_memory(t: &mut Transcript) {
    let mut ring = Kind::OwnMemory.ring(8, u::IORING_SETUP_SQPOLL);
    let file = files::memory_file(b"data");
    let mut buffer = *b"----";
    shared::run_child(t, |t| {
        ring.push(read(file.as_raw_fd(), &mut buffer, 0, 1));
        ring.forget_pending();
        ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
        t.in_order(&ring.wait(1));
        t.say(format_args!("in the child {}", String::from_utf8_lossy(&buffer)));
    });
    t.say(format_args!("in the parent {}", String::from_utf8_lossy(&buffer)));
}
case!(sq_thread_has_the_creators_memory => "
    cqe 1: 4
    in the child ----
    child: exit 0
    in the parent data
");

/// The process that made a ring with SQPOLL is killed. The SQ thread ends with that process.
fn sq_thread_ends_with_its_creator(t: &mut Transcript) {
    // SAFETY: prctl(2) touches no memory. Orphaned descendants get this process as their parent.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    let shared = Shared::new();
    let creator = shared::child(|| {
        let mut ring = Kind::OwnMemory.ring(8, u::IORING_SETUP_SQPOLL);
        let child = shared::child(|| {
            shared.until_step(2);
            ring.push(nop(1));
            t.result("enter", ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP));
            t.result("get events", ring.enter(0, 0, GETEVENTS));
            t.in_order(&ring.reap());
            0
        });
        shared.word(0).store(child as u32, std::sync::atomic::Ordering::SeqCst);
        shared.until_step(3);
        0
    });
    shared.until_word(0, 1);
    shared::kill(t, creator);
    shared.step(2);
    shared::ended(t, shared.word(0).load(std::sync::atomic::Ordering::SeqCst) as i32);
}
case!(sq_thread_ends_with_its_creator => "
    child: signal 9
    enter = -EOWNERDEAD
    get events = -EOWNERDEAD
    no cqe
    child: exit 0
");

/// A child uses an inherited ring with IOPOLL. It gets the results that the process that made the
/// ring would get: NOPs succeed, and reads of a memory file are refused.
fn polled_ring(t: &mut Transcript) {
    for kind in [Kind::Mapped, Kind::OwnMemory] {
        let mut ring = kind.ring(8, u::IORING_SETUP_IOPOLL);
        let file = files::memory_file(b"data");
        let mut buffer = [0u8; 4];
        shared::run_child(t, |t| {
            t.entry(&ring.one(nop(1)));
            t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 2)));
        });
        ring.catch_up();
        t.entry(&ring.one(nop(3)));
        t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 4)));
    }
}
case!(polled_ring => "
    cqe 1: 0
    cqe 2: -EOPNOTSUPP
    child: exit 0
    cqe 3: 0
    cqe 4: -EOPNOTSUPP
    cqe 1: 0
    cqe 2: -EOPNOTSUPP
    child: exit 0
    cqe 3: 0
    cqe 4: -EOPNOTSUPP
");

/// A child makes a ring and sends messages from it to the inherited ring. The parent waits on the
/// inherited ring.
fn message_to_the_parent(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let target = ring.fd;
        let child = shared::child(|| {
            time::until_process_sleeps(shared::parent());
            let mut own = Ring::new(4);
            let sent = own.one(message(target, 0xfeed, 7, 1));
            shared.until_step(1);
            sent.res
        });
        t.result("enter", ring.enter(0, 1, GETEVENTS));
        t.in_order(&ring.reap());
        shared.step(1);
        shared::ended(t, child);
    });
}
case!(message_to_the_parent => "
    a mapped ring:
    enter = 0
    cqe 65261: 7
    child: exit 0
    a ring in shared memory:
    enter = 0
    cqe 65261: 7
    child: exit 0
");

/// A child sends a message from one inherited ring to another.
fn message_between_inherited_rings(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let mut other = Ring::new(4);
        shared::run_child(t, |t| t.entry(&ring.one(message(other.fd, 0xfeed, 7, 1))));
        t.in_order(&other.reap());
        shared::run_child(t, |t| t.entry(&other.one(message(ring.fd, 0xbead, 8, 2))));
        t.in_order(&ring.reap());
    });
}
case!(message_between_inherited_rings => "
    a mapped ring:
    cqe 1: 0
    child: exit 0
    cqe 65261: 7
    cqe 2: 0
    child: exit 0
    cqe 48813: 8
    a ring in shared memory:
    cqe 1: 0
    child: exit 0
    cqe 65261: 7
    cqe 2: 0
    child: exit 0
    cqe 48813: 8
");

/// A child makes a ring that shares the workers of the inherited ring (ATTACH_WQ).
fn child_attaches_to_the_ring(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        shared::run_child(t, |t| {
            let attached = Ring::with(4, |params| {
                params.flags = u::IORING_SETUP_ATTACH_WQ;
                params.wq_fd = ring.fd as u32;
            });
            match attached {
                Ok(mut own) => t.entry(&own.one(nop(1))),
                Err(error) => t.say(names::result(error)),
            }
        });
    });
}
case!(child_attaches_to_the_ring => "
    a mapped ring:
    cqe 1: 0
    child: exit 0
    a ring in shared memory:
    cqe 1: 0
    child: exit 0
");

/// poll(2) on the ring's descriptor reports the completions of every process's requests.
fn ring_is_readable_for_all(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let partner = Partner::start(ring, |ring| ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1)));
        let fd = ring.fd;
        t.say(format_args!("before {}", files::is_readable_within(fd, Duration::from_millis(10))));
        let watcher = shared::child(|| {
            time::until_process_sleeps(shared::parent());
            files::put(&writer, b"data");
            0
        });
        t.say(format_args!("then {}", files::is_readable_within(fd, Duration::from_secs(30))));
        shared::ended(t, watcher);
        shared::run_child(t, |t| {
            t.say(format_args!("in a child {}", files::is_readable_within(fd, Duration::from_secs(30))));
            t.in_order(&ring.reap());
        });
        t.say(format_args!("after {}", files::is_readable_within(fd, Duration::from_millis(10))));
        partner.leave(t);
    });
}
case!(ring_is_readable_for_all => "
    a mapped ring:
    before false
    then true
    child: exit 0
    in a child true
    cqe 1: 4
    child: exit 0
    after false
    child: exit 0
    a ring in shared memory:
    before false
    then true
    child: exit 0
    in a child true
    cqe 1: 4
    child: exit 0
    after false
    child: exit 0
");

/// The process that made the ring polls the ring's descriptor before a child uses the ring. When a
/// request of the child completes later, the descriptor becomes readable.
fn maker_polls_before_the_child_begins(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let fd = ring.fd;
        t.say(format_args!("before {}", files::is_readable_within(fd, Duration::from_millis(10))));
        let child = shared::child(|| {
            time::until_process_sleeps(shared::parent());
            ring.push(nop(1));
            ring.submit();
            0
        });
        t.say(format_args!("then {}", files::is_readable_within(fd, Duration::from_secs(30))));
        shared::ended(t, child);
        ring.catch_up();
        shared::run_child(t, |t| t.in_order(&ring.reap()));
        t.say(format_args!("after {}", files::is_readable_within(fd, Duration::from_millis(10))));
    });
}
case!(maker_polls_before_the_child_begins => "
    a mapped ring:
    before false
    then true
    child: exit 0
    cqe 1: 0
    child: exit 0
    after false
    a ring in shared memory:
    before false
    then true
    child: exit 0
    cqe 1: 0
    child: exit 0
    after false
");

/// The process that made the ring polls the ring's descriptor twice. In between, a child submits a
/// request and reaps its CQE. So the descriptor is not readable at the second poll.
fn child_takes_its_cqe_before_the_maker_polls(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let fd = ring.fd;
        t.say(format_args!("before {}", files::is_readable_within(fd, Duration::from_millis(10))));
        shared::run_child(t, |t| t.entry(&ring.one(nop(1))));
        t.say(format_args!("after {}", files::is_readable_within(fd, Duration::from_millis(10))));
    });
}
case!(child_takes_its_cqe_before_the_maker_polls => "
    a mapped ring:
    before false
    cqe 1: 0
    child: exit 0
    after false
    a ring in shared memory:
    before false
    cqe 1: 0
    child: exit 0
    after false
");
