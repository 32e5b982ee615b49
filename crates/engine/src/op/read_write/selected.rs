//! The provided buffer of a read. The read takes a buffer when it is issued. If the read then has
//! to wait for its file, the buffer's kind decides. A buffer of a buffer ring goes back to its
//! group until the file is ready. The read keeps a buffer of a classic group (PROVIDE_BUFFERS).

use crate::request::Request;
use crate::request::operation::Operation;
use crate::request::outcome::{Answer, IssueOutcome};
use crate::ring::LockedRing;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, descriptor};

/// Takes a buffer from the request's group for the read. The buffer's length limits the read. As in
/// the kernel, this length also limits the later selections of a READ.
pub(super) fn select_buffer(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let is_forced = request.is_forced_once();
    let multishot = request.multishot;
    let Operation::ReadWrite(transfer) = &mut request.operation else { return Ok(()) };
    let wanted = u32::try_from(transfer.wanted).unwrap_or(u32::MAX);
    let number = request.file.number;
    let keeps = || descriptor::identity(number).is_ok_and(|identity| is_forced || !identity.can_wait());
    let buffer = locked.registered.buffer_groups.select(request.sqe.buf_index, wanted, keeps)?;
    transfer.first = IoVector { base: buffer.address.0, length: u64::from(buffer.length) };
    transfer.total = transfer.first.length;
    if !multishot {
        transfer.wanted = transfer.total;
    }
    request.buffer = Some(buffer);
    Ok(())
}

/// Returns the request's buffer to its group in three cases:
///
/// - The request's file is not open.
/// - The buffer is of a buffer ring, and the request is going to wait for its file. The request
///   takes a buffer again when the file is ready.
/// - The buffer is of a buffer ring, the request has failed, and its file can be polled.
///
/// The last two cases do not apply to a request that the kernel would leave to a worker
/// ([`Request::is_forced_once`]). In all other cases, the request keeps its buffer.
pub(super) fn return_buffer(locked: &mut LockedRing, request: &mut Request, outcome: &IssueOutcome) {
    let from_ring = request.buffer.is_some_and(|buffer| buffer.from_ring);
    let polled = || descriptor::identity(request.file.number).is_ok_and(|identity| identity.can_wait());
    const NO_FILE: i32 = Errno::EBADF.negative();
    if let IssueOutcome::Done(Answer { result: NO_FILE, .. }) = outcome
        && descriptor::status_flags(request.file.number).is_err()
    {
        // The kernel looks up the file before it takes a buffer, so a bad file uses up no buffer.
        let buffer = request.buffer.take();
        return locked.registered.buffer_groups.give_back(buffer);
    }
    let gives_back = match outcome {
        IssueOutcome::WouldBlock => true,
        IssueOutcome::Done(answer) => answer.result < 0 && from_ring && polled(),
        _ => false,
    };
    if from_ring && gives_back && !request.is_forced_once() {
        let buffer = request.buffer.take();
        locked.registered.buffer_groups.give_back(buffer);
    }
}
