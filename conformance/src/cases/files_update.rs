//! FILES_UPDATE: a request that changes the table of registered files.

use std::os::fd::AsRawFd;
use std::time::Duration;

use usring_uapi::{Sqe, io_uring as u, opcode};

use super::reg;
use crate::files;
use crate::memory::{BAD, PAGE, Pages};
use crate::ring::Ring;
use crate::sqe::{Change, fields, read, sqe};
use crate::transcript::Transcript;
use usring_uapi::sqe_flags;

pub fn update(numbers: &[i32], offset: u64, user_data: u64) -> Sqe {
    sqe(opcode::FILES_UPDATE, -1, user_data).with(|sqe| {
        sqe.addr = numbers.as_ptr() as u64;
        sqe.len = numbers.len() as u32;
        sqe.off = offset;
    })
}

fn table(slots: usize) -> Ring {
    let ring = Ring::new(8);
    let numbers = vec![-1i32; slots];
    assert_eq!(ring.register(reg::FILES, numbers.as_ptr(), slots as u32), 0);
    ring
}

fn first_byte(t: &mut Transcript, ring: &mut Ring, slot: i32) {
    let mut byte = [b'?'; 1];
    let entry = ring.one(read(slot, &mut byte, 0, 99).fixed());
    let text = format!("slot {slot} {}", byte[0] as char);
    t.result(text, entry.res);
}

fn replaces(t: &mut Transcript) {
    let mut ring = table(3);
    let (a, b) = (files::memory_file(b"a"), files::memory_file(b"b"));
    let numbers = [a.as_raw_fd(), b.as_raw_fd()];
    t.entry(&ring.one(update(&numbers, 1, 1)));
    for slot in 0..3 {
        first_byte(t, &mut ring, slot);
    }
    t.entry(&ring.one(update(&[-1], 1, 2)));
    first_byte(t, &mut ring, 1);
}
case!(replaces => "
    cqe 1: 2
    slot 0 ? = -EBADF
    slot 1 a = 1
    slot 2 b = 1
    cqe 2: 1
    slot 1 ? = -EBADF
");

fn no_table(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(update(&[-1], 0, 1)));
}
case!(no_table => "cqe 1: -ENXIO");

