//! FSYNC and SYNC_FILE_RANGE.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode};

use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, fields, sqe, write};
use crate::transcript::Transcript;

fn on(opcode: u8, fd: i32, user_data: u64) -> Sqe {
    sqe(opcode, fd, user_data)
}

fn fsync(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", b"0123456789");
    t.entry(&ring.one(on(opcode::FSYNC, file.as_raw_fd(), 1)));
    let datasync = u::IORING_FSYNC_DATASYNC;
    t.entry(&ring.one(on(opcode::FSYNC, file.as_raw_fd(), 2).op_flags(datasync)));
    t.entry(&ring.one(on(opcode::FSYNC, file.as_raw_fd(), 3).forced_async()));
}
case!(fsync => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
");

fn fsync_range(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", b"0123456789");
    for (off, len) in [(0u64, 5u32), (5, 100), (1 << 40, 1), (u64::MAX, 1), (0, u32::MAX)] {
        let ranged = on(opcode::FSYNC, file.as_raw_fd(), off).with(|sqe| {
            sqe.off = off;
            sqe.len = len;
        });
        t.entry(&ring.one(ranged));
    }
}
case!(fsync_range => "
    cqe 0: 0
    cqe 5: 0
    cqe 1099511627776: 0
    cqe 18446744073709551615: -EINVAL
    cqe 0: 0
");

fn fsync_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"x");
    for flags in [2, 4, 1 << 31, u32::MAX] {
        t.entry(&ring.one(on(opcode::FSYNC, file.as_raw_fd(), 1).op_flags(flags)));
    }
}
case!(fsync_flags => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
");

fn fsync_not_on_this_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let (socket, _other) = files::sockets();
    let event = files::eventfd(0);
    for fd in [reader.as_raw_fd(), socket.as_raw_fd(), event.as_raw_fd(), -1, 9999] {
        t.entry(&ring.one(on(opcode::FSYNC, fd, 1)));
    }
    let file = files::memory_file(b"x");
    t.entry(&ring.one(on(opcode::FSYNC, file.as_raw_fd(), 2)));
}
case!(fsync_not_on_this_file => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EBADF
    cqe 1: -EBADF
    cqe 2: 0
");

fn fsync_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"x");
    let wrong = fields! {
        addr = 1, buf_index = 1, file_index = 1, ioprio = 1,
    };
    t.each(&mut ring, on(opcode::FSYNC, file.as_raw_fd(), 1), &wrong);
}
case!(fsync_reserved_fields => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
");

fn write_then_fsync(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", b"");
    ring.push(write(file.as_raw_fd(), b"durable", 0, 1).linked());
    ring.push(on(opcode::FSYNC, file.as_raw_fd(), 2));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(2));
    t.say(files::text(&file));
}
case!(write_then_fsync => "
    submit = 2
    cqe 1: 7
    cqe 2: 0
    durable
");

fn range(fd: i32, off: u64, len: u32, flags: u32, user_data: u64) -> Sqe {
    on(opcode::SYNC_FILE_RANGE, fd, user_data).op_flags(flags).with(|sqe| {
        sqe.off = off;
        sqe.len = len;
    })
}

fn file_range(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", &[b'x'; 10000]);
    t.entry(&ring.one(range(file.as_raw_fd(), 0, 4096, 7, 1)));
    t.entry(&ring.one(range(file.as_raw_fd(), 4096, 0, 2, 2)));
    t.entry(&ring.one(range(file.as_raw_fd(), 0, 0, 0, 3)));
}
case!(file_range => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
");

fn file_range_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", b"x");
    for flags in [1, 2, 4, 8, 16, u32::MAX] {
        t.entry(&ring.one(range(file.as_raw_fd(), 0, 1, flags, u64::from(flags))));
    }
}
case!(file_range_flags => "
    cqe 1: 0
    cqe 2: 0
    cqe 4: 0
    cqe 8: -EINVAL
    cqe 16: -EINVAL
    cqe 4294967295: -EINVAL
");

fn file_range_bad_ranges(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("a", b"x");
    for (off, len) in [(u64::MAX, 1), (1 << 63, 1), ((1 << 63) - 1, 2), (1 << 40, u32::MAX)] {
        t.entry(&ring.one(range(file.as_raw_fd(), off, len, 2, off)));
    }
}
case!(file_range_bad_ranges => "
    cqe 18446744073709551615: -EINVAL
    cqe 9223372036854775808: -EINVAL
    cqe 9223372036854775807: -EINVAL
    cqe 1099511627776: 0
");

fn file_range_not_on_this_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let (socket, _other) = files::sockets();
    for fd in [reader.as_raw_fd(), socket.as_raw_fd(), -1] {
        t.entry(&ring.one(range(fd, 0, 1, 2, 1)));
    }
    let file = files::memory_file(b"x");
    let mut with = |change: fn(&mut Sqe)| ring.one(range(file.as_raw_fd(), 0, 1, 2, 2).with(change));
    let entries =
        [with(|_| ()), with(|sqe| sqe.addr = 1), with(|sqe| sqe.buf_index = 1), with(|sqe| sqe.file_index = 1)];
    t.in_order(&entries);
}
case!(file_range_not_on_this_file => "
    cqe 1: -ESPIPE
    cqe 1: -ESPIPE
    cqe 1: -EBADF
    cqe 2: 0
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
");
