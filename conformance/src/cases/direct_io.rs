//! Files open with O_DIRECT: transfers that bypass the page cache.
use super::direct_io_workers::seek;
use super::reg;
use crate::case::{Case, case};
use crate::files::Scratch;
use crate::memory::Pages;
use crate::process;
use crate::ring::{Entry, Ring};
use crate::sqe::{CURRENT, Change, cancel, close, nop, read_at, readv, sqe, vector, write_at, writev};
use crate::transcript::Transcript;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use usring_uapi::{general as linux, io_uring as u, opcode, sqe_flags};

pub const CASES: &[Case] = &[
    case("direct_io.read_and_write", read_and_write),
    case("direct_io.end_of_file", end_of_file),
    case("direct_io.unaligned", unaligned),
    case("direct_io.vectors", vectors),
    case("direct_io.makes_the_file_longer", makes_the_file_longer),
    case("direct_io.into_a_hole", into_a_hole),
    case("direct_io.append", append),
    case("direct_io.flags", flags),
    case("direct_io.at_the_position", at_the_position),
    case("direct_io.bad_memory", bad_memory),
    case("direct_io.links", links),
    case("direct_io.link_broken_by_a_short_read", link_broken_by_a_short_read),
    case("direct_io.drain", drain),
    case("direct_io.sync_behind_writes", sync_behind_writes),
    case("direct_io.forced_async", forced_async),
    case("direct_io.cancelled_or_done", cancelled_or_done),
    case("direct_io.file_closed_meanwhile", file_closed_meanwhile),
    case("direct_io.large_and_closed_meanwhile", large_and_closed_meanwhile),
    case("direct_io.registered_file_taken_out", registered_file_taken_out),
    case("direct_io.selected_buffer", selected_buffer),
    case("direct_io.sq_thread", sq_thread),
    case("direct_io.deferred", deferred),
    case("direct_io.watched_in_memory", watched_in_memory),
    case("direct_io.descriptor_is_readable", descriptor_is_readable),
    case("direct_io.ring_closes", ring_closes),
    case("direct_io.exit_with_writes_out", exit_with_writes_out),
    case("direct_io.child_reads_with_a_ring_of_its_own", child_reads_with_a_ring_of_its_own),
    case("direct_io.size_limit", size_limit),
    case("direct_io.many_more_than_the_queue", many_more_than_the_queue),
    case("direct_io.packet_pipe", packet_pipe),
];

pub(super) const BLOCK: usize = 4096;
/// RWF_NOAPPEND, which exists from Linux 6.9 on.
const RWF_NOAPPEND: u32 = 0x20;

/// Makes a file of blocks, each filled with its own number, open with O_DIRECT and these flags.
pub(super) fn numbered(scratch: &Scratch, blocks: usize, flags: i32) -> OwnedFd {
    let content: Vec<u8> = (0..blocks).flat_map(|block| [block as u8; BLOCK]).collect();
    let file = scratch.file("data", &content);
    uncache(&file);
    open(scratch, flags)
}

/// Drops the file's pages from the cache. The kernel leaves a write over cached pages to a worker,
/// and a write that no worker has started ends with the ring.
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

/// Returns the number that fills each block of the file.
pub(super) fn content(scratch: &Scratch) -> Vec<u8> {
    let bytes = std::fs::read(scratch.path.join("data")).unwrap_or_default();
    bytes.chunks(BLOCK).map(|block| if block.iter().all(|byte| *byte == block[0]) { block[0] } else { 255 }).collect()
}

/// Fills one block with this number. Returns its address.
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

