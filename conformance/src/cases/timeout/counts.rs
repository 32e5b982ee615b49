//! TIMEOUT with a count of completions.

use super::MULTISHOT;
use crate::ring::Ring;
use crate::sqe::{Change, link_timeout, nop, poll, timeout, timeout_remove};
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::{Timespec, io_uring as u};

/// A timeout with a count completes with 0 once `count` other requests have completed.
fn completion_count(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(timeout(&LONG, 2, 0, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    t.entry(&ring.one(nop(2)));
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(completion_count => "
    submit = 1
    no cqe
    cqe 2: 0
    cqe 1: 0
    cqe 3: 0
");

fn count_and_time(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(timeout(&milliseconds(20), 5, 0, 1));
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(count_and_time => "
    cqe 1: -ETIME
    cqe 2: 0
");

/// A timeout with a count counts every request that completes after the timeout has started. So it
/// also counts requests that were submitted before.
fn count_of_earlier_requests(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = crate::files::pipe();
    let mut byte = [0u8; 1];
    ring.push(crate::sqe::read(std::os::fd::AsRawFd::as_raw_fd(&reader), &mut byte, 0, 1));
    ring.push(timeout(&LONG, 1, 0, 2));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    crate::files::put(&writer, b"x");
    t.sorted(&ring.wait(2));
}
case!(count_of_earlier_requests => "
    submit = 2
    no cqe
    cqe 1: 1
    cqe 2: 0
");

/// A timeout has reached its count and completes. Its own completion does not count for another
/// timeout.
fn several_counts(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(timeout(&LONG, 3, 0, 1));
    ring.push(timeout(&LONG, 1, 0, 2));
    t.result("submit", ring.submit());
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(2));
    t.sorted(&ring.run(&[nop(4)]));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    ring.push(nop(5));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(several_counts => "
    submit = 2
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    no cqe
    cqe 1: 0
    cqe 5: 0
");

/// A timeout counts the other requests of its batch, even those before it in the batch.
fn counts_its_own_batch(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(nop(1));
    ring.push(timeout(&LONG, 2, 0, 2));
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(counts_its_own_batch => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
");

/// Each CQE of a multishot request counts.
fn counts_multishot(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = crate::files::eventfd(0);
    ring.push(poll(event.as_raw_fd(), libc::POLLIN, 1).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI));
    ring.push(timeout(&LONG, 2, 0, 2));
    t.result("submit", ring.submit());
    crate::files::put(&event, &1u64.to_ne_bytes());
    t.in_order(&ring.wait(1));
    crate::files::put(&event, &1u64.to_ne_bytes());
    t.sorted(&ring.wait(2));
}
case!(counts_multishot => "
    submit = 2
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    cqe 2: 0
");

/// The CQE of an unregistered resource's tag counts.
fn counts_tags(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = crate::files::memory_file(b"x");
    let (numbers, tags) = ([file.as_raw_fd()], [7u64]);
    let mut set: u::io_uring_rsrc_register = crate::memory::zeroed();
    set.nr = 1;
    set.data = numbers.as_ptr() as u64;
    set.tags = tags.as_ptr() as u64;
    t.result("register", ring.register(crate::cases::reg::FILES2, &raw const set, 32));
    ring.push(timeout(&LONG, 1, 0, 1));
    t.result("submit", ring.submit());
    t.result("unregister", ring.register::<u8>(crate::cases::reg::UNREGISTER_FILES, std::ptr::null(), 0));
    t.sorted(&ring.wait(2));
}
case!(counts_tags => "
    register = 0
    submit = 1
    unregister = 0
    cqe 1: 0
    cqe 7: 0
");

/// Other timeouts count if they are removed, cancelled or refused. They do not count if they expire
/// or reach their own count. A cancelled link timeout counts, too.
fn counts_timeouts_that_did_not_expire(t: &mut Transcript) {
    let mut ring = Ring::new(16);
    let time = milliseconds(5);
    ring.push(timeout(&LONG, 1, 0, 1));
    ring.push(timeout(&time, 0, 0, 2));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(2));
    // Two CQEs count for timeout 5: that of the removed timeout 4, and that of the removal 6.
    ring.push(timeout(&LONG, 0, 0, 4));
    ring.push(timeout(&LONG, 2, 0, 5));
    ring.push(timeout_remove(4, 6));
    ring.submit();
    t.sorted(&ring.wait(3));
    // The refused timeout counts.
    ring.push(timeout(&LONG, 1, 0, 7));
    ring.push(timeout(&LONG, 0, 1 << 20, 8));
    ring.submit();
    t.sorted(&ring.wait(2));
    // The CQE of a link timeout counts, even if the limited request completes in time.
    ring.push(timeout(&LONG, 2, 0, 9));
    ring.push(nop(10).linked());
    ring.push(link_timeout(&LONG, 0, 11));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(counts_timeouts_that_did_not_expire => "
    submit = 2
    cqe 2: -ETIME
    no cqe
    cqe 1: 0
    cqe 3: 0
    cqe 4: -ECANCELED
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    cqe 8: -EINVAL
    cqe 9: 0
    cqe 10: 0
    cqe 11: -ECANCELED
");

/// The CQEs of a multishot timeout do not count for other timeouts.
fn counts_no_multishot_repeats(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let time = milliseconds(2);
    ring.push(timeout(&LONG, 2, 0, 1));
    ring.push(timeout(&time, 3, MULTISHOT, 2));
    ring.submit();
    t.sorted(&ring.wait(3));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    ring.push(nop(3));
    ring.push(nop(4));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(counts_no_multishot_repeats => "
    cqe 2: -ETIME MORE
    cqe 2: -ETIME MORE
    cqe 2: -ETIME
    no cqe
    cqe 1: 0
    cqe 3: 0
    cqe 4: 0
");

/// A request that completes without a CQE, because of CQE_SKIP_SUCCESS, does not count for a
/// timeout.
fn counts_no_silent_completions(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(timeout(&LONG, 2, 0, 1));
    ring.push(nop(2).flagged(usring_uapi::sqe_flags::CQE_SKIP_SUCCESS));
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    ring.push(nop(4));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(counts_no_silent_completions => "
    cqe 3: 0
    no cqe
    cqe 1: 0
    cqe 4: 0
");

/// A CQE in the backlog does not count for a timeout yet. It counts when it moves to the CQ.
fn counts_backlog(t: &mut Transcript) {
    let mut ring = Ring::with(2, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 2;
    })
    .expect("a small ring");
    ring.push(timeout(&LONG, 3, 0, 1));
    ring.submit();
    for user_data in 2..=4 {
        ring.push(nop(user_data));
        ring.submit();
    }
    t.say(format_args!("ready {}", ring.ready()));
    t.sorted(&ring.wait(4));
}
case!(counts_backlog => "
    ready 2
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
");

/// Several timeouts reach their counts in one submission. They complete in the order of their
/// counts, whatever the order of their expiry times.
fn smallest_count_first(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let longer = Timespec { tv_sec: 2000, tv_nsec: 0 };
    ring.push(timeout(&LONG, 3, 0, 1));
    ring.push(timeout(&longer, 2, 0, 2));
    ring.push(timeout(&longer, 1, 0, 3));
    ring.submit();
    for user_data in 4..7 {
        ring.push(nop(user_data));
    }
    ring.submit();
    t.in_order(&ring.wait(6));
}
case!(smallest_count_first => "
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 3: 0
    cqe 2: 0
    cqe 1: 0
");

/// A timeout is linked behind another request, so it starts only after the whole batch. It does not
/// count the other requests of that batch.
fn counts_behind_batch(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(nop(1).linked());
    ring.push(timeout(&LONG, 1, 0, 2));
    ring.push(nop(3));
    ring.push(nop(4));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.wait(3));
    t.in_order(&ring.reap());
    ring.push(nop(5));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(counts_behind_batch => "
    cqe 1: 0
    cqe 3: 0
    cqe 4: 0
    no cqe
    cqe 5: 0
    cqe 2: 0
");
