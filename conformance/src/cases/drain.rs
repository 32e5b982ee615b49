//! IO_DRAIN: a request with this flag waits for all earlier requests, and all later requests wait
//! for it.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, sqe_flags};

use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, nop, poll, read, sqe, timeout, write};
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;

fn draining(sqe: Sqe) -> Sqe {
    sqe.flagged(sqe_flags::IO_DRAIN)
}

fn nothing_before(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(draining(nop(1)));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(1));
}
case!(nothing_before => "
    submit = 1
    cqe 1: 0
");

fn waits_for_all_before(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (one, first) = files::pipe();
    let (two, second) = files::pipe();
    let (mut a, mut b) = ([0u8; 1], [0u8; 1]);
    ring.push(read(one.as_raw_fd(), &mut a, 0, 1));
    ring.push(read(two.as_raw_fd(), &mut b, 0, 2));
    ring.push(draining(nop(3)));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&second, b"x");
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&first, b"x");
    t.in_order(&ring.wait(2));
}
case!(waits_for_all_before => "
    submit = 3
    no cqe
    cqe 2: 1
    no cqe
    cqe 1: 1
    cqe 3: 0
");

fn holds_what_follows(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(draining(nop(2)));
    ring.push(nop(3));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(3));
    // No request waits for the IO_DRAIN request any more: the next request runs at once.
    t.entry(&ring.one(nop(4)));
}
case!(holds_what_follows => "
    submit = 3
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
");

fn across_submissions(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    ring.push(draining(nop(2)));
    ring.submit();
    ring.push(nop(3));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(3));
}
case!(across_submissions => "
    submit = 1
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
");

fn every_request(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"");
    let fd = file.as_raw_fd();
    for user_data in 1..=5u64 {
        let at = user_data - 1;
        ring.push(draining(write(fd, &b"abcde"[at as usize..=at as usize], at, user_data)));
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(5));
    t.say(files::text(&file));
}
case!(every_request => "
    submit = 5
    cqe 1: 1
    cqe 2: 1
    cqe 3: 1
    cqe 4: 1
    cqe 5: 1
    abcde
");

/// After a request with IO_DRAIN, each new request waits for all earlier ones. The first request
/// that finds no earlier request in flight ends this state.
fn drains_until_idle(t: &mut Transcript) {
    for waits in [false, true] {
        let mut ring = Ring::new(8);
        let (reader, writer) = files::sockets();
        let (first_reader, first_writer) = files::sockets();
        let (idle, _peer) = files::sockets();
        if waits {
            ring.push(poll(first_reader.as_raw_fd(), libc::POLLIN, 1));
            ring.submit();
        }
        ring.push(draining(nop(2)));
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 3));
        ring.submit();
        if waits {
            files::put(&first_writer, b"x");
        }
        t.in_order(&ring.wait(1 + usize::from(waits)));
        ring.push(nop(4));
        ring.push(nop(5));
        t.result("submit", ring.submit());
        t.say(format_args!("{} completions", ring.reap().len()));
        files::put(&writer, b"x");
        t.sorted(&ring.wait(3));
        // No request is in flight. So request 6 need not wait, and ends the draining. Later
        // requests do not wait for earlier ones.
        ring.push(nop(6));
        ring.push(nop(7));
        ring.submit();
        t.sorted(&ring.wait(2));
        ring.push(poll(idle.as_raw_fd(), libc::POLLIN, 8));
        ring.push(nop(9));
        ring.submit();
        t.sorted(&ring.wait(1));
    }
}
case!(drains_until_idle => "
    cqe 2: 0
    submit = 2
    0 completions
    cqe 3: 1
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    cqe 9: 0
    cqe 1: 1
    cqe 2: 0
    submit = 2
    0 completions
    cqe 3: 1
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    cqe 9: 0
");

/// The kernel refuses an IO_DRAIN request because of one of its fields. Later requests nevertheless
/// wait for all earlier ones.
fn refused_drain_drains(t: &mut Transcript) {
    let mut ring = Ring::flags(8, u::IORING_SETUP_SUBMIT_ALL);
    let (reader, writer) = files::sockets();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(draining(poll(reader.as_raw_fd(), libc::POLLIN, 2)).with(|sqe| sqe.addr = 1));
    ring.push(nop(3));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(1));
    files::put(&writer, b"x");
    t.in_order(&ring.wait(2));
}
case!(refused_drain_drains => "
    submit = 3
    cqe 2: -EINVAL
    cqe 1: 1
    cqe 3: 0
");

/// A refused request counts as in flight until its batch ends. So the next request of that batch
/// waits for the refused one.
fn refused_counts_in_its_batch(t: &mut Transcript) {
    for (flags, chained) in [(u::IORING_SETUP_SUBMIT_ALL, false), (u::IORING_SETUP_SUBMIT_ALL, true), (0, false)] {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::sockets();
        ring.push(draining(nop(1)));
        ring.submit();
        t.in_order(&ring.wait(1));
        let refused = sqe(200, -1, 2);
        ring.push(if chained { refused.linked() } else { refused });
        if chained {
            ring.push(nop(3));
        }
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 4));
        let count = ring.sq_tail().wrapping_sub(ring.sq_head());
        let taken = ring.submit();
        t.result("submit", taken);
        if (taken as u32) < count {
            t.result("submit", ring.enter(count - taken as u32, 0, 0));
        }
        t.sorted(&ring.wait(1 + usize::from(chained)));
        ring.push(nop(5));
        ring.submit();
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
        files::put(&writer, b"x");
        t.sorted(&ring.wait(if taken as u32 == count { 2 } else { 1 }));
    }
}
case!(refused_counts_in_its_batch => "
    cqe 1: 0
    submit = 2
    cqe 2: -EINVAL
    no cqe
    cqe 4: 1
    cqe 5: 0
    cqe 1: 0
    submit = 3
    cqe 2: -EINVAL
    cqe 3: -ECANCELED
    no cqe
    cqe 4: 1
    cqe 5: 0
    cqe 1: 0
    submit = 1
    submit = 1
    cqe 2: -EINVAL
    cqe 5: 0
    cqe 4: 1
");

/// IO_DRAIN on a chain's head makes the whole chain wait for earlier requests.
fn with_chain(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(draining(nop(2)).linked());
    ring.push(nop(3));
    ring.push(nop(4));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(4));
}
case!(with_chain => "
    submit = 4
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
");

/// IO_DRAIN is on a later member of a chain. The chain's head then waits for earlier requests, and
/// later requests wait for the chain.
fn in_middle_of_chain(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(nop(2).linked());
    ring.push(draining(nop(3)));
    ring.push(nop(4));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(4));
}
case!(in_middle_of_chain => "
    submit = 4
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
");

fn waits_for_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let time = milliseconds(10);
    ring.push(timeout(&time, 0, 0, 1));
    ring.push(draining(nop(2)));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(waits_for_timeout => "
    cqe 1: -ETIME
    cqe 2: 0
");

/// IORING_REGISTER_SYNC_CANCEL does not find a request that IO_DRAIN holds back. It does find the
/// earlier request for which the held-back request waits.
fn cancel_deferred(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(draining(nop(2)));
    ring.submit();
    t.result("cancel the deferred", super::sync_cancel::by_user_data(&ring, 2));
    t.result("cancel the first", super::sync_cancel::by_user_data(&ring, 1));
    t.in_order(&ring.wait(2));
}
case!(cancel_deferred => "
    cancel the deferred = -ENOENT
    cancel the first = 0
    cqe 1: -ECANCELED
    cqe 2: 0
");

fn cancel_queues_behind(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(draining(nop(2)));
    ring.push(cancel(1, 0, 3));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(3));
}
case!(cancel_queues_behind => "
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: -ENOENT
");

fn bad_sqe_behind(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(draining(nop(2)));
    ring.push(sqe(200, -1, 3));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.sorted(&ring.wait(2));
}
case!(bad_sqe_behind => "
    submit = 3
    cqe 3: -EINVAL
    cqe 1: 1
    cqe 2: 0
");

fn bad_sqe_itself(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(nop(1));
    ring.push(draining(sqe(200, -1, 2)));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(bad_sqe_itself => "
    submit = 2
    cqe 1: 0
    cqe 2: -EINVAL
");

fn ring_closes(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"");
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.push(draining(write(file.as_raw_fd(), b"never", 0, 2)));
    ring.push(write(file.as_raw_fd(), b"never", 0, 3));
    t.result("submit", ring.submit());
    drop(ring);
    crate::time::long_enough_to_notice();
    t.say(format_args!("written: {:?}", files::text(&file)));
}
case!(ring_closes => "
    submit = 3
    written: \"\"
");

fn sq_entry_is_copied(t: &mut Transcript) {
    let mut ring = Ring::new(2);
    let (reader, writer) = files::pipe();
    let file = files::memory_file(b"");
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(draining(write(file.as_raw_fd(), b"kept", 0, 2)));
    t.result("submit", ring.submit());
    // The next two NOPs overwrite the SQEs of the earlier requests. IO_DRAIN still holds back the
    // write.
    ring.push(nop(3));
    ring.push(nop(4));
    t.result("submit", ring.submit());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(4));
    t.say(files::text(&file));
}
case!(sq_entry_is_copied => "
    submit = 2
    submit = 2
    cqe 1: 1
    cqe 2: 4
    cqe 3: 0
    cqe 4: 0
    kept
");

/// A request behind an IO_DRAIN request starts only after the IO_DRAIN request has completed.
/// According to the manual page, this holds even if the IO_DRAIN request found no request to wait
/// for.
fn holds_until_it_is_done(t: &mut Transcript) {
    let long_enough = milliseconds(20);
    let slow = |user_data| timeout(&long_enough, 0, u::IORING_TIMEOUT_ETIME_SUCCESS, user_data);
    let programs: [&[Sqe]; 5] = [
        &[draining(slow(1)), nop(2)],
        &[nop(1), draining(slow(2)), nop(3)],
        &[draining(slow(1)), nop(2), draining(nop(3)), nop(4)],
        &[draining(slow(1)).linked(), nop(2), nop(3)],
        &[nop(1).linked(), draining(slow(2)), nop(3)],
    ];
    for program in programs {
        let mut ring = Ring::new(8);
        for sqe in program {
            ring.push(*sqe);
        }
        ring.submit();
        t.in_order(&ring.wait(program.len()));
        if program.iter().any(|sqe| sqe.flags & sqe_flags::IO_LINK != 0) {
            continue;
        }
        // Now submits each SQE of `program` by a separate io_uring_enter(2) call.
        for sqe in program {
            ring.push(*sqe);
            ring.submit();
        }
        t.in_order(&ring.wait(program.len()));
    }
}
case!(holds_until_it_is_done => "
    cqe 1: -ETIME
    cqe 2: 0
    cqe 1: -ETIME
    cqe 2: 0
    cqe 1: 0
    cqe 2: -ETIME
    cqe 3: 0
    cqe 1: 0
    cqe 2: -ETIME
    cqe 3: 0
    cqe 1: -ETIME
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 1: -ETIME
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 1: -ETIME
    cqe 2: 0
    cqe 3: 0
    cqe 1: 0
    cqe 2: -ETIME
    cqe 3: 0
");
