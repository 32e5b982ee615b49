//! NOP. By its flags, programs test other functions of a ring.

use crate::request::Request;
use crate::request::operation::{Nop, Operation};
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::{Errno, descriptor};
use usring_uapi::io_uring as abi;

/// IORING_NOP_CQE32: the CQE has 32 bytes, with `off` and `addr` in its second half (Linux 6.18).
const CQE32: u32 = 1 << 5;
const KNOWN: u32 = abi::IORING_NOP_INJECT_RESULT
    | abi::IORING_NOP_FILE
    | abi::IORING_NOP_FIXED_FILE
    | abi::IORING_NOP_FIXED_BUFFER
    | abi::IORING_NOP_TW
    | CQE32;

#[inline]
pub(crate) fn prepare(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    if request.sqe.op_flags != 0 {
        return prepare_with_flags(locked, request);
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn prepare_with_flags(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.op_flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let mut extra = [0; 2];
    if sqe.op_flags & CQE32 != 0 {
        if !locked.ring.has(abi::IORING_SETUP_CQE32) {
            return Err(Errno::EINVAL);
        }
        extra = [sqe.off, sqe.addr];
    }
    let result = if sqe.op_flags & abi::IORING_NOP_INJECT_RESULT != 0 { sqe.len.cast_signed() } else { 0 };
    request.operation = Operation::Nop(Nop { result, flags: sqe.op_flags, fd: sqe.fd, buffer: sqe.buf_index, extra });
    Ok(())
}

#[inline]
pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    match &request.operation {
        Operation::Nop(nop) => IssueOutcome::of(nop.run(locked)),
        _ => IssueOutcome::done(0),
    }
}

impl Nop {
    #[cold]
    #[inline(never)]
    fn run(&self, locked: &LockedRing) -> Result<i32, Errno> {
        if self.flags & abi::IORING_NOP_FILE != 0 {
            if self.flags & abi::IORING_NOP_FIXED_FILE != 0 {
                locked.registered.files.get(self.fd.cast_unsigned()).ok_or(Errno::EBADF)?;
            } else {
                descriptor::status_flags(self.fd)?;
            }
        }
        if self.flags & abi::IORING_NOP_FIXED_BUFFER != 0 {
            locked.registered.buffers.get(self.buffer).ok_or(Errno::EFAULT)?;
        }
        Ok(self.result)
    }
}
