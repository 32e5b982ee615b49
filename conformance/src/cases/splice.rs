//! SPLICE and TEE, which transfer data between a pipe and another file.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::files;
use crate::names;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, cancel, fields, nop, sqe};
use crate::transcript::Transcript;

const FIXED_SOURCE: u32 = 1 << 31;
const NON_BLOCK: u32 = libc::SPLICE_F_NONBLOCK;

fn splice(from: (i32, u64), to: (i32, u64), length: u32, user_data: u64) -> Sqe {
    sqe(opcode::SPLICE, to.0, user_data).with(|sqe| {
        sqe.file_index = from.0 as u32;
        (sqe.addr, sqe.off, sqe.len) = (from.1, to.1, length);
    })
}

fn at(fd: &OwnedFd, offset: u64) -> (i32, u64) {
    (fd.as_raw_fd(), offset)
}

fn here(fd: &OwnedFd) -> (i32, u64) {
    at(fd, CURRENT)
}

fn contents(t: &mut Transcript, fd: &OwnedFd) {
    files::set_nonblocking(fd, true);
    let bytes = files::take(fd, 100).unwrap_or_default();
    files::set_nonblocking(fd, false);
    t.say(format_args!("it gives {:?}", String::from_utf8_lossy(&bytes)));
}

fn from_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (reader, writer) = files::pipe();
    for (offset, length) in [(0, 4), (4, 4), (8, 4), (10, 4), (CURRENT, 3), (CURRENT, 3)] {
        t.entry(&ring.one(splice(at(&file, offset), here(&writer), length, 1)));
        contents(t, &reader);
        t.say(format_args!("position {}", files::position(&file)));
    }
}
case!(from_file => "
    cqe 1: 4
    it gives \"0123\"
    position 0
    cqe 1: 4
    it gives \"4567\"
    position 0
    cqe 1: 2
    it gives \"89\"
    position 0
    cqe 1: 0
    it gives \"\"
    position 0
    cqe 1: 3
    it gives \"012\"
    position 3
    cqe 1: 3
    it gives \"345\"
    position 6
");

fn to_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (reader, writer) = files::pipe();
    for offset in [2, CURRENT, 20] {
        files::put(&writer, b"abc");
        t.entry(&ring.one(splice(here(&reader), at(&file, offset), 100, 1)));
        t.say(format_args!("{:?} position {}", files::text(&file), files::position(&file)));
    }
    drop(writer);
    t.entry(&ring.one(splice(here(&reader), at(&file, 0), 100, 2)));
}
case!(to_file => "
    cqe 1: 3
    \"01abc56789\" position 0
    cqe 1: 3
    \"abcbc56789\" position 3
    cqe 1: 3
    \"abcbc56789\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0abc\" position 3
    cqe 2: 0
");

fn between_pipes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let ((reader, writer), (other_reader, other_writer)) = (files::pipe(), files::pipe());
    files::put(&writer, b"abcdef");
    for length in [2, 3, 1] {
        t.entry(&ring.one(splice(here(&reader), here(&other_writer), length, 1)));
        contents(t, &other_reader);
    }
}
case!(between_pipes => "
    cqe 1: 2
    it gives \"ab\"
    cqe 1: 3
    it gives \"cde\"
    cqe 1: 1
    it gives \"f\"
");

fn offsets_of_pipes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (reader, writer) = files::pipe();
    files::put(&writer, b"abcdef");
    t.entry(&ring.one(splice(at(&reader, 0), at(&file, 0), 2, 1)));
    t.entry(&ring.one(splice(at(&file, 0), at(&writer, 0), 2, 2)));
    t.entry(&ring.one(splice(at(&file, u64::MAX - 1), here(&writer), 2, 3)));
    t.entry(&ring.one(splice(at(&file, 1 << 63), here(&writer), 2, 4)));
}
case!(offsets_of_pipes => "
    cqe 1: -ESPIPE
    cqe 2: -ESPIPE
    cqe 3: -EINVAL
    cqe 4: -EINVAL
");

fn nothing(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (reader, writer) = files::pipe();
    t.in_order(&ring.run(&[splice(at(&file, 0), here(&writer), 0, 1).linked(), nop(2)]));
    t.entry(&ring.one(splice(here(&reader), at(&file, 0), 0, 2)));
    // A SPLICE of 0 bytes does not check whether one of the files is a pipe. But it refuses a bad
    // descriptor.
    t.entry(&ring.one(splice(at(&file, 0), at(&file, 0), 0, 3)));
    t.entry(&ring.one(splice((-1, 0), here(&writer), 0, 4)));
    t.entry(&ring.one(splice(at(&file, 0), (-1, 0), 0, 5)));
}
case!(nothing => "
    cqe 1: 0
    cqe 2: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: -EBADF
    cqe 5: -EBADF
");

fn wrong_files(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (reader, writer) = files::pipe();
    files::put(&writer, b"abc");
    let (one, _other) = files::sockets();
    let count = files::eventfd(1);
    t.entry(&ring.one(splice((-1, CURRENT), here(&writer), 2, 1)));
    t.entry(&ring.one(splice((5000, CURRENT), here(&writer), 2, 2)));
    t.entry(&ring.one(splice(here(&reader), (-1, CURRENT), 2, 3)));
    t.entry(&ring.one(splice(here(&file), here(&file), 2, 4)));
    t.entry(&ring.one(splice(here(&writer), here(&reader), 2, 5)));
    t.entry(&ring.one(splice(here(&reader), here(&writer), 2, 6)));
    t.entry(&ring.one(splice(here(&count), here(&writer), 8, 7)));
    t.entry(&ring.one(splice(at(&one, 0), here(&writer), 8, 8)));
    t.entry(&ring.one(splice(here(&reader), here(&one), 3, 9)));
}
case!(wrong_files => "
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 3: -EBADF
    cqe 4: -EINVAL
    cqe 5: -EBADF
    cqe 6: -EINVAL
    cqe 7: -EINVAL
    cqe 8: -EINVAL
    cqe 9: 3
");

fn wrong_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::pipe();
    let file = files::memory_file(b"0123456789");
    for bit in 0..31 {
        let entry = ring.one(splice(at(&file, 0), here(&writer), 1, 1).op_flags(1 << bit));
        t.say(format_args!("{bit}: {}", names::result(entry.res)));
    }
}
case!(wrong_flags => include_str!("splice/wrong_flags.txt"));

fn other_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::pipe();
    let file = files::memory_file(b"0123456789");
    for opcode in [opcode::SPLICE, opcode::TEE] {
        let sqe = splice(at(&file, 0), here(&writer), 1, 1).with(|sqe| sqe.opcode = opcode);
        t.each(&mut ring, sqe, &fields![ioprio = 1, buf_index = 1, addr3 = 1]);
        t.entry(&ring.one(sqe.flagged(sqe_flags::BUFFER_SELECT)));
    }
}
case!(other_fields => "
    cqe 1: -EINVAL
    cqe 1: 1
    cqe 1: 1
    cqe 1: -EOPNOTSUPP
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EOPNOTSUPP
");

fn registered_files(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (reader, writer) = files::pipe();
    let numbers = [file.as_raw_fd(), writer.as_raw_fd(), -1];
    t.entry(&ring.one(splice((0, 0), here(&writer), 2, 1).op_flags(FIXED_SOURCE)));
    assert_eq!(ring.register(reg::FILES, numbers.as_ptr(), 3), 0);
    t.entry(&ring.one(splice((0, 0), here(&writer), 2, 1).op_flags(FIXED_SOURCE)));
    t.entry(&ring.one(splice((0, 2), (1, CURRENT), 2, 2).op_flags(FIXED_SOURCE).fixed()));
    t.entry(&ring.one(splice(at(&file, 4), (1, CURRENT), 2, 3).fixed()));
    t.entry(&ring.one(splice((2, 4), here(&writer), 2, 4).op_flags(FIXED_SOURCE)));
    t.entry(&ring.one(splice((3, 4), here(&writer), 2, 5).op_flags(FIXED_SOURCE)));
    t.entry(&ring.one(splice(at(&file, 4), (2, CURRENT), 2, 6).fixed()));
    t.entry(&ring.one(splice((0, 8), (1, CURRENT), 2, 7).op_flags(FIXED_SOURCE).fixed().forced_async()));
    contents(t, &reader);
}
case!(registered_files => "
    cqe 1: -EBADF
    cqe 1: 2
    cqe 2: 2
    cqe 3: 2
    cqe 4: -EBADF
    cqe 5: -EBADF
    cqe 6: -EBADF
    cqe 7: 2
    it gives \"01234589\"
");

fn chains(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let copy = files::memory_file(b"");
    let (reader, writer) = files::pipe();
    let out = |length, user_data| splice(at(&file, 4), here(&writer), length, user_data);
    let in_ = |user_data| splice(here(&reader), at(&copy, 0), 100, user_data);
    t.in_order(&ring.run(&[out(6, 1).linked(), in_(2)]));
    t.say(files::text(&copy));
    // A SPLICE that moves fewer bytes than requested breaks its chain.
    t.in_order(&ring.run(&[out(7, 3).linked(), nop(4)]));
    t.in_order(&ring.run(&[out(7, 5).flagged(sqe_flags::IO_HARDLINK), in_(6)]));
    t.in_order(&ring.run(&[splice((-1, 0), here(&writer), 1, 7).linked(), nop(8)]));
}
case!(chains => "
    cqe 1: 6
    cqe 2: 6
    456789
    cqe 3: 6
    cqe 4: -ECANCELED
    cqe 5: 6
    cqe 6: 12
    cqe 7: -EBADF
    cqe 8: -ECANCELED
");

fn waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"");
    let (reader, writer) = files::pipe();
    ring.push(splice(here(&reader), at(&file, 0), 100, 1));
    t.result("submit", ring.submit());
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"abc");
    t.in_order(&ring.wait(1));
    ring.push(splice(here(&reader), at(&file, 3), 100, 2));
    ring.submit();
    drop(writer);
    t.in_order(&ring.wait(1));
    t.say(files::text(&file));
}
case!(waits => "
    submit = 1
    no cqe
    cqe 1: 3
    cqe 2: 0
    abc
");

/// A SPLICE that has started keeps both of its files open. So the program may close the source.
fn source_is_closed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"");
    let (reader, writer) = files::pipe();
    ring.push(splice(here(&reader), at(&file, 0), 100, 1));
    ring.submit();
    crate::time::long_enough_to_begin();
    drop(reader);
    files::put(&writer, b"abc");
    t.in_order(&ring.wait(1));
    t.say(files::text(&file));
}
case!(source_is_closed => "
    cqe 1: 3
    abc
");

fn do_not_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"");
    let (reader, _writer) = files::pipe();
    t.entry(&ring.one(splice(here(&reader), at(&file, 0), 100, 1).op_flags(NON_BLOCK)));
    files::set_nonblocking(&reader, true);
    t.entry(&ring.one(splice(here(&reader), at(&file, 0), 100, 1)));
}
case!(do_not_wait => "
    cqe 1: -EAGAIN
    cqe 1: -EAGAIN
");

fn polled_ring(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_IOPOLL);
    let (reader, writer) = files::pipe();
    for opcode in [opcode::SPLICE, opcode::TEE] {
        ring.push(splice(here(&reader), here(&writer), 1, 1).with(|sqe| sqe.opcode = opcode));
        ring.submit();
        t.in_order(&ring.wait(1));
    }
}
case!(polled_ring => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
");

fn tee_of(from: i32, to: i32, length: u32, user_data: u64) -> Sqe {
    splice((from, 0), (to, 0), length, user_data).with(|sqe| sqe.opcode = opcode::TEE)
}

fn tee(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let ((reader, writer), (other_reader, other_writer)) = (files::pipe(), files::pipe());
    let (from, to) = (reader.as_raw_fd(), other_writer.as_raw_fd());
    files::put(&writer, b"abcdef");
    t.entry(&ring.one(tee_of(from, to, 4, 1)));
    contents(t, &other_reader);
    t.in_order(&ring.run(&[tee_of(from, to, 100, 2).linked(), nop(3)]));
    contents(t, &other_reader);
    contents(t, &reader);
    t.entry(&ring.one(tee_of(from, to, 0, 3)));
    ring.push(tee_of(from, to, 10, 4));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"xyz");
    t.in_order(&ring.wait(1));
    contents(t, &other_reader);
}
case!(tee => "
    cqe 1: 4
    it gives \"abcd\"
    cqe 2: 6
    cqe 3: -ECANCELED
    it gives \"abcdef\"
    it gives \"abcdef\"
    cqe 3: 0
    no cqe
    cqe 4: 3
    it gives \"xyz\"
");

fn tee_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let ((reader, writer), (_other_reader, other_writer)) = (files::pipe(), files::pipe());
    let (from, to) = (reader.as_raw_fd(), other_writer.as_raw_fd());
    files::put(&writer, b"abcdef");
    t.entry(&ring.one(tee_of(from, to, 4, 1).with(|sqe| sqe.addr = 1)));
    t.entry(&ring.one(tee_of(from, to, 4, 2).with(|sqe| sqe.off = 1)));
    t.entry(&ring.one(tee_of(from, to, 4, 3).with(|sqe| (sqe.addr, sqe.off) = (CURRENT, CURRENT))));
    t.entry(&ring.one(tee_of(-1, to, 4, 4)));
    t.entry(&ring.one(tee_of(from, -1, 4, 5)));
    t.entry(&ring.one(tee_of(from, writer.as_raw_fd(), 4, 6)));
    let file = files::memory_file(b"abc");
    t.entry(&ring.one(tee_of(file.as_raw_fd(), to, 4, 7)));
    t.entry(&ring.one(tee_of(from, file.as_raw_fd(), 4, 8)));
    t.entry(&ring.one(tee_of(from, to, 4, 9).op_flags(0x10)));
}
case!(tee_wrong => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 4: -EBADF
    cqe 5: -EBADF
    cqe 6: -EINVAL
    cqe 7: -EINVAL
    cqe 8: -EINVAL
    cqe 9: -EINVAL
");

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"");
    let (reader, _writer) = files::pipe();
    ring.push(splice(here(&reader), at(&file, 0), 100, 1));
    ring.submit();
    crate::time::long_enough_to_begin();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(cancelled => "
    cqe 1: -errno(512)
    cqe 2: -EALREADY
", usring => "
    cqe 1: -EINTR
    cqe 2: -EALREADY
", because "how a worker that is broken off says so");
