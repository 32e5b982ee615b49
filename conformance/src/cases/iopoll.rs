//! Rings with IOPOLL: the requests that they accept, and how io_uring_enter(2) waits on them. Only
//! block devices can be polled, and tests outside of this suite cover them.

use usring_uapi::{Sqe, io_uring as u, opcode};

use super::sq_thread;
use crate::files;
use crate::memory::BAD;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, poll, read, readv, sqe, timeout, vector, write};
use crate::syscalls;
use crate::time;
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;

const IOPOLL: u32 = u::IORING_SETUP_IOPOLL;

/// A ring with IOPOLL refuses most opcodes. An ordinary ring would carry these requests out, or
/// refuse one of their fields.
fn opcodes(t: &mut Transcript) {
    let mut ring = Ring::flags(8, IOPOLL);
    let (reader, _writer) = files::pipe();
    let pipe = reader.as_raw_fd();
    let time = time::milliseconds(1);
    let entries: [(&str, Sqe); 14] = [
        ("NOP", nop(1)),
        ("FSYNC", sqe(opcode::FSYNC, pipe, 1)),
        ("POLL_ADD", poll(pipe, libc::POLLIN, 1)),
        ("POLL_REMOVE", sqe(opcode::POLL_REMOVE, -1, 1)),
        ("SYNC_FILE_RANGE", sqe(opcode::SYNC_FILE_RANGE, pipe, 1)),
        ("TIMEOUT", timeout(&time, 0, 0, 1)),
        ("TIMEOUT_REMOVE", sqe(opcode::TIMEOUT_REMOVE, -1, 1)),
        ("ASYNC_CANCEL", sqe(opcode::ASYNC_CANCEL, -1, 1)),
        ("FALLOCATE", sqe(opcode::FALLOCATE, pipe, 1)),
        ("OPENAT", sqe(opcode::OPENAT, -1, 1)),
        ("CLOSE", sqe(opcode::CLOSE, 9999, 1)),
        ("STATX", sqe(opcode::STATX, -1, 1)),
        ("FADVISE", sqe(opcode::FADVISE, pipe, 1)),
        ("EPOLL_CTL", sqe(opcode::EPOLL_CTL, pipe, 1)),
    ];
    for (name, entry) in entries {
        t.say(name);
        t.entry(&ring.one(entry));
    }
    let mut numbers = [-1i32];
    t.result(
        "register files",
        ring.register(u::io_uring_register_op::IORING_REGISTER_FILES as u32, numbers.as_ptr(), 1),
    );
    numbers[0] = pipe;
    let mut update = sqe(opcode::FILES_UPDATE, -1, 2);
    update.addr = numbers.as_ptr() as u64;
    update.len = 1;
    t.say("FILES_UPDATE");
    t.entry(&ring.one(update));
    let memory = [0u8; 64];
    let mut provide = sqe(opcode::PROVIDE_BUFFERS, 1, 3);
    provide.addr = memory.as_ptr() as u64;
    provide.len = 64;
    t.say("PROVIDE_BUFFERS");
    t.entry(&ring.one(provide));
    t.say("REMOVE_BUFFERS");
    t.entry(&ring.one(sqe(opcode::REMOVE_BUFFERS, 1, 4)));
}
case!(opcodes => include_str!("iopoll/opcodes.txt"));

