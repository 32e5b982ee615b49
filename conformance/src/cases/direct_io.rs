//! Files open with O_DIRECT: transfers that bypass the page cache.
use super::{exec, reg};
use crate::files::Scratch;
use crate::memory::Pages;
use crate::ring::{self, Entry, Ring};
use crate::sqe::{CURRENT, Change, nop, read_at, readv, sqe, vector, write_at, writev};
use crate::transcript::Transcript;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use usring_uapi::{general as linux, io_uring as u, opcode, sqe_flags};
use workers::seek;

mod in_flight;
mod workers;

pub(super) const BLOCK: usize = 4096;
/// RWF_NOAPPEND, which exists from Linux 6.9 on.
const RWF_NOAPPEND: u32 = 0x20;

/// Makes a file of `blocks` blocks, each filled with its own index. The returned descriptor was
/// opened with O_DIRECT and `flags`.
pub(super) fn numbered(scratch: &Scratch, blocks: usize, flags: i32) -> OwnedFd {
    let content: Vec<u8> = (0..blocks).flat_map(|block| [block as u8; BLOCK]).collect();
    let file = scratch.file("data", &content);
    uncache(&file);
    open(scratch, flags)
}

/// Drops the file's pages from the page cache. The kernel would leave a write over cached pages to
/// a worker. If the ring closed before the worker started, the kernel would cancel that write.
pub(super) fn uncache(file: &OwnedFd) {
    // SAFETY: the call touches no memory.
    unsafe {
        libc::fsync(file.as_raw_fd());
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
    }
}

fn open(scratch: &Scratch, flags: i32) -> OwnedFd {
    let path = scratch.path_of("data");
    // SAFETY: the path is a C string. The descriptor is new, and nothing else owns it.
    unsafe {
        let fd = libc::open(path.as_ptr(), flags | libc::O_DIRECT | libc::O_CLOEXEC);
        assert!(fd >= 0, "TMPDIR is on a file system that takes O_DIRECT");
        OwnedFd::from_raw_fd(fd)
    }
}

pub(super) fn length(scratch: &Scratch) -> u64 {
    std::fs::metadata(scratch.path.join("data")).map_or(0, |file| file.len())
}

/// Returns, for each block of the file, the number that fills the block.
pub(super) fn content(scratch: &Scratch) -> Vec<u8> {
    let bytes = std::fs::read(scratch.path.join("data")).unwrap_or_default();
    bytes.chunks(BLOCK).map(|block| if block.iter().all(|byte| *byte == block[0]) { block[0] } else { 255 }).collect()
}

/// Fills block `slot` of the memory `pages` with `number`. Returns the address of the block.
pub(super) fn block(pages: &mut Pages, slot: usize, number: u8) -> u64 {
    pages.bytes()[slot * BLOCK..][..BLOCK].fill(number);
    pages.at(slot * BLOCK)
}

pub(super) fn at(block: usize) -> u64 {
    (block * BLOCK) as u64
}

pub(super) fn whole(entries: &[Entry]) -> usize {
    entries.iter().filter(|entry| entry.res == BLOCK as i32).count()
}

