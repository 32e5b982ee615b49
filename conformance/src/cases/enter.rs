//! io_uring_enter(2): which calls fail, and how many SQEs a call submits.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;

use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, nop, read, sqe};
use crate::syscalls;
use crate::transcript::Transcript;

fn bad_descriptors(t: &mut Transcript) {
    let enter = |fd| syscalls::enter(fd, 1, 0, 0, std::ptr::null(), 0);
    let register = |fd| syscalls::register(fd, super::reg::PROBE, std::ptr::null(), 0);
    let (reader, _writer) = files::pipe();
    let file = files::memory_file(b"x");
    let event = files::eventfd(0);
    for (name, fd) in [
        ("-1", -1),
        ("closed", 9999),
        ("pipe", reader.as_raw_fd()),
        ("file", file.as_raw_fd()),
        ("eventfd", event.as_raw_fd()),
    ] {
        t.result(format_args!("enter {name}"), enter(fd));
        t.result(format_args!("register {name}"), register(fd));
    }
    // Flags are checked before the descriptor.
    t.result("enter -1, bad flag", syscalls::enter(-1, 0, 0, 1 << 20, std::ptr::null(), 0));
}
case!(bad_descriptors => "
    enter -1 = -EBADF
    register -1 = -EINVAL
    enter closed = -EBADF
    register closed = -EBADF
    enter pipe = -EOPNOTSUPP
    register pipe = -EOPNOTSUPP
    enter file = -EOPNOTSUPP
    register file = -EOPNOTSUPP
    enter eventfd = -EOPNOTSUPP
    register eventfd = -EOPNOTSUPP
    enter -1, bad flag = -EINVAL
");

fn unknown_flags(t: &mut Transcript) {
    let ring = Ring::new(4);
    for bit in 8..32 {
        t.result(format_args!("1 << {bit}"), ring.enter(0, 0, 1 << bit));
    }
    // The last arguments name a signal mask at a bad address. Without EXT_ARG, a call that does not
    // wait ignores its signal mask.
    t.result("bad argument, unused", ring.enter_with(0, 0, 0, 16 as *const _, 8));
}
case!(unknown_flags => "
    1 << 8 = -EINVAL
    1 << 9 = -EINVAL
    1 << 10 = -EINVAL
    1 << 11 = -EINVAL
    1 << 12 = -EINVAL
    1 << 13 = -EINVAL
    1 << 14 = -EINVAL
    1 << 15 = -EINVAL
    1 << 16 = -EINVAL
    1 << 17 = -EINVAL
    1 << 18 = -EINVAL
    1 << 19 = -EINVAL
    1 << 20 = -EINVAL
    1 << 21 = -EINVAL
    1 << 22 = -EINVAL
    1 << 23 = -EINVAL
    1 << 24 = -EINVAL
    1 << 25 = -EINVAL
    1 << 26 = -EINVAL
    1 << 27 = -EINVAL
    1 << 28 = -EINVAL
    1 << 29 = -EINVAL
    1 << 30 = -EINVAL
    1 << 31 = -EINVAL
    bad argument, unused = 0
");

fn nothing_to_submit(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("enter(0, 0, 0)", ring.enter(0, 0, 0));
    t.result("enter(4, 0, 0)", ring.enter(4, 0, 0));
    t.result("enter(0, 0, GETEVENTS)", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    // min_complete without GETEVENTS has no effect.
    t.result("enter(0, 1, 0)", ring.enter(0, 1, 0));
    t.result("enter(u32::MAX, 0, 0)", ring.enter(u32::MAX, 0, 0));
}
case!(nothing_to_submit => "
    enter(0, 0, 0) = 0
    enter(4, 0, 0) = 0
    enter(0, 0, GETEVENTS) = 0
    enter(0, 1, 0) = 0
    enter(u32::MAX, 0, 0) = 0
");

fn takes_to_submit(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for user_data in 1..=5 {
        ring.push(nop(user_data));
    }
    t.result("enter(2)", ring.enter(2, 0, 0));
    t.in_order(&ring.reap());
    t.say(format_args!("sq head {} tail {}", ring.sq_head(), ring.sq_tail()));
    t.result("enter(0)", ring.enter(0, 0, 0));
    t.in_order(&ring.reap());
    t.result("enter(9)", ring.enter(9, 0, 0));
    t.in_order(&ring.reap());
    t.say(format_args!("sq head {} tail {}", ring.sq_head(), ring.sq_tail()));
}
case!(takes_to_submit => "
    enter(2) = 2
    cqe 1: 0
    cqe 2: 0
    sq head 2 tail 5
    enter(0) = 0
    no cqe
    enter(9) = 3
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    sq head 5 tail 5
");

fn to_submit_beyond_entries(t: &mut Transcript) {
    let mut ring = Ring::new(2);
    ring.push(nop(1));
    ring.push(nop(2));
    t.result("enter(1000)", ring.enter(1000, 0, 0));
    t.in_order(&ring.reap());
}
case!(to_submit_beyond_entries => "
    enter(1000) = 2
    cqe 1: 0
    cqe 2: 0
");

fn three_with_a_bad_one(ring: &mut Ring) {
    ring.push(nop(1));
    ring.push(sqe(200, -1, 2));
    ring.push(nop(3));
}

fn bad_sqe_ends_batch(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    three_with_a_bad_one(&mut ring);
    t.result("enter(3)", ring.submit());
    t.in_order(&ring.reap());
    t.say(format_args!("sq head {} tail {}", ring.sq_head(), ring.sq_tail()));
    t.result("enter(1)", ring.enter(1, 0, 0));
    t.in_order(&ring.reap());
    // A request that fails when it is issued does not end the batch. An SQE that the kernel refuses
    // ends it.
    ring.push(nop(1));
    ring.push(read(-1, &mut [0; 4], 0, 2));
    ring.push(nop(3));
    t.result("enter(3)", ring.submit());
    t.in_order(&ring.wait(3));
    // An SQE that the kernel refuses counts as submitted, even if it is the first of its batch.
    ring.push(sqe(200, -1, 1));
    ring.push(nop(2));
    t.result("enter(2)", ring.submit());
    t.in_order(&ring.reap());
    // An SQE that the kernel refuses ends the batch. The call then returns at once and waits for no
    // completion.
    ring.push(sqe(200, -1, 3));
    ring.push(nop(4));
    t.result("enter(3, 1, GETEVENTS)", ring.enter(3, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}
case!(bad_sqe_ends_batch => "
    enter(3) = 2
    cqe 1: 0
    cqe 2: -EINVAL
    sq head 2 tail 3
    enter(1) = 1
    cqe 3: 0
    enter(3) = 3
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: 0
    enter(2) = 1
    cqe 1: -EINVAL
    enter(3, 1, GETEVENTS) = 2
    cqe 2: 0
    cqe 3: -EINVAL
");

fn submit_all(t: &mut Transcript) {
    let mut ring = Ring::flags(8, u::IORING_SETUP_SUBMIT_ALL);
    three_with_a_bad_one(&mut ring);
    t.result("enter(3)", ring.submit());
    t.in_order(&ring.reap());
    ring.push(sqe(200, -1, 1));
    ring.push(sqe(201, -1, 2));
    t.result("enter(2)", ring.submit());
    t.in_order(&ring.reap());
}
case!(submit_all => "
    enter(3) = 3
    cqe 1: 0
    cqe 2: -EINVAL
    cqe 3: 0
    enter(2) = 2
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

fn unknown_opcodes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for opcode in [100, 128, 200, 255] {
        t.entry(&ring.one(sqe(opcode, -1, u64::from(opcode))));
    }
}
case!(unknown_opcodes => "
    cqe 100: -EINVAL
    cqe 128: -EINVAL
    cqe 200: -EINVAL
    cqe 255: -EINVAL
");

fn unknown_sqe_flag(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(nop(1).flagged(0x80)));
    t.entry(&ring.one(nop(2).flagged(0xff)));
}
case!(unknown_sqe_flag => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

fn unknown_personality(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(nop(1).with(|sqe| sqe.personality = 1)));
    t.entry(&ring.one(nop(2).with(|sqe| sqe.personality = u16::MAX)));
    t.entry(&ring.one(nop(3)));
}
case!(unknown_personality => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: 0
");

/// The kernel drops an entry of the SQ array whose value is no index of an SQE. It counts the entry
/// in the SQ ring's word `dropped`, and posts no CQE for it.
fn bad_sq_array_index(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(nop(1));
    ring.push(nop(2));
    ring.push(nop(3));
    ring.poke_array(1, 4);
    t.result("enter(3)", ring.submit());
    t.in_order(&ring.reap());
    t.say(format_args!("dropped {} sq head {}", ring.sq_dropped(), ring.sq_head()));
    t.result("enter(1)", ring.enter(1, 0, 0));
    t.in_order(&ring.reap());
    ring.push(nop(4));
    ring.poke_array(3, u32::MAX);
    t.result("enter(1)", ring.submit());
    t.say(format_args!("dropped {} sq head {}", ring.sq_dropped(), ring.sq_head()));
}
case!(bad_sq_array_index => "
    enter(3) = 1
    cqe 1: 0
    dropped 1 sq head 2
    enter(1) = 1
    cqe 3: 0
    enter(1) = 0
    dropped 2 sq head 4
");

/// The program may set the SQ tail so far that the SQ seems to contain more SQEs than it has
/// entries. One call then submits at most as many SQEs as the SQ has entries.
fn tail_beyond_entries(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for user_data in 1..=4 {
        ring.push(nop(user_data));
    }
    ring.advance_tail(3);
    t.result("enter(7)", ring.enter(7, 0, 0));
    t.in_order(&ring.reap());
    t.result("enter(7)", ring.enter(7, 0, 0));
    t.in_order(&ring.reap());
}
case!(tail_beyond_entries => "
    enter(7) = 4
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    enter(7) = 3
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
");

/// Feature SUBMIT_STABLE: the program may reuse an SQE as soon as io_uring_enter(2) returns.
fn sqe_reused_at_once(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let mut ring = Ring::new(1);
    let mut buffers = [[0u8; 8]; 3];
    for (index, buffer) in buffers.iter_mut().enumerate() {
        ring.push(read(reader.as_raw_fd(), &mut buffer[..1], 0, index as u64 + 1));
        t.result("submit", ring.submit());
    }
    files::put(&writer, b"abc");
    t.sorted(&ring.wait(3));
    let mut got: Vec<u8> = buffers.iter().map(|buffer| buffer[0]).collect();
    got.sort_unstable();
    t.say(format_args!("bytes {}", String::from_utf8_lossy(&got)));
}
case!(sqe_reused_at_once => "
    submit = 1
    submit = 1
    submit = 1
    cqe 1: 1
    cqe 2: 1
    cqe 3: 1
    bytes abc
");

/// The SQ's head and tail are free-running 32-bit numbers, which the program reduces modulo the
/// number of entries. The number of SQEs in the SQ is the tail minus the head.
fn sq_wraps(t: &mut Transcript) {
    let mut ring = Ring::new(2);
    for round in 0..7 {
        ring.push(nop(round));
        ring.submit();
        t.in_order(&ring.reap());
    }
    t.say(format_args!("sq head {} cq head {}", ring.sq_head(), ring.cq_head()));
}
case!(sq_wraps => "
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    sq head 7 cq head 7
");

fn getevents_without_requests(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("enter(0, 1, GETEVENTS) for 20 ms", ring.enter_for(0, 1, std::time::Duration::from_millis(20)));
    // CQEs that are already in the CQ count as completions for which the call waits.
    ring.push(nop(1));
    ring.submit();
    t.result("enter(0, 1, GETEVENTS)", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    // The call waits for more completions than the CQ has entries. The wait ends when the CQ is
    // full.
    for user_data in 2..=4 {
        ring.push(nop(user_data));
    }
    ring.submit();
    for user_data in 5..=8 {
        ring.push(nop(user_data));
    }
    ring.submit();
    t.result("enter(0, 1000, GETEVENTS)", ring.enter(0, 1000, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}
case!(getevents_without_requests => "
    enter(0, 1, GETEVENTS) for 20 ms = -ETIME
    enter(0, 1, GETEVENTS) = 0
    enter(0, 1000, GETEVENTS) = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    cqe 8: 0
");

fn submits_and_waits(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    ring.push(nop(2));
    t.result("wait for one of two", ring.submit_and_wait(1));
    t.in_order(&ring.reap());
    let thread = std::thread::spawn(move || {
        crate::time::long_enough_to_notice();
        files::put(&writer, b"late");
        writer
    });
    ring.push(nop(3));
    t.result("wait for two, one late", ring.submit_and_wait(2));
    t.sorted(&ring.reap());
    drop(thread.join());
    // The call submits one SQE and its wait times out. The result is the number of submitted SQEs.
    ring.push(nop(4));
    t.result("one, waits for two, 20 ms", {
        ring.forget_pending();
        ring.enter_for(1, 2, std::time::Duration::from_millis(20))
    });
    t.in_order(&ring.reap());
}
case!(submits_and_waits => "
    wait for one of two = 2
    cqe 2: 0
    wait for two, one late = 1
    cqe 1: 4
    cqe 3: 0
    one, waits for two, 20 ms = 1
    cqe 4: 0
");

fn sq_wakeup_on_plain_ring(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("SQ_WAKEUP", ring.enter(0, 0, u::IORING_ENTER_SQ_WAKEUP));
    t.result("SQ_WAIT", ring.enter(0, 0, u::IORING_ENTER_SQ_WAIT));
    ring.push(nop(1));
    t.result("one with SQ_WAKEUP", ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP));
    t.in_order(&ring.reap());
    t.result("NO_IOWAIT", ring.enter(0, 0, u::IORING_ENTER_NO_IOWAIT));
}
case!(sq_wakeup_on_plain_ring => "
    SQ_WAKEUP = 0
    SQ_WAIT = 0
    one with SQ_WAKEUP = 1
    cqe 1: 0
    NO_IOWAIT = 0
");

fn after_close(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("close", ring.close());
    t.result("enter", ring.enter(0, 0, 0));
    t.result("register", ring.register::<u8>(super::reg::PROBE, std::ptr::null(), 0));
    t.result("close again", syscalls::close(ring.fd));
}
case!(after_close => "
    close = 0
    enter = -EBADF
    register = -EBADF
    close again = -EBADF
");
