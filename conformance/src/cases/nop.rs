//! NOP, the request that does nothing, and the results that a program can make it return.

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use crate::ring::{self, Ring};
use crate::sqe::{Change, nop};
use crate::transcript::Transcript;

fn completes_inline(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(nop(1));
    t.result("submit", ring.submit());
    // The NOP has completed within io_uring_enter(2), so the case can reap without a second call.
    t.in_order(&ring.reap());
}
case!(completes_inline => "
    submit = 1
    cqe 1: 0
");

fn user_data_comes_back(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for user_data in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
        ring.push(nop(user_data));
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(user_data_comes_back => "
    submit = 3
    cqe 0: 0
    cqe 18446744073709551615: 0
    cqe 81985529216486895: 0
");

fn many_rounds(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut wrong = 0;
    for round in 0..1000u64 {
        for slot in 0..3 {
            ring.push(nop(round * 3 + slot));
        }
        if ring.submit() != 3 {
            wrong += 1;
        }
        for (slot, entry) in ring.reap().iter().enumerate() {
            if entry.user_data != round * 3 + slot as u64 || entry.res != 0 {
                wrong += 1;
            }
        }
    }
    t.say(format_args!("wrong answers: {wrong}"));
    t.say(format_args!("sq head {} cq tail {}", ring.sq_head(), ring.cq_tail()));
}
case!(many_rounds => "
    wrong answers: 0
    sq head 3000 cq tail 3000
");

fn injecting(value: i32, user_data: u64) -> Sqe {
    nop(user_data).op_flags(u::IORING_NOP_INJECT_RESULT).with(|sqe| sqe.len = value as u32)
}

fn injected_result(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    t.sorted(&ring.run(&[
        injecting(0, 1),
        injecting(7, 2),
        injecting(-5, 3),
        injecting(i32::MAX, 4),
        nop(5).with(|sqe| sqe.len = 9),
    ]));
    // A NOP with a negative result breaks its chain. A NOP with a positive result does not.
    t.sorted(&ring.run(&[injecting(3, 1).linked(), nop(2)]));
    t.sorted(&ring.run(&[injecting(-libc::EIO, 3).linked(), nop(4)]));
}
case!(injected_result => "
    cqe 1: 0
    cqe 2: 7
    cqe 3: -EIO
    cqe 4: 2147483647
    cqe 5: 0
    cqe 1: 3
    cqe 2: 0
    cqe 3: -EIO
    cqe 4: -ECANCELED
");

fn unknown_flag(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(nop(1).op_flags(1 << 31)));
    t.entry(&ring.one(nop(2).op_flags(1 << 6)));
}
case!(unknown_flag => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

fn file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = crate::files::pipe();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
    let on = |fd, user_data| nop(user_data).op_flags(u::IORING_NOP_FILE).with(|sqe| sqe.fd = fd);
    t.entry(&ring.one(on(fd, 1)));
    t.entry(&ring.one(on(-1, 2)));
    let fixed = u::IORING_NOP_FILE | u::IORING_NOP_FIXED_FILE;
    t.entry(&ring.one(on(0, 3).op_flags(fixed)));
    let number = fd;
    t.result("register files", ring.register(super::reg::FILES, &raw const number, 1));
    t.entry(&ring.one(on(0, 4).op_flags(fixed)));
    t.entry(&ring.one(on(1, 5).op_flags(fixed)));
    // IORING_NOP_FIXED_FILE has no effect without IORING_NOP_FILE.
    t.entry(&ring.one(on(1, 6).op_flags(u::IORING_NOP_FIXED_FILE)));
}
case!(file => "
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: -EBADF
    register files = 0
    cqe 4: 0
    cqe 5: -EBADF
    cqe 6: 0
");

fn fixed_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let on = |index, user_data| nop(user_data).op_flags(u::IORING_NOP_FIXED_BUFFER).with(|sqe| sqe.buf_index = index);
    t.entry(&ring.one(on(0, 1)));
    let buffer = [0u8; 64];
    let vector = [crate::sqe::vector(buffer.as_ptr() as u64, 64)];
    t.result("register buffers", ring.register(super::reg::BUFFERS, vector.as_ptr(), 1));
    t.entry(&ring.one(on(0, 2)));
    t.entry(&ring.one(on(1, 3)));
}
case!(fixed_buffer => "
    cqe 1: -EFAULT
    register buffers = 0
    cqe 2: 0
    cqe 3: -EFAULT
");

fn by_task_work(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let later = nop(1).op_flags(u::IORING_NOP_TW);
    t.entry(&ring.one(later));
    let deferred = ring::DEFER;
    let mut ring = Ring::flags(4, deferred);
    ring.push(later);
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    let limit = std::time::Duration::from_millis(100);
    let answer = ring.enter_for(0, 1, limit);
    t.say(format_args!("get events: some {}", answer == 0 && ring.ready() == 1));
    t.in_order(&ring.reap());
}
case!(by_task_work => "
    cqe 1: 0
    submit = 1
    no cqe
    get events: some true
    cqe 1: 0
", usring => "
    cqe 1: 0
    submit = 1
    cqe 1: 0
    get events: some false
    no cqe
", because
    "IORING_NOP_TW exercises the kernel's own task work; usring accepts it and completes in place");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(nop(1).forced_async()));
    t.sorted(&ring.run(&[nop(1).forced_async(), nop(2).forced_async(), nop(3)]));
}
case!(forced_async => "
    cqe 1: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
");

fn buffer_select(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(nop(1).flagged(sqe_flags::BUFFER_SELECT)));
}
case!(buffer_select => "cqe 1: -EOPNOTSUPP");

/// NOP fails if `ioprio` is not zero. It ignores the other fields that this case sets.
fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let changed = |user_data, change: fn(&mut Sqe)| nop(user_data).with(change);
    t.sorted(&ring.run(&[
        changed(1, |sqe| sqe.off = 1),
        changed(2, |sqe| sqe.addr = 1),
        changed(3, |sqe| sqe.ioprio = 1),
        changed(4, |sqe| sqe.buf_index = 1),
        changed(5, |sqe| sqe.file_index = 1),
        changed(6, |sqe| sqe.addr3 = 1),
        changed(7, |sqe| sqe.fd = 1000),
    ]));
    assert_eq!(opcode::NOP, 0);
}
case!(reserved_fields => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: -EINVAL
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
");
