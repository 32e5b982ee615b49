//! Ends of a multishot READ.

use super::{GROUP, multishot, ring_of};
use crate::buffers::{SIZE, group_of};
use crate::files;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, link_timeout};
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::io_uring as u;

fn end_of_file(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    drop(writer);
    t.in_order(&ring.wait(1));
}
case!(end_of_file => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 0
");

fn end_of_file_at_once(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"0123456789abcdefghij");
    drop(writer);
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    t.in_order(&ring.wait(3));
}
case!(end_of_file_at_once => "
    cqe 1: 16 MORE|BUFFER(0)
    cqe 1: 4 MORE|BUFFER(1)
    cqe 1: 0
");

/// A multishot selects from a group without buffers. It gets -ENOBUFS at once: it does not wait for
/// data in the pipe.
fn no_buffers(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 0, 0);
    let (reader, _writer) = files::pipe();
    t.entry(&ring.one(multishot(reader.as_raw_fd(), 1)));
}
case!(no_buffers => "cqe 1: -ENOBUFS");

fn buffers_run_out(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 2, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    files::put(&writer, &[b'y'; 40]);
    t.in_order(&ring.wait(2));
    group.add_slots(2..5);
    ring.push(multishot(reader.as_raw_fd(), 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(buffers_run_out => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 16 MORE|BUFFER(1)
    cqe 1: -ENOBUFS
    cqe 2: 16 MORE|BUFFER(2)
    cqe 2: 8 MORE|BUFFER(3)
");

fn error(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 1, 0);
    group.add_at(crate::memory::BAD, SIZE, 7);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
}
case!(error => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: -EFAULT
");

fn cancelled(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
    files::put(&writer, b"left");
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}
case!(cancelled => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    no cqe
    4 bytes left
");

fn cancelled_by_file(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, _writer) = files::pipe();
    for user_data in 1..=2 {
        ring.push(multishot(reader.as_raw_fd(), user_data));
    }
    ring.submit();
    let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_ALL;
    ring.push(cancel(0, flags, 9).with(|sqe| sqe.fd = reader.as_raw_fd()));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(cancelled_by_file => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 9: 2
");

/// A multishot ends with the CQE for which the CQ has no room. No data is lost.
fn overflow(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 4;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..16);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    for sent in 1..=7 {
        files::put(&writer, b"x");
        // Waits for the CQE of this byte before the next write.
        crate::time::until(|| {
            ring.enter(0, 0, 0);
            ring.ready() == sent || ring.sq_flags() & u::IORING_SQ_CQ_OVERFLOW != 0
        });
    }
    crate::time::long_enough_to_notice();
    t.say(format_args!("ready {}", ring.ready()));
    t.in_order(&ring.reap());
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    t.in_order(&ring.reap());
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}
case!(overflow => "
    ready 4
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 1 BUFFER(4)
    2 bytes left
");

/// A link timeout limits the whole life of a multishot. Data that arrives does not extend it.
fn bounded(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    let time = crate::time::milliseconds(1000);
    ring.push(multishot(reader.as_raw_fd(), 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    t.sorted(&ring.wait(2));
}
case!(bounded as link_timeout => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

fn descriptor_closes(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    drop(reader);
    for _ in 0..2 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    // Only the request kept the reading end open. The request has ended, so a write to the pipe
    // fails.
    // SAFETY: the call installs no handler and touches no memory.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let gone = crate::time::until(|| files::put(&writer, b"x") < 0);
    t.say(format_args!("reader gone: {gone}"));
}
case!(descriptor_closes => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: -ECANCELED
    cqe 2: 0
    reader gone: true
");

fn ring_closes(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    drop(ring);
    crate::time::long_enough_to_notice();
    files::put(&writer, b"yz");
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}
case!(ring_closes => "
    cqe 1: 1 MORE|BUFFER(0)
    2 bytes left
");
