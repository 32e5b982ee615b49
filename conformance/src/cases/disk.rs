//! Files on a real file system (under TMPDIR): cached and uncached reads, O_DIRECT, large
//! transfers.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{io_uring as u, opcode};

use super::reg;
use crate::files::Scratch;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, read, read_at, readv, sqe, vector, write, write_at};
use crate::transcript::Transcript;

const BLOCK: usize = 4096;

/// Makes a file of `blocks` blocks, each filled with its own index.
fn numbered(scratch: &Scratch, blocks: usize) -> OwnedFd {
    let content: Vec<u8> = (0..blocks).flat_map(|block| [block as u8; BLOCK]).collect();
    scratch.file("data", &content)
}

/// Drops the file's pages from the page cache, except those that the kernel keeps nevertheless.
fn uncache(file: &OwnedFd) {
    // SAFETY: the call touches no memory.
    unsafe {
        libc::fsync(file.as_raw_fd());
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
    }
}

/// Reads each block by a separate request. Returns how many reads were complete, and how many
/// blocks had the right content.
fn read_all(ring: &mut Ring, fd: i32, blocks: usize) -> (usize, usize) {
    let mut buffers = vec![[0u8; BLOCK]; blocks];
    let reads: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(block, buffer)| read(fd, buffer, (block * BLOCK) as u64, block as u64))
        .collect();
    let entries = ring.run(&reads);
    let whole = entries.iter().filter(|entry| entry.res == BLOCK as i32).count();
    let right = buffers.iter().enumerate().filter(|(block, buffer)| buffer.iter().all(|byte| *byte == *block as u8));
    (whole, right.count())
}

