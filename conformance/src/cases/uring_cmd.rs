//! URING_CMD on files that have no commands. `socket_command` covers sockets, and tests outside of
//! this suite cover usring's block devices.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode};

use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, sqe};
use crate::transcript::Transcript;

/// BLOCK_URING_CMD_DISCARD, the command by which a block device discards a range of its data.
const DISCARD: u64 = 0x1200;

fn command(fd: i32, number: u64, user_data: u64) -> Sqe {
    sqe(opcode::URING_CMD, fd, user_data).with(|sqe| {
        sqe.off = number;
        sqe.addr3 = 4096;
    })
}

fn files_without_commands(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = files::memory_file(&[0; 8192]);
    let (reader, _writer) = files::pipe();
    let event = files::eventfd(0);
    for (user_data, fd) in [&memory, &reader, &event].into_iter().enumerate() {
        t.entry(&ring.one(command(fd.as_raw_fd(), DISCARD, user_data as u64)));
    }
    t.entry(&ring.one(command(memory.as_raw_fd(), 0, 9)));
}
case!(files_without_commands => "
    cqe 0: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 2: -EOPNOTSUPP
    cqe 9: -EOPNOTSUPP
");

fn order_of_checks(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = files::memory_file(&[0; 8192]);
    let fd = memory.as_raw_fd();
    t.say("no file");
    t.entry(&ring.one(command(9999, DISCARD, 1)));
    t.say("the reserved half of the command");
    t.entry(&ring.one(command(fd, DISCARD | 1 << 32, 2)));
    t.entry(&ring.one(command(9999, DISCARD | 1 << 32, 3)));
    t.say("flags");
    t.entry(&ring.one(command(fd, DISCARD, 4).op_flags(1 << 20)));
    t.say("forced to a worker");
    t.entry(&ring.one(command(fd, DISCARD, 5).with(|sqe| sqe.flags |= usring_uapi::sqe_flags::ASYNC)));
}
case!(order_of_checks => "
    no file
    cqe 1: -EBADF
    the reserved half of the command
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    flags
    cqe 4: -EINVAL
    forced to a worker
    cqe 5: -EOPNOTSUPP
");

fn on_a_polled_ring(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_IOPOLL);
    let memory = files::memory_file(&[0; 8192]);
    t.entry(&ring.one(command(memory.as_raw_fd(), DISCARD, 1)));
    t.entry(&ring.one(command(9999, DISCARD, 2)));
}
case!(on_a_polled_ring => "
    cqe 1: -EOPNOTSUPP
    cqe 2: -EBADF
");
