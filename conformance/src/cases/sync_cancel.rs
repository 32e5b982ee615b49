//! IORING_REGISTER_SYNC_CANCEL: io_uring_register(2) cancels requests, and waits until they have
//! ended.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;

use super::reg;
use crate::files;
use crate::memory::{BAD, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, nop, poll, read, timeout};
use crate::time::LONG;
use crate::transcript::{Transcript, timed};

type Registration = u::io_uring_sync_cancel_reg;

/// Returns the argument of a synchronous cancel. Its timeout of -1 means that the wait has no
/// limit.
fn registration(address: u64, fd: i32, flags: u32) -> Registration {
    let mut registration: Registration = zeroed();
    registration.addr = address;
    registration.fd = fd;
    registration.flags = flags;
    registration.timeout.tv_sec = -1;
    registration.timeout.tv_nsec = -1;
    registration
}

fn call(ring: &Ring, registration: &Registration) -> i32 {
    ring.register(reg::SYNC_CANCEL, &raw const *registration, 1)
}

pub fn by_user_data(ring: &Ring, user_data: u64) -> i32 {
    call(ring, &registration(user_data, -1, 0))
}

fn of_user_data(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    t.result("cancel", by_user_data(&ring, 1));
    t.sorted(&ring.wait(1));
    t.result("cancel", call(&ring, &registration(1, -1, u::IORING_ASYNC_CANCEL_ALL)));
    t.sorted(&ring.wait(1));
    t.result("cancel", by_user_data(&ring, 1));
}
case!(of_user_data as by_user_data => "
    cancel = 0
    cqe 1: -ECANCELED
    cancel = 1
    cqe 1: -ECANCELED
    cancel = -ENOENT
");

fn by_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let (other, _other) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 2));
    ring.push(poll(other.as_raw_fd(), libc::POLLIN, 3));
    ring.submit();
    let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_ALL;
    t.result("cancel", call(&ring, &registration(0, reader.as_raw_fd(), flags)));
    t.sorted(&ring.wait(2));
    t.result("again", call(&ring, &registration(0, reader.as_raw_fd(), flags)));
    t.result("bad number", call(&ring, &registration(0, 9999, flags)));
}
case!(by_descriptor => "
    cancel = 2
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    again = 0
    bad number = -EBADF
");

fn by_fixed_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let number = reader.as_raw_fd();
    t.result("register", ring.register(reg::FILES, &raw const number, 1));
    ring.push(poll(0, libc::POLLIN, 1).fixed());
    ring.submit();
    let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_FD_FIXED;
    t.result("bad slot", call(&ring, &registration(0, 1, flags)));
    t.result("cancel", call(&ring, &registration(0, 0, flags)));
    t.sorted(&ring.wait(1));
}
case!(by_fixed_file => "
    register = 0
    bad slot = -EBADF
    cancel = 0
    cqe 1: -ECANCELED
");

/// With the flag ANY, the cancel finds all requests. It behaves as if ALL were set, too.
fn any(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    for user_data in 1..=3 {
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, user_data));
    }
    ring.submit();
    t.result("ANY", call(&ring, &registration(0, -1, u::IORING_ASYNC_CANCEL_ANY)));
    t.say(format_args!("cqes {}", ring.wait(3).len()));
    let all = u::IORING_ASYNC_CANCEL_ANY | u::IORING_ASYNC_CANCEL_ALL;
    t.result("ANY and ALL, none left", call(&ring, &registration(0, -1, all)));
}
case!(any => "
    ANY = 3
    cqes 3
    ANY and ALL, none left = 0
");

fn by_opcode(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 2));
    ring.submit();
    let mut wanted = registration(0, -1, u::IORING_ASYNC_CANCEL_OP | u::IORING_ASYNC_CANCEL_ALL);
    wanted.opcode = usring_uapi::opcode::READ;
    t.result("reads", call(&ring, &wanted));
    t.sorted(&ring.wait(1));
    wanted.opcode = usring_uapi::opcode::WRITE;
    t.result("writes", call(&ring, &wanted));
}
case!(by_opcode => "
    reads = 1
    cqe 2: -ECANCELED
    writes = 0
");

fn unknown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("nothing there", by_user_data(&ring, 1));
    t.entry(&ring.one(nop(1)));
    t.result("completed", by_user_data(&ring, 1));
}
case!(unknown => "
    nothing there = -ENOENT
    cqe 1: 0
    completed = -ENOENT
");

fn with_timeout(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut wanted = registration(1, -1, 0);
    wanted.timeout.tv_sec = 0;
    wanted.timeout.tv_nsec = 1_000_000;
    let (answer, waited) = timed(|| call(&ring, &wanted));
    t.result("nothing there", answer);
    t.between("waited", waited, 0, 30_000);
}
case!(with_timeout => "
    nothing there = -ENOENT
    waited: after 0 to 30000 ms
");

fn bad_argument(t: &mut Transcript) {
    let ring = Ring::new(4);
    let good = registration(1, -1, 0);
    t.result("null", ring.register::<u8>(reg::SYNC_CANCEL, std::ptr::null(), 1));
    t.result("unmapped", ring.register(reg::SYNC_CANCEL, BAD as *const u8, 1));
    t.result("count 0", ring.register(reg::SYNC_CANCEL, &raw const good, 0));
    t.result("count 2", ring.register(reg::SYNC_CANCEL, &raw const good, 2));
    t.result("unknown flag", call(&ring, &registration(1, -1, 1 << 20)));
    let mut padded = good;
    padded.pad[0] = 1;
    t.result("pad", call(&ring, &padded));
    let mut padded = good;
    padded.pad2[2] = 1;
    t.result("pad2", call(&ring, &padded));
}
case!(bad_argument => "
    null = -EINVAL
    unmapped = -EFAULT
    count 0 = -EINVAL
    count 2 = -EINVAL
    unknown flag = -EINVAL
    pad = -EINVAL
    pad2 = -EINVAL
");

fn timeouts(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.submit();
    t.result("cancel", by_user_data(&ring, 1));
    t.in_order(&ring.wait(1));
}
case!(timeouts => "
    cancel = 0
    cqe 1: -ECANCELED
");

/// A worker executes the request that the call cancels. The call waits until the worker has ended
/// the request.
fn worker(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let fifo = files::Fifo::new();
    ring.push(fifo.open(1));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.result("cancel", by_user_data(&ring, 1));
    t.say(format_args!("deserted {}", fifo.has_no_reader()));
    let answer = ring.wait(1).first().map_or(0, |entry| entry.res);
    t.say(format_args!("broken off {}", super::INTERRUPTED_RESULTS.contains(&answer)));
}
case!(worker => "
    cancel = 0
    deserted true
    broken off true
");