fn write_and_read_back(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    let file = scratch.file("data", b"");
    let blocks: Vec<[u8; BLOCK]> = (0..32).map(|block| [block; BLOCK]).collect();
    let writes: Vec<_> = blocks
        .iter()
        .enumerate()
        .map(|(index, block)| write(file.as_raw_fd(), block, (index * BLOCK) as u64, index as u64))
        .collect();
    let entries = ring.run(&writes);
    t.say(format_args!("written {}", entries.iter().filter(|entry| entry.res == BLOCK as i32).count()));
    t.say(format_args!("whole and right {:?}", read_all(&mut ring, file.as_raw_fd(), 32)));
}
case!(write_and_read_back => "
    written 32
    whole and right (32, 32)
");

fn not_cached(t: &mut Transcript) {
    let mut ring = Ring::new(128);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 100);
    for _ in 0..3 {
        uncache(&file);
        t.say(format_args!("whole and right {:?}", read_all(&mut ring, file.as_raw_fd(), 100)));
    }
}
case!(not_cached => "
    whole and right (100, 100)
    whole and right (100, 100)
    whole and right (100, 100)
");

/// Only some pages of the file are cached. A read over all of them returns all bytes.
fn partly_cached(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 64);
    let fd = file.as_raw_fd();
    uncache(&file);
    let mut block = [0u8; BLOCK];
    t.entry(&ring.one(read(fd, &mut block, 0, 1)));
    let mut buffer = vec![0u8; 64 * BLOCK];
    t.entry(&ring.one(read(fd, &mut buffer, 0, 2)));
    let right = buffer.chunks(BLOCK).enumerate().filter(|(number, block)| block[0] == *number as u8);
    t.say(format_args!("right {}", right.count()));
}
case!(partly_cached => "
    cqe 1: 4096
    cqe 2: 262144
    right 64
");

fn open_direct(scratch: &Scratch) -> Option<OwnedFd> {
    let path = scratch.path_of("data");
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_DIRECT | libc::O_CLOEXEC) };
    // SAFETY: the descriptor is new, and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn direct(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    drop(numbered(&scratch, 16));
    let Some(file) = open_direct(&scratch) else {
        t.say("no direct files here");
        return;
    };
    let mut pages = Pages::new(16);
    let reads: Vec<_> = (0..16)
        .map(|block| read_at(file.as_raw_fd(), pages.at(block * BLOCK), BLOCK as u32, (block * BLOCK) as u64, 1))
        .collect();
    let entries = ring.run(&reads);
    t.say(format_args!("whole {}", entries.iter().filter(|entry| entry.res == BLOCK as i32).count()));
    let right = pages.bytes().chunks(BLOCK).enumerate().filter(|(block, bytes)| bytes[9] == *block as u8).count();
    t.say(format_args!("right {right}"));
    pages.bytes().fill(0xaa);
    t.entry(&ring.one(write_at(file.as_raw_fd(), pages.at(0), BLOCK as u32, 2 * BLOCK as u64, 2)));
    t.entry(&ring.one(read_at(file.as_raw_fd(), pages.at(BLOCK), 4 * BLOCK as u32, 14 * BLOCK as u64, 3)));
    t.entry(&ring.one(read_at(file.as_raw_fd(), pages.at(0), BLOCK as u32, 16 * BLOCK as u64, 4)));
}
case!(direct => "
    whole 16
    right 16
    cqe 2: 4096
    cqe 3: 8192
    cqe 4: 0
");

fn direct_fixed_buffers(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    drop(numbered(&scratch, 8));
    let Some(file) = open_direct(&scratch) else {
        t.say("no direct files here");
        return;
    };
    let mut pages = Pages::new(8);
    let whole = vector(pages.at(0), pages.length);
    let number = file.as_raw_fd();
    t.result("buffers", ring.register(reg::BUFFERS, &raw const whole, 1));
    t.result("files", ring.register(reg::FILES, &raw const number, 1));
    let reads: Vec<_> = (0..8)
        .map(|block| {
            read_at(0, pages.at(block * BLOCK), BLOCK as u32, (block * BLOCK) as u64, block as u64)
                .with(|sqe| sqe.opcode = opcode::READ_FIXED)
                .fixed()
        })
        .collect();
    t.in_order(&ring.run(&reads));
    let right = pages.bytes().chunks(BLOCK).enumerate().filter(|(block, bytes)| bytes[9] == *block as u8).count();
    t.say(format_args!("right {right}"));
}
case!(direct_fixed_buffers => "
    buffers = 0
    files = 0
    cqe 0: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 3: 4096
    cqe 4: 4096
    cqe 5: 4096
    cqe 6: 4096
    cqe 7: 4096
    right 8
");

/// Writes all blocks of a file in random order, with many requests in flight, and then checks every
/// block.
fn many_random_writes(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 128);
    let fd = file.as_raw_fd();
    let mut order: Vec<usize> = (0..128).map(|index| index * 37 % 128).collect();
    let blocks: Vec<[u8; BLOCK]> = (0..128).map(|block| [255 - block as u8; BLOCK]).collect();
    let mut written = 0;
    while !order.is_empty() {
        let batch: Vec<usize> = order.drain(..32).collect();
        let writes: Vec<_> =
            batch.iter().map(|block| write(fd, &blocks[*block], (block * BLOCK) as u64, *block as u64)).collect();
        written += ring.run(&writes).iter().filter(|entry| entry.res == BLOCK as i32).count();
    }
    uncache(&file);
    let mut buffer = vec![0u8; 128 * BLOCK];
    t.entry(&ring.one(read(fd, &mut buffer, 0, 1)));
    let right = buffer.chunks(BLOCK).zip(&blocks).filter(|(got, wanted)| got == &wanted.as_slice()).count();
    t.say(format_args!("written {written} right {right}"));
}
case!(many_random_writes => "
    cqe 1: 524288
    written 128 right 128
");

fn appends_in_order(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    let file = scratch.file("log", b"");
    // SAFETY: the call touches no memory.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
    let lines: Vec<String> = (0..64).map(|number| format!("line {number:>3}\n")).collect();
    let mut chained: Vec<_> = lines
        .iter()
        .enumerate()
        .map(|(number, line)| write(file.as_raw_fd(), line.as_bytes(), CURRENT, number as u64).linked())
        .collect();
    if let Some(last) = chained.last_mut() {
        last.flags = 0;
    }
    let entries = ring.run(&chained);
    t.say(format_args!("written {}", entries.iter().filter(|entry| entry.res == 9).count()));
    let text = std::fs::read_to_string(scratch.path.join("log")).unwrap_or_default();
    t.say(format_args!("in order {}", text == lines.concat()));
}
case!(appends_in_order => "
    written 64
    in order true
");

fn large_transfer(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = scratch.file("large", b"");
    let mut large: Vec<u8> = (0..8 << 20).map(|index: u32| (index >> 12) as u8).collect();
    t.entry(&ring.one(write(file.as_raw_fd(), &large, 0, 1)));
    uncache(&file);
    let copy = large.clone();
    large.fill(0);
    t.entry(&ring.one(read(file.as_raw_fd(), &mut large, 0, 2)));
    t.say(format_args!("same {}", large == copy));
}
case!(large_transfer => "
    cqe 1: 8388608
    cqe 2: 8388608
    same true
");

fn across_four_gigabytes(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = scratch.file("sparse", b"");
    let fd = file.as_raw_fd();
    let offset = (1u64 << 32) - 4;
    t.entry(&ring.one(write(fd, b"overflow", offset, 1)));
    let mut buffer = [0u8; 8];
    t.entry(&ring.one(read(fd, &mut buffer, offset, 2)));
    t.say(String::from_utf8_lossy(&buffer).into_owned());
    t.entry(&ring.one(read(fd, &mut buffer, 0, 3)));
    t.say(format_args!("{buffer:?}"));
}
case!(across_four_gigabytes => "
    cqe 1: 8
    cqe 2: 8
    overflow
    cqe 3: 8
    [0, 0, 0, 0, 0, 0, 0, 0]
");

fn hole(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = scratch.file("sparse", b"");
    t.entry(&ring.one(write(file.as_raw_fd(), b"end", 1 << 20, 1)));
    let mut buffer = vec![1u8; BLOCK];
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 1 << 19, 2)));
    t.say(format_args!("zero {}", buffer.iter().all(|byte| *byte == 0)));
}
case!(hole => "
    cqe 1: 3
    cqe 2: 4096
    zero true
");

fn end_of_file_vectored(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = scratch.file("short", &[7; BLOCK + 100]);
    uncache(&file);
    let pages = Pages::new(4);
    let vectors = [vector(pages.at(0), BLOCK), vector(pages.at(BLOCK), BLOCK), vector(pages.at(2 * BLOCK), 10)];
    t.entry(&ring.one(readv(file.as_raw_fd(), &vectors, 0, 1)));
    t.entry(&ring.one(readv(file.as_raw_fd(), &vectors, BLOCK as u64 + 99, 2)));
    t.entry(&ring.one(readv(file.as_raw_fd(), &vectors, BLOCK as u64 + 100, 3)));
}
case!(end_of_file_vectored => "
    cqe 1: 4196
    cqe 2: 1
    cqe 3: 0
");

fn write_fsync_chains(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    let file = scratch.file("journal", b"");
    let fd = file.as_raw_fd();
    let record = [b'r'; 512];
    for round in 0..8u64 {
        ring.push(write(fd, &record, round * 512, round * 2).linked());
        ring.push(sqe(opcode::FSYNC, fd, round * 2 + 1).op_flags(u::IORING_FSYNC_DATASYNC));
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(16));
}
case!(write_fsync_chains => "
    submit = 16
    cqe 0: 512
    cqe 1: 0
    cqe 2: 512
    cqe 3: 0
    cqe 4: 512
    cqe 5: 0
    cqe 6: 512
    cqe 7: 0
    cqe 8: 512
    cqe 9: 0
    cqe 10: 512
    cqe 11: 0
    cqe 12: 512
    cqe 13: 0
    cqe 14: 512
    cqe 15: 0
");

fn unlinked_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4);
    uncache(&file);
    std::fs::remove_file(scratch.path.join("data")).expect("removed");
    t.say(format_args!("whole and right {:?}", read_all(&mut ring, file.as_raw_fd(), 4)));
}
case!(unlinked_file => "whole and right (4, 4)");

fn synchronous_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    drop(scratch.file("data", b""));
    let path = scratch.path_of("data");
    // SAFETY: the path is a C string. The descriptor is new, and nothing else owns it.
    let file =
        unsafe { OwnedFd::from_raw_fd(libc::open(path.as_ptr(), libc::O_RDWR | libc::O_SYNC | libc::O_CLOEXEC)) };
    let block = [1u8; BLOCK];
    for round in 0..4 {
        t.entry(&ring.one(write(file.as_raw_fd(), &block, round * BLOCK as u64, round)));
    }
}
case!(synchronous_file => "
    cqe 0: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 3: 4096
");

fn position_in_chain(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 8);
    let mut buffers = [[0u8; BLOCK]; 4];
    uncache(&file);
    for (index, buffer) in buffers.iter_mut().enumerate() {
        let link = read(file.as_raw_fd(), buffer, CURRENT, index as u64);
        ring.push(if index < 3 { link.linked() } else { link });
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(4));
    let firsts: Vec<u8> = buffers.iter().map(|buffer| buffer[0]).collect();
    t.say(format_args!("{firsts:?} position {}", crate::files::position(&file)));
}
case!(position_in_chain => "
    submit = 4
    cqe 0: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 3: 4096
    [0, 1, 2, 3] position 16384
");

fn sq_thread(t: &mut Transcript) {
    let mut ring = Ring::with(64, |params| {
        params.flags = u::IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 10;
    })
    .expect("a ring with a thread");
    let scratch = Scratch::new();
    let file = numbered(&scratch, 32);
    uncache(&file);
    let mut buffers = vec![[0u8; BLOCK]; 32];
    for (block, buffer) in buffers.iter_mut().enumerate() {
        ring.push(read(file.as_raw_fd(), buffer, (block * BLOCK) as u64, block as u64));
    }
    let count = ring.forget_pending();
    ring.enter(count, 0, u::IORING_ENTER_SQ_WAKEUP);
    let entries = ring.wait(32);
    t.say(format_args!("whole {}", entries.iter().filter(|entry| entry.res == BLOCK as i32).count()));
    let right = buffers.iter().enumerate().filter(|(block, buffer)| buffer[5] == *block as u8).count();
    t.say(format_args!("right {right}"));
}
case!(sq_thread => "
    whole 32
    right 32
");
