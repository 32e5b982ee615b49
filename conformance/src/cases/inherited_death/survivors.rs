//! One process has ended. The other processes of its ring wait, cancel and submit requests.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use usring_uapi::{io_uring as u, sqe_flags};

use super::{End, each_end, submit_and_end};
use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::shared::{self, Partner, Shared};
use crate::sqe::{Change, cancel, nop, poll, poll_remove, read_at, timeout, timeout_remove};
use crate::time::{self, LONG, milliseconds};
use crate::transcript::Transcript;

/// A surviving process cancels the requests of a process that has ended.
fn survivor_cancels(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        let (reader, _writer) = files::pipe();
        let address = shared.slot(0);
        submit_and_end(t, ring, shared, end, |ring| {
            ring.push(read_at(reader.as_raw_fd(), address, 8, 0, 1));
            ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
            ring.push(timeout(&LONG, 0, 0, 3));
            ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 4));
            ring.push(timeout(&LONG, 0, 0, 5));
        });
        let mut entries = ring.run(&[
            cancel(1, 0, 11),
            poll_remove(2, 12),
            timeout_remove(3, 13),
            cancel(4, 0, 14),
            cancel(5, 0, 15),
        ]);
        entries.extend(ring.wait(10 - entries.len()));
        t.sorted(&entries);
    });
}
case!(survivor_cancels => include_str!("survivor_cancels.txt"));

