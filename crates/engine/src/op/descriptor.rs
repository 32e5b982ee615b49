//! FIXED_FD_INSTALL: makes an ordinary descriptor for a registered file (a direct descriptor).

use crate::request::outcome::IssueOutcome;
use crate::request::{HAS_GROUP, Request};
use crate::ring::LockedRing;
use usring_sys::{Errno, descriptor};
use usring_uapi::io_uring::IORING_FIXED_FD_NO_CLOEXEC;
use usring_uapi::sqe_flags;

pub(crate) fn prepare_install(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.off != 0 || sqe.addr != 0 || sqe.len != 0 || sqe.buf_index != 0 || sqe.file_index != 0 || sqe.addr3 != 0 {
        return Err(Errno::EINVAL);
    }
    if !request.has_flag(sqe_flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    if sqe.op_flags & !IORING_FIXED_FD_NO_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    // The kernel refuses this opcode with a personality.
    if request.has_flag(HAS_GROUP) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

pub(crate) fn issue_install(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let close_on_exec = request.sqe.op_flags & IORING_FIXED_FD_NO_CLOEXEC == 0;
    IssueOutcome::of(descriptor::duplicate_for_program(request.file.number, close_on_exec))
}