fn end_of_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, pages) = (file.as_raw_fd(), Pages::new(8));
    for (first, count) in [(3, 1), (3, 4), (2, 8), (4, 1), (400, 1)] {
        t.entry(&ring.one(read_at(fd, pages.at(0), (count * BLOCK) as u32, at(first), first as u64)));
    }
    // The last block is not whole.
    // SAFETY: the call touches no memory.
    t.say(format_args!("{}", unsafe { libc::ftruncate(fd, at(3) as i64 + 100) }));
    t.entry(&ring.one(read_at(fd, pages.at(0), BLOCK as u32, at(3), 5)));
    t.entry(&ring.one(read_at(fd, pages.at(0), 2 * BLOCK as u32, at(2), 6)));
}

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

/// The kernel moves the position if the disk answers within the call, so the case sets it anew.
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

fn bad_memory(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    t.entry(&ring.one(read_at(file.as_raw_fd(), BLOCK as u64, BLOCK as u32, 0, 1)));
    t.entry(&ring.one(write_at(file.as_raw_fd(), BLOCK as u64, BLOCK as u32, 0, 2)));
    t.entry(&ring.one(write_at(file.as_raw_fd(), BLOCK as u64, BLOCK as u32, at(4), 3)));
}

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

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 8, libc::O_RDWR);
    let (fd, pages) = (file.as_raw_fd(), Pages::new(8));
    for index in 0..8 {
        let mut read = read_at(fd, pages.at(index * BLOCK), BLOCK as u32, at(index), index as u64);
        read.flags |= sqe_flags::ASYNC;
        ring.push(read);
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(8));
}

/// A transfer that the disk has cannot be cancelled. One that has completed is not found.
fn cancelled_or_done(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 8, libc::O_RDWR);
    let pages = Pages::new(1);
    for _ in 0..20 {
        ring.push(read_at(file.as_raw_fd(), pages.at(0), BLOCK as u32, at(3), 1));
        ring.push(cancel(1, 0, 2));
        ring.submit();
        let entries = ring.wait(2);
        let answer = |tag| entries.iter().find(|entry| entry.user_data == tag).map_or(0, |entry| entry.res);
        let expected = [-libc::EALREADY, -libc::ENOENT].contains(&answer(2)) && answer(1) == BLOCK as i32;
        if !expected {
            t.say(format_args!("read {} cancel {}", answer(1), answer(2)));
        }
    }
    t.say("never cancelled");
}

fn file_closed_meanwhile(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let mut pages = Pages::new(16);
    let file = numbered(&scratch, 16, libc::O_RDWR);
    for index in 0..16 {
        let address = block(&mut pages, index, 80 + index as u8);
        ring.push(write_at(file.as_raw_fd(), address, BLOCK as u32, at(index), index as u64));
    }
    ring.push(close(file.as_raw_fd(), 99));
    std::mem::forget(file);
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(17));
    t.say(format_args!("{:?}", content(&scratch)));
}

/// Transfers that the kernel may split, on a file whose number means another file before they are
/// done.
fn large_and_closed_meanwhile(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let mut pages = Pages::new(64);
    let file = numbered(&scratch, 1, libc::O_RDWR);
    let fd = file.as_raw_fd();
    pages.bytes().fill(7);
    for index in 0..4 {
        ring.push(write_at(fd, pages.at(index * 16 * BLOCK), 16 * BLOCK as u32, at(16 * index), index as u64));
    }
    t.result("submit", ring.submit());
    let other = scratch.file("other", b"other");
    // SAFETY: the call touches no memory.
    t.say(format_args!("same number {}", unsafe { libc::dup2(other.as_raw_fd(), fd) } == fd));
    t.sorted(&ring.wait(4));
    let sevens = content(&scratch).iter().filter(|number| **number == 7).count();
    let text = std::fs::read_to_string(scratch.path.join("other")).unwrap_or_default();
    t.say(format_args!("blocks {sevens} other {text}"));
}

fn registered_file_taken_out(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let (number, mut pages) = (file.as_raw_fd(), Pages::new(16));
    t.result("files", ring.register(reg::FILES, &raw const number, 1));
    for index in 0..16 {
        let address = block(&mut pages, index, 90 + index as u8);
        ring.push(write_at(0, address, BLOCK as u32, at(index), index as u64).fixed());
    }
    t.result("submit", ring.submit());
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    t.sorted(&ring.wait(16));
    t.say(format_args!("{:?}", content(&scratch)));
}

