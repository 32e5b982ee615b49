//! Links and hard links: order, and which events break a chain.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use crate::case::{Case, case};
use crate::files;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, cancel, nop, read, readv, sqe, vector, write};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("link.one_after_the_other", one_after_the_other),
    case("link.failure_cancels_rest", failure_cancels_rest),
    case("link.short_read_breaks", short_read_breaks),
    case("link.short_readv_breaks", short_readv_breaks),
    case("link.hard_link_goes_on", hard_link_goes_on),
    case("link.hard_and_soft_mixed", hard_and_soft_mixed),
    case("link.bad_member", bad_member),
    case("link.bad_head", bad_head),
    case("link.ends_with_submission", ends_with_submission),
    case("link.ends_with_unlinked", ends_with_unlinked),
    case("link.waiting_head_holds_rest", waiting_head_holds_rest),
    case("link.two_chains", two_chains),
    case("link.goes_on_behind_batch", goes_on_behind_batch),
    case("link.silent_member_of_broken_chain", silent_member_of_broken_chain),
    case("link.cancel_head", cancel_head),
    case("link.cancel_member", cancel_member),
    case("link.long_chain", long_chain),
    case("link.copies_through_pipe", copies_through_pipe),
    case("link.forced_async_members", forced_async_members),
    case("link.file_is_looked_up_late", file_is_looked_up_late),
    case("link.bad_member_submit_all", bad_member_submit_all),
    case("link.ring_closes", ring_closes),
    case("link.errors_of_calls", errors_of_calls),
];

fn failing(user_data: u64) -> Sqe {
    nop(user_data).op_flags(u::IORING_NOP_INJECT_RESULT).with(|sqe| sqe.len = -libc::EIO as u32)
}

fn hard(sqe: Sqe) -> Sqe {
    sqe.flagged(sqe_flags::IO_HARDLINK)
}

/// Submits all requests at once and prints the CQEs in order. The order within a chain is promised.
fn chain(t: &mut Transcript, ring: &mut Ring, sqes: &[Sqe]) {
    for sqe in sqes {
        ring.push(*sqe);
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(sqes.len()));
}

fn one_after_the_other(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"");
    let fd = file.as_raw_fd();
    let chained = [
        write(fd, b"one ", CURRENT, 1).linked(),
        write(fd, b"two ", CURRENT, 2).linked(),
        write(fd, b"three", CURRENT, 3),
    ];
    chain(t, &mut ring, &chained);
    t.say(files::text(&file));
}

fn failure_cancels_rest(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    chain(t, &mut ring, &[nop(1).linked(), failing(2).linked(), nop(3).linked(), nop(4)]);
    let mut entries = ring.run(&[failing(5).linked(), nop(6), nop(7)]);
    entries.sort_by_key(|entry| entry.user_data);
    t.in_order(&entries);
}

fn short_read_breaks(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"short");
    let mut buffer = [0u8; 10];
    let fd = file.as_raw_fd();
    chain(t, &mut ring, &[read(fd, &mut buffer, 0, 1).linked(), nop(2)]);
    chain(t, &mut ring, &[read(fd, &mut buffer[..5], 0, 3).linked(), nop(4)]);
    chain(t, &mut ring, &[hard(read(fd, &mut buffer, 0, 5)), nop(6)]);
    // A read of nothing at the end is short, too.
    chain(t, &mut ring, &[read(fd, &mut buffer, 5, 7).linked(), nop(8)]);
}

fn short_readv_breaks(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"short");
    let mut buffer = [0u8; 10];
    let address = buffer.as_mut_ptr() as u64;
    let vectors = [vector(address, 4), vector(address + 4, 4)];
    chain(t, &mut ring, &[readv(file.as_raw_fd(), &vectors, 0, 1).linked(), nop(2)]);
    let vectors = [vector(address, 4), vector(address + 4, 1)];
    chain(t, &mut ring, &[readv(file.as_raw_fd(), &vectors, 0, 3).linked(), nop(4)]);
}

fn hard_link_goes_on(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    chain(t, &mut ring, &[hard(failing(1)), hard(failing(2)), nop(3)]);
}

fn hard_and_soft_mixed(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    chain(t, &mut ring, &[hard(failing(1)), failing(2).linked(), hard(nop(3)), nop(4)]);
    // With both flags the link is a hard one.
    chain(t, &mut ring, &[hard(failing(5)).linked(), nop(6)]);
}

