//! Issues a request: resolves its file, tries it without blocking, and moves it on by the outcome.

use crate::completion::complete;
use crate::op::{self, block_device, message_ring, receive, send};
use crate::request::file::Hold;
use crate::request::operation::Operation;
use crate::request::outcome::{Answer, IssueOutcome};
use crate::request::{HAS_GROUP, Progress, Request, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::opcode_table::{self, Row};
use crate::submission::{device_submit, suspend};
use crate::waiting::fast_poll;
use usring_sys::{Errno, descriptor};
use usring_uapi::sqe_flags;

/// Issues a request again, or for the first time after it was held back by a link or drain.
pub(crate) fn issue(locked: &mut LockedRing, mut request: RequestEntry) {
    if request.progress == Progress::Unbegun {
        return complete::end_unbegun(locked, request);
    }
    if request.progress == Progress::Refused {
        op::bundle::end_short(locked, &mut request, 0);
        let result = op::send_receive::result_when_ended(&request, request.result);
        return complete::complete(locked, request, Answer { result, failed: true });
    }
    let row = opcode_table::row(request.sqe.opcode);
    issue_now(locked, request, row);
}

/// Issues an accepted request during its submission.
#[inline(always)]
pub(crate) fn issue_now(locked: &mut LockedRing, mut request: RequestEntry, row: &Row) {
    if row.properties.needs_file
        && let Err(error) = resolve_file(locked, &mut request)
    {
        return complete::complete(locked, request, error.negative().into());
    }
    let has_to_go = request.has_flag(sqe_flags::ASYNC | HAS_GROUP);
    let forced = if has_to_go { send_elsewhere(locked, &mut request) } else { None };
    let outcome = match forced {
        Some(outcome) => outcome,
        None => (row.issue)(locked, &mut request),
    };
    conclude(locked, request, outcome);
}

/// Issues a multishot again after its file was reported ready. Returns the request if the attempt
/// would block: it still belongs to its slot in the poll table, and the caller puts it back there.
#[inline(always)]
pub(crate) fn call(locked: &mut LockedRing, mut request: RequestEntry) -> Option<RequestEntry> {
    debug_assert!(request.multishot && request.place != 0);
    match (opcode_table::row(request.sqe.opcode).issue)(locked, &mut request) {
        IssueOutcome::WouldBlock => Some(request),
        outcome => {
            end_call(locked, request, outcome);
            None
        }
    }
}

#[cold]
#[inline(never)]
fn end_call(locked: &mut LockedRing, request: RequestEntry, outcome: IssueOutcome) {
    conclude(locked, request, outcome);
}

/// Moves a request on by the outcome of the attempt.
#[inline(always)]
fn conclude(locked: &mut LockedRing, mut request: RequestEntry, outcome: IssueOutcome) {
    if let IssueOutcome::Done(answer) = outcome {
        if request.has_flag(sqe_flags::ASYNC) {
            // In the kernel a worker would have completed the request.
            locked.notify.completed_by_worker = true;
        }
        locked.queues.statistics.count_inline(request.sqe.opcode);
        return complete::complete(locked, request, answer);
    }
    match outcome {
        IssueOutcome::OnDevice(index) => device_submit::submit(locked, request, index),
        IssueOutcome::Visits => {
            locked.waiting.timeouts.arm_link_timeout(&mut request);
            message_ring::send_off(request);
        }
        waiting => suspend::suspend(locked, request, waiting),
    }
}

/// Decides about a request that another thread may have to carry out, because of its rights or
/// because of IOSQE_ASYNC. Returns `None` if this thread is to issue it.
#[cold]
fn send_elsewhere(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    let is_send = matches!(request.operation, Operation::SendReceive(_));
    // Each attempt of a send is checked against the sender's rights. Any other request was first
    // tried by its submitter; later attempts, after a wait for its file, need no rights.
    let asks = request.properties.bears_rights && request.progress == Progress::New && (request.place == 0 || is_send);
    if asks && locked.waiting.rights.is_foreign(request) {
        return if is_send { send::leave_to_worker(locked, request) } else { Some(IssueOutcome::NeedsWorker) };
    }
    if request.has_flag(sqe_flags::ASYNC) { force_async(locked, request) } else { None }
}

/// Returns the outcome of a request with IOSQE_ASYNC, which asks that the submitter not try it.
/// Returns `None` for a request that the submitter issues all the same:
/// - A request whose file can be polled occupies no worker while it waits. (The kernel's workers
///   poll such files, too.)
/// - A request that takes something from its ring (a provided buffer, another file) must be issued
///   under the ring's lock.
/// - A transfer on a device needs no worker: the device's queue pair takes a worker's place.
fn force_async(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    if block_device::is_possible(locked) && block_device::concerns(locked, request) {
        return None;
    }
    if matches!(request.operation, Operation::Poll(_)) {
        // In the kernel, too, a worker arms a poll just as the submitter does, on any file.
        return None;
    }
    let polls = || {
        let identity = descriptor::identity(request.file.number);
        request.properties.poll_events != 0 && identity.is_ok_and(|identity| identity.can_wait())
    };
    let can_repeat = || polls() && !fast_poll::is_unpolled_device(request.file.number);
    let needs_ring_at_issue = request.has_flag(sqe_flags::BUFFER_SELECT) || request.properties.needs_ring_at_issue;
    let is_bundle = send::is_bundle(request);
    if (request.multishot || is_bundle) && !can_repeat() {
        // The request has to wait for its file several times, but this file cannot be polled.
        return Some(IssueOutcome::done(Errno::EBADFD.negative()));
    }
    if is_bundle {
        return Some(send::begin_forced_bundle(request));
    }
    if request.multishot && request.place == 0 {
        return Some(receive::begin_forced_multishot(request));
    }
    let works = request.properties.work.is_some() && request.progress == Progress::New && !needs_ring_at_issue;
    if polls() {
        request.raise_nothing();
        return None;
    }
    if works {
        block_device::settle_if_direct(locked, request);
    }
    works.then_some(IssueOutcome::NeedsWorker)
}

/// Looks up the descriptor number that system calls use for the request's file. This happens at
/// issue, as in the kernel's `io_assign_file`: a request may open the file that the next request of
/// its chain uses.
#[inline]
fn resolve_file(locked: &LockedRing, request: &mut Request) -> Result<(), Errno> {
    if !request.has_flag(sqe_flags::FIXED_FILE) || !matches!(request.file.hold, Hold::Submitter) {
        return Ok(());
    }
    let file = locked.registered.files.get(request.sqe.fd as u32).ok_or(Errno::EBADF)?;
    request.file.number = file.number();
    Ok(())
}
