//! TIMEOUT: clocks, counts, repetition, and refused parameters.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, Timespec, io_uring as u};

use crate::case::{Case, case};
use crate::memory::BAD;
use crate::ring::Ring;
use crate::sqe::{Change, link_timeout, nop, poll, timeout, timeout_remove};
use crate::time::{LONG, milliseconds, on_clock};
use crate::transcript::{Transcript, timed};

pub const CASES: &[Case] = &[
    case("timeout.smallest_count_first", smallest_count_first),
    case("timeout.counts_behind_batch", counts_behind_batch),
    case("timeout.relative", relative),
    case("timeout.zero", zero),
    case("timeout.absolute", absolute),
    case("timeout.absolute_in_the_past", absolute_in_the_past),
    case("timeout.clocks", clocks),
    case("timeout.two_clocks", two_clocks),
    case("timeout.shortest_first", shortest_first),
    case("timeout.completion_count", completion_count),
    case("timeout.count_and_time", count_and_time),
    case("timeout.count_of_earlier_requests", count_of_earlier_requests),
    case("timeout.several_counts", several_counts),
    case("timeout.counts_its_own_batch", counts_its_own_batch),
    case("timeout.counts_multishot", counts_multishot),
    case("timeout.counts_tags", counts_tags),
    case("timeout.counts_timeouts_that_did_not_expire", counts_timeouts_that_did_not_expire),
    case("timeout.counts_no_repeats", counts_no_repeats),
    case("timeout.counts_no_silence", counts_no_silence),
    case("timeout.counts_backlog", counts_backlog),
    case("timeout.expires_as_success", expires_as_success),
    case("timeout.breaks_link", breaks_link),
    case("timeout.multishot", multishot),
    case("timeout.multishot_counted", multishot_counted),
    case("timeout.multishot_absolute", multishot_absolute),
    case("timeout.bad_timespec", bad_timespec),
    case("timeout.bad_address", bad_address),
    case("timeout.unknown_flags", unknown_flags),
    case("timeout.reserved_fields", reserved_fields),
    case("timeout.timespec_is_copied", timespec_is_copied),
    case("timeout.watched_in_memory", watched_in_memory),
    case("timeout.forced_async", forced_async),
    case("timeout.many", many),
    case("timeout.ring_closes", ring_closes),
];

const ABS: u32 = u::IORING_TIMEOUT_ABS;
const BOOT: u32 = u::IORING_TIMEOUT_BOOTTIME;
const REAL: u32 = u::IORING_TIMEOUT_REALTIME;

/// Submits one timeout, and prints its completion and how long it took.
fn expire(t: &mut Transcript, time: Timespec, flags: u32, least: u64) {
    let mut ring = Ring::new(4);
    let (entry, waited) = timed(|| ring.one(timeout(&time, 0, flags, 1)));
    t.entry(&entry);
    t.between("waited", waited, least, 30_000);
}

fn relative(t: &mut Transcript) {
    expire(t, milliseconds(30), 0, 30);
}

fn zero(t: &mut Transcript) {
    expire(t, milliseconds(0), 0, 0);
}

/// Submits one timeout for a point in time, and prints its completion and whether that time was
/// reached.
fn expire_at(t: &mut Transcript, clock: libc::clockid_t, flags: u32) {
    let time = on_clock(clock, 30);
    expire(t, time, ABS | flags, 0);
    t.reached(clock, &time);
}

fn absolute(t: &mut Transcript) {
    expire_at(t, libc::CLOCK_MONOTONIC, 0);
}

fn absolute_in_the_past(t: &mut Transcript) {
    expire(t, milliseconds(1), ABS, 0);
    expire(t, milliseconds(1), ABS | REAL, 0);
    expire(t, milliseconds(1), ABS | BOOT, 0);
}

fn clocks(t: &mut Transcript) {
    expire(t, milliseconds(30), BOOT, 30);
    expire(t, milliseconds(30), REAL, 25);
    expire_at(t, libc::CLOCK_BOOTTIME, BOOT);
    expire_at(t, libc::CLOCK_REALTIME, REAL);
}

