//! Rings that are made disabled (R_DISABLED): their restrictions, and the call that enables them.

use std::os::fd::AsRawFd;

use usring_uapi::{io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::files;
use crate::memory::BAD;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, read};
use crate::transcript::Transcript;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Restriction {
    kind: u16,
    /// Depends on `kind`: an opcode of io_uring_register(2), an opcode of SQEs, or SQE flags.
    value: u8,
    resv: u8,
    resv2: [u32; 3],
}

const REGISTER_OP: u16 = 0;
const SQE_OP: u16 = 1;
const FLAGS_ALLOWED: u16 = 2;
const FLAGS_REQUIRED: u16 = 3;

fn rule(kind: u16, value: u8) -> Restriction {
    Restriction { kind, value, ..Restriction::default() }
}

fn restrict(ring: &Ring, rules: &[Restriction]) -> i32 {
    ring.register(reg::RESTRICTIONS, rules.as_ptr(), rules.len() as u32)
}

fn enable(ring: &Ring) -> i32 {
    ring.register::<u8>(reg::ENABLE_RINGS, std::ptr::null(), 0)
}

fn disabled() -> Ring {
    Ring::flags(8, u::IORING_SETUP_R_DISABLED)
}

/// Makes a disabled ring, registers `rules` as its restrictions, and enables the ring.
fn restricted(t: &mut Transcript, rules: &[Restriction]) -> Ring {
    let ring = disabled();
    t.result("restrict", restrict(&ring, rules));
    t.result("enable", enable(&ring));
    ring
}

