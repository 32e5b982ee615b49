//! Links and hard links: the order of a chain's requests, and the events that break a chain.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use crate::files;
use crate::ring::{self, Ring};
use crate::sqe::{CURRENT, Change, cancel, nop, read, readv, sqe, vector, write};
use crate::transcript::Transcript;

fn failing(user_data: u64) -> Sqe {
    nop(user_data).op_flags(u::IORING_NOP_INJECT_RESULT).with(|sqe| sqe.len = -libc::EIO as u32)
}

fn hard(sqe: Sqe) -> Sqe {
    sqe.flagged(sqe_flags::IO_HARDLINK)
}

/// Submits `sqes` in one call and prints their CQEs in the order of arrival. Within a chain, the
/// kernel guarantees that order.
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
case!(one_after_the_other => "
    submit = 3
    cqe 1: 4
    cqe 2: 4
    cqe 3: 5
    one two three
");

fn failure_cancels_rest(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    chain(t, &mut ring, &[nop(1).linked(), failing(2).linked(), nop(3).linked(), nop(4)]);
    let mut entries = ring.run(&[failing(5).linked(), nop(6), nop(7)]);
    entries.sort_by_key(|entry| entry.user_data);
    t.in_order(&entries);
}
case!(failure_cancels_rest => "
    submit = 4
    cqe 1: 0
    cqe 2: -EIO
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    cqe 5: -EIO
    cqe 6: -ECANCELED
    cqe 7: 0
");

fn short_read_breaks(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"short");
    let mut buffer = [0u8; 10];
    let fd = file.as_raw_fd();
    chain(t, &mut ring, &[read(fd, &mut buffer, 0, 1).linked(), nop(2)]);
    chain(t, &mut ring, &[read(fd, &mut buffer[..5], 0, 3).linked(), nop(4)]);
    chain(t, &mut ring, &[hard(read(fd, &mut buffer, 0, 5)), nop(6)]);
    // A read at the end of the file returns 0 bytes. It counts as a short read, so it breaks the
    // chain.
    chain(t, &mut ring, &[read(fd, &mut buffer, 5, 7).linked(), nop(8)]);
}
case!(short_read_breaks => "
    submit = 2
    cqe 1: 5
    cqe 2: -ECANCELED
    submit = 2
    cqe 3: 5
    cqe 4: 0
    submit = 2
    cqe 5: 5
    cqe 6: 0
    submit = 2
    cqe 7: 0
    cqe 8: -ECANCELED
");

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
case!(short_readv_breaks => "
    submit = 2
    cqe 1: 5
    cqe 2: -ECANCELED
    submit = 2
    cqe 3: 5
    cqe 4: 0
");

fn hard_link_goes_on(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    chain(t, &mut ring, &[hard(failing(1)), hard(failing(2)), nop(3)]);
}
case!(hard_link_goes_on => "
    submit = 3
    cqe 1: -EIO
    cqe 2: -EIO
    cqe 3: 0
");

fn hard_and_soft_mixed(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    chain(t, &mut ring, &[hard(failing(1)), failing(2).linked(), hard(nop(3)), nop(4)]);
    // A request with both IO_LINK and IO_HARDLINK has a hard link.
    chain(t, &mut ring, &[hard(failing(5)).linked(), nop(6)]);
}
case!(hard_and_soft_mixed => "
    submit = 4
    cqe 1: -EIO
    cqe 2: -EIO
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    submit = 2
    cqe 5: -EIO
    cqe 6: 0
");

/// The kernel refuses one SQE of a chain. No request of the chain starts, and all other requests of
/// it are cancelled. The call nevertheless submits the whole chain.
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
case!(bad_member => "
    submit = 4
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    submit the rest = 0
    no cqe
    written: \"\"
");

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
case!(bad_head => "
    submit = 3
    cqe 1: -EINVAL
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    submit the rest = 0
    no cqe
");

/// The kernel refuses one SQE of a chain, on a ring with SUBMIT_ALL. The call submits the chain up
/// to its end and cancels it. Then the call goes on with the SQEs behind the chain.
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
case!(bad_member_submit_all => "
    submit = 5
    cqe 1: -ECANCELED
    cqe 2: -EINVAL
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    cqe 5: 0
    submit = 3
    cqe 1: -EINVAL
    cqe 2: -ECANCELED
    cqe 3: 0
");

/// A chain ends at the end of its submission, even if its last SQE has IO_LINK.
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
case!(ends_with_submission => "
    submit = 1
    submit = 1
    cqe 2: 0
    cqe 1: 1
");

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
case!(ends_with_unlinked => "
    submit = 3
    cqe 3: 0
    cqe 1: 1
    cqe 2: 0
");

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
case!(waiting_head_holds_rest => "
    submit = 2
    written: \"\"
    cqe 1: 1
    cqe 2: 5
    written: \"after\"
");

fn two_chains(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for sqe in [failing(1).linked(), nop(2), nop(3).linked(), nop(4)] {
        ring.push(sqe);
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(4));
}
case!(two_chains => "
    submit = 4
    cqe 1: -EIO
    cqe 2: -ECANCELED
    cqe 3: 0
    cqe 4: 0
");

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
case!(cancel_head => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: 0
");

/// A cancel does not find a request that still waits for the previous request of its chain.
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
case!(cancel_member => "
    cqe 3: -ENOENT
    cqe 1: 1
    cqe 2: 0
");

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
case!(long_chain => "
    submit = 128
    in order 128
");

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
case!(copies_through_pipe => "
    submit = 4
    cqe 1: 12
    cqe 2: 12
    cqe 3: 12
    cqe 4: 12
    copied along
");

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
case!(forced_async_members => "
    submit = 4
    cqe 1: 1
    cqe 2: 1
    cqe 3: 1
    cqe 4: 1
    abcd
");

/// LINKED_FILE: a linked request looks up its descriptor when it starts, not when it is submitted.
fn file_is_looked_up_late(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let first = files::memory_file(b"");
    let second = files::memory_file(b"");
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(write(first.as_raw_fd(), b"late", 0, 2));
    ring.submit();
    // SAFETY: this case owns both descriptors. dup2(2) makes the first number a descriptor of the
    // second file.
    unsafe { libc::dup2(second.as_raw_fd(), first.as_raw_fd()) };
    files::put(&writer, b"x");
    t.in_order(&ring.wait(2));
    t.say(format_args!("second file: {:?}", files::text(&second)));
}
case!(file_is_looked_up_late => "
    cqe 1: 1
    cqe 2: 4
    second file: \"late\"
");

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
case!(ring_closes => "written: \"\"");

/// A submission contains a chain and other requests. The chain's second request starts only after
/// the kernel has started all other requests.
fn goes_on_behind_batch(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    chain(t, &mut ring, &[nop(1).linked(), nop(2), nop(3)]);
    chain(t, &mut ring, &[nop(1).linked(), nop(2).linked(), nop(3), nop(4).linked(), nop(5), nop(6)]);
    chain(t, &mut ring, &[failing(1).linked(), nop(2).linked(), nop(3), nop(4)]);
    chain(t, &mut ring, &[nop(1).linked(), nop(2).flagged(sqe_flags::IO_DRAIN).linked(), nop(3), nop(4)]);
}
case!(goes_on_behind_batch => "
    submit = 3
    cqe 1: 0
    cqe 3: 0
    cqe 2: 0
    submit = 6
    cqe 1: 0
    cqe 4: 0
    cqe 6: 0
    cqe 2: 0
    cqe 5: 0
    cqe 3: 0
    submit = 4
    cqe 1: -EIO
    cqe 4: 0
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    submit = 4
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
");

/// A request with CQE_SKIP_SUCCESS breaks its chain. The flag then also suppresses the CQEs of the
/// requests behind it.
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
case!(silent_member_of_broken_chain => "
    cqe 1: -EIO
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 9: 0
    cqe 1: -EIO
    cqe 9: 0
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -EINVAL
    cqe 4: -ECANCELED
    cqe 9: 0
    cqe 1: -ECANCELED
    cqe 9: 0
");

/// Makes operations fail that consist of a single system call. Prints each error, and whether it
/// breaks the chain.
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
case!(errors_of_calls => "
    renameat: -ENOENT 0
    unlinkat: -ENOENT 0
    mkdirat: -ENOENT 0
    symlinkat: -ENOENT 0
    linkat: -ENOENT 0
    statx: -ENOENT 0
    openat: -ENOENT -ECANCELED
    fsync: -EINVAL 0
    sync_file_range: -ESPIPE 0
    fallocate: -EBADF 0
    ftruncate: -EINVAL 0
    fadvise: -EINVAL -ECANCELED
    fadvise: -ESPIPE -ECANCELED
    madvise: -EINVAL 0
    epoll_ctl: -EPERM -ECANCELED
    listen: -ENOTSOCK -ECANCELED
    close: -EBADF -ECANCELED
");

/// One batch contains a chain and, behind it, a SEND with POLL_FIRST on a writable socket. The SEND
/// starts before the chain's second request. That request receives the sent bytes without waiting.
fn polled_send_comes_before_successors(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = Ring::with(8, |params| params.flags = flags).expect("a ring");
        let (reader, writer) = files::sockets();
        let (text, room) = ([b'x'; 8], [0u8; 8]);
        let transfer = |opcode, file: i32, user_data, buffer: *const u8| {
            sqe(opcode, file, user_data).with(|sqe| (sqe.addr, sqe.len) = (buffer as u64, 8))
        };
        ring.push(hard(nop(1)));
        ring.push(
            transfer(opcode::RECV, reader.as_raw_fd(), 2, room.as_ptr())
                .with(|sqe| sqe.op_flags = libc::MSG_DONTWAIT as u32),
        );
        ring.push(
            transfer(opcode::SEND, writer.as_raw_fd(), 3, text.as_ptr())
                .with(|sqe| sqe.ioprio = u::IORING_RECVSEND_POLL_FIRST as u16),
        );
        ring.submit();
        t.sorted(&ring.wait(3));
    }
}
case!(polled_send_comes_before_successors => "
    cqe 1: 0
    cqe 2: 8
    cqe 3: 8
    cqe 1: 0
    cqe 2: 8
    cqe 3: 8
");
