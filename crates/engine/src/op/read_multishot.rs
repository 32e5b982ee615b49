//! READ_MULTISHOT: reads each time the file has data, each time into another provided buffer.

use super::read_write;
use crate::completion::complete;
use crate::request::Request;
use crate::request::operation::{Operation, vector};
use crate::request::outcome::{Answer, IssueOutcome};
use crate::ring::LockedRing;
use crate::waiting::fast_poll;
use usring_sys::{Errno, descriptor, epoll};
use usring_uapi::sqe_flags;

/// Prepares READ_MULTISHOT. Its SQE must have BUFFER_SELECT, and names no memory.
pub(crate) fn prepare(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    if !request.has_flag(sqe_flags::BUFFER_SELECT) {
        return Err(Errno::EINVAL);
    }
    read_write::prepare(locked, request)?;
    if request.sqe.addr != 0 || request.sqe.len != 0 {
        return Err(Errno::EINVAL);
    }
    request.multishot = true;
    Ok(())
}

/// Reads as long as the file has data and the group has buffers, without the limit of a time slice,
/// as in the kernel. Exception: at its submission, the request reads only once. As in the kernel,
/// its further reads come after the other requests of the batch.
pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let is_submitted = request.poll_slot == 0;
    if is_submitted && !can_repeat(request.file.number) {
        return IssueOutcome::done(read_write::after_file(request, Errno::EBADFD).negative());
    }
    loop {
        let answer = match read_write::issue_selecting(locked, request) {
            IssueOutcome::Done(answer) if answer.result > 0 => answer,
            outcome => {
                let unused = request.buffer.take();
                locked.registered.buffer_groups.give_back(unused);
                return end_of_turn(request, outcome, !is_submitted);
            }
        };
        let flags = locked.registered.buffer_groups.flags_of(&mut request.buffer);
        if !complete::post_more(locked, request, answer.result, flags) {
            request.cqe_flags = flags;
            return IssueOutcome::done(answer.result);
        }
        if let Operation::ReadWrite(transfer) = &mut request.operation {
            transfer.begin_again();
        }
        if is_submitted {
            return IssueOutcome::Yield;
        }
    }
}

/// Returns whether a request can wait for this file repeatedly. No request can wait for a regular
/// file, because such a file is always ready.
fn can_repeat(number: i32) -> bool {
    descriptor::identity(number).is_ok_and(|identity| identity.can_wait()) && !fast_poll::is_unpolled_device(number)
}

/// Returns the outcome of an attempt that read nothing. `began`: the request has read or waited
/// before. The kernel attempts such a request again only when its file has data. So if the file has
/// no data, an error that came before the read does not end the request.
fn end_of_turn(request: &Request, outcome: IssueOutcome, began: bool) -> IssueOutcome {
    match outcome {
        IssueOutcome::Done(Answer { result: result @ ..0, .. })
            if began
                && comes_before_read(request, result)
                && epoll::poll_now(request.file.number, epoll::IN) == Ok(0) =>
        {
            IssueOutcome::WouldBlock
        }
        // A multishot that reaches the end of its file breaks no link.
        IssueOutcome::Done(answer) => IssueOutcome::done(answer.result),
        outcome => outcome,
    }
}

/// Returns whether the error `result` can come before the file is read. There are three reasons: no
/// buffer was available, the buffer is too small for the file, or the buffer reaches beyond user
/// memory. Any other error comes from the file. The read has then taken the socket's error, or has
/// consumed data that it could not copy.
fn comes_before_read(request: &Request, result: i32) -> bool {
    const NO_BUFFER: i32 = Errno::ENOBUFS.negative();
    const NO_GROUP: i32 = Errno::ENOENT.negative();
    const TOO_SMALL: i32 = Errno::EINVAL.negative();
    const BAD_ADDRESS: i32 = Errno::EFAULT.negative();
    match (result, &request.operation) {
        (NO_BUFFER | NO_GROUP | TOO_SMALL, _) => true,
        (BAD_ADDRESS, Operation::ReadWrite(transfer)) => vector::check_part(transfer.first).is_err(),
        _ => false,
    }
}
