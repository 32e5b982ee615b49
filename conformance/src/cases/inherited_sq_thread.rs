//! A ring with SQPOLL that several processes use. The SQ thread belongs to the process that made
//! the ring, and submits for all processes.

use std::os::fd::AsRawFd;
use std::time::Duration;

use usring_uapi::{io_uring as u, sqe_flags};

use super::reg;
use super::sq_thread::{self, asleep, hand_over, run};
use crate::files;
use crate::ring::Ring;
use crate::shared::{self, Kind, Shared};
use crate::sqe::{Change, nop, poll, read_at, timeout};
use crate::time::{self, until};
use crate::transcript::Transcript;

const WAKEUP: u32 = u::IORING_ENTER_SQ_WAKEUP;

/// A child wakes the sleeping SQ thread. When the SQ thread sleeps again, the process that made the
/// ring wakes it.
fn child_wakes_the_thread(t: &mut Transcript) {
    let mut ring = sq_thread::ring(1);
    shared::run_child(t, |t| {
        for round in 0..20 {
            assert!(until(|| asleep(&ring)), "the SQ thread does not fall asleep");
            let entries = run(&mut ring, &[nop(round)]);
            assert!(entries.len() == 1 && entries[0].res == 0, "round {round}");
        }
        t.say("20 rounds");
    });
    ring.catch_up();
    assert!(until(|| asleep(&ring)), "the SQ thread does not fall asleep");
    t.sorted(&run(&mut ring, &[nop(1)]));
}
case!(child_wakes_the_thread => "
    20 rounds
    child: exit 0
    cqe 1: 0
");

/// Three processes take turns in submitting to one ring. Between some of the turns, the SQ thread
/// falls asleep.
fn three_processes_submit(t: &mut Transcript) {
    const ROUNDS: u64 = 100;
    let mut ring = sq_thread::ring(1);
    let shared = Shared::new();
    let work = |ring: &mut Ring| {
        for round in 0..ROUNDS {
            let entries = shared.exclusively(|| {
                ring.catch_up();
                run(ring, &[nop(2 * round), nop(2 * round + 1)])
            });
            assert!(entries.len() == 2 && entries.iter().all(|entry| entry.res == 0), "round {round}");
            if round % 16 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        0
    };
    let children = [0, 1].map(|_| shared::child(|| work(&mut ring)));
    t.say(work(&mut ring));
    children.into_iter().for_each(|child| shared::ended(t, child));
}
case!(three_processes_submit => "
    0
    child: exit 0
    child: exit 0
");

/// The SQ is full, and the SQ thread sleeps. A child waits until the SQ has room, for which another
/// process has to wake the SQ thread.
fn child_waits_for_room(t: &mut Transcript) {
    let mut ring = sq_thread::ring(1);
    assert!(until(|| asleep(&ring)), "the SQ thread does not fall asleep");
    // The SQ thread first sets IORING_SQ_NEED_WAKEUP and then checks the SQ once more. The case
    // waits until that check is over, so that the thread does not see the NOPs.
    time::long_enough_to_notice();
    (1..=8).for_each(|data| ring.push(nop(data)));
    ring.forget_pending();
    let child = shared::child(|| ring.enter(0, 0, u::IORING_ENTER_SQ_WAIT));
    t.say(format_args!("sleeps {}", time::until_process_sleeps(child)));
    t.result("wakeup", ring.enter(8, 0, WAKEUP));
    shared::ended(t, child);
    t.in_order(&ring.wait(8));
}
case!(child_waits_for_room => "
    sleeps true
    wakeup = 8
    child: exit 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    cqe 8: 0
");

/// The process that made the ring closes and unmaps it. Its SQ thread goes on to submit for a
/// child.
fn creator_closes_the_ring(t: &mut Transcript) {
    let mut ring = sq_thread::ring(1);
    let shared = Shared::new();
    let child = shared::child(|| {
        t.result("enter", ring.enter(0, 0, 0));
        t.sorted(&run(&mut ring, &[nop(1)]));
        shared.step(1);
        shared.until_step(2);
        assert!(until(|| asleep(&ring)), "the SQ thread does not fall asleep");
        t.sorted(&run(&mut ring, &[nop(2)]));
        0
    });
    shared.until_step(1);
    t.result("close", ring.close());
    ring.unmap();
    shared.step(2);
    shared::ended(t, child);
}
case!(creator_closes_the_ring => "
    enter = 0
    cqe 1: 0
    close = 0
    cqe 2: 0
    child: exit 0
");

/// The process that made the ring closes the ring before its child has made any call on it. The SQ
/// thread submits for the child nevertheless.
fn creator_closes_before_the_child_begins(t: &mut Transcript) {
    let mut ring = sq_thread::ring(1);
    let shared = Shared::new();
    let child = shared::child(|| {
        shared.until_step(1);
        t.sorted(&run(&mut ring, &[nop(1)]));
        assert!(until(|| asleep(&ring)), "the SQ thread does not fall asleep");
        t.sorted(&run(&mut ring, &[nop(2)]));
        0
    });
    t.result("close", ring.close());
    ring.unmap();
    shared.step(1);
    shared::ended(t, child);
}
case!(creator_closes_before_the_child_begins => "
    close = 0
    cqe 1: 0
    cqe 2: 0
    child: exit 0
");

/// A child uses the ring and closes it. The SQ thread of the ring stays awake, so
/// IORING_SQ_NEED_WAKEUP remains unset.
fn child_closes_the_ring(t: &mut Transcript) {
    let mut ring = sq_thread::ring(10_000);
    t.sorted(&run(&mut ring, &[nop(1)]));
    shared::run_child(t, |t| {
        t.result("enter", ring.enter(0, 0, 0));
        t.result("close", ring.close());
    });
    t.say(format_args!("asks for a wake-up: {}", asleep(&ring)));
    t.sorted(&run(&mut ring, &[nop(2)]));
}
case!(child_closes_the_ring => "
    cqe 1: 0
    enter = 0
    close = 0
    child: exit 0
    asks for a wake-up: false
    cqe 2: 0
");

/// A child waits for a read that the SQ thread has submitted. During this wait, the process that
/// made the ring is killed.
fn creator_is_killed_in_a_wait(t: &mut Transcript) {
    // SAFETY: prctl(2) touches no memory. Orphaned descendants get this process as their parent.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    let shared = Shared::new();
    let (reader, _writer) = files::pipe();
    let creator = shared::child(|| {
        let mut ring = Kind::OwnMemory.ring(8, u::IORING_SETUP_SQPOLL);
        let child = shared::child(|| {
            t.result("enter", ring.enter(0, 0, 0));
            ring.push(read_at(reader.as_raw_fd(), shared.slot(8), 8, 0, 1));
            hand_over(&mut ring);
            assert!(until(|| ring.sq_head() == 1), "the SQ thread takes nothing");
            shared.step(1);
            let waited = ring.enter_for(0, 1, Duration::from_secs(30));
            shared.until_step(2);
            t.result("wait", waited);
            t.in_order(&ring.reap());
            t.result("enter", ring.enter(0, 0, WAKEUP));
            0
        });
        shared.word(0).store(child as u32, std::sync::atomic::Ordering::SeqCst);
        shared.until_step(3);
        0
    });
    shared.until_step(1);
    shared.until_word(0, 1);
    let child = shared.word(0).load(std::sync::atomic::Ordering::SeqCst) as i32;
    t.say(format_args!("sleeps {}", time::until_process_sleeps(child)));
    shared::kill(t, creator);
    shared.step(2);
    shared::ended(t, child);
}
case!(creator_is_killed_in_a_wait => "
    enter = 0
    sleeps true
    child: signal 9
    wait = 0
    cqe 1: -ECANCELED
    enter = -EOWNERDEAD
    child: exit 0
");

/// A child is killed after the SQ thread has submitted the child's poll. The poll belongs to the
/// process of the SQ thread, so it completes.
fn killed_childs_request_completes(t: &mut Transcript) {
    let mut ring = sq_thread::ring(1);
    let shared = Shared::new();
    let (reader, writer) = files::pipe();
    let child = shared::child(|| {
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
        hand_over(&mut ring);
        assert!(until(|| ring.sq_head() == 1), "the SQ thread takes nothing");
        shared.step(1);
        shared.until_step(2);
        0
    });
    shared.until_step(1);
    shared::kill(t, child);
    files::put(&writer, b"data");
    ring.catch_up();
    t.in_order(&ring.wait(1));
    t.sorted(&run(&mut ring, &[nop(2)]));
}
case!(killed_childs_request_completes => "
    child: signal 9
    cqe 1: 1
    cqe 2: 0
");

/// The parent makes a ring with SQPOLL and R_DISABLED, and a child enables it. The child and a
/// grandchild use the ring.
fn child_enables_the_thread(t: &mut Transcript) {
    let mut ring = Kind::Mapped.ring(8, u::IORING_SETUP_SQPOLL | u::IORING_SETUP_R_DISABLED);
    shared::run_child(t, |t| {
        t.result("enter", ring.enter(0, 0, WAKEUP));
        t.result("enable", ring.register(reg::ENABLE_RINGS, std::ptr::null::<u8>(), 0));
        t.sorted(&run(&mut ring, &[nop(1)]));
        shared::run_child(t, |t| t.sorted(&run(&mut ring, &[nop(2)])));
    });
    ring.catch_up();
    t.sorted(&run(&mut ring, &[nop(3)]));
}
case!(child_enables_the_thread => "
    enter = -EBADFD
    enable = 0
    cqe 1: 0
    cqe 2: 0
    child: exit 0
    child: exit 0
    cqe 3: 0
");

/// A child uses a ring with IOPOLL and SQPOLL. The SQ thread serves the child's requests, too: a
/// NOP succeeds, and a read of a memory file is refused.
fn polled_ring_of_a_child(t: &mut Transcript) {
    let mut ring = Kind::OwnMemory.ring(8, u::IORING_SETUP_SQPOLL | u::IORING_SETUP_IOPOLL);
    let shared = Shared::new();
    let file = files::memory_file(b"data");
    shared::run_child(t, |t| {
        t.sorted(&run(&mut ring, &[nop(1)]));
        t.sorted(&run(&mut ring, &[read_at(file.as_raw_fd(), shared.slot(0), 4, 0, 2)]));
    });
    ring.catch_up();
    t.sorted(&run(&mut ring, &[nop(3)]));
}
case!(polled_ring_of_a_child => "
    cqe 1: 0
    cqe 2: -EOPNOTSUPP
    child: exit 0
    cqe 3: 0
");

/// Makes a ring with SQPOLL that asks to share the SQ thread of `other` (ATTACH_WQ).
fn attached_to(other: &Ring) -> Ring {
    let attached = Ring::with(8, |params| {
        params.flags = u::IORING_SETUP_SQPOLL | u::IORING_SETUP_ATTACH_WQ;
        params.sq_thread_idle = 1;
        params.wq_fd = other.fd as u32;
    });
    attached.expect("an attached ring")
}

/// A process attaches a second ring to the SQ thread of its first ring, and closes the first ring.
/// A child uses the second ring, and then the process itself does.
fn attached_ring_of_a_parent(t: &mut Transcript) {
    let mut first = sq_thread::ring(1);
    let mut second = attached_to(&first);
    t.result("close", first.close());
    shared::run_child(t, |t| {
        assert!(until(|| asleep(&second)), "the SQ thread does not fall asleep");
        t.sorted(&run(&mut second, &[nop(1)]));
    });
    second.catch_up();
    assert!(until(|| asleep(&second)), "the SQ thread does not fall asleep");
    t.sorted(&run(&mut second, &[nop(2)]));
}
case!(attached_ring_of_a_parent => "
    close = 0
    cqe 1: 0
    child: exit 0
    cqe 2: 0
");

/// A child attaches a new ring to an inherited ring. The new ring gets an SQ thread of its own in
/// the child. This SQ thread uses the child's descriptors.
fn child_attaches_to_the_ring(t: &mut Transcript) {
    let inherited = sq_thread::ring(1);
    let shared = Shared::new();
    let file = files::memory_file(b"of the parent");
    shared::run_child(t, |t| {
        let other = files::memory_file(b"of the child");
        // SAFETY: both descriptors are open and belong to this case. dup2(2) replaces the child's
        // copy of `file` only.
        unsafe { libc::dup2(other.as_raw_fd(), file.as_raw_fd()) };
        let mut own = attached_to(&inherited);
        t.sorted(&run(&mut own, &[read_at(file.as_raw_fd(), shared.slot(0), 64, 0, 1)]));
        t.say(shared.text(0));
    });
}
case!(child_attaches_to_the_ring => "
    cqe 1: 12
    of the child
    child: exit 0
");

/// Two rings share an SQ thread. The parent closes one of them before its child uses that ring. The
/// child's call on that ring must return: with success on the kernel, with EOWNERDEAD on usring.
fn parent_closes_one_of_two_rings(t: &mut Transcript) {
    let mut first = sq_thread::ring(1);
    let mut second = attached_to(&first);
    let shared = Shared::new();
    let child = shared::child(|| {
        shared.until_step(1);
        first.push(nop(1));
        let count = first.forget_pending();
        let result = first.enter(count, 1, WAKEUP | u::IORING_ENTER_GETEVENTS);
        t.say(format_args!("ends {}", result == 1 || result == -libc::EOWNERDEAD));
        0
    });
    t.result("close", first.close());
    first.unmap();
    shared.step(1);
    shared::ended(t, child);
    t.sorted(&run(&mut second, &[nop(2)]));
}
case!(parent_closes_one_of_two_rings => "
    close = 0
    ends true
    child: exit 0
    cqe 2: 0
");

/// The process that made the ring is killed, between two calls of its child. By the first call, the
/// child hands over to the SQ thread the SQEs that `push` writes. Prints the result of the second
/// call, the CQEs, and whether the SQ thread then needs a wake-up.
fn kill_creator_between_calls(t: &mut Transcript, push: impl Fn(&mut Ring, &Shared)) {
    // SAFETY: prctl(2) touches no memory. Orphaned descendants get this process as their parent.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    let shared = Shared::new();
    let creator = shared::child(|| {
        let mut ring = Kind::OwnMemory.ring(8, u::IORING_SETUP_SQPOLL);
        let child = shared::child(|| {
            t.result("enter", ring.enter(0, 0, 0));
            push(&mut ring, &shared);
            hand_over(&mut ring);
            let all = ring.sq_tail();
            assert!(until(|| ring.sq_head() == all), "the SQ thread takes too little");
            shared.step(1);
            shared.until_step(2);
            t.result("enter", ring.enter(0, 0, WAKEUP));
            t.sorted(&ring.reap());
            t.say(format_args!("needs wakeup {}", asleep(&ring)));
            0
        });
        shared.word(0).store(child as u32, std::sync::atomic::Ordering::SeqCst);
        shared.until_step(3);
        0
    });
    shared.until_step(1);
    shared.until_word(0, 1);
    let child = shared.word(0).load(std::sync::atomic::Ordering::SeqCst) as i32;
    // The SQ's head shows that the SQ thread has taken the SQEs. This wait lets it issue the
    // requests before the kill.
    time::long_enough_to_notice();
    shared::kill(t, creator);
    shared.step(2);
    shared::ended(t, child);
}

/// The process that made the ring is killed while its child is in no system call. The child's next
/// call on the ring finds the CQE of the child's read.
fn creator_is_killed_between_calls(t: &mut Transcript) {
    let (reader, _writer) = files::pipe();
    kill_creator_between_calls(t, |ring, shared| {
        ring.push(read_at(reader.as_raw_fd(), shared.slot(8), 8, 0, 1));
    });
}
case!(creator_is_killed_between_calls => "
    enter = 0
    child: signal 9
    enter = -EOWNERDEAD
    cqe 1: -ECANCELED
    needs wakeup true
    child: exit 0
");

/// Requests that the SQ thread has submitted end with the process that made the ring. These include
/// a timeout and requests that IO_DRAIN holds back.
fn killed_creators_timeout_and_drain(t: &mut Transcript) {
    let (reader, _writer) = files::pipe();
    let long = time::LONG;
    kill_creator_between_calls(t, |ring, shared| {
        ring.push(timeout(&long, 0, 0, 1));
        ring.push(read_at(reader.as_raw_fd(), shared.slot(8), 8, 0, 2));
        ring.push(nop(3).flagged(sqe_flags::IO_DRAIN));
        ring.push(nop(4));
    });
}
case!(killed_creators_timeout_and_drain => "
    enter = 0
    child: signal 9
    enter = -EOWNERDEAD
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    needs wakeup true
    child: exit 0
");

/// The process that made a ring with IOPOLL waits for two CQEs. Its child consumes both CQEs, and
/// they count for the wait nevertheless. The child polls the CQ in memory instead of waiting: the
/// kernel would not wake it behind a waiter that needs more CQEs.
fn maker_of_a_polled_ring_waits(t: &mut Transcript) {
    let mut ring = Kind::OwnMemory.ring(8, u::IORING_SETUP_SQPOLL | u::IORING_SETUP_IOPOLL);
    let shared = Shared::new();
    let maker = std::process::id() as i32;
    let child = shared::child(|| {
        shared.until_step(1);
        t.say(format_args!("sleeps {}", time::until_process_sleeps(maker)));
        for data in [1, 2] {
            ring.push(nop(data));
            hand_over(&mut ring);
            t.sorted(&ring.reap_in_memory(1));
        }
        0
    });
    shared.step(1);
    let waited = ring.enter(0, 2, u::IORING_ENTER_GETEVENTS);
    shared::ended(t, child);
    t.result("wait", waited);
}
case!(maker_of_a_polled_ring_waits => "
    sleeps true
    cqe 1: 0
    cqe 2: 0
    child: exit 0
    wait = 0
");
