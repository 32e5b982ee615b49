//! Issues a request: resolves its file, tries it without blocking, and moves it on by the outcome.

use crate::completion::complete;
use crate::op::{self, Operation, block_device, message_ring, read_write, send};
use crate::request::{Hold, Progress, Request, RequestEntry};
use crate::ring::LockedRing;
use crate::waiting::fast_poll::{self, Turn};
use crate::waiting::{device_queues, rights, timeout, workers};
use usring_sys::{Errno, descriptor};
use usring_uapi::{opcode, sqe_flags};

/// A result with its effect on the rest of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub result: i32,
    /// Breaks an ordinary link: an error, or fewer bytes than asked for.
    pub failed: bool,
}

impl From<i32> for Answer {
    fn from(result: i32) -> Self {
        Answer { result, failed: result < 0 }
    }
}

/// Outcome of an attempt to issue a request. Small enough for one register.
pub(crate) enum IssueOutcome {
    Done(Answer),
    /// The request's file was not ready: poll for the row's events, then try again.
    WouldBlock,
    /// As [`IssueOutcome::WouldBlock`], but the attempt, if there was one, does not show whether
    /// the file is ready for something else: poll it first.
    PollsFirst,
    /// The request has used its time slice and may have more to do: other requests come first.
    More,
    /// Only a thread that may block can carry the request out.
    NeedsWorker,
    /// The request is a transfer for this queue pair of a device.
    OnDevice(device_queues::ChannelIndex),
    /// The request waits for poll events on its file; its operation names them.
    AwaitsPoll,
    /// The request waits for time or for completions; its operation names them.
    AwaitsTime,
    /// The request goes to another ring, whose driver holds the lock, and comes back.
    Visits,
}

impl IssueOutcome {
    #[inline]
    pub fn done(result: i32) -> Self {
        IssueOutcome::Done(result.into())
    }

    /// Returns the outcome of an operation that answers with an errno.
    pub fn of(result: Result<i32, Errno>) -> Self {
        Self::done(result.unwrap_or_else(Errno::negative))
    }
}

/// Issues a request once more, or later than its submission.
pub(crate) fn issue(locked: &mut LockedRing, mut request: RequestEntry) {
    if request.progress == Progress::Unbegun {
        return complete::cancel_unbegun(locked, request);
    }
    if request.progress == Progress::Refused {
        op::bundle::end_short(locked, &mut request, 0);
        let result = op::send_receive::result_when_ended(&request, request.result);
        return complete::complete(locked, request, Answer { result, failed: true });
    }
    issue_now(locked, request);
}

/// Issues an accepted request as part of its submission.
#[inline(always)]
pub(crate) fn issue_now(locked: &mut LockedRing, mut request: RequestEntry) {
    let row = request.row;
    if row.needs_file
        && let Err(error) = resolve_file(locked, &mut request)
    {
        return complete::complete(locked, request, error.negative().into());
    }
    let has_to_go = request.has_flag(sqe_flags::ASYNC | rights::HAS_GROUP);
    let forced = if has_to_go { send_elsewhere(locked, &mut request) } else { None };
    let outcome = match forced {
        Some(outcome) => outcome,
        None => (row.issue)(locked, &mut request),
    };
    conclude(locked, request, outcome);
}

/// Issues a multishot that has waited once more, with the file that it waited with. Returns the
/// request if it goes on waiting there: the caller knows where.
#[inline(always)]
pub(crate) fn call(locked: &mut LockedRing, mut request: RequestEntry) -> Option<RequestEntry> {
    debug_assert!(request.multishot && request.place != 0);
    match (request.row.issue)(locked, &mut request) {
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
            // The kernel would have completed it in a worker.
            locked.completed_by_worker = true;
        }
        locked.statistics.count_inline(request.sqe.opcode);
        return complete::complete(locked, request, answer);
    }
    match outcome {
        IssueOutcome::OnDevice(index) => device_queues::submit(locked, request, index),
        IssueOutcome::Visits => {
            timeout::arm_link_timeout(locked, &mut request);
            message_ring::send_off(request);
        }
        waiting => suspend(locked, request, waiting),
    }
}

/// Handles a request that another thread may have to carry out, for its rights or because it asks
/// for that (IOSQE_ASYNC).
#[cold]
fn send_elsewhere(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    let is_send = matches!(request.operation, Operation::SendReceive(_));
    // Each part of a send needs rights. Any other request that waits for its file has been tried by
    // its submitter, and the rest of it needs no rights.
    let asks = request.row.bears_rights && request.progress == Progress::New && (request.place == 0 || is_send);
    if asks && rights::is_foreign(locked, request) {
        return if is_send { send::leave_to_worker(locked, request) } else { Some(IssueOutcome::NeedsWorker) };
    }
    if request.has_flag(sqe_flags::ASYNC) { force_async(locked, request) } else { None }
}

