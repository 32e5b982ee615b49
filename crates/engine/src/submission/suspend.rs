//! Suspends a request that cannot complete at once. This module keeps the request's file open and
//! hands the request to a module of `waiting`. That module returns the request to the driver when
//! the request can continue.

use crate::completion::complete;
use crate::op::block_device;
use crate::probes;
use crate::request::conditions::TimeSlice;
use crate::request::file::FileReference;
use crate::request::outcome::IssueOutcome;
use crate::request::{Request, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::{faults, observation};
use crate::waiting::timeout::JournaledTimeout;
use crate::waiting::{ask_processes, fast_poll, workers};
use usring_inject::rule::IssuePath;
use usring_sys::Errno;
use usring_uapi::sqe_flags;

/// Hands a request that cannot complete now to the module of `waiting` that the outcome asks for.
#[cold]
pub(super) fn suspend(locked: &mut LockedRing, mut request: RequestEntry, mut outcome: IssueOutcome) {
    if request.properties.is_armed && faults::cancels(&request) {
        return complete::complete(locked, request, Errno::ECANCELED.negative().into());
    }
    let poll_events = request.poll_events();
    // Whether the request will wait in a slot of the poll table.
    let polls = match outcome {
        IssueOutcome::WouldBlock | IssueOutcome::PollsFirst | IssueOutcome::Yield => poll_events != 0,
        IssueOutcome::AwaitsPoll => true,
        _ => false,
    };
    if request.properties.is_armed
        && let Some(issue_path) = issue_path_of(&outcome, polls)
    {
        outcome = faults::divert(locked, &mut request, outcome, issue_path);
        if let IssueOutcome::Done(answer) = outcome {
            return complete::complete(locked, request, answer);
        }
    }
    if let Err(error) = keep_file(locked, &mut request, polls) {
        return complete::complete(locked, request, error.negative().into());
    }
    if request.is_watched || probes::is_on(locked.ring) {
        observation::suspended(locked, &mut request, &outcome, polls);
    }
    locked.waiting.timeouts.arm_link_timeout(&mut request);
    if request.properties.bears_rights {
        request.mark_for_later();
    }
    match outcome {
        IssueOutcome::WouldBlock if polls => fast_poll::arm_retry(locked, request, poll_events, TimeSlice::Over),
        IssueOutcome::PollsFirst if polls => fast_poll::arm_first(locked, request, poll_events),
        IssueOutcome::Yield => fast_poll::arm_retry(locked, request, poll_events, TimeSlice::Runnable),
        IssueOutcome::AwaitsPoll => fast_poll::arm(locked, request),
        IssueOutcome::AsksProcesses => ask_processes::begin(locked, request),
        IssueOutcome::AwaitsTime => {
            let journaled = if locked.ring.is_shared() { JournaledTimeout::of(&request) } else { None };
            locked.waiting.timeouts.arm(request);
            if let Some(journaled) = journaled {
                let completions = Some(journaled.deadline.completions).filter(|completions| *completions != 0);
                let count = completions.map(|completions| locked.waiting.timeouts.shared_count(completions));
                locked.note_timer(&journaled, count);
                locked.listen_for_cqes();
            }
        }
        IssueOutcome::Delayed => faults::hold(locked, request),
        IssueOutcome::WouldBlock | IssueOutcome::PollsFirst | IssueOutcome::NeedsWorker => {
            // If the request is a sync, earlier writes of its batch should reach their devices
            // first, so the doorbells of these devices are rung now. Writes with a deferred submit
            // may still come later: only links, drains and AIO contexts order requests.
            locked.devices.queues.ring_doorbells();
            workers::queue_for_worker(locked, request);
        }
        IssueOutcome::Done(_) | IssueOutcome::OnDevice(_) | IssueOutcome::Visits => unreachable!("these do not wait"),
    }
}

/// Returns how a request that cannot complete at once will be carried out. `None`: the request
/// waits for something other than its file or a worker.
fn issue_path_of(outcome: &IssueOutcome, polls: bool) -> Option<IssuePath> {
    match outcome {
        _ if polls => Some(IssuePath::Poll),
        IssueOutcome::WouldBlock | IssueOutcome::PollsFirst | IssueOutcome::NeedsWorker => Some(IssuePath::Worker),
        _ => None,
    }
}

/// Hands a request to a worker, which may block.
pub(crate) fn hand_to_worker(locked: &mut LockedRing, request: RequestEntry) {
    suspend(locked, request, IssueOutcome::NeedsWorker);
}

/// Keeps open the file of a request that has to wait. `polls`: the request waits in the poll table,
/// which itself keeps an unregistered file open.
fn keep_file(locked: &mut LockedRing, request: &mut Request, polls: bool) -> Result<(), Errno> {
    if !request.properties.needs_file {
        return Ok(());
    }
    if !polls {
        block_device::note(locked, request);
    }
    if request.has_flag(sqe_flags::FIXED_FILE) {
        if matches!(request.file.reference, FileReference::Submitter) {
            let file = locked.registered.files.share(request.sqe.fd.cast_unsigned()).ok_or(Errno::EBADF)?;
            request.file.reference = FileReference::Registered(file);
        }
        return Ok(());
    }
    if polls { Ok(()) } else { request.file.keep() }
}