/// A process is killed while it waits in io_uring_enter(2). Another process that waits on the ring
/// is not affected.
fn waiter_is_killed(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let waiters = [(); 2].map(|()| {
            shared::child(|| {
                shared.word(0).fetch_add(1, Ordering::SeqCst);
                ring.enter(0, 1, u::IORING_ENTER_GETEVENTS)
            })
        });
        shared.until_word(0, 2);
        for waiter in waiters {
            time::until_process_sleeps(waiter);
        }
        shared::kill(t, waiters[0]);
        t.say(format_args!("the other waits {}", time::still_sleeps(waiters[1])));
        t.entry(&ring.one(nop(1)));
        shared::ended(t, waiters[1]);
    });
}
case!(waiter_is_killed => "
    a mapped ring:
    child: signal 9
    the other waits true
    cqe 1: 0
    child: exit 0
    a ring in shared memory:
    child: signal 9
    the other waits true
    cqe 1: 0
    child: exit 0
");

/// A process waits in io_uring_enter(2) for another process's request, for which a worker executes
/// a blocking call. When that other process ends, the call is interrupted, and the CQE wakes the
/// waiting process.
fn end_wakes_the_waiter(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let fifo = files::Fifo::new();
        let child = shared::child(|| {
            ring.push(fifo.open(1));
            ring.submit();
            time::long_enough_to_begin();
            shared.step(1);
            shared.until_step(2);
            0
        });
        shared.until_step(1);
        let waiter = shared::child(|| {
            shared.word(0).store(1, Ordering::SeqCst);
            ring.enter(0, 1, u::IORING_ENTER_GETEVENTS)
        });
        shared.until_word(0, 1);
        time::until_process_sleeps(waiter);
        shared::kill(t, child);
        shared::ended(t, waiter);
        t.say(format_args!("cqes {}", ring.reap().len()));
    });
}
case!(end_wakes_the_waiter => "
    a mapped ring:
    child: signal 9
    child: exit 0
    cqes 1
    a ring in shared memory:
    child: signal 9
    child: exit 0
    cqes 1
");

/// The process that made the ring is killed while all processes have requests in flight. Its child
/// survives, and the child's requests complete.
fn creator_is_killed(t: &mut Transcript) {
    // SAFETY: prctl(2) touches no memory. Orphaned descendants get this process as their parent.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    for kind in [shared::Kind::Mapped, shared::Kind::OwnMemory] {
        let shared = Shared::new();
        let (mine, to_mine) = files::pipe();
        let (childs, to_childs) = files::pipe();
        let creator = shared::child(|| {
            let mut ring = kind.ring(8, 0);
            ring.push(read_at(mine.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.submit();
            let child = shared::child(|| {
                ring.push(read_at(childs.as_raw_fd(), shared.slot(1), 8, 0, 2));
                ring.submit();
                shared.step(1);
                shared.until_step(2);
                files::put(&to_childs, b"data");
                t.in_order(&ring.wait(1));
                files::put(&to_mine, b"data");
                t.in_order(&ring.wait(1));
                t.entry(&ring.one(nop(3)));
                0
            });
            shared.word(0).store(child as u32, Ordering::SeqCst);
            shared.until_step(3);
            0
        });
        shared.until_word(0, 1);
        shared.until_step(1);
        shared::kill(t, creator);
        shared.step(2);
        shared::ended(t, shared.word(0).load(Ordering::SeqCst) as i32);
        t.say(format_args!("{:?} {:?}", shared.text(0), shared.text(1)));
    }
}
case!(creator_is_killed => "
    child: signal 9
    cqe 2: 4
    cqe 1: -ECANCELED
    cqe 3: 0
    child: exit 0
    \"\" \"data\"
    child: signal 9
    cqe 2: 4
    cqe 1: -ECANCELED
    cqe 3: 0
    child: exit 0
    \"\" \"data\"
");

/// The process that made the ring submits two timeouts before it forks its child. One timeout heads
/// a chain, and the other counts CQEs. The process is killed, but both timeouts go on.
fn timeouts_of_a_killed_creator(t: &mut Transcript) {
    // SAFETY: prctl(2) touches no memory. Orphaned descendants get this process as their parent.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    for kind in [shared::Kind::Mapped, shared::Kind::OwnMemory] {
        let shared = Shared::new();
        let creator = shared::child(|| {
            let mut ring = kind.ring(8, 0);
            let time = Box::leak(Box::new(milliseconds(500)));
            ring.push(timeout(time, 0, u::IORING_TIMEOUT_ETIME_SUCCESS, 1).linked());
            ring.push(nop(2));
            ring.push(timeout(&LONG, 2, 0, 3));
            ring.submit();
            let child = shared::child(|| {
                t.entry(&ring.one(nop(4)));
                shared.step(1);
                shared.until_step(2);
                t.sorted(&ring.wait(3));
                0
            });
            shared.word(0).store(child as u32, Ordering::SeqCst);
            shared.until_step(3);
            0
        });
        shared.until_step(1);
        shared::kill(t, creator);
        shared.step(2);
        shared::ended(t, shared.word(0).load(Ordering::SeqCst) as i32);
    }
}
case!(timeouts_of_a_killed_creator => "
    cqe 4: 0
    child: signal 9
    cqe 1: -ETIME
    cqe 2: -EFAULT
    cqe 3: 0
    child: exit 0
    cqe 4: 0
    child: signal 9
    cqe 1: -ETIME
    cqe 2: -EFAULT
    cqe 3: 0
    child: exit 0
");

/// Many children that use the ring are killed at random moments. Afterwards the ring still works
/// for the parent.
fn many_are_killed(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let file = files::memory_file(b"data");
        for number in 0..60 {
            ring.catch_up();
            let before = shared.word(0).load(Ordering::SeqCst);
            let child = shared::child(|| work_for_ever(ring, shared, file.as_raw_fd()));
            shared.until_word(0, before + 1 + number % 7);
            shared::signal(child, libc::SIGKILL);
            process::ending(child);
        }
        // The killed processes left SQEs in the SQ and CQEs in the CQ, which precede those of this
        // process. A worker may still execute requests of the killed processes.
        submit_all(ring);
        ring.catch_up();
        ring.push(nop(101));
        ring.push(nop(102));
        ring.submit();
        let mut own = Vec::new();
        time::until(|| {
            own.extend(ring.wait(1).into_iter().filter(|entry| entry.user_data > 100));
            own.len() >= 2
        });
        t.in_order(&own);
    });
}
case!(many_are_killed => "
    a mapped ring:
    cqe 101: 0
    cqe 102: 0
    a ring in shared memory:
    cqe 101: 0
    cqe 102: 0
");

/// Many children are killed at random moments, while they submit chains behind short timeouts and
/// cancel timeouts. After that, each request of the surviving parent gets exactly one CQE.
fn many_are_killed_among_timeouts(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        for number in 0..60 {
            let before = shared.word(0).load(Ordering::SeqCst);
            let child = shared::child(|| submit_timeouts_for_ever(ring, shared));
            shared.until_word(0, before + 1 + number % 7);
            shared::signal(child, libc::SIGKILL);
            process::ending(child);
        }
        submit_all(ring);
        ring.catch_up();
        let mut own = Vec::new();
        for user_data in 101..=120 {
            ring.push(nop(user_data));
            ring.submit();
            time::until(|| {
                own.extend(ring.wait(1).iter().map(|entry| entry.user_data).filter(|number| *number > 100));
                own.last() == Some(&user_data)
            });
        }
        t.say(format_args!("each once: {}", own.into_iter().eq(101..=120)));
    });
}
case!(many_are_killed_among_timeouts => "
    a mapped ring:
    each once: true
    a ring in shared memory:
    each once: true
");

/// Submits cancels and chains that begin with a short timeout, until the process is killed. Counts
/// its rounds in shared word 0.
fn submit_timeouts_for_ever(ring: &mut Ring, shared: &Shared) -> i32 {
    let time = milliseconds(1);
    loop {
        submit_all(ring);
        ring.catch_up();
        ring.push(timeout(&time, 0, u::IORING_TIMEOUT_ETIME_SUCCESS, 1).linked());
        ring.push(nop(2).linked());
        ring.push(nop(3));
        ring.push(timeout(&LONG, 0, 0, 4));
        ring.push(cancel(4, 0, 5));
        ring.submit();
        ring.wait(1);
        shared.word(0).fetch_add(1, Ordering::SeqCst);
    }
}

/// Submits all SQEs in the SQ, including those that other processes have written.
fn submit_all(ring: &Ring) {
    time::until(|| ring.enter(8, 0, 0) <= 0);
}

/// Submits a read, waits and reaps, again and again until the process is killed. Counts its rounds
/// in shared word 0.
fn work_for_ever(ring: &mut Ring, shared: &Shared, fd: i32) -> i32 {
    loop {
        // The SQ contains SQEs of processes that were killed before they called io_uring_enter(2).
        submit_all(ring);
        ring.catch_up();
        ring.push(read_at(fd, shared.slot(0), 4, 0, 1));
        ring.submit();
        ring.wait(1);
        shared.word(0).fetch_add(1, Ordering::SeqCst);
    }
}

/// All children are killed while they have requests in flight. The parent leaves the old rings open
/// but unused, makes new rings, and forks new children. PostgreSQL does this after a crash.
fn rings_are_made_anew(t: &mut Transcript) {
    for kind in [shared::Kind::Mapped, shared::Kind::OwnMemory] {
        let (reader, writer) = files::pipe();
        for _ in 0..3 {
            let mut rings: Vec<Ring> = (0..3).map(|_| kind.ring(8, 0)).collect();
            let shared = Shared::new();
            for ring in &mut rings {
                let request = read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1);
                submit_and_end(t, ring, &Shared::new(), End::Kill, |ring| ring.push(request));
            }
            std::mem::forget((rings, shared));
        }
        let mut ring = kind.ring(8, 0);
        shared::run_child(t, |t| t.entry(&ring.one(nop(1))));
        files::put(&writer, b"x");
        ring.catch_up();
        t.entry(&ring.one(nop(2)));
        t.say(format_args!("in the pipe {}", files::take(&reader, 8).map_or(0, |bytes| bytes.len())));
    }
}
case!(rings_are_made_anew => include_str!("rings_are_made_anew.txt"));

