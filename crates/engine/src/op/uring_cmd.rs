//! URING_CMD: commands that only some kinds of files have. A block device of usring's has one
//! command, which discards a range (`BLOCK_URING_CMD_DISCARD`, linux/blkdev.h). `socket_command`
//! has the commands of sockets. No other file has commands in usring.

use super::{block_device, socket_command};
use crate::request::operation::{Command, Operation};
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use usring_device::OpenDevice;
use usring_sys::{Errno, descriptor, width};
use usring_uapi::io_uring::IORING_URING_CMD_FIXED;
use usring_uapi::sqe_flags;

/// BLOCK_URING_CMD_DISCARD, which is `_IO(0x12, 0)`.
const DISCARD: u32 = 0x1200;

/// Prepares URING_CMD. The SQE has the command's number in the lower half of `off`; the upper half
/// must be 0. Commands of sockets ignore the flag for a registered buffer. Commands of devices
/// refuse that flag later.
pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = &request.sqe;
    // BUFFER_SELECT is for multishot commands (TX_TIMESTAMP), which are not supported.
    let goes_on = sqe.flags & sqe_flags::BUFFER_SELECT != 0;
    if sqe.off >> 32 != 0 || sqe.op_flags & !IORING_URING_CMD_FIXED != 0 || goes_on {
        return Err(Errno::EINVAL);
    }
    let has_more = sqe.len != 0 || sqe.file_index != 0 || sqe.op_flags != 0;
    let command =
        Command { number: width::low(sqe.off), address: sqe.addr, length: sqe.file_index, value: sqe.addr3, has_more };
    request.operation = Operation::Command(command);
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    block_device::note(locked, request);
    let Operation::Command(command) = &request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    let number = request.file.number;
    let answer = match request.file.device.as_deref() {
        // As in Linux 6.18, a ring with IOPOLL refuses the command. On such a ring, completions are
        // found by polling. usring cannot poll for the completion of a command of a socket or a
        // block device.
        _ if locked.ring.is_polled() => Err(Errno::EOPNOTSUPP),
        Some(file) => match command.refusal(file) {
            None => return IssueOutcome::NeedsWorker,
            Some(error) => Err(error),
        },
        None => socket_command::run(number, command),
    };
    // If the file is not open, the result is `EBADF` and not the command's error.
    IssueOutcome::of(answer.map_err(|error| descriptor::status_flags(number).err().unwrap_or(error)))
}

/// Carries out a command in a worker. A discard may block. A socket's command comes here only if it
/// has IOSQE_ASYNC, or if the thread that tried it does not have the submitter's rights.
pub(crate) fn work(request: &mut Request, _: &Blocking) -> i32 {
    let Operation::Command(command) = &request.operation else { return Errno::EINVAL.negative() };
    let answer = match &request.file.device {
        Some(file) => match command.refusal(file) {
            None => file.device().as_file().discard(command.address, command.value).map(|()| 0),
            Some(error) => Err(error),
        },
        None => socket_command::run(request.file.number, command),
    };
    answer.unwrap_or_else(Errno::negative)
}

impl Command {
    /// Returns the error with which a device refuses the command; `None`: the device carries it
    /// out.
    fn refusal(&self, file: &OpenDevice) -> Option<Errno> {
        if self.number != DISCARD || self.has_more {
            Some(Errno::EINVAL)
        } else if !file.mode().may_write() {
            Some(Errno::EBADF)
        } else {
            None
        }
    }
}
