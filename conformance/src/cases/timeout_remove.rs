//! TIMEOUT_REMOVE: removal and update of a timeout.

use usring_uapi::{Sqe, Timespec, io_uring as u};

use crate::memory::BAD;
use crate::ring::Ring;
use crate::sqe::{Change, fields, link_timeout, read, timeout, timeout_remove};
use crate::time::{LONG, milliseconds, on_clock};
use crate::transcript::{Transcript, timed};
use usring_uapi::sqe_flags;

const UPDATE: u32 = u::IORING_TIMEOUT_UPDATE;

/// Returns a TIMEOUT_REMOVE that gives the timeout `target` the new time `time`. The SQE has the
/// address of that time in the field `off`.
fn update(target: u64, time: &Timespec, flags: u32, user_data: u64) -> Sqe {
    timeout_remove(target, user_data).op_flags(UPDATE | flags).with(|sqe| sqe.off = &raw const *time as u64)
}

fn removes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.submit();
    ring.push(timeout_remove(1, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    // A timeout and its removal are in one submission.
    ring.push(timeout(&LONG, 0, 0, 3));
    ring.push(timeout_remove(3, 4));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(removes => "
    cqe 1: -ECANCELED
    cqe 2: 0
    cqe 3: -ECANCELED
    cqe 4: 0
");

fn unknown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(timeout_remove(1, 2)));
    let (reader, _writer) = crate::files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(std::os::fd::AsRawFd::as_raw_fd(&reader), &mut byte, 0, 1));
    ring.submit();
    t.entry(&ring.one(timeout_remove(1, 3)));
}
case!(unknown => "
    cqe 2: -ENOENT
    cqe 3: -ENOENT
");

fn already_expired(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(timeout(&milliseconds(1), 0, 0, 1)));
    t.entry(&ring.one(timeout_remove(1, 2)));
}
case!(already_expired => "
    cqe 1: -ETIME
    cqe 2: -ENOENT
");

fn counted(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&LONG, 5, 0, 1));
    ring.submit();
    ring.push(timeout_remove(1, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(counted => "
    cqe 1: -ECANCELED
    cqe 2: 0
");

fn first_of_equals(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for _ in 0..2 {
        ring.push(timeout(&LONG, 0, 0, 1));
    }
    ring.submit();
    for user_data in 2..=4 {
        ring.push(timeout_remove(1, user_data));
    }
    ring.submit();
    t.sorted(&ring.wait(5));
}
case!(first_of_equals => "
    cqe 1: -ECANCELED
    cqe 1: -ECANCELED
    cqe 2: 0
    cqe 3: 0
    cqe 4: -ENOENT
");

fn update_sooner(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.submit();
    ring.push(update(1, &milliseconds(10), 0, 2));
    ring.submit();
    let (entries, waited) = timed(|| ring.wait(2));
    t.in_order(&entries);
    t.between("waited", waited, 0, 30_000);
}
case!(update_sooner => "
    cqe 2: 0
    cqe 1: -ETIME
    waited: after 0 to 30000 ms
");

fn update_later(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&milliseconds(300), 0, 0, 1));
    ring.submit();
    t.entry(&ring.one(update(1, &LONG, 0, 2)));
    t.result("half a second", ring.enter_for(0, 1, std::time::Duration::from_millis(500)));
    t.in_order(&ring.reap());
}
case!(update_later => "
    cqe 2: 0
    half a second = -ETIME
    no cqe
");

fn update_absolute(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.submit();
    let time = on_clock(libc::CLOCK_MONOTONIC, 10);
    ring.push(update(1, &time, u::IORING_TIMEOUT_ABS, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(update_absolute => "
    cqe 2: 0
    cqe 1: -ETIME
");

/// An updated timeout keeps its clock. The kernel refuses clock flags in the update.
fn update_keeps_clock(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&LONG, 0, u::IORING_TIMEOUT_REALTIME, 1));
    ring.submit();
    let time = on_clock(libc::CLOCK_REALTIME, 10);
    let named = u::IORING_TIMEOUT_ABS | u::IORING_TIMEOUT_REALTIME;
    t.entry(&ring.one(update(1, &time, named, 2)));
    ring.push(update(1, &time, u::IORING_TIMEOUT_ABS, 3));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(update_keeps_clock => "
    cqe 2: -EINVAL
    cqe 3: 0
    cqe 1: -ETIME
");

fn update_unknown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(update(1, &milliseconds(1), 0, 2)));
    t.entry(&ring.one(update(1, &milliseconds(1), u::IORING_LINK_TIMEOUT_UPDATE, 3)));
}
case!(update_unknown => "
    cqe 2: -ENOENT
    cqe 3: -ENOENT
");

fn update_link_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = crate::files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(std::os::fd::AsRawFd::as_raw_fd(&reader), &mut byte, 0, 1).linked());
    ring.push(link_timeout(&LONG, 0, 2));
    ring.submit();
    let link = u::IORING_LINK_TIMEOUT_UPDATE;
    ring.push(update(2, &milliseconds(10), link, 3));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(update_link_timeout => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    cqe 3: 0
");

/// A TIMEOUT_REMOVE has LINK_TIMEOUT_UPDATE without TIMEOUT_UPDATE. It removes the timeout. The
/// kernel nevertheless reads the new time at the address in the SQE.
fn link_flag_alone(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.submit();
    let time = milliseconds(1);
    let flag_alone = |target, user_data| update(target, &time, 0, user_data).op_flags(u::IORING_LINK_TIMEOUT_UPDATE);
    ring.push(flag_alone(1, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    t.entry(&ring.one(flag_alone(1, 3)));
    t.entry(&ring.one(flag_alone(1, 4).with(|sqe| sqe.off = crate::memory::BAD)));
}
case!(link_flag_alone => "
    cqe 1: -ECANCELED
    cqe 2: 0
    cqe 3: -ENOENT
    cqe 4: -EFAULT
");

/// An update of a TIMEOUT needs one flag, and an update of a LINK_TIMEOUT another. With the wrong
/// flag, the update finds no timeout.
fn update_wrong_kind(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = crate::files::pipe();
    let mut byte = [0u8; 1];
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.push(read(std::os::fd::AsRawFd::as_raw_fd(&reader), &mut byte, 0, 2).linked());
    ring.push(link_timeout(&LONG, 0, 3));
    ring.submit();
    t.entry(&ring.one(update(1, &milliseconds(1), u::IORING_LINK_TIMEOUT_UPDATE, 4)));
    t.entry(&ring.one(update(3, &milliseconds(1), 0, 5)));
    t.entry(&ring.one(timeout_remove(3, 6)));
}
case!(update_wrong_kind => "
    cqe 4: -ENOENT
    cqe 5: -ENOENT
    cqe 6: -ENOENT
");

fn update_multishot(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&LONG, 2, u::IORING_TIMEOUT_MULTISHOT, 1));
    ring.submit();
    ring.push(update(1, &milliseconds(5), 0, 2));
    ring.submit();
    let mut entries = ring.wait(2);
    // The timeout may have fired again meanwhile.
    entries.truncate(2);
    t.in_order(&entries);
}
case!(update_multishot => "
    cqe 2: 0
    cqe 1: -ETIME MORE
");

fn bad_timespec(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.submit();
    for (tv_sec, tv_nsec) in [(0, -1), (0, 1_000_000_000), (-1, 0)] {
        t.entry(&ring.one(update(1, &Timespec { tv_sec, tv_nsec }, 0, 2)));
    }
    for address in [0, BAD] {
        t.entry(&ring.one(update(1, &LONG, 0, 3).with(|sqe| sqe.off = address)));
    }
}
case!(bad_timespec => "
    cqe 2: -EINVAL
    cqe 2: 0
    cqe 2: -EINVAL
    cqe 3: -EFAULT
    cqe 3: -EFAULT
");

fn unknown_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for flags in [1, 4, 8, 16, 32, 64, 128, 1 << 31] {
        t.entry(&ring.one(timeout_remove(1, 2).op_flags(flags)));
    }
    let time = milliseconds(1);
    for flags in [4, 8, 4 | 8, 32, 64, 128] {
        t.entry(&ring.one(update(1, &time, flags, 3)));
    }
}
case!(unknown_flags => "
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EFAULT
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let wrong = fields! {
        len = 1, off = 1, buf_index = 1, file_index = 1, ioprio = 1, fd = 1,
        flags = sqe_flags::FIXED_FILE,
    };
    t.each(&mut ring, timeout_remove(1, 2), &wrong);
}
case!(reserved_fields => "
    cqe 2: -EINVAL
    cqe 2: -ENOENT
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -ENOENT
    cqe 2: -EINVAL
");

fn unused_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(timeout_remove(1, 2)));
    t.entry(&ring.one(timeout_remove(1, 3).with(|sqe| sqe.addr3 = 1)));
    t.entry(&ring.one(timeout_remove(1, 4).with(|sqe| sqe.pad2 = 1)));
    t.entry(&ring.one(timeout_remove(1, 5).with(|sqe| sqe.file_index = 1)));
}
case!(unused_fields => "
    cqe 2: -ENOENT
    cqe 3: -EINVAL
    cqe 4: -EINVAL
    cqe 5: -EINVAL
");

/// After an update, a multishot timeout with a count repeats without end.
fn update_multishot_goes_on(t: &mut Transcript) {
    for repeats in [0, 1, 2, 4] {
        let mut ring = Ring::new(4);
        ring.push(timeout(&LONG, repeats, u::IORING_TIMEOUT_MULTISHOT, 1));
        ring.submit();
        t.entry(&ring.one(update(1, &milliseconds(3), 0, 2)));
        // One completion more than the largest count.
        t.in_order(&ring.wait(5)[..5]);
    }
}
case!(update_multishot_goes_on => "
    cqe 2: 0
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 2: 0
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 2: 0
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 2: 0
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
");