fn bad_ranges(t: &mut Transcript) {
    let mut ring = table(2);
    t.entry(&ring.one(update(&[-1], 2, 1)));
    t.entry(&ring.one(update(&[-1, -1], 1, 2)));
    t.entry(&ring.one(update(&[], 0, 3)));
    t.entry(&ring.one(update(&[-1], u64::from(u32::MAX) + 1, 4)));
    t.entry(&ring.one(update(&[-1], 0, 5).with(|sqe| sqe.addr = 0)));
    t.entry(&ring.one(update(&[-1], 0, 6).with(|sqe| sqe.addr = BAD)));
    t.entry(&ring.one(update(&[-1], 0, 7).with(|sqe| sqe.len = u32::MAX)));
}
case!(bad_ranges => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 4: 1
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    cqe 7: -EINVAL
");

fn stops_at_bad(t: &mut Transcript) {
    let mut ring = table(3);
    let a = files::memory_file(b"a");
    t.entry(&ring.one(update(&[a.as_raw_fd(), 9999, a.as_raw_fd()], 0, 1)));
    for slot in 0..3 {
        first_byte(t, &mut ring, slot);
    }
    t.entry(&ring.one(update(&[9999], 0, 2)));
}
case!(stops_at_bad => "
    cqe 1: 1
    slot 0 a = 1
    slot 1 ? = -EBADF
    slot 2 ? = -EBADF
    cqe 2: -EBADF
");

fn skips(t: &mut Transcript) {
    let mut ring = table(2);
    let a = files::memory_file(b"a");
    t.entry(&ring.one(update(&[a.as_raw_fd(), u::IORING_REGISTER_FILES_SKIP], 0, 1)));
    t.entry(&ring.one(update(&[u::IORING_REGISTER_FILES_SKIP], 0, 2)));
    first_byte(t, &mut ring, 0);
}
case!(skips => "
    cqe 1: 2
    cqe 2: 1
    slot 0 a = 1
");

/// With IORING_FILE_INDEX_ALLOC as offset, the kernel chooses the slots. It writes the indices of
/// these slots over the descriptor numbers in the program's array.
fn allocates(t: &mut Transcript) {
    let mut ring = table(3);
    let (a, b) = (files::memory_file(b"a"), files::memory_file(b"b"));
    let mut numbers = [a.as_raw_fd(), b.as_raw_fd()];
    let wanted = update(&numbers, u64::from(u32::MAX), 1);
    t.entry(&ring.one(wanted.with(|sqe| sqe.addr = numbers.as_mut_ptr() as u64)));
    t.say(format_args!("{numbers:?}"));
    first_byte(t, &mut ring, 0);
    first_byte(t, &mut ring, 1);
}
case!(allocates => "
    cqe 1: 2
    [0, 1]
    slot 0 a = 1
    slot 1 b = 1
");

fn allocates_until_full(t: &mut Transcript) {
    let mut ring = table(2);
    let a = files::memory_file(b"a");
    let mut numbers = [a.as_raw_fd(); 3];
    let address = numbers.as_mut_ptr() as u64;
    let wanted = update(&[0; 3], u64::from(u32::MAX), 1).with(|sqe| sqe.addr = address);
    t.entry(&ring.one(wanted));
    t.say(format_args!("{:?}", &numbers[..2]));
    t.entry(&ring.one(update(&[a.as_raw_fd()], u64::from(u32::MAX), 2)));
    let mut bad = [9999i32];
    let address = bad.as_mut_ptr() as u64;
    t.entry(&ring.one(update(&[0], u64::from(u32::MAX), 3).with(|sqe| sqe.addr = address)));
}
case!(allocates_until_full => "
    cqe 1: 2
    [0, 1]
    cqe 2: -ENFILE
    cqe 3: -EBADF
");

/// FILES_UPDATE allocates a slot but cannot write the slot's index to the program. So the kernel
/// empties the slot again, and no registered file keeps the pipe's writing end open.
fn allocation_whose_index_is_not_written(t: &mut Transcript) {
    let mut ring = table(2);
    let (reader, writer) = files::pipe();
    let array = numbers_before_bad_page(&[writer.as_raw_fd()]);
    array.protect(0, libc::PROT_READ);
    let wanted = update(&[0], u64::from(u32::MAX), 1).with(|sqe| sqe.addr = array.at(PAGE - 4));
    t.entry(&ring.one(wanted));
    first_byte(t, &mut ring, 0);
    drop(writer);
    let is_closed = files::is_readable_within(reader.as_raw_fd(), Duration::from_secs(5));
    t.say(format_args!("the reader has a hang-up: {is_closed}"));
}
case!(allocation_whose_index_is_not_written => "
    cqe 1: -EFAULT
    slot 0 ? = -EBADF
    the reader has a hang-up: true
");

/// Makes two pages, puts `numbers` at the end of the first page, and makes the second page
/// inaccessible.
fn numbers_before_bad_page(numbers: &[i32]) -> Pages {
    let mut pages = Pages::new(2);
    let start = PAGE - 4 * numbers.len();
    for (number, place) in numbers.iter().zip(pages.bytes()[start..].chunks_mut(4)) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    pages.forbid_last();
    pages
}

/// An array of six descriptor numbers ends where the readable memory ends. A FILES_UPDATE with a
/// larger count registers these six files, and its result is 6.
fn allocates_up_to_bad_memory(t: &mut Transcript) {
    for count in [7, 1 << 20, u32::MAX] {
        let mut ring = table(8);
        let a = files::memory_file(b"a");
        let array = numbers_before_bad_page(&[a.as_raw_fd(); 6]);
        let wanted = update(&[0], u64::from(u32::MAX), 1);
        t.entry(&ring.one(wanted.with(|sqe| (sqe.addr, sqe.len) = (array.at(PAGE - 24), count))));
        t.entry(&ring.one(wanted.with(|sqe| (sqe.addr, sqe.len) = (array.at(PAGE), count))));
        first_byte(t, &mut ring, 5);
        first_byte(t, &mut ring, 6);
    }
}
case!(allocates_up_to_bad_memory => "
    cqe 1: 6
    cqe 1: -EFAULT
    slot 5 a = 1
    slot 6 ? = -EBADF
    cqe 1: 6
    cqe 1: -EFAULT
    slot 5 a = 1
    slot 6 ? = -EBADF
    cqe 1: 6
    cqe 1: -EFAULT
    slot 5 a = 1
    slot 6 ? = -EBADF
");

fn allocates_without_table(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for number in [-1, 9999, 0] {
        t.entry(&ring.one(update(&[number], u64::from(u32::MAX), 1)));
    }
    t.entry(&ring.one(update(&[0], u64::from(u32::MAX), 2).with(|sqe| sqe.addr = BAD)));
}
case!(allocates_without_table => "
    cqe 1: -ENXIO
    cqe 1: -ENXIO
    cqe 1: -ENXIO
    cqe 2: -ENXIO
");

fn linked_to_read(t: &mut Transcript) {
    let mut ring = table(1);
    let file = files::memory_file(b"linked");
    let numbers = [file.as_raw_fd()];
    let mut buffer = [0u8; 6];
    ring.push(update(&numbers, 0, 1).linked());
    ring.push(read(0, &mut buffer, 0, 2).fixed());
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(2));
    t.say(String::from_utf8_lossy(&buffer).into_owned());
}
case!(linked_to_read => "
    submit = 2
    cqe 1: 1
    cqe 2: 6
    linked
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = table(1);
    let wrong = fields! {
        op_flags = 1, file_index = 1, buf_index = 1, ioprio = 1, fd = 7,
        flags = sqe_flags::FIXED_FILE, flags = sqe_flags::BUFFER_SELECT,
    };
    t.each(&mut ring, update(&[-1], 0, 1), &wrong);
}
case!(reserved_fields => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: 1
    cqe 1: -EINVAL
    cqe 1: 1
    cqe 1: -EINVAL
    cqe 1: -EOPNOTSUPP
");

fn forced_async(t: &mut Transcript) {
    let mut ring = table(1);
    let file = files::memory_file(b"a");
    let numbers = [file.as_raw_fd()];
    t.entry(&ring.one(update(&numbers, 0, 1).forced_async()));
    first_byte(t, &mut ring, 0);
}
case!(forced_async => "
    cqe 1: 1
    slot 0 a = 1
");