/// A refused member cancels the whole chain before it starts. The batch ends with the chain, not in
/// it.
fn bad_member(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"");
    for sqe in [write(file.as_raw_fd(), b"begun", 0, 1).linked(), sqe(200, -1, 2).linked(), nop(3).linked(), nop(4)] {
        ring.push(sqe);
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(2));
    t.result("submit the rest", ring.enter(8, 0, 0));
    crate::time::long_enough_to_notice();
    t.sorted(&ring.reap());
    t.say(format_args!("written: {:?}", files::text(&file)));
}

fn bad_head(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for sqe in [sqe(200, -1, 1).linked(), nop(2).linked(), nop(3)] {
        ring.push(sqe);
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(1));
    t.result("submit the rest", ring.enter(8, 0, 0));
    crate::time::long_enough_to_notice();
    t.sorted(&ring.reap());
}

/// With SUBMIT_ALL the whole chain is read, and all of it is cancelled.
fn bad_member_submit_all(t: &mut Transcript) {
    let mut ring = Ring::flags(8, u::IORING_SETUP_SUBMIT_ALL);
    for sqe in [nop(1).linked(), sqe(200, -1, 2).linked(), nop(3).linked(), nop(4), nop(5)] {
        ring.push(sqe);
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(5));
    for sqe in [sqe(200, -1, 1).linked(), nop(2), nop(3)] {
        ring.push(sqe);
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(3));
}

/// A chain does not extend beyond the end of a submission.
fn ends_with_submission(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    t.result("submit", ring.submit());
    ring.push(nop(2));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
}

fn ends_with_unlinked(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(nop(2));
    ring.push(nop(3));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(2));
}

fn waiting_head_holds_rest(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let file = files::memory_file(b"");
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(write(file.as_raw_fd(), b"after", 0, 2));
    t.result("submit", ring.submit());
    t.say(format_args!("written: {:?}", files::text(&file)));
    files::put(&writer, b"x");
    t.in_order(&ring.wait(2));
    t.say(format_args!("written: {:?}", files::text(&file)));
}

fn two_chains(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for sqe in [failing(1).linked(), nop(2), nop(3).linked(), nop(4)] {
        ring.push(sqe);
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(4));
}

fn cancel_head(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(nop(2).linked());
    ring.push(nop(3));
    ring.submit();
    ring.push(cancel(1, 0, 4));
    ring.submit();
    t.sorted(&ring.wait(4));
}

/// A cancel does not find a member that has not started.
fn cancel_member(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.entry(&ring.one(cancel(2, 0, 3)));
    files::put(&writer, b"x");
    t.in_order(&ring.wait(2));
}

fn long_chain(t: &mut Transcript) {
    let mut ring = Ring::new(128);
    for user_data in 0..127 {
        ring.push(nop(user_data).linked());
    }
    ring.push(nop(127));
    t.result("submit", ring.submit());
    let entries = ring.wait(128);
    let right = entries.iter().enumerate().filter(|(index, entry)| entry.user_data == *index as u64 && entry.res == 0);
    t.say(format_args!("in order {}", right.count()));
}

fn copies_through_pipe(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let from = files::memory_file(b"copied along");
    let to = files::memory_file(b"");
    let mut buffer = [0u8; 12];
    let address = buffer.as_mut_ptr() as u64;
    let again = |sqe: Sqe| sqe.with(|sqe| sqe.addr = address);
    let chained = [
        again(read(from.as_raw_fd(), &mut [0; 12], 0, 1)).linked(),
        again(write(writer.as_raw_fd(), &[0; 12], 0, 2)).linked(),
        again(read(reader.as_raw_fd(), &mut [0; 12], 0, 3)).linked(),
        again(write(to.as_raw_fd(), &[0; 12], 0, 4)),
    ];
    chain(t, &mut ring, &chained);
    t.say(files::text(&to));
    std::hint::black_box(&mut buffer);
}

fn forced_async_members(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"");
    let fd = file.as_raw_fd();
    let chained = [
        write(fd, b"a", CURRENT, 1).linked().forced_async(),
        write(fd, b"b", CURRENT, 2).linked(),
        write(fd, b"c", CURRENT, 3).linked().forced_async(),
        write(fd, b"d", CURRENT, 4),
    ];
    chain(t, &mut ring, &chained);
    t.say(files::text(&file));
}

/// LINKED_FILE: a member's descriptor is looked up when the member starts.
fn file_is_looked_up_late(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let first = files::memory_file(b"");
    let second = files::memory_file(b"");
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(write(first.as_raw_fd(), b"late", 0, 2));
    ring.submit();
    // SAFETY: this case owns both descriptors; the first now means the second file.
    unsafe { libc::dup2(second.as_raw_fd(), first.as_raw_fd()) };
    files::put(&writer, b"x");
    t.in_order(&ring.wait(2));
    t.say(format_args!("second file: {:?}", files::text(&second)));
}

