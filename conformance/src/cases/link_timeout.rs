//! LINK_TIMEOUT: a timeout that limits the duration of the request before it in the chain.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, Timespec, io_uring as u, opcode, sqe_flags};

use crate::files;
use crate::memory::{BAD, MissingPage};
use crate::net;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, fields, link_timeout, nop, poll, read, send, sqe, timeout, timeout_remove, write_at};
use crate::time::{LONG, milliseconds, on_clock};
use crate::transcript::{Transcript, timed};

/// Returns a read of `fd` with IO_LINK. The cases pass an empty pipe, so that the read waits.
fn waiting(fd: i32, byte: &mut [u8; 1], user_data: u64) -> usring_uapi::Sqe {
    read(fd, byte, 0, user_data).linked()
}

/// When a LINK_TIMEOUT expires, its CQE comes before the CQE of the request that it limits.
/// According to the manual page, a chain completes in order.
fn expires(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    let time = milliseconds(20);
    ring.push(waiting(reader.as_raw_fd(), &mut byte, 1));
    ring.push(link_timeout(&time, 0, 2));
    let (entries, waited) = timed(|| {
        t.result("submit", ring.submit());
        ring.wait(2)
    });
    t.in_order(&entries);
    t.between("waited", waited, 20, 30_000);
}
case!(expires => "
    submit = 2
    cqe 2: -ETIME
    cqe 1: -ECANCELED
    waited: after 20 to 30000 ms
");

fn limited_request_completes_in_time(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(waiting(reader.as_raw_fd(), &mut byte, 1));
    ring.push(link_timeout(&LONG, 0, 2));
    ring.submit();
    files::put(&writer, b"x");
    t.sorted(&ring.wait(2));
}
case!(limited_request_completes_in_time => "
    cqe 1: 1
    cqe 2: -ECANCELED
");

fn limited_request_completes_inline(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(nop(1).linked());
    ring.push(link_timeout(&LONG, 0, 2));
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(2));
}
case!(limited_request_completes_inline => "
    submit = 2
    cqe 1: 0
    cqe 2: -ECANCELED
");

fn limits_no_request(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(link_timeout(&LONG, 0, 1)));
}
case!(limits_no_request => "cqe 1: -EINVAL");

fn behind_unlinked(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.sorted(&ring.run(&[nop(1), link_timeout(&LONG, 0, 2), nop(3)]));
}
case!(behind_unlinked => "
    cqe 1: 0
    cqe 2: -EINVAL
    cqe 3: 0
");

fn two_in_a_row(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.sorted(&ring.run(&[nop(1).linked(), link_timeout(&LONG, 0, 2).linked(), link_timeout(&LONG, 0, 3)]));
}
case!(two_in_a_row => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -EINVAL
");

/// A request behind a LINK_TIMEOUT runs if the limited request has completed in time. If the
/// timeout has expired, the request is cancelled.
fn middle_of_chain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(waiting(reader.as_raw_fd(), &mut byte, 1));
    ring.push(link_timeout(&LONG, 0, 2).linked());
    ring.push(nop(3));
    ring.submit();
    files::put(&writer, b"x");
    t.sorted(&ring.wait(3));
    let time = milliseconds(10);
    ring.push(waiting(reader.as_raw_fd(), &mut byte, 4));
    ring.push(link_timeout(&time, 0, 5).linked());
    ring.push(nop(6));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(middle_of_chain => "
    cqe 1: 1
    cqe 2: -ECANCELED
    cqe 3: 0
    cqe 4: -ECANCELED
    cqe 5: -ETIME
    cqe 6: -ECANCELED
");

/// A LINK_TIMEOUT begins to run when the request that it limits starts, not when its chain starts.
fn second_of_chain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let (mut a, mut b) = ([0u8; 1], [0u8; 1]);
    let time = milliseconds(30);
    ring.push(waiting(reader.as_raw_fd(), &mut a, 1));
    ring.push(waiting(reader.as_raw_fd(), &mut b, 2));
    ring.push(link_timeout(&time, 0, 3));
    ring.submit();
    t.result("twice as long", ring.enter_for(0, 1, std::time::Duration::from_millis(60)));
    files::put(&writer, b"x");
    t.sorted(&ring.wait(3));
}
case!(second_of_chain => "
    twice as long = -ETIME
    cqe 1: 1
    cqe 2: -ECANCELED
    cqe 3: -ETIME
");

fn on_poll(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let time = milliseconds(10);
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(on_poll => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

/// A LINK_TIMEOUT limits the whole life of a multishot poll. Events that the poll reports do not
/// extend it.
fn on_multishot_poll(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let time = milliseconds(1000);
    let armed = poll(reader.as_raw_fd(), libc::POLLIN, 1).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI).linked();
    ring.push(armed);
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    files::put(&writer, b"x");
    let mut entries = ring.wait(3);
    entries.sort_by_key(|entry| (entry.user_data, entry.flags == 0));
    t.in_order(&entries);
}
case!(on_multishot_poll => "
    cqe 1: 1 MORE
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

fn on_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(10);
    ring.push(timeout(&LONG, 0, 0, 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(on_timeout => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

fn absolute(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    for (clock, flags) in [
        (libc::CLOCK_MONOTONIC, 0),
        (libc::CLOCK_REALTIME, u::IORING_TIMEOUT_REALTIME),
        (libc::CLOCK_BOOTTIME, u::IORING_TIMEOUT_BOOTTIME),
    ] {
        let time = on_clock(clock, 10);
        ring.push(waiting(reader.as_raw_fd(), &mut byte, 1));
        ring.push(link_timeout(&time, u::IORING_TIMEOUT_ABS | flags, 2));
        ring.submit();
        t.sorted(&ring.wait(2));
    }
}
case!(absolute => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

fn hard_link(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    let time = milliseconds(10);
    let hard = usring_uapi::sqe_flags::IO_HARDLINK;
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).flagged(hard));
    ring.push(link_timeout(&time, 0, 2).flagged(hard));
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(hard_link => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    cqe 3: 0
");

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(waiting(reader.as_raw_fd(), &mut byte, 1));
    ring.push(link_timeout(&LONG, 0, 2));
    ring.submit();
    // This cancel names the LINK_TIMEOUT. The cancel does not find it, and the request that the
    // timeout limits stays armed.
    t.entry(&ring.one(cancel(2, 0, 3)));
    files::put(&writer, b"x");
    t.sorted(&ring.wait(2));
}
case!(cancelled => "
    cqe 3: -ENOENT
    cqe 1: 1
    cqe 2: -ECANCELED
");

fn target_cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(waiting(reader.as_raw_fd(), &mut byte, 1));
    ring.push(link_timeout(&LONG, 0, 2));
    ring.submit();
    ring.push(cancel(1, 0, 3));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(target_cancelled => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: 0
");

fn bad_timespec(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (tv_sec, tv_nsec) in [(0, -1), (-1, 0)] {
        let time = Timespec { tv_sec, tv_nsec };
        t.sorted(&ring.run(&[nop(1).linked(), link_timeout(&time, 0, 2)]));
    }
    let bad = link_timeout(&LONG, 0, 2).with(|sqe| sqe.addr = BAD);
    t.sorted(&ring.run(&[nop(1).linked(), bad]));
}
case!(bad_timespec => "
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 1: -ECANCELED
    cqe 2: -EFAULT
");

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for flags in [2, 16, 32, 64, 4 | 8, 1 << 20] {
        t.sorted(&ring.run(&[nop(1).linked(), link_timeout(&LONG, flags, 2)]));
    }
}
case!(flags => "
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 1: 0
    cqe 2: -ECANCELED
    cqe 1: 0
    cqe 2: -ECANCELED
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (_, change) in fields![len = 2, off = 1, buf_index = 1, ioprio = 1] {
        t.sorted(&ring.run(&[nop(1).linked(), link_timeout(&LONG, 0, 2).with(change)]));
    }
}
case!(reserved_fields => "
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
");

/// A LINK_TIMEOUT limits a read with IOSQE_ASYNC, for which the worker arms a poll. A request whose
/// worker waits in a blocking call would not be limited on Linux 6.18.
fn on_worker(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    let time = milliseconds(30);
    ring.push(waiting(reader.as_raw_fd(), &mut byte, 1).forced_async());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    let mut entries = ring.wait(2);
    entries.sort_by_key(|entry| entry.user_data);
    for entry in entries {
        let allowed = match entry.user_data {
            1 => [-libc::EINTR, -libc::ECANCELED],
            _ => [-libc::ETIME, -libc::EALREADY],
        };
        let either = allowed.contains(&entry.res);
        t.say(format_args!("{}: one of two answers {either}", entry.user_data));
    }
}
case!(on_worker => "
    1: one of two answers true
    2: one of two answers true
");

/// A worker executes a write and blocks at a page of its buffer that this process has not supplied
/// yet. A LINK_TIMEOUT cannot end that write, and gets -ENOENT.
fn on_running_worker(t: &mut Transcript) {
    let Some(page) = MissingPage::new() else {
        return t.say("the system has no userfaultfd for us");
    };
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"");
    ring.push(write_at(file.as_raw_fd(), page.address(), 5, 0, 1).linked());
    ring.push(link_timeout(&LONG, 0, 2));
    t.result("submit", ring.submit());
    t.say(format_args!("the worker stands still {}", page.is_missed()));
    let soon = milliseconds(1);
    ring.push(Sqe {
        op_flags: u::IORING_TIMEOUT_UPDATE | u::IORING_LINK_TIMEOUT_UPDATE,
        off: &raw const soon as u64,
        ..timeout_remove(2, 3)
    });
    ring.submit();
    // The CQEs come in any order: the LINK_TIMEOUT may expire before the CQE of its update is
    // posted.
    let mut entries = ring.wait(2);
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.user_data));
    t.in_order(&entries);
    page.supply();
    t.in_order(&ring.wait(1));
}
case!(on_running_worker => "
    submit = 2
    the worker stands still true
    cqe 3: 0
    cqe 2: -ENOENT
    cqe 1: 5
");

fn on_bad_request(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut byte = [0u8; 1];
    t.sorted(&ring.run(&[read(-1, &mut byte, 0, 1).linked(), link_timeout(&LONG, 0, 2)]));
    t.sorted(&ring.run(&[sqe(200, -1, 1).linked(), link_timeout(&LONG, 0, 2)]));
    assert_eq!(opcode::LINK_TIMEOUT, 15);
}
case!(on_bad_request => "
    cqe 1: -EBADF
    cqe 2: -ECANCELED
    cqe 1: -EINVAL
    cqe 2: -ECANCELED
");

fn ring_closes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    let time = milliseconds(5);
    ring.push(waiting(reader.as_raw_fd(), &mut byte, 1));
    ring.push(link_timeout(&time, 0, 2));
    t.result("submit", ring.submit());
    drop(ring);
    files::put(&writer, b"x");
    t.say(format_args!("bytes left {}", files::take(&reader, 4).map_or(0, |bytes| bytes.len())));
}
case!(ring_closes => "
    submit = 2
    bytes left 1
");

/// A request behind a LINK_TIMEOUT waits only for the limited request, and not for the timeout.
/// This holds even if the limited request completes before the timeout begins to run.
fn chain_goes_on_behind_it(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let failing = nop(1).op_flags(u::IORING_NOP_INJECT_RESULT).with(|sqe| sqe.len = -libc::EIO as u32);
    let silent = |sqe: Sqe| sqe.flagged(sqe_flags::CQE_SKIP_SUCCESS);
    for first in [nop(1), failing, silent(failing), sqe(u8::MAX, -1, 1), silent(sqe(u8::MAX, -1, 1))] {
        ring.push(first.linked());
        ring.push(link_timeout(&LONG, 0, 2).linked());
        ring.push(nop(3).linked());
        ring.push(nop(4));
        ring.submit();
        crate::time::long_enough_to_notice();
        t.sorted(&ring.wait(2));
    }
}
case!(chain_goes_on_behind_it => "
    cqe 1: 0
    cqe 2: -ECANCELED
    cqe 3: 0
    cqe 4: 0
    cqe 1: -EIO
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    cqe 1: -EIO
    cqe 2: -ECANCELED
    cqe 1: -EINVAL
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    cqe 1: -EINVAL
    cqe 2: -ECANCELED
");

/// A LINK_TIMEOUT ends a waiting WAITID, SEND or ACCEPT. While these requests wait, they occupy no
/// kernel worker.
fn on_requests_that_need_no_worker(t: &mut Transcript) {
    let time = milliseconds(50);
    let (_peer, full) = files::sockets_of(libc::SOCK_DGRAM);
    files::fill(&full);
    let empty = net::listener(net::Family::V4).0;
    let child = std::process::Command::new("sleep").arg("1000").spawn();
    let requests = [
        (
            "waitid",
            sqe(opcode::WAITID, 0, 1).with(|sqe| {
                (sqe.len, sqe.file_index) = (libc::P_ALL, libc::WEXITED as u32);
            }),
        ),
        ("send", send(full.as_raw_fd(), b"text", 1)),
        ("accept", net::accept(empty.as_raw_fd(), 1)),
    ];
    for (name, request) in requests {
        t.say(name);
        let mut ring = Ring::new(4);
        ring.push(request.linked());
        ring.push(link_timeout(&time, 0, 2));
        ring.submit();
        let mut entries = ring.wait(2);
        if let Some(limit) = entries.iter_mut().find(|entry| entry.user_data == 2 && name == "waitid") {
            // The LINK_TIMEOUT's result varies. It is -ETIME or 1, the number of requests that the
            // timeout has found.
            t.say(format_args!("found {}", matches!(limit.res, 1) || limit.res == -libc::ETIME));
            limit.res = 1;
        }
        t.sorted(&entries);
    }
    if let Ok(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}
case!(on_requests_that_need_no_worker => "
    waitid
    found true
    cqe 1: -ECANCELED
    cqe 2: 1
    send
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    accept
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

/// A SPLICE waits for data in its pipe. On usring, a LINK_TIMEOUT ends the SPLICE. On Linux 6.18 a
/// worker executes the SPLICE, and the timeout never expires.
fn on_splice(t: &mut Transcript) {
    // A busy machine starts the worker within this time.
    let time = milliseconds(200);
    let (from, writer) = files::pipe();
    let (_reader, to) = files::pipe();
    let mut ring = Ring::new(4);
    let request = sqe(opcode::SPLICE, to.as_raw_fd(), 1).with(|sqe| {
        sqe.file_index = from.as_raw_fd() as u32;
        (sqe.len, sqe.off, sqe.addr) = (16, u64::MAX, u64::MAX);
    });
    ring.push(request.linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    ring.enter_for(0, 2, std::time::Duration::from_millis(500));
    t.sorted(&ring.reap());
    files::put(&writer, b"late");
    ring.enter_for(0, 2, std::time::Duration::from_millis(300));
    t.sorted(&ring.reap());
}
case!(on_splice => "
    no cqe
    cqe 1: 4
    cqe 2: -ECANCELED
", usring => "
    cqe 1: -EINTR
    cqe 2: -ENOENT
    no cqe
", because "the timeout expires");
