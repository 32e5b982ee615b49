//! URING_CMD: commands of a file's own. Block devices of ours have one, to
//! discard a range (`BLOCK_URING_CMD_DISCARD`, linux/blkdev.h); files of the
//! kernel have none here.

use super::{Operation, block_device};
use crate::issue::IssueOutcome;
use crate::request::Request;
use crate::ring::LockedRing;
use crate::workers::Blocking;
use usring_device::OpenDevice;
use usring_sys::{Errno, descriptor};

/// `_IO(0x12, 0)`.
const DISCARD: u32 = 0x1200;

/// A command, as it stands in the SQE.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    number: u32,
    start: u64,
    length: u64,
    /// Fields are in use that no command of a block device has.
    has_more: bool,
}

/// The command's number stands in the lower half of `off`, whose upper half is
/// reserved; start and length in `addr` and `addr3`.
pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = &request.sqe;
    if sqe.off >> 32 != 0 || sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let has_more = sqe.ioprio != 0 || sqe.len != 0 || sqe.file_index != 0;
    let command = Command { number: sqe.off as u32, start: sqe.addr, length: sqe.addr3, has_more };
    request.operation = Operation::Command(command);
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    block_device::note(locked, request);
    let Operation::Command(command) = request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    // As Linux 6.18 has it: no block device finds such completions by polling.
    let polled = locked.ring.is_polled().then_some(Errno::EOPNOTSUPP);
    let refused = polled.or_else(|| command.refusal(request.file.device.as_deref()));
    match refused {
        // The file itself comes first.
        Some(error) => {
            IssueOutcome::done(descriptor::status_flags(request.file.number).err().unwrap_or(error).negative())
        }
        None => IssueOutcome::NeedsWorker,
    }
}

/// Discards, blocking.
pub(crate) fn work(request: &mut Request, _: &Blocking) -> i32 {
    let Operation::Command(command) = &request.operation else { return Errno::EINVAL.negative() };
    match (command.refusal(request.file.device.as_deref()), &request.file.device) {
        (None, Some(file)) => {
            let discarded = file.device().as_file().discard(command.start, command.length);
            discarded.map_or_else(Errno::negative, |()| 0)
        }
        (refusal, _) => refusal.unwrap_or(Errno::EOPNOTSUPP).negative(),
    }
}

impl Command {
    fn refusal(&self, file: Option<&OpenDevice>) -> Option<Errno> {
        match file {
            None => Some(Errno::EOPNOTSUPP),
            Some(_) if self.number != DISCARD || self.has_more => Some(Errno::EINVAL),
            Some(file) if !file.may_write() => Some(Errno::EBADF),
            Some(_) => None,
        }
    }
}