fn ring_closes(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let file = files::memory_file(b"");
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(write(file.as_raw_fd(), b"never", 0, 2));
    ring.submit();
    drop(ring);
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    t.say(format_args!("written: {:?}", files::text(&file)));
}

/// The next member of a chain starts after all requests of its submission have been started.
fn goes_on_behind_batch(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    chain(t, &mut ring, &[nop(1).linked(), nop(2), nop(3)]);
    chain(t, &mut ring, &[nop(1).linked(), nop(2).linked(), nop(3), nop(4).linked(), nop(5), nop(6)]);
    chain(t, &mut ring, &[failing(1).linked(), nop(2).linked(), nop(3), nop(4)]);
    chain(t, &mut ring, &[nop(1).linked(), nop(2).flagged(sqe_flags::IO_DRAIN).linked(), nop(3), nop(4)]);
}

/// The member that breaks the chain decides whether the rest post CQEs.
fn silent_member_of_broken_chain(t: &mut Transcript) {
    let silent = |sqe: Sqe| sqe.flagged(sqe_flags::CQE_SKIP_SUCCESS);
    let mut ring = Ring::new(8);
    let programs: [&[Sqe]; 4] = [
        &[failing(1).linked(), silent(nop(2)).linked(), nop(3), nop(9)],
        &[silent(failing(1)).linked(), nop(2).linked(), nop(3), nop(9)],
        &[nop(1).linked(), silent(nop(2)).linked(), sqe(u8::MAX, -1, 3).linked(), nop(4), nop(9)],
        &[silent(nop(1)).linked(), nop(2).linked(), sqe(u8::MAX, -1, 3), nop(9)],
    ];
    for program in programs {
        for sqe in program {
            ring.push(*sqe);
        }
        ring.submit();
        ring.enter(1, 0, 0);
        ring.forget_pending();
        crate::time::long_enough_to_notice();
        t.sorted(&ring.wait(2));
    }
}

/// Prints which errors break a chain, for requests that are one system call each.
fn errors_of_calls(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let missing = c"/missing/path".as_ptr() as u64;
    let file = files::memory_file(b"abc");
    let (reader, _writer) = files::pipe();
    let mut room = [0u64; 32];
    let on_path =
        |opcode: u8| crate::sqe::sqe(opcode, libc::AT_FDCWD, 1).with(|sqe| (sqe.addr, sqe.off) = (missing, missing));
    let at_current = libc::AT_FDCWD as u32;
    let requests = [
        on_path(opcode::RENAMEAT).with(|sqe| sqe.len = at_current),
        on_path(opcode::UNLINKAT).with(|sqe| sqe.off = 0),
        on_path(opcode::MKDIRAT).with(|sqe| sqe.off = 0),
        on_path(opcode::SYMLINKAT),
        on_path(opcode::LINKAT).with(|sqe| sqe.len = at_current),
        on_path(opcode::STATX).with(|sqe| sqe.off = room.as_mut_ptr() as u64),
        on_path(opcode::OPENAT).with(|sqe| sqe.off = 0),
        crate::sqe::sqe(opcode::FSYNC, reader.as_raw_fd(), 1),
        crate::sqe::sqe(opcode::SYNC_FILE_RANGE, reader.as_raw_fd(), 1),
        crate::sqe::sqe(opcode::FALLOCATE, reader.as_raw_fd(), 1).with(|sqe| sqe.addr = 1),
        crate::sqe::sqe(opcode::FTRUNCATE, reader.as_raw_fd(), 1),
        crate::sqe::sqe(opcode::FADVISE, file.as_raw_fd(), 1).op_flags(99),
        crate::sqe::sqe(opcode::FADVISE, reader.as_raw_fd(), 1),
        crate::sqe::sqe(opcode::MADVISE, -1, 1).op_flags(99),
        crate::sqe::sqe(opcode::EPOLL_CTL, reader.as_raw_fd(), 1).with(|sqe| (sqe.len, sqe.off) = (2, 0)),
        crate::sqe::sqe(opcode::LISTEN, reader.as_raw_fd(), 1),
        crate::sqe::close(-1, 1),
    ];
    for request in requests {
        let entries = ring.run(&[request.linked(), nop(2)]);
        let name = opcode::NAMES[usize::from(request.opcode)];
        let [one, other] = [entries[0], entries[1]].map(|entry| crate::names::result(entry.res));
        t.say(format_args!("{name}: {one} {other}"));
    }
}