/// Returns the outcome for IOSQE_ASYNC: the request is not tried. But a request that can be polled
/// occupies no worker while it waits (the kernel's workers poll such files, too). A request that
/// takes something of the ring's at issue (its buffer, another file) has to be issued. A device's
/// queue pair takes the place of a worker.
fn force_async(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    if block_device::is_possible(locked) && block_device::concerns(locked, request) {
        return None;
    }
    let waits_for_file = request.row.poll_events != 0 || matches!(request.operation, Operation::Poll(_));
    let polls = || {
        let identity = descriptor::identity(request.file.number);
        waits_for_file && identity.is_ok_and(|identity| identity.can_wait())
    };
    let can_repeat = || polls() && !fast_poll::is_unpolled_device(request.file.number);
    let takes_of_ring = request.has_flag(sqe_flags::BUFFER_SELECT) || request.row.takes_of_ring;
    let is_bundle = send::is_bundle(request);
    if (request.multishot || is_bundle) && !can_repeat() {
        // The request would wait for its file more than once, and cannot.
        return Some(IssueOutcome::done(Errno::EBADFD.negative()));
    }
    if is_bundle {
        return Some(send::begin_forced_bundle(request));
    }
    let works = request.row.work.is_some() && request.progress == Progress::New && !takes_of_ring;
    if polls() {
        read_write::raise_nothing(request);
        return None;
    }
    if works {
        block_device::settle_if_direct(locked, request);
    }
    works.then_some(IssueOutcome::NeedsWorker)
}

/// Hands a request that cannot be done now to the module that will bring it back.
#[cold]
fn suspend(locked: &mut LockedRing, mut request: RequestEntry, outcome: IssueOutcome) {
    let poll_events = op::poll_events(&request);
    // All requests that wait for one file to be ready share what keeps it open.
    let polls = match outcome {
        IssueOutcome::WouldBlock | IssueOutcome::PollsFirst | IssueOutcome::More => poll_events != 0,
        IssueOutcome::AwaitsPoll => true,
        _ => false,
    };
    if let Err(error) = keep_file(locked, &mut request, polls) {
        return complete::complete(locked, request, error.negative().into());
    }
    timeout::arm_link_timeout(locked, &mut request);
    if request.row.bears_rights {
        rights::mark_for_later(&mut request);
    }
    match outcome {
        IssueOutcome::WouldBlock if polls => fast_poll::arm_retry(locked, request, poll_events, Turn::Over),
        IssueOutcome::PollsFirst if polls => fast_poll::arm_first(locked, request, poll_events),
        IssueOutcome::More => fast_poll::arm_retry(locked, request, poll_events, Turn::Due),
        IssueOutcome::AwaitsPoll => fast_poll::arm(locked, request),
        IssueOutcome::AwaitsTime => timeout::arm(locked, request),
        IssueOutcome::WouldBlock | IssueOutcome::PollsFirst | IssueOutcome::NeedsWorker => {
            // A sync covers the writes before it in this batch, where that costs nothing. It may
            // overtake deferred submits, as any request may that no link, drain or AIO context puts
            // in order.
            locked.devices.ring_doorbells();
            workers::hand_over(locked, request);
        }
        IssueOutcome::Done(_) | IssueOutcome::OnDevice(_) | IssueOutcome::Visits => unreachable!("none waits here"),
    }
}

/// Hands a request to a thread that may block.
pub(crate) fn hand_to_worker(locked: &mut LockedRing, request: RequestEntry) {
    suspend(locked, request, IssueOutcome::NeedsWorker);
}

/// Finds the number that system calls are to use. This happens at issue, as in the kernel's
/// `io_assign_file`, so that a request may open what the next one of its chain uses.
#[inline]
fn resolve_file(locked: &LockedRing, request: &mut Request) -> Result<(), Errno> {
    if !request.has_flag(sqe_flags::FIXED_FILE) || !matches!(request.file.hold, Hold::Submitter) {
        return Ok(());
    }
    let file = locked.files.get(request.sqe.fd as u32).ok_or(Errno::EBADF)?;
    request.file.number = file.number();
    Ok(())
}

/// Keeps the file of a request that has to wait. A poll itself keeps a file that is not registered.
fn keep_file(locked: &mut LockedRing, request: &mut Request, polls: bool) -> Result<(), Errno> {
    if !request.row.needs_file {
        return Ok(());
    }
    if !polls {
        block_device::note(locked, request);
    }
    if request.has_flag(sqe_flags::FIXED_FILE) {
        if matches!(request.file.hold, Hold::Submitter) {
            let file = locked.files.share(request.sqe.fd as u32).ok_or(Errno::EBADF)?;
            request.file.hold = Hold::Registered(file);
        }
        return Ok(());
    }
    if polls { Ok(()) } else { request.file.keep() }
}

/// Issues issuable requests until none is left, and rings the devices' doorbells for them. A chain
/// goes on wherever its last request has ended, and no driver may come by afterwards.
#[inline]
pub(crate) fn run_issuable(locked: &mut LockedRing) {
    run_issuable_of_batch(locked);
    while !locked.successors.is_empty() {
        fast_poll::look_before_successors(locked);
        run_successors(locked);
    }
    locked.devices.ring_doorbells();
}

/// Moves each waiting chain on by one request.
#[inline(never)]
fn run_successors(locked: &mut LockedRing) {
    timeout::begin_batch(locked);
    let state = &mut **locked;
    core::mem::swap(&mut state.issuable, &mut state.successors);
    run_issuable_of_batch(locked);
}

/// Issues issuable requests in the middle of a batch, at whose end the doorbells are rung.
#[inline]
pub(crate) fn run_issuable_of_batch(locked: &mut LockedRing) {
    while let Some(request) = locked.issuable.pop_front() {
        issue(locked, request);
    }
}

/// Returns whether a request is the timeout of the one before it in its chain.
pub(crate) fn is_link_timeout(request: &Request) -> bool {
    request.sqe.opcode == opcode::LINK_TIMEOUT && matches!(request.operation, Operation::LinkTimeout(_))
}
