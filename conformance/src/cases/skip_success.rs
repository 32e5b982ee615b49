//! CQE_SKIP_SUCCESS: a request with this flag posts no CQE if it succeeds.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, sqe_flags};

use crate::files;
use crate::net;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, link_timeout, nop, poll, read, sqe, timeout};
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;

fn silent(sqe: Sqe) -> Sqe {
    sqe.flagged(sqe_flags::CQE_SKIP_SUCCESS)
}

fn success_is_silent(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(silent(nop(1)));
    ring.push(nop(2));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(success_is_silent => "
    submit = 2
    cqe 2: 0
");

fn failure_posts_a_cqe(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut byte = [0u8; 1];
    t.entry(&ring.one(silent(read(-1, &mut byte, 0, 1))));
    let failing = nop(2).op_flags(u::IORING_NOP_INJECT_RESULT).with(|sqe| sqe.len = u32::MAX);
    t.entry(&ring.one(silent(failing)));
}
case!(failure_posts_a_cqe => "
    cqe 1: -EBADF
    cqe 2: -EPERM
");

fn in_chain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(silent(nop(1)).linked());
    ring.push(silent(nop(2)).linked());
    ring.push(nop(3));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(in_chain => "
    submit = 3
    cqe 3: 0
");

/// A request with CQE_SKIP_SUCCESS fails, so it posts its CQE. The requests behind it in the chain
/// are cancelled. They post no CQE, whether they have the flag or not.
fn broken_chain(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let failing = nop(2).op_flags(u::IORING_NOP_INJECT_RESULT).with(|sqe| sqe.len = u32::MAX);
    ring.push(silent(nop(1)).linked());
    ring.push(silent(failing).linked());
    ring.push(silent(nop(3)).linked());
    ring.push(nop(4));
    t.result("submit", ring.submit());
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(broken_chain => "
    submit = 4
    cqe 2: -EPERM
");

fn linked_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(silent(link_timeout(&LONG, 0, 2)));
    ring.submit();
    files::put(&writer, b"x");
    t.sorted(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    let time = milliseconds(10);
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 3).linked());
    ring.push(silent(link_timeout(&time, 0, 4)));
    ring.submit();
    let mut entries = ring.wait(1);
    crate::time::long_enough_to_notice();
    entries.extend(ring.reap());
    t.sorted(&entries);
    // In this chain, the read has CQE_SKIP_SUCCESS, and its link timeout does not.
    ring.push(silent(read(reader.as_raw_fd(), &mut byte, 0, 5)).linked());
    ring.push(link_timeout(&LONG, 0, 6));
    ring.submit();
    files::put(&writer, b"x");
    t.sorted(&ring.reap_in_memory(1));
}
case!(linked_timeout => "
    cqe 1: 1
    no cqe
    cqe 3: -ECANCELED
    cqe 6: -ECANCELED
");

fn silent_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(5);
    // The expiry of a timeout counts as a failure, unless the timeout has ETIME_SUCCESS.
    ring.push(silent(timeout(&time, 0, 0, 1)));
    ring.push(silent(timeout(&time, 0, u::IORING_TIMEOUT_ETIME_SUCCESS, 2)));
    ring.submit();
    t.sorted(&ring.reap_in_memory(1));
}
case!(silent_timeout as timeout => "cqe 1: -ETIME");

fn silent_poll(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    ring.push(silent(poll(reader.as_raw_fd(), libc::POLLIN, 1)));
    ring.submit();
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.entry(&ring.one(nop(2)));
}
case!(silent_poll as poll => "
    no cqe
    cqe 2: 0
");

fn waiting_read_is_silent(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(silent(read(reader.as_raw_fd(), &mut byte, 0, 1)));
    ring.submit();
    files::put(&writer, b"x");
    // The read posts no CQE. So the case waits until the byte that the read fills has changed.
    let place = byte.as_ptr();
    // SAFETY: the byte lives until the end of this function, and only the request writes to it.
    t.say(format_args!("read {}", crate::time::until(|| unsafe { place.read_volatile() } == b'x')));
    t.in_order(&ring.reap());
}
case!(waiting_read_is_silent => "
    read true
    no cqe
");

fn silent_cancel(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    ring.push(silent(cancel(1, 0, 2)));
    ring.submit();
    t.in_order(&ring.wait(1));
    // This cancel finds no request. That is a failure, so the cancel posts its CQE.
    t.entry(&ring.one(silent(cancel(1, 0, 3))));
}
case!(silent_cancel as cancel => "
    cqe 1: -ECANCELED
    cqe 3: -ENOENT
");

/// A request that completes without a CQE does not count for a wait, nor for a timeout that counts
/// completions.
fn silent_completion_ends_no_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(silent(nop(1)));
    ring.forget_pending();
    let limit = std::time::Duration::from_millis(20);
    t.result("submit and wait for one", ring.enter_for(1, 1, limit));
    t.result("wait for one", ring.enter_for(0, 1, limit));
    ring.push(timeout(&LONG, 1, 0, 2));
    ring.push(silent(nop(3)));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    ring.push(nop(4));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(silent_completion_ends_no_wait => "
    submit and wait for one = 1
    wait for one = -ETIME
    no cqe
    cqe 2: 0
    cqe 4: 0
");

/// The kernel refuses CQE_SKIP_SUCCESS and IO_DRAIN in one request. After a request with
/// CQE_SKIP_SUCCESS, it refuses every request with IO_DRAIN. The manual page calls the combination
/// undefined.
fn with_drain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(silent(nop(1)).flagged(sqe_flags::IO_DRAIN));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    // The reverse order is allowed: CQE_SKIP_SUCCESS is accepted after an earlier IO_DRAIN.
    let mut ring = Ring::new(4);
    t.entry(&ring.one(nop(1).flagged(sqe_flags::IO_DRAIN)));
    ring.push(silent(nop(2)));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    // IO_DRAIN is refused after an earlier CQE_SKIP_SUCCESS.
    let mut ring = Ring::new(4);
    ring.push(silent(nop(3)));
    ring.submit();
    ring.push(nop(4).flagged(sqe_flags::IO_DRAIN));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(with_drain => "
    submit = 1
    cqe 1: -EOPNOTSUPP
    cqe 1: 0
    submit = 1
    no cqe
    submit = 1
    cqe 4: -EOPNOTSUPP
");

fn bad_sqe(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(silent(sqe(200, -1, 1))));
}
case!(bad_sqe => "cqe 1: -EINVAL");

fn short_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"short");
    let mut buffer = [0u8; 10];
    ring.push(silent(read(file.as_raw_fd(), &mut buffer, 0, 1)));
    ring.push(silent(read(file.as_raw_fd(), &mut buffer, 0, 2)).linked());
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.reap_in_memory(2));
}
case!(short_read => "
    cqe 1: 5
    cqe 2: 5
");

/// A SHUTDOWN counts as a success even if shutdown(2) of a socket returns an errno. It counts as a
/// failure if the descriptor is bad or the file is no socket.
fn failed_shutdown_posts_a_cqe(t: &mut Transcript) {
    let (pipe, _writer) = files::pipe();
    let unconnected = files::socket(libc::AF_INET, libc::SOCK_STREAM);
    for fd in [9999, pipe.as_raw_fd(), unconnected.as_raw_fd()] {
        let mut ring = Ring::new(4);
        ring.push(silent(net::shutdown(fd, libc::SHUT_WR, 1)).linked());
        ring.push(nop(2));
        ring.push(nop(3));
        ring.submit();
        t.sorted(&ring.reap_in_memory(2));
    }
}
case!(failed_shutdown_posts_a_cqe => "
    cqe 1: -EBADF
    cqe 3: 0
    cqe 1: -ENOTSOCK
    cqe 3: 0
    cqe 2: 0
    cqe 3: 0
");
