//! ASYNC_CANCEL: its results, and every key by which it finds requests.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode};

use super::reg;
use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, fields, nop, poll, read, timeout, write};
use crate::time::LONG;
use crate::transcript::Transcript;
use usring_uapi::sqe_flags;

const ALL: u32 = u::IORING_ASYNC_CANCEL_ALL;
const FD: u32 = u::IORING_ASYNC_CANCEL_FD;
const ANY: u32 = u::IORING_ASYNC_CANCEL_ANY;
const FIXED: u32 = u::IORING_ASYNC_CANCEL_FD_FIXED;
const USERDATA: u32 = u::IORING_ASYNC_CANCEL_USERDATA;
const OP: u32 = u::IORING_ASYNC_CANCEL_OP;

fn own_cqe_first(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(2));
}
case!(own_cqe_first => "
    submit = 1
    cqe 2: 0
    cqe 1: -ECANCELED
");

fn kinds_of_request(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let (socket, _other) = files::sockets();
    let mut byte = [0u8; 1];
    let kinds: [(&str, Sqe); 4] = [
        ("read of a pipe", read(reader.as_raw_fd(), &mut byte, 0, 1)),
        ("read of a socket", read(socket.as_raw_fd(), &mut byte, 0, 1)),
        ("poll", poll(reader.as_raw_fd(), libc::POLLIN, 1)),
        ("timeout", timeout(&LONG, 0, 0, 1)),
    ];
    for (name, sqe) in kinds {
        t.say(name);
        ring.push(sqe);
        ring.submit();
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.sorted(&ring.wait(2));
    }
}
case!(kinds_of_request => "
    read of a pipe
    cqe 1: -ECANCELED
    cqe 2: 0
    read of a socket
    cqe 1: -ECANCELED
    cqe 2: 0
    poll
    cqe 1: -ECANCELED
    cqe 2: 0
    timeout
    cqe 1: -ECANCELED
    cqe 2: 0
");

fn unknown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(cancel(77, 0, 1)));
    t.entry(&ring.one(cancel(77, ALL, 2)));
    t.entry(&ring.one(cancel(0, ANY, 3)));
    t.entry(&ring.one(cancel(0, ANY | ALL, 4)));
}
case!(unknown => "
    cqe 1: -ENOENT
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
");

fn completed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(nop(1));
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(completed => "
    cqe 1: 0
    cqe 2: -ENOENT
");

fn first_of_equals(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    for _ in 0..3 {
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    }
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(first_of_equals => "
    cqe 1: -ECANCELED
    cqe 2: 0
    no cqe
");

fn all_of_user_data(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(timeout(&LONG, 0, 0, 1));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 5));
    ring.submit();
    // With the flag ALL, one cancel finds requests of every kind. Its result is the number of
    // requests that it found.
    ring.push(cancel(1, ALL, 2));
    ring.submit();
    t.sorted(&ring.wait(4));
    ring.push(cancel(1, ALL, 3));
    ring.submit();
    t.sorted(&ring.wait(1));
}
case!(all_of_user_data => "
    cqe 1: -ECANCELED
    cqe 1: -ECANCELED
    cqe 1: -ECANCELED
    cqe 2: 3
    cqe 3: 0
");

fn on_fd(fd: i32, flags: u32, user_data: u64) -> Sqe {
    cancel(0, FD | flags, user_data).with(|sqe| sqe.fd = fd)
}

fn by_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let (other, _other) = files::pipe();
    ring.push(poll(other.as_raw_fd(), libc::POLLIN, 1));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
    ring.submit();
    ring.push(on_fd(reader.as_raw_fd(), 0, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
    t.entry(&ring.one(on_fd(reader.as_raw_fd(), 0, 4)));
    t.entry(&ring.one(on_fd(-1, 0, 5)));
    t.entry(&ring.one(on_fd(9999, 0, 6)));
}
case!(by_descriptor => "
    cqe 2: -ECANCELED
    cqe 3: 0
    cqe 4: -ENOENT
    cqe 5: -EBADF
    cqe 6: -EBADF
");

fn by_descriptor_all(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let (other, _other) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 3));
    ring.push(poll(other.as_raw_fd(), libc::POLLIN, 4));
    ring.submit();
    ring.push(on_fd(reader.as_raw_fd(), ALL, 5));
    ring.submit();
    t.sorted(&ring.wait(4));
    t.entry(&ring.one(on_fd(reader.as_raw_fd(), ALL, 6)));
}
case!(by_descriptor_all => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 5: 3
    cqe 6: 0
");

/// Cancels by descriptor under a seccomp filter that denies kcmp(2), as container runtimes do by
/// default. All files are of kinds that share one inode, such as eventfds. So a comparison of
/// inodes cannot distinguish them.
fn by_descriptor_in_a_sandbox(t: &mut Transcript) {
    crate::process::deny(libc::SYS_kcmp);
    let mut ring = Ring::new(8);
    let (one, other) = (files::eventfd(0), files::eventfd(0));
    ring.push(poll(other.as_raw_fd(), libc::POLLIN, 1));
    ring.push(poll(one.as_raw_fd(), libc::POLLIN, 2));
    ring.submit();
    ring.push(on_fd(one.as_raw_fd(), 0, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
    t.entry(&ring.one(on_fd(one.as_raw_fd(), 0, 4)));
    ring.push(on_fd(other.as_raw_fd(), ALL, 5));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(by_descriptor_in_a_sandbox => "
    cqe 2: -ECANCELED
    cqe 3: 0
    cqe 4: -ENOENT
    cqe 1: -ECANCELED
    cqe 5: 1
");

/// A cancel by descriptor compares open files, not descriptor numbers:
///
/// - It finds the request by any descriptor of the request's open file.
/// - The program may make the original number a descriptor of another file. That number then no
///   longer finds the request.
fn descriptor_means_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let (other, _other) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    let second = reader.try_clone().expect("a duplicate");
    // SAFETY: this case owns both descriptors. dup2(2) makes the first number a descriptor of the
    // other pipe.
    unsafe { libc::dup2(other.as_raw_fd(), reader.as_raw_fd()) };
    t.entry(&ring.one(on_fd(reader.as_raw_fd(), 0, 2)));
    ring.push(on_fd(second.as_raw_fd(), 0, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(descriptor_means_file => "
    cqe 2: -ENOENT
    cqe 1: -ECANCELED
    cqe 3: 0
");

/// A cancel by descriptor finds no request that uses no file, even if the unused field `fd` of the
/// request's SQE contains the cancel's number.
fn by_descriptor_without_a_file(t: &mut Transcript) {
    for flags in [FD, FD | ALL] {
        let mut ring = Ring::new(8);
        let (reader, _writer) = files::pipe();
        ring.push(timeout(&LONG, 0, 0, 1).with(|sqe| sqe.fd = reader.as_raw_fd()));
        ring.submit();
        t.entry(&ring.one(cancel(0, flags, 2).with(|sqe| sqe.fd = reader.as_raw_fd())));
        t.say(format_args!("ready {}", ring.ready()));
        ring.push(cancel(1, 0, 3));
        ring.submit();
        t.sorted(&ring.wait(2));
    }
}
case!(by_descriptor_without_a_file => "
    cqe 2: -ENOENT
    ready 0
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 2: 0
    ready 0
    cqe 1: -ECANCELED
    cqe 3: 0
");

fn by_fixed_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let number = reader.as_raw_fd();
    t.result("register", ring.register(reg::FILES, &raw const number, 1));
    ring.push(poll(0, libc::POLLIN, 1).fixed());
    ring.push(poll(number, libc::POLLIN, 2));
    ring.submit();
    t.entry(&ring.one(on_fd(1, FIXED, 3)));
    // Slot 0 and the descriptor name one open file. So a cancel that names the slot finds both
    // requests.
    ring.push(on_fd(0, FIXED | ALL, 4));
    ring.submit();
    t.sorted(&ring.wait(3));
    // FIXED has no effect without FD.
    t.entry(&ring.one(cancel(0, FIXED, 5)));
}
case!(by_fixed_file => "
    register = 0
    cqe 3: -EBADF
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 4: 2
    cqe 5: -ENOENT
");

fn any(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 2));
    ring.push(timeout(&LONG, 0, 0, 3));
    ring.submit();
    ring.push(cancel(0, ANY | ALL, 4));
    ring.submit();
    t.sorted(&ring.wait(4));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 5));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 5));
    ring.submit();
    ring.push(cancel(0, ANY, 6));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(any => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: 3
    cqe 5: -ECANCELED
    cqe 5: -ECANCELED
    cqe 6: 2
");

fn by_opcode(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 2));
    ring.push(timeout(&LONG, 0, 0, 3));
    ring.submit();
    let by = |opcode: u8, user_data| cancel(0, OP, user_data).with(|sqe| sqe.len = u32::from(opcode));
    for (number, opcode) in [opcode::WRITE, opcode::READ, opcode::TIMEOUT].into_iter().enumerate() {
        ring.push(by(opcode, 10 + number as u64));
        ring.submit();
        t.sorted(&ring.wait(if opcode == opcode::WRITE { 1 } else { 2 }));
    }
    // There is a request with the opcode POLL_ADD, and none with the opcode 200.
    ring.push(by(opcode::POLL_ADD, 20));
    ring.submit();
    t.sorted(&ring.wait(2));
    t.entry(&ring.one(by(200, 21)));
}
case!(by_opcode => "
    cqe 10: -ENOENT
    cqe 2: -ECANCELED
    cqe 11: 0
    cqe 3: -ECANCELED
    cqe 12: 0
    cqe 1: -ECANCELED
    cqe 20: 0
    cqe 21: -ENOENT
");

/// A cancel with several keys finds only requests that match every key.
fn two_keys(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let (other, _other) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.push(poll(other.as_raw_fd(), libc::POLLIN, 1));
    ring.push(poll(other.as_raw_fd(), libc::POLLIN, 2));
    ring.submit();
    let both = on_fd(other.as_raw_fd(), USERDATA | ALL, 5).with(|sqe| sqe.addr = 1);
    ring.push(both);
    ring.submit();
    t.sorted(&ring.wait(2));
    // With the flag USERDATA, `addr` is the user_data to find. This cancel has FD but not USERDATA,
    // so it ignores `addr`.
    ring.push(on_fd(other.as_raw_fd(), ALL, 6).with(|sqe| sqe.addr = 1));
    ring.submit();
    t.sorted(&ring.wait(2));
    // ANY excludes every other key.
    t.entry(&ring.one(on_fd(reader.as_raw_fd(), ANY, 7)));
}
case!(two_keys => "
    cqe 1: -ECANCELED
    cqe 5: 1
    cqe 2: -ECANCELED
    cqe 6: 1
    cqe 7: -EINVAL
");

fn itself(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(cancel(1, 0, 1)));
    t.entry(&ring.one(cancel(1, ALL, 1)));
}
case!(itself => "
    cqe 1: -ENOENT
    cqe 1: 0
");

fn cancels_no_cancel(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.sorted(&ring.run(&[cancel(9, 0, 1), cancel(1, 0, 2)]));
}
case!(cancels_no_cancel => "
    cqe 1: -ENOENT
    cqe 2: -ENOENT
");

fn unknown_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for bit in [6, 7, 20, 31] {
        t.entry(&ring.one(cancel(1, 1 << bit, 1)));
    }
}
case!(unknown_flags => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let wrong = fields! {
        off = 1, len = 1, buf_index = 1, file_index = 1, ioprio = 1, fd = 1,
        flags = sqe_flags::BUFFER_SELECT, flags = sqe_flags::FIXED_FILE,
    };
    t.each(&mut ring, cancel(1, 0, 2), &wrong);
}
case!(reserved_fields => "
    cqe 2: -EINVAL
    cqe 2: -ENOENT
    cqe 2: -ENOENT
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -ENOENT
    cqe 2: -EOPNOTSUPP
    cqe 2: -ENOENT
");

/// A cancel interrupts a worker's blocking call. The cancel gets 0 or -EALREADY, and the request
/// gets -EINTR or -ECANCELED. On Linux 6.18 a cancelled open gets -512 (ERESTARTSYS, an errno for
/// use inside the kernel).
fn worker_waiting(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let fifo = files::Fifo::new();
    ring.push(fifo.open(1));
    ring.submit();
    crate::time::long_enough_to_notice();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    let mut entries = ring.wait(2);
    entries.sort_by_key(|entry| entry.user_data);
    for entry in entries {
        let allowed = match entry.user_data {
            1 => &super::INTERRUPTED_RESULTS[..],
            _ => &[0, -libc::EALREADY],
        };
        let allowed = allowed.contains(&entry.res);
        t.say(format_args!("{}: an allowed answer {allowed}", entry.user_data));
    }
    t.say(format_args!("deserted {}", fifo.has_no_reader()));
}
case!(worker_waiting => "
    1: an allowed answer true
    2: an allowed answer true
    deserted true
");

/// The ring's only worker is busy. So the next request waits in the queue for the worker, where a
/// cancel finds it.
fn queued_on_worker(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fifo = files::Fifo::new();
    let mut limits = [1u32, 1u32];
    t.result("max workers", ring.register(reg::IOWQ_MAX_WORKERS, limits.as_mut_ptr(), 2));
    ring.push(fifo.open(1));
    ring.submit();
    crate::time::long_enough_to_notice();
    ring.push(fifo.open(2));
    ring.submit();
    crate::time::long_enough_to_notice();
    ring.push(cancel(2, 0, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
    let _other = fifo.release();
    for entry in ring.wait(1) {
        t.outcome(format_args!("open {}", entry.user_data), entry.res.into());
    }
}
case!(queued_on_worker => "
    max workers = 0
    cqe 2: -ECANCELED
    cqe 3: 0
    open 1 = ok
");

fn write_that_waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::pipe();
    files::fill(&writer);
    ring.push(write(writer.as_raw_fd(), b"x", 0, 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(write_that_waits => "
    cqe 1: -ECANCELED
    cqe 2: 0
");

fn linked_to_target(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    // A request that is linked behind a cancel runs only if the cancel has found its target.
    t.sorted(&ring.run(&[cancel(9, 0, 2).linked(), nop(3)]));
    ring.push(cancel(1, 0, 4).linked());
    ring.push(nop(5));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(linked_to_target => "
    cqe 2: -ENOENT
    cqe 3: -ECANCELED
    cqe 1: -ECANCELED
    cqe 4: 0
    cqe 5: 0
");

/// A cancelled read takes no data: data that arrives after the cancel stays in the pipe.
fn cancelled_read_takes_no_data(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    files::put(&writer, b"x");
    t.say(format_args!("still there {:?}", files::take(&reader, 4)));
}
case!(cancelled_read_takes_no_data => "
    cqe 1: -ECANCELED
    cqe 2: 0
    still there Ok([120])
");

fn other_ring(t: &mut Transcript) {
    let (mut ring, mut other) = (Ring::new(4), Ring::new(4));
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    t.entry(&other.one(cancel(1, 0, 2)));
    t.entry(&other.one(cancel(0, ANY | ALL, 3)));
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
}
case!(other_ring => "
    cqe 2: -ENOENT
    cqe 3: 0
    cqe 1: 1
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    ring.push(cancel(1, 0, 2).forced_async());
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(forced_async => "
    cqe 1: -ECANCELED
    cqe 2: 0
");

fn many(t: &mut Transcript) {
    let mut ring = Ring::new(256);
    let (reader, _writer) = files::pipe();
    for user_data in 0..200 {
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, user_data));
    }
    t.result("submit", ring.submit());
    ring.push(cancel(0, ANY | ALL, 1000));
    ring.submit();
    let entries = ring.wait(201);
    let cancelled = entries.iter().filter(|entry| entry.res == -libc::ECANCELED).count();
    let answer = entries.iter().find(|entry| entry.user_data == 1000).map_or(0, |entry| entry.res);
    t.say(format_args!("cancelled {cancelled} answer {answer}"));
}
case!(many => "
    submit = 200
    cancelled 200 answer 200
");
