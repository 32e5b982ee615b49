//! FSYNC, SYNC_FILE_RANGE, FALLOCATE, FTRUNCATE, FADVISE and MADVISE: each is one system call, with
//! arguments from the SQE.

use super::call::answer;
use crate::request::Request;
use crate::request::operation::{Call, Operation};
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::Errno;
use usring_sys::width;
use usring_uapi::general as linux;
use usring_uapi::io_uring::IORING_FSYNC_DATASYNC;

/// Prepares fsync(2) or fdatasync(2). The range in the SQE is ignored: the whole file is synced, as
/// most file systems do.
pub(crate) fn prepare_fsync(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.addr != 0 || sqe.buf_index != 0 || sqe.file_index != 0 || sqe.op_flags & !IORING_FSYNC_DATASYNC != 0 {
        return Err(Errno::EINVAL);
    }
    if sqe.off.cast_signed() < 0 {
        return Err(Errno::EINVAL);
    }
    let number = if sqe.op_flags & IORING_FSYNC_DATASYNC != 0 { linux::__NR_fdatasync } else { linux::__NR_fsync };
    request.operation = Call::on_file(number, [0; 4]);
    Ok(())
}

pub(crate) fn prepare_sync_file_range(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.addr != 0 || sqe.buf_index != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let arguments = [sqe.off, u64::from(sqe.len), u64::from(sqe.op_flags), 0];
    request.operation = Call::on_file(linux::__NR_sync_file_range, arguments);
    Ok(())
}

/// Prepares fallocate(2). The SQE has the length in `addr` and the mode in `len`.
pub(crate) fn prepare_fallocate(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 || sqe.op_flags != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    request.operation = Call::on_file(linux::__NR_fallocate, [u64::from(sqe.len), sqe.off, sqe.addr, 0]);
    Ok(())
}

/// Prepares ftruncate(2). The SQE has the length in `off`.
pub(crate) fn prepare_ftruncate(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.op_flags != 0 || sqe.addr != 0 || sqe.len != 0 || sqe.buf_index != 0 || sqe.file_index != 0 || sqe.addr3 != 0
    {
        return Err(Errno::EINVAL);
    }
    request.operation = Call::on_file(linux::__NR_ftruncate, [sqe.off, 0, 0, 0]);
    Ok(())
}

/// Prepares posix_fadvise(2). The SQE has the length in `addr` (64 bits) or, if that is 0, in
/// `len`.
pub(crate) fn prepare_fadvise(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let length = if sqe.addr != 0 { sqe.addr } else { u64::from(sqe.len) };
    request.operation = Call::on_file(linux::__NR_fadvise64, [sqe.off, length, u64::from(sqe.op_flags), 0]);
    Ok(())
}

/// Carries out advice that only sets a flag of the open file. For other advice the kernel may read
/// or drop pages, so a worker makes the call.
pub(crate) fn issue_fadvise(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let advice = request.sqe.op_flags;
    if !matches!(advice, linux::POSIX_FADV_NORMAL | linux::POSIX_FADV_RANDOM | linux::POSIX_FADV_SEQUENTIAL) {
        return IssueOutcome::NeedsWorker;
    }
    let number = request.file.number;
    let Operation::Call(call) = &mut request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    call.call.arguments[0] = width::word(number);
    IssueOutcome::done(answer(call.call.run()))
}

/// Prepares madvise(2). The SQE has the length in `off` (64 bits) or, if that is 0, in `len`.
pub(crate) fn prepare_madvise(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let length = if sqe.off != 0 { sqe.off } else { u64::from(sqe.len) };
    let arguments = [sqe.addr, length, u64::from(sqe.op_flags), 0, 0];
    request.operation = Call::with_memory(linux::__NR_madvise, arguments, alloc::vec::Vec::new());
    Ok(())
}