fn read_and_write(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 32, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(64));
    let writes: Vec<_> = (0..16)
        .map(|index| write_at(fd, block(&mut pages, index, 100 + index as u8), BLOCK as u32, at(2 * index), 1))
        .collect();
    t.say(format_args!("written {}", whole(&ring.run(&writes))));
    let reads: Vec<_> =
        (0..32).map(|index| read_at(fd, pages.at((32 + index) * BLOCK), BLOCK as u32, at(index), 2)).collect();
    t.say(format_args!("read {}", whole(&ring.run(&reads))));
    let firsts: Vec<u8> = pages.bytes().chunks(BLOCK).skip(32).map(|block| block[BLOCK - 1]).collect();
    t.say(format_args!("{firsts:?}"));
}
case!(read_and_write => "
    written 16
    read 32
    [100, 1, 101, 3, 102, 5, 103, 7, 104, 9, 105, 11, 106, 13, 107, 15, 108, 17, 109, 19, 110, 21, 111, 23, 112, 25, 113, 27, 114, 29, 115, 31]
");

fn end_of_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, pages) = (file.as_raw_fd(), Pages::new(8));
    for (first, count) in [(3, 1), (3, 4), (2, 8), (4, 1), (400, 1)] {
        t.entry(&ring.one(read_at(fd, pages.at(0), (count * BLOCK) as u32, at(first), first as u64)));
    }
    // From here on, the file ends in the middle of a block.
    // SAFETY: the call touches no memory.
    t.say(format_args!("{}", unsafe { libc::ftruncate(fd, at(3) as i64 + 100) }));
    t.entry(&ring.one(read_at(fd, pages.at(0), BLOCK as u32, at(3), 5)));
    t.entry(&ring.one(read_at(fd, pages.at(0), 2 * BLOCK as u32, at(2), 6)));
}
case!(end_of_file => "
    cqe 3: 4096
    cqe 3: 4096
    cqe 2: 8192
    cqe 4: 0
    cqe 400: 0
    0
    cqe 5: 100
    cqe 6: 4196
");

fn unaligned(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, pages) = (file.as_raw_fd(), Pages::new(4));
    let mut tag = 0;
    for (address, length, offset) in [(1, BLOCK, 0), (0, BLOCK - 1, 0), (0, BLOCK, 1), (7, 100, 13)] {
        for sqe in [
            read_at(fd, pages.at(address), length as u32, offset, tag),
            write_at(fd, pages.at(address), length as u32, offset, tag),
        ] {
            t.entry(&ring.one(sqe));
            tag += 1;
        }
    }
    let odd = [vector(pages.at(0), BLOCK), vector(pages.at(BLOCK + 3), BLOCK)];
    t.entry(&ring.one(readv(fd, &odd, 0, 20)));
    t.entry(&ring.one(writev(fd, &odd, 0, 21)));
}
case!(unaligned => "
    cqe 0: -EINVAL
    cqe 0: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 4: -EINVAL
    cqe 4: -EINVAL
    cqe 6: -EINVAL
    cqe 6: -EINVAL
    cqe 20: -EINVAL
    cqe 21: -EINVAL
");

fn vectors(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 8, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(8));
    let three =
        [vector(pages.at(0), BLOCK), vector(pages.at(4 * BLOCK), 2 * BLOCK), vector(pages.at(2 * BLOCK), BLOCK)];
    t.entry(&ring.one(readv(fd, &three, at(1), 1)));
    let firsts: Vec<u8> = pages.bytes().chunks(BLOCK).map(|block| block[0]).collect();
    t.say(format_args!("{firsts:?}"));
    t.entry(&ring.one(writev(fd, &three, at(4), 2)));
    t.entry(&ring.one(readv(fd, &three, at(6), 3)));
    t.say(format_args!("{:?}", content(&scratch)));
}
case!(vectors => "
    cqe 1: 16384
    [1, 0, 4, 0, 2, 3, 0, 0]
    cqe 2: 16384
    cqe 3: 8192
    [0, 1, 2, 3, 1, 2, 3, 4]
");

fn makes_the_file_longer(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 1, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(16));
    let writes: Vec<_> = (0..16)
        .map(|index| write_at(fd, block(&mut pages, index, 10 + index as u8), BLOCK as u32, at(1 + index), 1))
        .collect();
    t.say(format_args!("written {} length {}", whole(&ring.run(&writes)), length(&scratch)));
    t.entry(&ring.one(write_at(fd, pages.at(0), BLOCK as u32, at(20), 2)));
    t.say(format_args!("{:?}", content(&scratch)));
}
case!(makes_the_file_longer => "
    written 16 length 69632
    cqe 2: 4096
    [0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 0, 0, 0, 10]
");

fn into_a_hole(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 1, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(8));
    // SAFETY: the call touches no memory.
    t.say(format_args!("{}", unsafe { libc::ftruncate(fd, at(16) as i64) }));
    t.entry(&ring.one(read_at(fd, block(&mut pages, 0, 9), BLOCK as u32, at(7), 1)));
    t.say(format_args!("zero {}", pages.bytes()[..BLOCK].iter().all(|byte| *byte == 0)));
    let writes: Vec<_> = (0..8)
        .map(|index| write_at(fd, block(&mut pages, index, 10 + index as u8), BLOCK as u32, at(2 * index), 2))
        .collect();
    t.say(format_args!("written {}", whole(&ring.run(&writes))));
    t.say(format_args!("{:?}", content(&scratch)));
}
case!(into_a_hole => "
    0
    cqe 1: 4096
    zero true
    written 8
    [10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15, 0, 16, 0, 17, 0]
");

fn append(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 2, libc::O_RDWR | libc::O_APPEND);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(8));
    for index in 0..8 {
        let link = write_at(fd, block(&mut pages, index, 10 + index as u8), BLOCK as u32, 0, index as u64);
        ring.push(if index < 7 { link.linked() } else { link });
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(8));
    t.say(format_args!("{:?}", content(&scratch)));
    let overwrite = write_at(fd, pages.at(0), BLOCK as u32, 0, 9).op_flags(RWF_NOAPPEND);
    t.entry(&ring.one(overwrite));
    t.say(format_args!("{:?}", content(&scratch)));
}
case!(append => "
    submit = 8
    cqe 0: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 3: 4096
    cqe 4: 4096
    cqe 5: 4096
    cqe 6: 4096
    cqe 7: 4096
    [0, 1, 10, 11, 12, 13, 14, 15, 16, 17]
    cqe 9: 4096
    [10, 1, 10, 11, 12, 13, 14, 15, 16, 17]
");

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(2));
    let flags = [linux::RWF_DSYNC, linux::RWF_SYNC, linux::RWF_APPEND, linux::RWF_HIPRI, 1 << 20];
    for (tag, flag) in flags.into_iter().enumerate() {
        let address = block(&mut pages, 0, 30 + tag as u8);
        t.entry(&ring.one(write_at(fd, address, BLOCK as u32, 0, tag as u64).op_flags(flag)));
        t.entry(&ring.one(read_at(fd, pages.at(BLOCK), BLOCK as u32, 0, tag as u64).op_flags(flag)));
    }
    t.say(format_args!("length {} first {}", length(&scratch), content(&scratch)[0]));
}
case!(flags => "
    cqe 0: 4096
    cqe 0: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 2: 4096
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 4: -EOPNOTSUPP
    cqe 4: -EOPNOTSUPP
    length 20480 first 31
");

/// Reads at the file's current position. The case sets the position before each read: the kernel
/// moves it only if the disk answers during the submitting call.
fn at_the_position(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(2));
    for tag in 1..4 {
        seek(&file, at(tag));
        t.entry(&ring.one(read_at(fd, pages.at(0), BLOCK as u32, CURRENT, tag as u64)));
        t.say(format_args!("{}", pages.bytes()[0]));
    }
}
case!(at_the_position => "
    cqe 1: 4096
    1
    cqe 2: 4096
    2
    cqe 3: 4096
    3
");

fn bad_memory(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    t.entry(&ring.one(read_at(file.as_raw_fd(), BLOCK as u64, BLOCK as u32, 0, 1)));
    t.entry(&ring.one(write_at(file.as_raw_fd(), BLOCK as u64, BLOCK as u32, 0, 2)));
    t.entry(&ring.one(write_at(file.as_raw_fd(), BLOCK as u64, BLOCK as u32, at(4), 3)));
}
case!(bad_memory => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
");

fn links(t: &mut Transcript) {
    let mut ring = Ring::new(16);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(4));
    for index in 0..3 {
        let number = 50 + index as u8;
        ring.push(write_at(fd, block(&mut pages, index, number), BLOCK as u32, 0, 2 * index as u64).linked());
        let back = read_at(fd, pages.at(3 * BLOCK), BLOCK as u32, 0, 2 * index as u64 + 1);
        ring.push(if index < 2 { back.linked() } else { back });
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(6));
    t.say(format_args!("{} {:?}", pages.bytes()[3 * BLOCK], content(&scratch)));
}
case!(links => "
    submit = 6
    cqe 0: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 3: 4096
    cqe 4: 4096
    cqe 5: 4096
    52 [52, 1, 2, 3]
");

fn link_broken_by_a_short_read(t: &mut Transcript) {
    let mut ring = Ring::new(16);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, pages) = (file.as_raw_fd(), Pages::new(4));
    ring.push(read_at(fd, pages.at(0), 2 * BLOCK as u32, at(3), 1).linked());
    ring.push(nop(2));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(2));
    ring.push(read_at(fd, pages.at(0), 2 * BLOCK as u32, at(3), 3).flagged(sqe_flags::IO_HARDLINK));
    ring.push(nop(4));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(2));
}
case!(link_broken_by_a_short_read => "
    submit = 2
    cqe 1: 4096
    cqe 2: -ECANCELED
    submit = 2
    cqe 3: 4096
    cqe 4: 0
");

fn drain(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(17));
    for index in 0..16 {
        ring.push(write_at(fd, block(&mut pages, index, 60), BLOCK as u32, at(index), 1));
    }
    let mut last = read_at(fd, pages.at(16 * BLOCK), BLOCK as u32, at(15), 2);
    last.flags |= sqe_flags::IO_DRAIN;
    ring.push(last);
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(17));
    t.say(format_args!("{}", pages.bytes()[16 * BLOCK]));
}
case!(drain => "
    submit = 17
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 1: 4096
    cqe 2: 4096
    60
");

fn sync_behind_writes(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(4));
    for index in 0..4 {
        let number = 70 + index as u8;
        ring.push(write_at(fd, block(&mut pages, index, number), BLOCK as u32, at(index), 2 * index as u64).linked());
        ring.push(sqe(opcode::FSYNC, fd, 2 * index as u64 + 1).op_flags(u::IORING_FSYNC_DATASYNC));
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(8));
    t.say(format_args!("{:?}", content(&scratch)));
}
case!(sync_behind_writes => "
    submit = 8
    cqe 0: 4096
    cqe 1: 0
    cqe 2: 4096
    cqe 3: 0
    cqe 4: 4096
    cqe 5: 0
    cqe 6: 4096
    cqe 7: 0
    [70, 71, 72, 73]
");

pub(super) fn deferring_ring() -> Ring {
    Ring::flags(64, ring::DEFER)
}
