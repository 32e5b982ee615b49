//! TIMEOUT: clocks, completion counts, repetition, and refused parameters.

use usring_uapi::{Timespec, io_uring as u};

use crate::memory::BAD;
use crate::ring::Ring;
use crate::sqe::{Change, fields, nop, timeout, timeout_remove};
use crate::time::{LONG, milliseconds, on_clock};
use crate::transcript::{Transcript, timed};

mod counts;

const ABS: u32 = u::IORING_TIMEOUT_ABS;
const BOOT: u32 = u::IORING_TIMEOUT_BOOTTIME;
const REAL: u32 = u::IORING_TIMEOUT_REALTIME;

/// Submits a timeout. Prints its CQE, and whether it took at least `least` milliseconds.
fn expire(t: &mut Transcript, time: Timespec, flags: u32, least: u64) {
    let mut ring = Ring::new(4);
    let (entry, waited) = timed(|| ring.one(timeout(&time, 0, flags, 1)));
    t.entry(&entry);
    t.between("waited", waited, least, 30_000);
}

fn relative(t: &mut Transcript) {
    expire(t, milliseconds(30), 0, 30);
}
case!(relative => "
    cqe 1: -ETIME
    waited: after 30 to 30000 ms
");

fn zero(t: &mut Transcript) {
    expire(t, milliseconds(0), 0, 0);
}
case!(zero => "
    cqe 1: -ETIME
    waited: after 0 to 30000 ms
");

/// Submits a timeout with an absolute time of the clock `clock`. Prints its CQE, and whether it
/// expired only after that time.
fn expire_at(t: &mut Transcript, clock: libc::clockid_t, flags: u32) {
    let time = on_clock(clock, 30);
    expire(t, time, ABS | flags, 0);
    t.reached(clock, &time);
}

fn absolute(t: &mut Transcript) {
    expire_at(t, libc::CLOCK_MONOTONIC, 0);
}
case!(absolute => "
    cqe 1: -ETIME
    waited: after 0 to 30000 ms
    the time has come: true
");

fn absolute_in_the_past(t: &mut Transcript) {
    expire(t, milliseconds(1), ABS, 0);
    expire(t, milliseconds(1), ABS | REAL, 0);
    expire(t, milliseconds(1), ABS | BOOT, 0);
}
case!(absolute_in_the_past => "
    cqe 1: -ETIME
    waited: after 0 to 30000 ms
    cqe 1: -ETIME
    waited: after 0 to 30000 ms
    cqe 1: -ETIME
    waited: after 0 to 30000 ms
");

fn clocks(t: &mut Transcript) {
    expire(t, milliseconds(30), BOOT, 30);
    expire(t, milliseconds(30), REAL, 25);
    expire_at(t, libc::CLOCK_BOOTTIME, BOOT);
    expire_at(t, libc::CLOCK_REALTIME, REAL);
}
case!(clocks => "
    cqe 1: -ETIME
    waited: after 30 to 30000 ms
    cqe 1: -ETIME
    waited: after 25 to 30000 ms
    cqe 1: -ETIME
    waited: after 0 to 30000 ms
    the time has come: true
    cqe 1: -ETIME
    waited: after 0 to 30000 ms
    the time has come: true
");

fn two_clocks(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(timeout(&milliseconds(1), 0, BOOT | REAL, 1)));
}
case!(two_clocks => "cqe 1: -EINVAL");

fn shortest_first(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let times = [milliseconds(160), milliseconds(10), milliseconds(110), milliseconds(60)];
    for (index, time) in times.iter().enumerate() {
        ring.push(timeout(time, 0, 0, index as u64 + 1));
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(4));
}
case!(shortest_first => "
    submit = 4
    cqe 2: -ETIME
    cqe 4: -ETIME
    cqe 3: -ETIME
    cqe 1: -ETIME
");

fn expires_as_success(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let success = u::IORING_TIMEOUT_ETIME_SUCCESS;
    let time = milliseconds(5);
    ring.push(timeout(&time, 0, success, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(expires_as_success => "
    cqe 1: -ETIME
    cqe 2: 0
");

fn breaks_link(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(5);
    ring.push(timeout(&time, 0, 0, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    // A timeout that reaches its completion count is a success. So the linked request starts.
    ring.push(timeout(&LONG, 1, 0, 3).linked());
    ring.push(nop(4));
    ring.push(nop(5));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(breaks_link => "
    cqe 1: -ETIME
    cqe 2: -ECANCELED
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
");

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
case!(multishot => "
    submit = 1
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    three times: after 30 to 30000 ms
    cqe 1: -ECANCELED
    cqe 2: 0
");

/// A multishot timeout with a count expires as often as its count says.
fn multishot_counted(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let time = milliseconds(5);
    ring.push(timeout(&time, 3, MULTISHOT, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(3));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(multishot_counted => "
    submit = 1
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME
    no cqe
");

/// The kernel refuses a multishot timeout with an absolute time.
fn multishot_absolute(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let time = on_clock(libc::CLOCK_MONOTONIC, 5);
    t.entry(&ring.one(timeout(&time, 2, MULTISHOT | ABS, 1)));
}
case!(multishot_absolute => "cqe 1: -EINVAL");

/// The kernel refuses a timeout with negative seconds or nanoseconds. It accepts nanoseconds beyond
/// a second and adds them to the seconds.
fn bad_timespec(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (tv_sec, tv_nsec) in [(0, -1), (0, i64::MIN), (-1, 0), (i64::MIN, 0), (5, -1)] {
        t.entry(&ring.one(timeout(&Timespec { tv_sec, tv_nsec }, 0, 0, 1)));
    }
    let time = Timespec { tv_sec: 0, tv_nsec: 1_200_000_000 };
    let (entry, waited) = timed(|| ring.one(timeout(&time, 0, 0, 1)));
    t.entry(&entry);
    t.between("waited", waited, 1200, 30_000);
    // The longest possible time is accepted.
    let longest = Timespec { tv_sec: i64::MAX, tv_nsec: 999_999_999 };
    ring.push(timeout(&longest, 0, 0, 2));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    ring.push(timeout_remove(2, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(bad_timespec => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -ETIME
    waited: after 1200 to 30000 ms
    submit = 1
    no cqe
    cqe 2: -ECANCELED
    cqe 3: 0
");

fn bad_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for address in [0, BAD, u64::MAX - 7] {
        t.entry(&ring.one(timeout(&LONG, 0, 0, 1).with(|sqe| sqe.addr = address)));
    }
}
case!(bad_address => "
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EFAULT
");

fn unknown_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(1);
    // Some of these bits are UPDATE and LINK_TIMEOUT_UPDATE, which belong to TIMEOUT_REMOVE. The
    // bits from 7 on are undefined.
    for bit in [1, 4, 8, 9, 15, 31] {
        t.entry(&ring.one(timeout(&time, 0, 1 << bit, bit)));
    }
}
case!(unknown_flags => "
    cqe 1: -EINVAL
    cqe 4: -EINVAL
    cqe 8: -EINVAL
    cqe 9: -EINVAL
    cqe 15: -EINVAL
    cqe 31: -EINVAL
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(1);
    let wrong = fields! {
        len = 0, len = 2, buf_index = 1, file_index = 1, ioprio = 1, fd = 5, addr3 = 5,
    };
    t.each(&mut ring, timeout(&time, 0, 0, 1), &wrong);
    // A timeout's completion count is in a 64-bit field. The kernel uses only its lower 32 bits.
    ring.push(timeout(&LONG, 1 << 32 | 1, 0, 2));
    ring.push(nop(3));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(reserved_fields => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -ETIME
    cqe 1: -EINVAL
    cqe 2: 0
    cqe 3: 0
");

fn timespec_is_copied(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut time = Box::new(milliseconds(20));
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    *time = LONG;
    std::hint::black_box(&mut time);
    t.in_order(&ring.wait(1));
}
case!(timespec_is_copied => "cqe 1: -ETIME");

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(20);
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
    t.in_order(&ring.reap());
}
case!(watched_in_memory => "
    seen true
    cqe 1: -ETIME
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(10);
    t.entry(&ring.one(timeout(&time, 0, 0, 1).forced_async()));
}
case!(forced_async => "cqe 1: -ETIME");

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
case!(many => "
    submit = 200
    expired 200 of 200
");

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
case!(ring_closes => "
    submit = 2
    cqe 3: 0
");
