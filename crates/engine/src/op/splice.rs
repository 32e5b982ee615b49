//! SPLICE and TEE. A worker makes them, because no poll reports when both files are ready.

use crate::devices;
use crate::request::operation::{Operation, Source};
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use usring_sys::descriptor::{self};
use usring_sys::syscall::PASS_MARK_ABOVE_FLAGS;
use usring_sys::{Errno, SystemCall, width};
use usring_uapi::general as linux;
use usring_uapi::io_uring::SPLICE_F_FD_IN_FIXED;
use usring_uapi::opcode;

const CALL_FLAGS: u32 = linux::SPLICE_F_MOVE | linux::SPLICE_F_NONBLOCK | linux::SPLICE_F_MORE | linux::SPLICE_F_GIFT;
/// Offset that means the file position. Required for a file without a position, such as a pipe.
const NO_OFFSET: u64 = u64::MAX;

impl Source {
    fn number(&self) -> i32 {
        match self {
            Source::Unknown => -1,
            Source::Registered(file) => file.number(),
            Source::Duplicate(duplicate) => duplicate.number(),
        }
    }

    fn is_device(&self) -> bool {
        match self {
            Source::Registered(file) => file.device().is_some(),
            _ => devices::are_any() && devices::recognise(self.number()).is_some(),
        }
    }
}

/// Prepares SPLICE or TEE. The SQE has the source's number in `file_index` and the source's offset
/// in `addr`.
pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = &request.sqe;
    let tees = sqe.opcode == opcode::TEE;
    if tees && (sqe.addr != 0 || sqe.off != 0) || sqe.op_flags & !(CALL_FLAGS | SPLICE_F_FD_IN_FIXED) != 0 {
        return Err(Errno::EINVAL);
    }
    request.operation = Operation::Splice(Source::Unknown);
    Ok(())
}

/// Looks up the source file and keeps it open, before the program's call returns. A worker then
/// makes the system call, which may block.
pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    match find_source(locked, request) {
        Ok(source) if source.is_device() => IssueOutcome::done(Errno::EINVAL.negative()),
        Ok(source) => {
            request.operation = Operation::Splice(source);
            IssueOutcome::NeedsWorker
        }
        Err(error) => IssueOutcome::done(error.negative()),
    }
}

fn find_source(locked: &LockedRing, request: &Request) -> Result<Source, Errno> {
    let sqe = &request.sqe;
    descriptor::status_flags(request.file.number)?;
    if sqe.op_flags & SPLICE_F_FD_IN_FIXED != 0 {
        return locked.registered.files.share(sqe.file_index).map(Source::Registered).ok_or(Errno::EBADF);
    }
    descriptor::hold(sqe.file_index.cast_signed()).map(Source::Duplicate)
}

pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let sqe = &request.sqe;
    let Operation::Splice(source) = &request.operation else { return Errno::EINVAL.negative() };
    if sqe.len == 0 {
        return 0;
    }
    if request.file.device.is_some() {
        return Errno::EINVAL.negative();
    }
    let (from, to) = (width::word(source.number()), width::word(request.file.number));
    let (length, flags) = (u64::from(sqe.len), u64::from(sqe.op_flags & CALL_FLAGS));
    let (mut from_offset, mut to_offset) = (sqe.addr, sqe.off);
    let call = if sqe.opcode == opcode::TEE {
        SystemCall::new(linux::__NR_tee, [from, to, length, flags, 0])
    } else {
        let place = |offset: &mut u64| if *offset == NO_OFFSET { 0 } else { &raw mut *offset as u64 };
        let (from_place, to_place) = (place(&mut from_offset), place(&mut to_offset));
        let arguments = [from, from_place, to, to_place, length, flags | PASS_MARK_ABOVE_FLAGS];
        SystemCall::with_six(linux::__NR_splice, arguments)
    };
    super::call::answer(blocking.run(&call))
}