fn selected_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 8, libc::O_RDWR);
    let mut pages = Pages::new(2);
    let mut provide = sqe(opcode::PROVIDE_BUFFERS, 2, 1);
    (provide.addr, provide.len, provide.off) = (pages.at(0), BLOCK as u32, 5);
    t.entry(&ring.one(provide));
    for tag in 2..5 {
        let mut read = read_at(file.as_raw_fd(), 0, BLOCK as u32, at(tag), tag as u64);
        read.flags |= sqe_flags::BUFFER_SELECT;
        t.entry(&ring.one(read));
    }
    let mut firsts = [pages.bytes()[0], pages.bytes()[BLOCK]];
    firsts.sort_unstable();
    t.say(format_args!("{firsts:?}"));
}

fn sq_thread(t: &mut Transcript) {
    let mut ring = Ring::with(64, |params| {
        params.flags = u::IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 10;
    })
    .expect("a ring with a thread");
    let scratch = Scratch::new();
    let file = numbered(&scratch, 32, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(32));
    for index in 0..32 {
        ring.push(read_at(fd, pages.at(index * BLOCK), BLOCK as u32, at(index), index as u64));
    }
    let count = ring.forget_pending();
    ring.enter(count, 0, u::IORING_ENTER_SQ_WAKEUP);
    t.say(format_args!("whole {}", whole(&ring.wait(32))));
    let right = pages.bytes().chunks(BLOCK).enumerate().filter(|(index, block)| block[5] == *index as u8).count();
    t.say(format_args!("right {right}"));
}

fn deferred(t: &mut Transcript) {
    let mut ring = deferring_ring();
    let scratch = Scratch::new();
    let file = numbered(&scratch, 32, libc::O_RDWR);
    let (fd, pages) = (file.as_raw_fd(), Pages::new(32));
    let mut seen = 0;
    for round in 0..20 {
        for index in 0..32 {
            ring.push(read_at(fd, pages.at(index * BLOCK), BLOCK as u32, at(index), index as u64));
        }
        // Waits for one, for some, for all but one, for all.
        ring.submit_and_wait([1, 7, 31, 32][round % 4]);
        seen += whole(&ring.wait(32));
    }
    t.say(format_args!("whole {seen}"));
    // A pipe brings the last completion that the call waits for.
    let (reader, writer) = crate::files::pipe();
    let mut byte = [0; 1];
    ring.push(crate::sqe::read(reader.as_raw_fd(), &mut byte, CURRENT, 1));
    ring.push(read_at(fd, pages.at(0), BLOCK as u32, 0, 2));
    t.result("submit", ring.submit());
    crate::files::put(&writer, b"x");
    t.sorted(&ring.wait(2));
}

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let pages = Pages::new(16);
    for index in 0..16 {
        ring.push(read_at(file.as_raw_fd(), pages.at(index * BLOCK), BLOCK as u32, at(index), index as u64));
    }
    t.result("submit", ring.submit());
    t.say(format_args!("all came {}", ring.watch(16)));
    t.say(format_args!("whole {}", whole(&ring.reap())));
}

fn descriptor_is_readable(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let pages = Pages::new(1);
    for round in 0..5 {
        ring.push(read_at(file.as_raw_fd(), pages.at(0), BLOCK as u32, at(2), round));
        ring.submit();
        let readable = crate::files::is_readable_within(ring.fd, std::time::Duration::from_secs(20));
        let entries = ring.wait(1);
        t.say(format_args!("readable {readable} whole {}", whole(&entries)));
    }
}

pub(super) fn deferring_ring() -> Ring {
    Ring::flags(64, u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN)
}

