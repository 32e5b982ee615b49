//! The advice requests FADVISE and MADVISE.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, opcode};

use crate::files;
use crate::memory::{BAD, Pages};
use crate::ring::Ring;
use crate::sqe::{Change, fields, sqe};
use crate::transcript::Transcript;

fn fadvise(fd: i32, off: u64, len: u32, advice: i32, user_data: u64) -> Sqe {
    sqe(opcode::FADVISE, fd, user_data).op_flags(advice as u32).with(|sqe| {
        sqe.off = off;
        sqe.len = len;
    })
}

fn madvise(address: u64, len: u32, advice: i32, user_data: u64) -> Sqe {
    sqe(opcode::MADVISE, -1, user_data).op_flags(advice as u32).with(|sqe| {
        sqe.addr = address;
        sqe.len = len;
    })
}

fn file_kinds(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", b"0123456789");
    for advice in 0..6 {
        t.entry(&ring.one(fadvise(file.as_raw_fd(), 0, 10, advice, advice as u64)));
    }
}
case!(file_kinds => "
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
");

fn file_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", b"0123456789");
    t.entry(&ring.one(fadvise(file.as_raw_fd(), 0, 10, 6, 1)));
    t.entry(&ring.one(fadvise(file.as_raw_fd(), 0, 10, -1, 2)));
    t.entry(&ring.one(fadvise(-1, 0, 10, 0, 3)));
    let (reader, _writer) = files::pipe();
    t.entry(&ring.one(fadvise(reader.as_raw_fd(), 0, 10, 0, 4)));
    t.entry(&ring.one(fadvise(file.as_raw_fd(), u64::MAX, 10, 0, 5)));
}
case!(file_wrong => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EBADF
    cqe 4: -ESPIPE
    cqe 5: 0
");

/// FADVISE takes the length of the file's range from the SQE field `addr` (since Linux 6.10). If
/// `addr` is zero, it takes the length from the field `len`.
fn file_long_range(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", b"0123456789");
    let ranged = |length, user_data| fadvise(file.as_raw_fd(), 0, 0, 3, user_data).with(|sqe| sqe.addr = length);
    t.entry(&ring.one(ranged(1 << 40, 1)));
    t.entry(&ring.one(ranged(u64::MAX, 2)));
}
case!(file_long_range => "
    cqe 1: 0
    cqe 2: -EINVAL
");

fn memory_kinds(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(4);
    for advice in [libc::MADV_NORMAL, libc::MADV_RANDOM, libc::MADV_SEQUENTIAL, libc::MADV_WILLNEED] {
        t.entry(&ring.one(madvise(pages.at(0), 8192, advice, advice as u64)));
    }
    t.entry(&ring.one(madvise(pages.at(0), 4096, libc::MADV_FREE, 8)));
}
case!(memory_kinds => "
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 8: 0
");

fn memory_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(4);
    t.entry(&ring.one(madvise(pages.at(1), 4096, 0, 1)));
    t.entry(&ring.one(madvise(BAD & !4095, 4096, 0, 2)));
    t.entry(&ring.one(madvise(pages.at(0), 4096, 9999, 3)));
    t.entry(&ring.one(madvise(pages.at(0), 0, 0, 4)));
}
case!(memory_wrong => "
    cqe 1: -EINVAL
    cqe 2: -ENOMEM
    cqe 3: -EINVAL
    cqe 4: 0
");

fn memory_dont_need(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut pages = Pages::new(2);
    pages.bytes().fill(7);
    t.entry(&ring.one(madvise(pages.at(0), 4096, libc::MADV_DONTNEED, 1)));
    let bytes = pages.bytes();
    t.say(format_args!("{} {}", bytes[0], bytes[4096]));
}
case!(memory_dont_need => "
    cqe 1: 0
    0 7
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"x");
    let pages = Pages::new(1);
    let base = [fadvise(file.as_raw_fd(), 0, 1, 0, 1), madvise(pages.at(0), 4096, 0, 2)];
    for sqe in base {
        t.each(&mut ring, sqe, &fields![buf_index = 1, file_index = 1, ioprio = 1]);
    }
    t.entry(&ring.one(madvise(pages.at(0), 0, 0, 3).with(|sqe| sqe.off = 4096)));
}
case!(reserved_fields => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 3: 0
");
