//! Messages that a program without a ring of its own sends by io_uring_register(2).

use super::message;
use super::reg;
use crate::files;
use crate::memory::BAD;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop};
use crate::syscalls;
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::{Sqe, io_uring as u, sqe_flags};

fn synchronous(t: &mut Transcript) {
    for flags in [0, ring::DEFER, u::IORING_SETUP_SQPOLL, u::IORING_SETUP_IOPOLL] {
        let mut target = Ring::flags(8, flags);
        for number in 0..3 {
            let sent = message(target.fd, number, 2, 0);
            t.result("send", syscalls::register(-1, SEND_MSG_RING, (&raw const sent).cast(), 1));
        }
        let flagged = message(target.fd, 9, 2, 0)
            .op_flags(u::IORING_MSG_RING_FLAGS_PASS)
            .with(|sqe| (sqe.file_index, sqe.user_data) = (4, 77));
        t.result("send", syscalls::register(-1, SEND_MSG_RING, (&raw const flagged).cast(), 1));
        t.result("get events", target.enter(0, 4, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
    }
    t.say("a thread that sleeps is woken");
    let mut target = Ring::flags(8, ring::DEFER);
    let fd = target.fd;
    let sender = std::thread::spawn(move || {
        let sent = message(fd, 5, 6, 0);
        crate::time::long_enough_to_notice();
        syscalls::register(-1, SEND_MSG_RING, (&raw const sent).cast(), 1)
    });
    t.result("wait", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&target.reap());
    t.result("send", sender.join().unwrap_or(1));
}
case!(synchronous => include_str!("synchronous.txt"));

const SEND_MSG_RING: u32 = 31;

fn synchronous_refused(t: &mut Transcript) {
    let target = Ring::new(8);
    let fd = target.fd;
    let send = |sqe: Sqe| syscalls::register(-1, SEND_MSG_RING, (&raw const sqe).cast(), 1);
    let good = || message(fd, 1, 2, 3);
    t.result("descriptor", send(good().with(|sqe| sqe.addr = 1)));
    t.result("command", send(good().with(|sqe| sqe.addr = 7)));
    t.result("flags", send(good().op_flags(4)));
    t.result("skip", send(good().op_flags(1)));
    t.result("SQE flags", send(good().flagged(sqe_flags::IO_LINK)));
    t.result("fixed", send(good().fixed()));
    t.result("buffer index", send(good().with(|sqe| sqe.buf_index = 1)));
    t.result("personality", send(good().with(|sqe| sqe.personality = 1)));
    t.result("ioprio", send(good().with(|sqe| sqe.ioprio = 1)));
    t.result("index", send(good().with(|sqe| sqe.file_index = 1)));
    t.result("addr3", send(good().with(|sqe| sqe.addr3 = 1)));
    t.result("another opcode", send(nop(1)));
    let event = files::eventfd(0);
    t.result("no ring", send(message(event.as_raw_fd(), 1, 2, 3)));
    t.result("no file", send(message(-1, 1, 2, 3)));
    let disabled = Ring::flags(8, u::IORING_SETUP_R_DISABLED);
    t.result("disabled", send(message(disabled.fd, 1, 2, 3)));
    let sqe = good();
    let pointer = (&raw const sqe).cast();
    t.result("two", syscalls::register(-1, SEND_MSG_RING, pointer, 2));
    t.result("none", syscalls::register(-1, SEND_MSG_RING, pointer, 0));
    t.result("no entry", syscalls::register(-1, SEND_MSG_RING, std::ptr::null(), 1));
    t.result("bad entry", syscalls::register(-1, SEND_MSG_RING, BAD as *const _, 1));
    t.result("on a ring", syscalls::register(fd, SEND_MSG_RING, pointer, 1));
    t.result("registered ring", syscalls::register(-1, SEND_MSG_RING | reg::USE_REGISTERED_RING, pointer, 1));
    t.result("something else without a ring", syscalls::register(-1, reg::PROBE, pointer, 1));
    t.say(format_args!("arrived {}", target.ready()));
}
case!(synchronous_refused => "
    descriptor = -EINVAL
    command = -EINVAL
    flags = -EINVAL
    skip = -EINVAL
    SQE flags = -EINVAL
    fixed = -EINVAL
    buffer index = -EINVAL
    personality = -EINVAL
    ioprio = 0
    index = -EINVAL
    addr3 = -EINVAL
    another opcode = -EINVAL
    no ring = -EBADFD
    no file = -EBADF
    disabled = -EBADFD
    two = -EINVAL
    none = -EINVAL
    no entry = -EINVAL
    bad entry = -EFAULT
    on a ring = -EINVAL
    registered ring = 0
    something else without a ring = -EINVAL
    arrived 2
");
