//! Opcodes that are one system call which may block. A worker makes the call. The call's arguments
//! point to the prepare's copies of the program's memory.

use crate::device_file;
use crate::request::operation::Operation;
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use usring_sys::Errno;
use usring_sys::width;

/// Leaves the system call to a worker, because it may block.
pub(crate) fn issue(_: &mut LockedRing, _: &mut Request) -> IssueOutcome {
    IssueOutcome::NeedsWorker
}

/// Makes the system call in a worker. May block.
pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let number = request.file.number;
    let call = match &mut request.operation {
        Operation::Call(call) => {
            if call.on_file {
                call.call.arguments[0] = width::word(number);
            }
            call.call
        }
        _ => return Errno::EINVAL.negative(),
    };
    let on_device = match &request.file.device {
        Some(file) => device_file::system_call(file, number, &call),
        None => None,
    };
    answer(on_device.unwrap_or_else(|| blocking.run(&call)))
}

/// Converts the result of a system call to the result of a CQE.
pub(crate) fn answer(result: Result<u64, Errno>) -> i32 {
    match result {
        Ok(value) => width::int(value),
        Err(error) => error.negative(),
    }
}
