//! Issues a request: looks up its file, tries the request without blocking, and passes it on
//! according to the outcome.

use crate::completion::complete;
use crate::op::{self, block_device, message_ring, receive, send};
use crate::probes;
use crate::request::file::FileReference;
use crate::request::operation::Operation;
use crate::request::outcome::{Answer, IssueOutcome};
use crate::request::{HAS_GROUP, Progress, Request, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::opcode_table::{self, Row};
use crate::submission::{device_submit, faults, suspend};
use crate::waiting::fast_poll;
use usring_sys::{Errno, descriptor};
use usring_uapi::sqe_flags;

/// Issues a request again, or for the first time after a link or a drain has held it back. If the
/// request was refused or cancelled while it waited, completes it with its error.
pub(crate) fn issue(locked: &mut LockedRing, mut request: RequestEntry) {
    if request.progress == Progress::NotStarted {
        return complete::complete_not_started(locked, request);
    }
    if request.progress == Progress::Refused {
        op::bundle::end_short(locked, &mut request, 0);
        let result = op::send_receive::result_when_ended(&request, request.result);
        return complete::complete(locked, request, Answer { result, failed: true });
    }
    if probes::is_on(locked.ring) && request.poll_slot == 0 && request.has_flag(HAS_GROUP) {
        // A link or a drain has held the request back until now, and its submission has not fired
        // `file_get`. (A request that --inject has delayed fires it twice.)
        probes::file_get(locked, &request);
    }
    let row = row_of(&request);
    issue_now::<false>(locked, request, row);
}

/// Returns the row of the opcode table by which a prepared request is issued.
#[inline]
pub(super) fn row_of(request: &Request) -> &'static Row {
    let row = if request.properties.is_armed { faults::row } else { opcode_table::row };
    row(request.sqe.opcode)
}

/// Issues a request that is ready to be tried, by its row of the opcode table. `SUBMITS`: the
/// request is being submitted.
#[inline(always)]
pub(crate) fn issue_now<const SUBMITS: bool>(locked: &mut LockedRing, mut request: RequestEntry, row: &Row) {
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
    conclude::<SUBMITS>(locked, request, outcome);
}

/// Issues a multishot again after its file was reported ready. If the attempt would block, returns
/// the request, and the caller puts it back into its slot of the poll table.
#[inline(always)]
pub(crate) fn retry_multishot(locked: &mut LockedRing, mut request: RequestEntry) -> Option<RequestEntry> {
    debug_assert!(request.multishot && request.poll_slot != 0);
    match (opcode_table::row(request.sqe.opcode).issue)(locked, &mut request) {
        IssueOutcome::WouldBlock => Some(request),
        outcome => {
            end_retry(locked, request, outcome);
            None
        }
    }
}

#[cold]
#[inline(never)]
fn end_retry(locked: &mut LockedRing, request: RequestEntry, outcome: IssueOutcome) {
    conclude::<false>(locked, request, outcome);
}

/// If the attempt has finished the request, completes it. If not, passes the request on according
/// to the outcome.
#[inline(always)]
fn conclude<const SUBMITS: bool>(locked: &mut LockedRing, mut request: RequestEntry, outcome: IssueOutcome) {
    if let IssueOutcome::Done(answer) = outcome {
        if request.has_flag(sqe_flags::ASYNC) {
            // In the kernel, a worker would have completed this request. With EVENTFD_ASYNC, only
            // such completions signal the eventfd. So the completion counts as a worker's.
            locked.notify.completed_by_worker = true;
        }
        let has_waited = !SUBMITS && request.poll_slot != 0;
        if !has_waited {
            locked.queues.statistics.count_inline(request.sqe.opcode);
        }
        if locked.waiting.polls.armed() != 0 && request.may_make_ready() {
            locked.waiting.polls.may_report = true;
        }
        return match SUBMITS {
            true => complete::complete_submitted(locked, request, answer),
            false => complete::complete(locked, request, answer),
        };
    }
    match outcome {
        IssueOutcome::OnDevice(index) => device_submit::submit(locked, request, index),
        IssueOutcome::Visits => {
            locked.waiting.timeouts.arm_link_timeout(&mut request);
            message_ring::send_to_target(request);
        }
        waiting => suspend::suspend(locked, request, waiting),
    }
}

/// Returns the outcome of a request that the calling thread may not issue, because of rights or
/// because of IOSQE_ASYNC. `None`: the calling thread issues the request. First begins the
/// request's fault, if it gets one. If the fault replaces or delays the request, returns the
/// outcome of the fault.
#[cold]
fn send_elsewhere(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    if request.properties.is_armed
        && let Some(outcome) = faults::begin(locked, request)
    {
        return Some(outcome);
    }
    let is_send = matches!(request.operation, Operation::SendReceive(_));
    // The thread's rights are checked at a request's first attempt. Later attempts, after a wait
    // for the file, need no rights. Only a send needs its submitter's rights at each attempt.
    let asks =
        request.properties.bears_rights && request.progress == Progress::New && (request.poll_slot == 0 || is_send);
    if asks && locked.waiting.rights.is_foreign(request) {
        return if is_send { send::leave_to_worker(locked, request) } else { Some(IssueOutcome::NeedsWorker) };
    }
    if request.has_flag(sqe_flags::ASYNC) { force_async(locked, request) } else { None }
}

/// Returns the outcome of a request with IOSQE_ASYNC, which the submitter should not try. The
/// submitter issues these requests nevertheless (`None`):
/// - A request whose file can be polled. Such a request needs no worker while it waits. (The
///   kernel's workers poll such files, too.)
/// - A request that uses the ring's tables (a provided buffer, a registered file). Such a request
///   must be issued under the ring's lock.
/// - A transfer on a device. The device's queue pair does a worker's work.
fn force_async(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    if block_device::is_possible(locked) && block_device::concerns(locked, request) {
        return None;
    }
    if matches!(request.operation, Operation::Poll(_)) {
        // In the kernel, a worker arms a poll just as the submitter does, on every file. So ASYNC
        // changes nothing for a poll.
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
        // A multishot or a bundle waits for its file several times. That is not possible here,
        // because this file cannot be polled.
        let no_file = descriptor::status_flags(request.file.number).err();
        return Some(IssueOutcome::done(no_file.unwrap_or(Errno::EBADFD).negative()));
    }
    if is_bundle {
        return Some(send::begin_forced_bundle(request));
    }
    if request.multishot && request.poll_slot == 0 {
        return Some(receive::begin_forced_multishot(request));
    }
    let works = request.properties.work.is_some() && request.progress == Progress::New && !needs_ring_at_issue;
    if polls() {
        request.suppress_sigpipe();
        return None;
    }
    if works {
        block_device::fix_position_if_direct(locked, request);
    }
    works.then_some(IssueOutcome::NeedsWorker)
}

/// Looks up the file of a request with FIXED_FILE in its slot of the registered files. This happens
/// at issue, as in the kernel's `io_assign_file`, because an earlier request of the chain may put
/// the file into that slot.
#[inline]
fn resolve_file(locked: &LockedRing, request: &mut Request) -> Result<(), Errno> {
    if !request.has_flag(sqe_flags::FIXED_FILE) || !matches!(request.file.reference, FileReference::Submitter) {
        return Ok(());
    }
    let file = locked.registered.files.get(request.sqe.fd.cast_unsigned()).ok_or(Errno::EBADF)?;
    request.file.number = file.number();
    Ok(())
}