fn disabled_ring(t: &mut Transcript) {
    let mut ring = disabled();
    t.result("enter(0)", ring.enter(0, 0, 0));
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    ring.push(nop(1));
    t.result("enter(1)", ring.enter(1, 0, 0));
    t.result("enable", enable(&ring));
    // The SQE was written while the ring was disabled. This call submits that SQE.
    t.result("enter(1)", ring.enter(1, 0, 0));
    t.in_order(&ring.reap());
    t.result("enable again", enable(&ring));
}
case!(disabled_ring => "
    enter(0) = -EBADFD
    get events = -EBADFD
    enter(1) = -EBADFD
    enable = 0
    enter(1) = 1
    cqe 1: 0
    enable again = -EBADFD
");

fn enable_wrong(t: &mut Transcript) {
    let ring = disabled();
    t.result("argument", ring.register(reg::ENABLE_RINGS, BAD as *const u8, 0));
    t.result("count 1", ring.register::<u8>(reg::ENABLE_RINGS, std::ptr::null(), 1));
    t.result("an enabled ring", enable(&Ring::new(4)));
}
case!(enable_wrong => "
    argument = -EINVAL
    count 1 = -EINVAL
    an enabled ring = -EBADFD
");

fn opcodes(t: &mut Transcript) {
    let mut ring = restricted(t, &[rule(SQE_OP, opcode::NOP), rule(SQE_OP, opcode::WRITE)]);
    let file = files::memory_file(b"x");
    let mut byte = [0u8; 1];
    t.entry(&ring.one(nop(1)));
    t.entry(&ring.one(read(file.as_raw_fd(), &mut byte, 0, 2)));
    t.entry(&ring.one(crate::sqe::write(file.as_raw_fd(), b"y", 0, 3)));
    // No restriction of this ring allows the flag IOSQE_ASYNC.
    t.entry(&ring.one(nop(4).forced_async()));
    t.entry(&ring.one(nop(5).fixed()));
}
case!(opcodes => "
    restrict = 0
    enable = 0
    cqe 1: 0
    cqe 2: -EACCES
    cqe 3: 1
    cqe 4: -EACCES
    cqe 5: -EACCES
");

fn flags_allowed(t: &mut Transcript) {
    let allowed = sqe_flags::ASYNC | sqe_flags::IO_LINK;
    let mut ring = restricted(t, &[rule(SQE_OP, opcode::NOP), rule(FLAGS_ALLOWED, allowed)]);
    t.entry(&ring.one(nop(1)));
    t.entry(&ring.one(nop(2).forced_async()));
    t.sorted(&ring.run(&[nop(3).linked(), nop(4)]));
    t.entry(&ring.one(nop(5).flagged(sqe_flags::IO_DRAIN)));
}
case!(flags_allowed => "
    restrict = 0
    enable = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: -EACCES
");

fn flags_required(t: &mut Transcript) {
    let mut ring = restricted(t, &[rule(SQE_OP, opcode::READ), rule(FLAGS_REQUIRED, sqe_flags::FIXED_FILE)]);
    let file = files::memory_file(b"x");
    let mut byte = [0u8; 1];
    t.entry(&ring.one(read(file.as_raw_fd(), &mut byte, 0, 1)));
    t.entry(&ring.one(read(0, &mut byte, 0, 2).fixed()));
    t.entry(&ring.one(read(0, &mut byte, 0, 3).fixed().forced_async()));
}
case!(flags_required => "
    restrict = 0
    enable = 0
    cqe 1: -EACCES
    cqe 2: -EBADF
    cqe 3: -EACCES
");

fn register_opcodes(t: &mut Transcript) {
    let ring = restricted(t, &[rule(REGISTER_OP, reg::FILES as u8), rule(REGISTER_OP, reg::ENABLE_RINGS as u8)]);
    let number = -1i32;
    t.result("files", ring.register(reg::FILES, &raw const number, 1));
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    t.result("probe", ring.register::<u8>(reg::PROBE, std::ptr::null(), 0));
    t.result("unknown", ring.register::<u8>(999, std::ptr::null(), 0));
}
case!(register_opcodes => "
    restrict = 0
    enable = 0
    files = 0
    unregister = -EACCES
    probe = -EACCES
    unknown = -EINVAL
");

/// A ring's only restriction allows an opcode of io_uring_register(2). This forbids all SQE
/// opcodes.
fn register_only(t: &mut Transcript) {
    let mut ring = restricted(t, &[rule(REGISTER_OP, reg::FILES as u8)]);
    t.entry(&ring.one(nop(1)));
}
case!(register_only => "
    restrict = 0
    enable = 0
    cqe 1: -EACCES
");

fn register_wrong(t: &mut Transcript) {
    let ring = disabled();
    t.result("unknown kind", restrict(&ring, &[rule(4, 0)]));
    t.result("unknown register opcode", restrict(&ring, &[rule(REGISTER_OP, 200)]));
    t.result("unknown opcode", restrict(&ring, &[rule(SQE_OP, 200)]));
    t.result("null", ring.register::<u8>(reg::RESTRICTIONS, std::ptr::null(), 1));
    t.result("unmapped", ring.register(reg::RESTRICTIONS, BAD as *const u8, 1));
    t.result("too many", restrict(&ring, &vec![rule(SQE_OP, opcode::NOP); 129]));
    // According to the manual page, the reserved fields must be zero. The kernel does not check
    // them.
    let reserved = Restriction { resv: 1, resv2: [1; 3], ..rule(SQE_OP, opcode::NOP) };
    t.result("reserved", restrict(&ring, &[reserved]));
    t.result("enable", enable(&ring));
    let mut ring = ring;
    t.entry(&ring.one(nop(1)));
}
case!(register_wrong => "
    unknown kind = -EINVAL
    unknown register opcode = -EINVAL
    unknown opcode = -EINVAL
    null = -EINVAL
    unmapped = -EFAULT
    too many = -EINVAL
    reserved = 0
    enable = 0
    cqe 1: 0
");

fn only_once(t: &mut Transcript) {
    let ring = disabled();
    t.result("restrict", restrict(&ring, &[rule(SQE_OP, opcode::NOP)]));
    t.result("again", restrict(&ring, &[rule(SQE_OP, opcode::READ)]));
}
case!(only_once => "
    restrict = 0
    again = -EBUSY
");

fn on_enabled_ring(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("never disabled", restrict(&ring, &[rule(SQE_OP, opcode::NOP)]));
    let ring = disabled();
    t.result("enable", enable(&ring));
    t.result("after enable", restrict(&ring, &[rule(SQE_OP, opcode::NOP)]));
}
case!(on_enabled_ring => "
    never disabled = -EBADFD
    enable = 0
    after enable = -EBADFD
");

/// A registration of no restrictions forbids everything.
fn empty_list_forbids_everything(t: &mut Transcript) {
    let mut ring = disabled();
    t.result("restrict", restrict(&ring, &[]));
    t.result("enable", enable(&ring));
    t.entry(&ring.one(nop(1)));
}
case!(empty_list_forbids_everything => "
    restrict = 0
    enable = 0
    cqe 1: -EACCES
");

/// Restrictions apply only from the enabling of the ring on. Until then, a ring accepts every
/// registration.
fn register_on_disabled(t: &mut Transcript) {
    let mut ring = disabled();
    let file = files::memory_file(b"x");
    let number = file.as_raw_fd();
    t.result("restrict", restrict(&ring, &[rule(SQE_OP, opcode::READ), rule(FLAGS_ALLOWED, 1)]));
    t.result("files", ring.register(reg::FILES, &raw const number, 1));
    t.result("enable", enable(&ring));
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    let mut byte = [0u8; 1];
    t.entry(&ring.one(read(0, &mut byte, 0, 1).fixed()));
}
case!(register_on_disabled => "
    restrict = 0
    files = 0
    enable = 0
    unregister = -EACCES
    cqe 1: 1
");

fn prepared_before_enable(t: &mut Transcript) {
    let mut ring = Ring::flags(8, u::IORING_SETUP_R_DISABLED | ring::DEFER);
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    t.result("enable", enable(&ring));
    t.sorted(&ring.run(&[nop(1), nop(2)]));
}
case!(prepared_before_enable => "
    get events = -EBADFD
    enable = 0
    cqe 1: 0
    cqe 2: 0
");