pub(super) fn ring_closes(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let mut pages = Pages::new(16);
    for round in 0..10u8 {
        let mut ring = Ring::new(32);
        for index in 0..16 {
            let address = block(&mut pages, index, 100 + round);
            ring.push(write_at(file.as_raw_fd(), address, BLOCK as u32, at(index), 1));
        }
        ring.submit();
        ring.close();
        // The submitted writes reach the file all the same.
        let written = || content(&scratch).iter().all(|number| *number == 100 + round);
        let all = crate::time::until(written);
        t.say(format_args!("written {all}"));
        uncache(&file);
    }
}

fn exit_with_writes_out(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = numbered(&scratch, 64, libc::O_RDWR);
    let ending = process::forked(|| {
        let (mut ring, mut pages) = (Ring::new(64), Pages::new(64));
        for index in 0..64 {
            ring.push(write_at(file.as_raw_fd(), block(&mut pages, index, 33), BLOCK as u32, at(index), 1));
        }
        i32::from(ring.submit() != 64)
    });
    t.say(ending);
    let written = || content(&scratch).iter().all(|number| *number == 33);
    t.say(format_args!("written {}", crate::time::until(written)));
}

fn child_reads_with_a_ring_of_its_own(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let (mut ring, pages) = (Ring::new(32), Pages::new(16));
    for index in 0..16 {
        ring.push(read_at(file.as_raw_fd(), pages.at(index * BLOCK), BLOCK as u32, at(index), 1));
    }
    t.result("submit", ring.submit());
    t.say(process::forked(|| {
        let (mut ring, pages) = (Ring::new(8), Pages::new(1));
        let entry = ring.one(read_at(file.as_raw_fd(), pages.at(0), BLOCK as u32, at(9), 1));
        i32::from(entry.res != BLOCK as i32)
    }));
    t.say(format_args!("whole {}", whole(&ring.wait(16))));
}

/// Beyond RLIMIT_FSIZE: an error, and a signal, which is ignored here.
fn size_limit(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = numbered(&scratch, 2, libc::O_RDWR);
    t.say(process::forked(|| {
        let limit = libc::rlimit { rlim_cur: at(4), rlim_max: at(4) };
        // SAFETY: the limit is a valid structure. No handler is installed.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        }
        let (mut ring, pages) = (Ring::new(8), Pages::new(4));
        let answers = [(2, 1), (3, 2), (4, 1), (0, 2)].map(|(first, count)| {
            ring.one(write_at(file.as_raw_fd(), pages.at(0), (count * BLOCK) as u32, at(first), 1)).res
        });
        let expected = [BLOCK as i32, BLOCK as i32, -libc::EFBIG, 2 * BLOCK as i32];
        i32::from(answers != expected)
    }));
    t.say(format_args!("length {}", length(&scratch)));
}

/// More requests than the CQ has room for, so some wait for room.
fn many_more_than_the_queue(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 64, libc::O_RDWR);
    let pages = Pages::new(64);
    for _ in 0..8 {
        for index in 0..64 {
            ring.push(read_at(file.as_raw_fd(), pages.at(index * BLOCK), BLOCK as u32, at(index), 1));
        }
        ring.submit();
    }
    let mut seen = 0;
    while seen < 8 * 64 {
        let entries = ring.wait(1);
        if entries.is_empty() {
            break;
        }
        seen += whole(&entries);
    }
    t.say(format_args!("whole {seen}"));
}

/// O_DIRECT has another meaning for a pipe: a read waits for its packet all the same.
fn packet_pipe(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = crate::files::pipe_with(libc::O_DIRECT);
    let mut pages = Pages::new(1);
    ring.push(read_at(reader.as_raw_fd(), pages.at(0), BLOCK as u32, 0, 1));
    t.result("submit", ring.submit());
    crate::files::put(&writer, b"packet");
    crate::files::put(&writer, b"another");
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&pages.bytes()[..6]).into_owned());
}