fn two_clocks(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(timeout(&milliseconds(1), 0, BOOT | REAL, 1)));
}

fn shortest_first(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let times = [milliseconds(160), milliseconds(10), milliseconds(110), milliseconds(60)];
    for (index, time) in times.iter().enumerate() {
        ring.push(timeout(time, 0, 0, index as u64 + 1));
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(4));
}

/// A timeout with a count completes with 0 as soon as that many other requests have completed.
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

fn count_and_time(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(timeout(&milliseconds(20), 5, 0, 1));
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
}

/// Requests that were in flight before also count once they complete.
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

/// A timeout's own completion does not count for another timeout.
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

/// Requests of the timeout's own batch count, also those before it.
fn counts_its_own_batch(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(nop(1));
    ring.push(timeout(&LONG, 2, 0, 2));
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(3));
}

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

/// The tag of an unregistered resource counts.
fn counts_tags(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = crate::files::memory_file(b"x");
    let (numbers, tags) = ([file.as_raw_fd()], [7u64]);
    let mut set: u::io_uring_rsrc_register = crate::memory::zeroed();
    set.nr = 1;
    set.data = numbers.as_ptr() as u64;
    set.tags = tags.as_ptr() as u64;
    t.result("register", ring.register(super::reg::FILES2, &raw const set, 32));
    ring.push(timeout(&LONG, 1, 0, 1));
    t.result("submit", ring.submit());
    t.result("unregister", ring.register::<u8>(super::reg::UNREGISTER_FILES, std::ptr::null(), 0));
    t.sorted(&ring.wait(2));
}

/// A timeout that expires or reaches its count does not count for another. One that is removed,
/// cancelled or refused does, and so does the end of a link timeout.
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
    // A removal: the timeout's own CQE and the remover's.
    ring.push(timeout(&LONG, 0, 0, 4));
    ring.push(timeout(&LONG, 2, 0, 5));
    ring.push(timeout_remove(4, 6));
    ring.submit();
    t.sorted(&ring.wait(3));
    // A refused timeout.
    ring.push(timeout(&LONG, 1, 0, 7));
    ring.push(timeout(&LONG, 0, 1 << 20, 8));
    ring.submit();
    t.sorted(&ring.wait(2));
    // A link timeout that was not needed.
    ring.push(timeout(&LONG, 2, 0, 9));
    ring.push(nop(10).linked());
    ring.push(link_timeout(&LONG, 0, 11));
    ring.submit();
    t.sorted(&ring.wait(3));
}

