//! ASYNC_CANCEL: cancels requests of the ring by user data, file or opcode.

use crate::request::Request;
use crate::request::conditions::CancelKey;
use crate::request::operation::Operation;
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use crate::waiting::{ask_processes, cancel};
use usring_sys::Errno;
use usring_sys::width;
use usring_uapi::io_uring as abi;
use usring_uapi::sqe_flags;

const KNOWN: u32 = abi::IORING_ASYNC_CANCEL_ALL
    | abi::IORING_ASYNC_CANCEL_FD
    | abi::IORING_ASYNC_CANCEL_ANY
    | abi::IORING_ASYNC_CANCEL_FD_FIXED
    | abi::IORING_ASYNC_CANCEL_USERDATA
    | abi::IORING_ASYNC_CANCEL_OP;

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.off != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let mut key = CancelKey {
        user_data: sqe.addr,
        fd: sqe.fd,
        opcode: width::byte(sqe.len.into()),
        flags: sqe.op_flags,
        file: -1,
        process: None,
    };
    check(&key)?;
    if request.has_flag(sqe_flags::FIXED_FILE) {
        key.flags |= abi::IORING_ASYNC_CANCEL_FD_FIXED;
    }
    request.operation = Operation::Cancel(key);
    Ok(())
}

/// Checks that the key's flags may be combined. This check serves the ASYNC_CANCEL request and
/// IORING_REGISTER_SYNC_CANCEL. Error: `EINVAL`.
pub(crate) fn check(key: &CancelKey) -> Result<(), Errno> {
    let any = key.flags & abi::IORING_ASYNC_CANCEL_ANY != 0;
    let by_file = key.flags & abi::IORING_ASYNC_CANCEL_FD != 0;
    let by_opcode = key.flags & abi::IORING_ASYNC_CANCEL_OP != 0;
    if key.flags & !KNOWN != 0 || any && (by_file || by_opcode) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::Cancel(key) = request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    let answer = cancel::cancel(locked, &key);
    ask_processes::outcome(locked, request, answer)
}
