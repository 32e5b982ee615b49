//! A multishot READ whose submitting thread does not wait for completions. So another thread has to
//! drive the ring: one of usring's, or the SQ thread.

use super::{GROUP, multishot};
use crate::buffers::group_of;
use crate::files;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::io_uring as u;

/// After the submission, the submitting thread makes no call on the ring. All data arrives
/// nevertheless.
fn without_entering(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 128;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..120);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, &[b'x'; 1600]);
    t.say(format_args!("all there: {}", ring.wait_in_memory(100)));
    files::put(&writer, &[b'x'; 160]);
    t.say(format_args!("more: {}", ring.wait_in_memory(110)));
}
case!(without_entering => "
    all there: true
    more: true
");

fn sq_thread(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE | u::IORING_SETUP_SQPOLL;
        params.cq_entries = 128;
        params.sq_thread_idle = 10;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..120);
    let (reader, writer) = files::pipe();
    files::put(&writer, &[b'x'; 800]);
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.forget_pending();
    ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
    t.say(format_args!("all there: {}", ring.wait_in_memory(50)));
    crate::time::long_enough_to_notice();
    files::put(&writer, &[b'x'; 160]);
    t.say(format_args!("more: {}", ring.wait_in_memory(60)));
}
case!(sq_thread => "
    all there: true
    more: true
");