/// A multishot timeout's CQEs do not count for other timeouts.
fn counts_no_repeats(t: &mut Transcript) {
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

/// A request that posts no CQE does not count.
fn counts_no_silence(t: &mut Transcript) {
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

/// A CQE in the backlog counts once it has room in the CQ.
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

fn expires_as_success(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let success = u::IORING_TIMEOUT_ETIME_SUCCESS;
    let time = milliseconds(5);
    ring.push(timeout(&time, 0, success, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
}

fn breaks_link(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(5);
    ring.push(timeout(&time, 0, 0, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    // A timeout that reaches its count is a success.
    ring.push(timeout(&LONG, 1, 0, 3).linked());
    ring.push(nop(4));
    ring.push(nop(5));
    ring.submit();
    t.sorted(&ring.wait(3));
}

const MULTISHOT: u32 = u::IORING_TIMEOUT_MULTISHOT;

/// A multishot timeout repeats until it is removed.
fn multishot(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(10);
    ring.push(timeout(&time, 0, MULTISHOT, 1));
    let (entries, waited) = timed(|| {
        t.result("submit", ring.submit());
        ring.wait(3)
    });
    for entry in entries.iter().take(3) {
        t.entry(entry);
    }
    t.between("three times", waited, 30, 30_000);
    ring.push(timeout_remove(1, 2));
    ring.submit();
    let mut rest = ring.wait(2);
    rest.retain(|entry| entry.res != -libc::ETIME);
    t.sorted(&rest);
}

/// The count is the number of repetitions.
fn multishot_counted(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let time = milliseconds(5);
    ring.push(timeout(&time, 3, MULTISHOT, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(3));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}

/// A timeout for a point in time does not repeat.
fn multishot_absolute(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let time = on_clock(libc::CLOCK_MONOTONIC, 5);
    t.entry(&ring.one(timeout(&time, 2, MULTISHOT | ABS, 1)));
}

/// Only negative values are refused. Nanoseconds beyond a second are added up.
fn bad_timespec(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (tv_sec, tv_nsec) in [(0, -1), (0, i64::MIN), (-1, 0), (i64::MIN, 0), (5, -1)] {
        t.entry(&ring.one(timeout(&Timespec { tv_sec, tv_nsec }, 0, 0, 1)));
    }
    let time = Timespec { tv_sec: 0, tv_nsec: 1_200_000_000 };
    let (entry, waited) = timed(|| ring.one(timeout(&time, 0, 0, 1)));
    t.entry(&entry);
    t.between("waited", waited, 1200, 30_000);
    // The longest possible time: the request waits.
    let longest = Timespec { tv_sec: i64::MAX, tv_nsec: 999_999_999 };
    ring.push(timeout(&longest, 0, 0, 2));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    ring.push(timeout_remove(2, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
}

fn bad_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for address in [0, BAD, u64::MAX - 7] {
        t.entry(&ring.one(timeout(&LONG, 0, 0, 1).with(|sqe| sqe.addr = address)));
    }
}

fn unknown_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(1);
    // UPDATE belongs to TIMEOUT_REMOVE, as does LINK_TIMEOUT_UPDATE. No flag is defined beyond bit
    // 6.
    for bit in [1, 4, 8, 9, 15, 31] {
        t.entry(&ring.one(timeout(&time, 0, 1 << bit, bit)));
    }
}

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(1);
    let mut with = |change: fn(&mut Sqe)| ring.one(timeout(&time, 0, 0, 1).with(change));
    let entries = [
        with(|sqe| sqe.len = 0),
        with(|sqe| sqe.len = 2),
        with(|sqe| sqe.buf_index = 1),
        with(|sqe| sqe.file_index = 1),
        with(|sqe| sqe.ioprio = 1),
        with(|sqe| sqe.fd = 5),
        with(|sqe| sqe.addr3 = 5),
    ];
    t.in_order(&entries);
    // A count beyond 32 bits is truncated.
    ring.push(timeout(&LONG, 1 << 32 | 1, 0, 2));
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(2));
}

fn timespec_is_copied(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut time = Box::new(milliseconds(20));
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    *time = LONG;
    std::hint::black_box(&mut time);
    t.in_order(&ring.wait(1));
}

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(20);
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    t.say(format_args!("seen {}", ring.watch(1)));
    t.in_order(&ring.reap());
}

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(10);
    t.entry(&ring.one(timeout(&time, 0, 0, 1).forced_async()));
}

fn many(t: &mut Transcript) {
    let mut ring = Ring::new(256);
    let times: Vec<Timespec> = (0..200).map(|index| milliseconds(index % 20)).collect();
    for (index, time) in times.iter().enumerate() {
        ring.push(timeout(time, 0, 0, index as u64));
    }
    t.result("submit", ring.submit());
    let entries = ring.wait(200);
    let expired = entries.iter().filter(|entry| entry.res == -libc::ETIME).count();
    t.say(format_args!("expired {expired} of {}", entries.len()));
}

fn ring_closes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(5);
    ring.push(timeout(&time, 0, 0, 1));
    ring.push(timeout(&LONG, 0, 0, 2));
    t.result("submit", ring.submit());
    drop(ring);
    crate::time::long_enough_to_notice();
    t.entry(&Ring::new(4).one(nop(3)));
}

/// Timeouts whose counts are reached together complete in the order of their counts, whatever their
/// times are.
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

/// A timeout that starts later in a chain does not count requests of its own batch.
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