fn files_that_do_not_poll(t: &mut Transcript) {
    let mut ring = Ring::flags(8, IOPOLL);
    let memory = files::memory_file(b"some bytes");
    let (reader, writer) = files::pipe();
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
    let mut buffer = [0u8; 8];
    t.say("memory");
    t.entry(&ring.one(read(memory.as_raw_fd(), &mut buffer, 0, 1)));
    t.entry(&ring.one(write(memory.as_raw_fd(), &buffer, 0, 2)));
    t.entry(&ring.one(read(memory.as_raw_fd(), &mut [], 0, 3)));
    let vectors = [vector(buffer.as_mut_ptr() as u64, 4), vector(buffer.as_mut_ptr() as u64, 4)];
    t.entry(&ring.one(readv(memory.as_raw_fd(), &vectors, 0, 4)));
    t.say("a pipe");
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, 0, 5)));
    t.entry(&ring.one(write(writer.as_raw_fd(), &buffer, 0, 6)));
    t.say("nothing");
    t.entry(&ring.one(read(null.as_raw_fd(), &mut buffer, 0, 7)));
}
case!(files_that_do_not_poll => "
    memory
    cqe 1: -EOPNOTSUPP
    cqe 2: -EOPNOTSUPP
    cqe 3: -EOPNOTSUPP
    cqe 4: -EOPNOTSUPP
    a pipe
    cqe 5: -EOPNOTSUPP
    cqe 6: -EOPNOTSUPP
    nothing
    cqe 7: -EOPNOTSUPP
");

fn order_of_checks(t: &mut Transcript) {
    let mut ring = Ring::flags(8, IOPOLL);
    let memory = files::memory_file(b"some bytes");
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 8];
    t.say("no file");
    t.entry(&ring.one(read(9999, &mut buffer, 0, 1)));
    t.entry(&ring.one(read(-1, &mut buffer, 0, 2)));
    t.say("the wrong way");
    t.entry(&ring.one(read(writer.as_raw_fd(), &mut buffer, 0, 3)));
    t.entry(&ring.one(write(reader.as_raw_fd(), &buffer, 0, 4)));
    t.say("flags");
    let hipri = libc::RWF_HIPRI as u32;
    t.entry(&ring.one(read(memory.as_raw_fd(), &mut buffer, 0, 5).op_flags(hipri)));
    t.entry(&ring.one(read(memory.as_raw_fd(), &mut buffer, 0, 6).op_flags(1 << 30)));
    t.say("a bad address");
    let mut bad = read(memory.as_raw_fd(), &mut buffer, 0, 7);
    bad.addr = BAD;
    t.entry(&ring.one(bad));
    let mut bad = readv(memory.as_raw_fd(), &[], 0, 8);
    (bad.addr, bad.len) = (BAD, 2);
    t.entry(&ring.one(bad));
    t.say("no slot");
    let mut fixed = read(0, &mut buffer, 0, 9);
    fixed.flags = usring_uapi::sqe_flags::FIXED_FILE;
    t.entry(&ring.one(fixed));
}
case!(order_of_checks => "
    no file
    cqe 1: -EBADF
    cqe 2: -EBADF
    the wrong way
    cqe 3: -EBADF
    cqe 4: -EBADF
    flags
    cqe 5: -EOPNOTSUPP
    cqe 6: -EOPNOTSUPP
    a bad address
    cqe 7: -EOPNOTSUPP
    cqe 8: -EFAULT
    no slot
    cqe 9: -EBADF
");

fn nothing_to_wait_for(t: &mut Transcript) {
    let ring = Ring::flags(8, IOPOLL);
    for complete in [0, 1, 5, 1000] {
        t.result(format_args!("wait for {complete}"), ring.enter(0, complete, u::IORING_ENTER_GETEVENTS));
    }
}
case!(nothing_to_wait_for => "
    wait for 0 = 0
    wait for 1 = 0
    wait for 5 = 0
    wait for 1000 = 0
");

fn one_entry_is_enough(t: &mut Transcript) {
    let mut ring = Ring::flags(8, IOPOLL);
    ring.push(nop(1));
    ring.push(nop(2));
    t.result("submit, and wait for 5", ring.submit_and_wait(5));
    t.in_order(&ring.reap());
}
case!(one_entry_is_enough => "
    submit, and wait for 5 = 2
    cqe 1: 0
    cqe 2: 0
");

fn argument_is_checked(t: &mut Transcript) {
    let ring = Ring::flags(8, IOPOLL);
    let flags = u::IORING_ENTER_GETEVENTS | u::IORING_ENTER_EXT_ARG;
    t.result("bad address", ring.enter_with(0, 0, flags, BAD as *const _, 24));
    t.result("bad size", ring.enter_with(0, 0, flags, BAD as *const _, 8));
    t.result("bad signal set", ring.enter_with(0, 0, u::IORING_ENTER_GETEVENTS, BAD as *const _, 4));
}
case!(argument_is_checked => "
    bad address = -EFAULT
    bad size = -EINVAL
    bad signal set = 0
");

fn links(t: &mut Transcript) {
    let mut ring = Ring::flags(8, IOPOLL);
    let memory = files::memory_file(b"some bytes");
    let mut buffer = [0u8; 8];
    t.sorted(&ring.run(&[nop(1).linked(), nop(2)]));
    t.sorted(&ring.run(&[read(memory.as_raw_fd(), &mut buffer, 0, 3).linked(), nop(4)]));
}
case!(links => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: -EOPNOTSUPP
    cqe 4: -ECANCELED
");

fn with_an_sq_thread(t: &mut Transcript) {
    let mut ring = Ring::flags(8, IOPOLL | u::IORING_SETUP_SQPOLL);
    let memory = files::memory_file(b"some bytes");
    let mut buffer = [0u8; 8];
    let entries = [nop(1), nop(2), read(memory.as_raw_fd(), &mut buffer, 0, 3)];
    t.sorted(&sq_thread::run(&mut ring, &entries));
    t.result("wait for nothing", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
}
case!(with_an_sq_thread => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: -EOPNOTSUPP
    wait for nothing = 0
");

fn deferred(t: &mut Transcript) {
    let mut ring = Ring::flags(8, IOPOLL | ring::DEFER);
    t.sorted(&ring.run(&[nop(1), nop(2)]));
    let fd = ring.fd;
    let wait = move || syscalls::enter(fd, 0, 1, u::IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
    let elsewhere = std::thread::spawn(wait).join().unwrap();
    t.result("wait in another thread", elsewhere);
}
case!(deferred => "
    cqe 1: 0
    cqe 2: 0
    wait in another thread = -EEXIST
");
