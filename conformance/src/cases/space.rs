//! FALLOCATE and FTRUNCATE.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, opcode};

use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, fields, sqe};
use crate::transcript::Transcript;

/// Returns a FALLOCATE, whose SQE has the mode in the field `len` and the length in the field
/// `addr`.
fn fallocate(fd: i32, mode: i32, offset: u64, length: u64, user_data: u64) -> Sqe {
    sqe(opcode::FALLOCATE, fd, user_data).with(|sqe| {
        sqe.len = mode as u32;
        sqe.off = offset;
        sqe.addr = length;
    })
}

fn ftruncate(fd: i32, length: u64, user_data: u64) -> Sqe {
    sqe(opcode::FTRUNCATE, fd, user_data).with(|sqe| sqe.off = length)
}

fn size(fd: i32) -> i64 {
    // SAFETY: the call touches no memory.
    unsafe { libc::lseek(fd, 0, libc::SEEK_END) }
}

fn allocate(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"ab");
    let fd = file.as_raw_fd();
    t.entry(&ring.one(fallocate(fd, 0, 0, 5000, 1)));
    t.say(format_args!("size {}", size(fd)));
    t.entry(&ring.one(fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, 9000, 2)));
    t.say(format_args!("size {}", size(fd)));
}
case!(allocate => "
    cqe 1: 0
    size 5000
    cqe 2: 0
    size 5000
");

fn allocate_modes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(&[b'x'; 8192]);
    let fd = file.as_raw_fd();
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    t.entry(&ring.one(fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | keep, 0, 4096, 1)));
    let content = files::content(&file);
    t.say(format_args!("{} {} {}", content[0], content[4095], content[4096]));
    t.entry(&ring.one(fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE, 0, 4096, 2)));
    t.entry(&ring.one(fallocate(fd, libc::FALLOC_FL_COLLAPSE_RANGE | keep, 0, 4096, 3)));
    t.entry(&ring.one(fallocate(fd, 1 << 30, 0, 4096, 4)));
    t.entry(&ring.one(fallocate(fd, -1, 0, 4096, 5)));
}
case!(allocate_modes => "
    cqe 1: 0
    0 0 120
    cqe 2: -EOPNOTSUPP
    cqe 3: -EOPNOTSUPP
    cqe 4: -EOPNOTSUPP
    cqe 5: -EOPNOTSUPP
");

fn allocate_bad_ranges(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"ab");
    let fd = file.as_raw_fd();
    for (offset, length) in [(0u64, 0u64), (u64::MAX, 1), (0, u64::MAX), ((1 << 63) - 1, 2)] {
        t.entry(&ring.one(fallocate(fd, 0, offset, length, 1)));
    }
}
case!(allocate_bad_ranges => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EFBIG
");

fn allocate_not_on_this_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::pipe();
    let (socket, _other) = files::sockets();
    let read_only = std::fs::File::open("/proc/self/exe").expect("our own file");
    for fd in [writer.as_raw_fd(), socket.as_raw_fd(), read_only.as_raw_fd(), -1] {
        t.entry(&ring.one(fallocate(fd, 0, 0, 1, 1)));
    }
}
case!(allocate_not_on_this_file => "
    cqe 1: -ESPIPE
    cqe 1: -ENODEV
    cqe 1: -EBADF
    cqe 1: -EBADF
");

fn allocate_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"ab");
    let wrong = fields! {
        op_flags = 1, buf_index = 1, file_index = 1, ioprio = 1,
    };
    t.each(&mut ring, fallocate(file.as_raw_fd(), 0, 0, 1, 1), &wrong);
}
case!(allocate_reserved_fields => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
");

fn truncate(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    for length in [4, 12, 0] {
        t.entry(&ring.one(ftruncate(fd, length, length)));
        t.say(format_args!("size {}", size(fd)));
    }
}
case!(truncate => "
    cqe 4: 0
    size 4
    cqe 12: 0
    size 12
    cqe 0: 0
    size 0
");

fn truncate_bad(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(ftruncate(file.as_raw_fd(), u64::MAX, 1)));
    t.entry(&ring.one(ftruncate(-1, 1, 2)));
    let (_reader, writer) = files::pipe();
    t.entry(&ring.one(ftruncate(writer.as_raw_fd(), 1, 3)));
    let read_only = std::fs::File::open("/proc/self/exe").expect("our own file");
    t.entry(&ring.one(ftruncate(read_only.as_raw_fd(), 1, 4)));
    let root = std::fs::File::open("/").expect("/");
    t.entry(&ring.one(ftruncate(root.as_raw_fd(), 1, 5)));
}
case!(truncate_bad => "
    cqe 1: -EINVAL
    cqe 2: -EBADF
    cqe 3: -EINVAL
    cqe 4: -EINVAL
    cqe 5: -EINVAL
");

fn truncate_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let wrong = fields! {
        op_flags = 1, addr = 1, len = 1, buf_index = 1, file_index = 1, addr3 = 1,
    };
    t.each(&mut ring, ftruncate(file.as_raw_fd(), 1, 1), &wrong);
}
case!(truncate_reserved_fields => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    t.entry(&ring.one(ftruncate(fd, 4, 1).forced_async()));
    t.entry(&ring.one(fallocate(fd, 0, 0, 100, 2).forced_async()));
    t.say(format_args!("size {}", size(fd)));
}
case!(forced_async => "
    cqe 1: 0
    cqe 2: 0
    size 100
");
