//! REGISTER_PROBE: which opcodes the kernel has.

use usring_uapi::{io_uring as u, opcode};

use super::reg;
use crate::memory::{BAD, zeroed};
use crate::ring::Ring;
use crate::sqe::sqe;
use crate::transcript::Transcript;

/// The result of IORING_REGISTER_PROBE: a header and an array of opcodes. The call expects both in
/// one contiguous structure.
#[repr(C)]
#[derive(Clone, Copy)]
struct Probe {
    last_op: u8,
    ops_len: u8,
    resv: u16,
    resv2: [u32; 3],
    ops: [u::io_uring_probe_op; 256],
}

fn probe(ring: &Ring, probe: &mut Probe, count: u32) -> i32 {
    ring.register(reg::PROBE, &raw mut *probe, count)
}

/// Opcodes for which there are cases. The probe must report each as supported.
const COVERED: &[u8] = &[
    opcode::NOP,
    opcode::READV,
    opcode::WRITEV,
    opcode::FSYNC,
    opcode::READ_FIXED,
    opcode::WRITE_FIXED,
    opcode::POLL_ADD,
    opcode::POLL_REMOVE,
    opcode::SYNC_FILE_RANGE,
    opcode::TIMEOUT,
    opcode::TIMEOUT_REMOVE,
    opcode::ASYNC_CANCEL,
    opcode::LINK_TIMEOUT,
    opcode::FALLOCATE,
    opcode::OPENAT,
    opcode::CLOSE,
    opcode::FILES_UPDATE,
    opcode::STATX,
    opcode::READ,
    opcode::WRITE,
    opcode::FADVISE,
    opcode::MADVISE,
    opcode::OPENAT2,
    opcode::PROVIDE_BUFFERS,
    opcode::REMOVE_BUFFERS,
    opcode::FTRUNCATE,
    opcode::SPLICE,
    opcode::TEE,
    opcode::FSETXATTR,
    opcode::SETXATTR,
    opcode::FGETXATTR,
    opcode::GETXATTR,
    opcode::WAITID,
    opcode::READV_FIXED,
    opcode::WRITEV_FIXED,
    opcode::PIPE,
];

const SUPPORTED: u16 = 1;

fn supported(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut answer: Probe = zeroed();
    t.result("probe", probe(&ring, &mut answer, 256));
    for opcode in COVERED {
        let there = answer.ops[usize::from(*opcode)].flags & SUPPORTED != 0;
        t.say(format_args!("{} {there}", opcode::NAMES[usize::from(*opcode)]));
    }
}
case!(supported => include_str!("probe/supported.txt"));

fn short_array(t: &mut Transcript) {
    let ring = Ring::new(4);
    for count in [0, 1, 5] {
        let mut answer: Probe = zeroed();
        t.result(format_args!("probe {count}"), probe(&ring, &mut answer, count));
        let flags: Vec<u16> = answer.ops[..7].iter().map(|op| op.flags).collect();
        t.say(format_args!("length {} flags {flags:?}", answer.ops_len));
    }
}
case!(short_array => "
    probe 0 = 0
    length 0 flags [0, 0, 0, 0, 0, 0, 0]
    probe 1 = 0
    length 1 flags [1, 0, 0, 0, 0, 0, 0]
    probe 5 = 0
    length 5 flags [1, 1, 1, 1, 1, 0, 0]
");

/// The program asks for more entries than there are opcodes. The kernel does not write the entries
/// beyond the last opcode.
fn beyond_last(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut answer: Probe = zeroed();
    t.result("probe", probe(&ring, &mut answer, 256));
    let last = usize::from(answer.last_op);
    t.say(format_args!("length is last + 1: {}", usize::from(answer.ops_len) == last + 1));
    let beyond = answer.ops[last + 1..].iter().all(|op| op.op == 0 && op.flags == 0);
    t.say(format_args!("nothing beyond: {beyond}"));
}
case!(beyond_last => "
    probe = 0
    length is last + 1: true
    nothing beyond: true
");

fn wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut answer: Probe = zeroed();
    t.result("count 257", probe(&ring, &mut answer, 257));
    t.result("null", ring.register::<u8>(reg::PROBE, std::ptr::null(), 4));
    t.result("null, count 0", ring.register::<u8>(reg::PROBE, std::ptr::null(), 0));
    t.result("unmapped", ring.register(reg::PROBE, BAD as *const u8, 4));
    answer.last_op = 1;
    t.result("not zeroed", probe(&ring, &mut answer, 256));
    answer = zeroed();
    answer.ops[3].op = 1;
    t.result("array not zeroed", probe(&ring, &mut answer, 256));
    answer = zeroed();
    answer.ops[20].op = 1;
    t.result("array not zeroed beyond the count", probe(&ring, &mut answer, 10));
}
case!(wrong => "
    count 257 = -EINVAL
    null = -EINVAL
    null, count 0 = -EINVAL
    unmapped = -EFAULT
    not zeroed = -EINVAL
    array not zeroed = -EINVAL
    array not zeroed beyond the count = 0
");

fn indexed_by_opcode(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut answer: Probe = zeroed();
    t.result("probe", probe(&ring, &mut answer, 256));
    let count = usize::from(answer.ops_len);
    let right = answer.ops[..count].iter().enumerate().all(|(index, op)| usize::from(op.op) == index);
    t.say(format_args!("indexed {right}"));
}
case!(indexed_by_opcode => "
    probe = 0
    indexed true
");

/// If REGISTER_PROBE does not report an opcode, a request with that opcode is refused as if it were
/// unknown.
fn unreported_is_refused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut answer: Probe = zeroed();
    t.result("probe", probe(&ring, &mut answer, 256));
    let mut otherwise = 0;
    for opcode in 0..=255u8 {
        let reported = answer.ops[usize::from(opcode)].flags & SUPPORTED != 0;
        if !reported && ring.one(sqe(opcode, -1, 1)).res != -libc::EINVAL {
            t.say(format_args!("opcode {opcode} is answered"));
            otherwise += 1;
        }
    }
    t.say(format_args!("answered without being reported: {otherwise}"));
}
case!(unreported_is_refused => "
    probe = 0
    answered without being reported: 0
");