/// Two processes each have a read of one pipe in flight, and both are killed. A third process can
/// use the ring afterwards.
fn two_are_killed(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let address = shared.slot(0);
        for user_data in 1..=2 {
            let request = read_at(reader.as_raw_fd(), address, 8, 0, user_data);
            submit_and_end(t, ring, &Shared::new(), End::Kill, |ring| ring.push(request));
        }
        let third = shared::child(|| {
            files::put(&writer, b"x");
            t.sorted(&ring.wait(2));
            t.entry(&ring.one(nop(3)));
            0
        });
        shared::ended(t, third);
    });
}
case!(two_are_killed => "
    a mapped ring:
    child: signal 9
    child: signal 9
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: 0
    child: exit 0
    a ring in shared memory:
    child: signal 9
    child: signal 9
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: 0
    child: exit 0
");

/// Starts a child that submits a read of an empty pipe. Only the child keeps the pipe's writing end
/// open, so the child's end closes the pipe and completes the read.
fn start_reader(ring: &mut Ring, shared: &Shared) -> Partner {
    let (reader, _writer) = files::pipe();
    Partner::start(ring, |ring| ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1)))
}

/// IO_DRAIN holds back a request of the parent, which waits for a child's read. The child is killed
/// while no thread of the parent is in io_uring_enter(2). Both requests complete.
fn drained_request_of_a_survivor_without_a_call(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let reader = start_reader(ring, shared);
        ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
        ring.submit();
        t.in_order(&ring.reap_in_memory(0));
        reader.kill(t);
        t.say(format_args!("both have come: {}", time::until(|| ring.ready() == 2)));
        t.in_order(&ring.reap());
    });
}
case!(drained_request_of_a_survivor_without_a_call => "
    a mapped ring:
    no cqe
    child: signal 9
    both have come: true
    cqe 1: -ECANCELED
    cqe 2: 0
    a ring in shared memory:
    no cqe
    child: signal 9
    both have come: true
    cqe 1: -ECANCELED
    cqe 2: 0
");

fn end_makes_the_ring_readable(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let reader = start_reader(ring, shared);
        t.say(format_args!("readable before: {}", files::is_readable_within(ring.fd, Duration::ZERO)));
        reader.kill(t);
        t.say(format_args!("readable: {}", files::is_readable_within(ring.fd, Duration::from_secs(30))));
        t.in_order(&ring.reap());
    });
}
case!(end_makes_the_ring_readable => "
    a mapped ring:
    readable before: false
    child: signal 9
    readable: true
    cqe 1: -ECANCELED
    a ring in shared memory:
    readable before: false
    child: signal 9
    readable: true
    cqe 1: -ECANCELED
");
