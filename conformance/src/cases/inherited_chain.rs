//! Rings that several processes use: links, drains, timeouts that count completions, and link
//! timeouts.

use std::os::fd::AsRawFd;

use usring_uapi::{io_uring as u, sqe_flags};

use crate::files;
use crate::shared::{self, Partner};
use crate::sqe::{Change, cancel, link_timeout, nop, read, read_at, timeout};
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;

/// The last SQE of a submission has IOSQE_IO_LINK. Another process makes the next submission, which
/// is not part of that chain.
fn chain_ends_with_its_submission(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let mut buffer = [0u8; 4];
        ring.push(read(9999, &mut buffer, 0, 1).linked());
        t.result("submit", ring.submit());
        shared::run_child(t, |t| {
            ring.push(nop(2));
            t.result("submit in the child", ring.submit());
        });
        t.sorted(&ring.wait(2));
    });
}
case!(chain_ends_with_its_submission => "
    a mapped ring:
    submit = 1
    submit in the child = 1
    child: exit 0
    cqe 1: -EBADF
    cqe 2: 0
    a ring in shared memory:
    submit = 1
    submit in the child = 1
    child: exit 0
    cqe 1: -EBADF
    cqe 2: 0
");

/// Two processes each write an SQE of a chain, and one process submits both SQEs. The two requests
/// are one chain.
fn chain_of_two_writers(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let mut buffer = [0u8; 4];
        ring.push(read(9999, &mut buffer, 0, 1).linked());
        shared::run_child(t, |t| {
            ring.push(nop(2));
            t.result("enter", ring.enter(2, 0, 0));
        });
        t.sorted(&ring.wait(2));
    });
}
case!(chain_of_two_writers => "
    a mapped ring:
    enter = 2
    child: exit 0
    cqe 1: -EBADF
    cqe 2: -ECANCELED
    a ring in shared memory:
    enter = 2
    child: exit 0
    cqe 1: -EBADF
    cqe 2: -ECANCELED
");

/// The child's io_uring_enter(2) submits two of a chain's three SQEs, and the chain ends there. The
/// parent's call then submits the third SQE as a request without a predecessor.
fn enter_cuts_a_chain(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let mut buffer = [0u8; 4];
        ring.push(read(9999, &mut buffer, 0, 1).linked());
        ring.push(nop(2).linked());
        ring.push(nop(3));
        shared::run_child(t, |t| {
            t.result("enter in the child", ring.enter(2, 0, 0));
            t.sorted(&ring.wait(2));
        });
        t.result("enter", ring.enter(1, 0, 0));
        t.in_order(&ring.wait(1));
    });
}
case!(enter_cuts_a_chain => "
    a mapped ring:
    enter in the child = 2
    cqe 1: -EBADF
    cqe 2: -ECANCELED
    child: exit 0
    enter = 1
    cqe 3: 0
    a ring in shared memory:
    enter in the child = 2
    cqe 1: -EBADF
    cqe 2: -ECANCELED
    child: exit 0
    enter = 1
    cqe 3: 0
");

/// Chains of two processes are in flight at one time. The chain that began later completes first.
fn chains_side_by_side(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let (other, others) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1).linked());
        ring.push(nop(2));
        ring.submit();
        let partner = Partner::start(ring, |ring| {
            ring.push(read_at(other.as_raw_fd(), shared.slot(1), 8, 0, 11).linked());
            ring.push(nop(12));
        });
        files::put(&others, b"x");
        t.in_order(&ring.wait(2));
        files::put(&writer, b"y");
        t.in_order(&ring.wait(2));
        partner.leave(t);
    });
}
case!(chains_side_by_side => "
    a mapped ring:
    cqe 11: 1
    cqe 12: -ECANCELED
    cqe 1: 1
    cqe 2: -ECANCELED
    child: exit 0
    a ring in shared memory:
    cqe 11: 1
    cqe 12: -ECANCELED
    cqe 1: 1
    cqe 2: -ECANCELED
    child: exit 0
");

/// A request with IO_DRAIN waits for a request of another process.
fn drain_waits_for_other_processes(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        let partner = Partner::start(ring, |ring| ring.push(nop(2).flagged(sqe_flags::IO_DRAIN)));
        ring.push(nop(3));
        t.result("submit", ring.submit());
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(3));
        partner.leave(t);
    });
}
case!(drain_waits_for_other_processes => "
    a mapped ring:
    submit = 1
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    child: exit 0
    a ring in shared memory:
    submit = 1
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    child: exit 0
");

/// A request with IO_DRAIN waits for another process's read. Meanwhile the process of the IO_DRAIN
/// request is killed. That request gets -EFAULT, and the request behind it succeeds.
fn drain_of_a_killed_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        let partner = Partner::start(ring, |ring| ring.push(nop(2).flagged(sqe_flags::IO_DRAIN)));
        ring.push(nop(3));
        ring.submit();
        partner.kill(t);
        t.sorted(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.sorted(&ring.wait(3));
    });
}
case!(drain_of_a_killed_process => "
    a mapped ring:
    child: signal 9
    no cqe
    cqe 1: 1
    cqe 2: -EFAULT
    cqe 3: 0
    a ring in shared memory:
    child: signal 9
    no cqe
    cqe 1: 1
    cqe 2: -EFAULT
    cqe 3: 0
");

/// A read with IO_DRAIN is in flight during the fork. The child's request waits for that read.
fn drain_in_flight_at_the_fork(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1).flagged(sqe_flags::IO_DRAIN));
        ring.submit();
        let partner = Partner::start(ring, |ring| ring.push(nop(2)));
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(2));
        partner.leave(t);
    });
}
case!(drain_in_flight_at_the_fork => "
    a mapped ring:
    no cqe
    cqe 1: 1
    cqe 2: 0
    child: exit 0
    a ring in shared memory:
    no cqe
    cqe 1: 1
    cqe 2: 0
    child: exit 0
");

/// Three processes submit requests with IO_DRAIN and requests behind these. All of them start in
/// the order of their submission.
fn drains_of_three_processes(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        let first = Partner::start(ring, |ring| ring.push(nop(2).flagged(sqe_flags::IO_DRAIN)));
        let second = Partner::start(ring, |ring| {
            ring.push(nop(3).flagged(sqe_flags::IO_LINK));
            ring.push(nop(4));
        });
        ring.push(nop(5).flagged(sqe_flags::IO_DRAIN));
        ring.submit();
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(5));
        t.entry(&ring.one(nop(6)));
        first.leave(t);
        second.leave(t);
    });
}
case!(drains_of_three_processes => "
    a mapped ring:
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    child: exit 0
    child: exit 0
    a ring in shared memory:
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    child: exit 0
    child: exit 0
");

/// A process is killed while it has a read in flight and a chain that IO_DRAIN holds back. The
/// chain fails. Another process's request, which waits behind the chain, completes.
fn drained_chain_of_a_killed_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let partner = Partner::start(ring, |ring| {
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.push(nop(2).flagged(sqe_flags::IO_DRAIN | sqe_flags::IO_LINK));
            ring.push(nop(3));
        });
        ring.push(nop(4));
        ring.submit();
        partner.kill(t);
        files::put(&writer, b"x");
        t.sorted(&ring.wait(4));
    });
}
case!(drained_chain_of_a_killed_process => "
    a mapped ring:
    child: signal 9
    cqe 1: -ECANCELED
    cqe 2: -EFAULT
    cqe 3: -ECANCELED
    cqe 4: 0
    a ring in shared memory:
    child: signal 9
    cqe 1: -ECANCELED
    cqe 2: -EFAULT
    cqe 3: -ECANCELED
    cqe 4: 0
");

/// A timeout that counts completions counts those of all processes.
fn counted_timeout_counts_for_all(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        ring.push(timeout(&LONG, 2, 0, 1));
        ring.submit();
        shared::run_child(t, |t| {
            t.entry(&ring.one(nop(2)));
            ring.push(nop(3));
            ring.submit();
            t.sorted(&ring.wait(2));
        });
    });
}
case!(counted_timeout_counts_for_all => "
    a mapped ring:
    cqe 2: 0
    cqe 1: 0
    cqe 3: 0
    child: exit 0
    a ring in shared memory:
    cqe 2: 0
    cqe 1: 0
    cqe 3: 0
    child: exit 0
");

/// A child's link timeout expires and cancels the child's read. The parent reaps both CQEs.
fn link_timeout_of_a_child(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let partner = Partner::start(ring, |ring| {
            let time = Box::leak(Box::new(milliseconds(20)));
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1).linked());
            ring.push(link_timeout(time, 0, 2));
        });
        t.sorted(&ring.wait(2));
        partner.leave(t);
    });
}
case!(link_timeout_of_a_child => "
    a mapped ring:
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    child: exit 0
    a ring in shared memory:
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    child: exit 0
");

/// A child's read has a link timeout. The parent cancels the read.
fn guarded_read_is_cancelled(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let partner = Partner::start(ring, |ring| {
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1).linked());
            ring.push(link_timeout(&LONG, 0, 2).linked());
            ring.push(nop(3));
        });
        ring.push(cancel(1, 0, 4));
        ring.submit();
        t.sorted(&ring.wait(4));
        partner.leave(t);
    });
}
case!(guarded_read_is_cancelled => "
    a mapped ring:
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: 0
    child: exit 0
    a ring in shared memory:
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: 0
    child: exit 0
");

/// A link timeout expires after its process was killed. The timeout gets -ECANCELED, and the read
/// before it stays armed.
fn link_timeout_of_a_killed_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let partner = Partner::start(ring, |ring| {
            let time = Box::leak(Box::new(milliseconds(500)));
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1).linked());
            ring.push(link_timeout(time, 0, 2));
        });
        partner.kill(t);
        t.in_order(&ring.wait(1));
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    });
}
case!(link_timeout_of_a_killed_process => "
    a mapped ring:
    child: signal 9
    cqe 2: -ECANCELED
    no cqe
    cqe 1: -ECANCELED
    a ring in shared memory:
    child: signal 9
    cqe 2: -ECANCELED
    no cqe
    cqe 1: -ECANCELED
");

/// The process of a chain is killed. The chain's head is a timeout whose expiry counts as a
/// success. After that expiry, the next request cannot start in the dead process, and gets -EFAULT.
fn chain_of_a_killed_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let partner = Partner::start(ring, |ring| {
            let time = Box::leak(Box::new(milliseconds(500)));
            ring.push(timeout(time, 0, u::IORING_TIMEOUT_ETIME_SUCCESS, 1).linked());
            ring.push(nop(2).linked());
            ring.push(nop(3));
        });
        partner.kill(t);
        t.sorted(&ring.wait(3));
    });
}
case!(chain_of_a_killed_process => "
    a mapped ring:
    child: signal 9
    cqe 1: -ETIME
    cqe 2: -EFAULT
    cqe 3: -ECANCELED
    a ring in shared memory:
    child: signal 9
    cqe 1: -ETIME
    cqe 2: -EFAULT
    cqe 3: -ECANCELED
");
