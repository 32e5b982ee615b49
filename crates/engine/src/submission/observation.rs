//! Notifies the observers (`observers`) when a request is submitted, and of the request's steps
//! until a worker has carried it out.

use crate::observers::{
    self, AIO_CONTEXT, HeldBack, Identity, Observer, Step, Stepped, Submitted, Transfer, WorkerReason,
};
use crate::probes;
use crate::request::operation::Operation;
use crate::request::outcome::IssueOutcome;
use crate::request::{Progress, Request};
use crate::ring::LockedRing;
use alloc::sync::Arc;
use usring_sys::plain::IoVector;
use usring_uapi::{opcode, sqe_flags};

/// Notifies the observers and tracers that a request was taken from the SQ. Called before the
/// request is tried.
#[cold]
#[inline(never)]
pub(crate) fn submitted(locked: &LockedRing, request: &mut Request) {
    if probes::is_on(locked.ring) {
        request.watch_for_tracer();
        probes::submitted(locked, request);
    }
    if !observers::are_any() {
        return;
    }
    if request.progress == Progress::Refused {
        // A refused request has no operation. Only observers that need the steps are notified of
        // it.
        return submitted_for_steps(locked, request);
    }
    notify(locked, request, |_| true);
}

/// Notifies the observers that need the steps of requests, and no others, of a submission. Called
/// for a request of an AIO context, or for a refused request, before the request is tried.
#[cold]
#[inline(never)]
pub(crate) fn submitted_for_steps(locked: &LockedRing, request: &mut Request) {
    if observers::need_steps() {
        notify(locked, request, |observer| observer.stepped.is_some());
    }
}

fn notify(locked: &LockedRing, request: &mut Request, wants: impl Fn(&Observer) -> bool) {
    (request.is_watched, request.is_only_probed) = (true, false);
    let is_later_member = !locked.queues.chain.members.is_empty();
    let held_back = if is_later_member {
        HeldBack::Chain
    } else if waits_for_drain(locked, request) {
        HeldBack::Drain
    } else {
        HeldBack::No
    };
    let is_fixed = request.has_flag(sqe_flags::FIXED_FILE);
    request.observed_ring = locked.ring.observed_number();
    request.has_waited = held_back != HeldBack::No;
    request.is_forced = false;
    let (_, user_data, _) = locked.ring.rule_words(&request.sqe);
    let submitted = Submitted {
        request: Identity { ring: Arc::as_ptr(locked.ring) as u64, number: request.id.0 },
        ring_number: request.observed_ring,
        sqe: &request.sqe,
        descriptor: request.file_number().filter(|_| !is_fixed),
        file: file_of(locked, request),
        path: match &request.operation {
            Operation::Open(open) => Some(&open.path),
            _ => None,
        },
        user_data,
        transfer: transfer_of(request),
        held_back,
        is_linked: is_later_member || request.is_linked(),
        consumed: locked.queues.cq.consumed(),
        sq_position: locked.queues.sq.head().wrapping_sub(1),
    };
    observers::for_each(|observer| {
        if wants(observer) {
            (observer.submitted)(&submitted);
        }
    });
}

/// Returns whether a request that is being submitted has to wait because of an IO_DRAIN.
fn waits_for_drain(locked: &LockedRing, request: &Request) -> bool {
    let drain = &locked.queues.drain;
    let is_held = drain.is_active() || request.has_flag(sqe_flags::IO_DRAIN);
    // On a shared ring, requests of other processes may have been submitted earlier.
    let has_earlier = drain.outstanding() != 0 || locked.ring.is_shared();
    is_held && has_earlier && request.progress != Progress::Refused
}

/// Returns a descriptor number of the request's file.
fn file_of(locked: &LockedRing, request: &Request) -> Option<i32> {
    let number = request.file_number()?;
    if !request.has_flag(sqe_flags::FIXED_FILE) {
        return Some(number);
    }
    locked.registered.files.get(request.sqe.fd.cast_unsigned()).map(|file| file.number())
}

/// Notifies the observers of a step of a watched request.
pub(crate) fn stepped(request: &Request, step: Step) {
    let stepped = Stepped {
        number: request.id.0,
        ring_number: request.observed_ring,
        sqe: &request.sqe,
        user_data: if request.observed_ring & AIO_CONTEXT != 0 { request.sqe.pad2 } else { request.sqe.user_data },
        step,
    };
    observers::for_each(|observer| observer.stepped.into_iter().for_each(|notify| notify(&stepped)));
}

/// Notifies the observers that a request is issued, if it had to wait before.
pub(super) fn issued(request: &mut Request) {
    if core::mem::take(&mut request.has_waited) {
        stepped(request, Step::Issued);
    }
}

/// Notifies the observers that a request was handed to a device or to another ring.
pub(super) fn handed_over(request: &Request, outcome: &IssueOutcome) {
    match outcome {
        IssueOutcome::OnDevice(index) => stepped(request, Step::OnDevice(index.0)),
        IssueOutcome::Visits => stepped(request, Step::OnOtherRing),
        _ => {}
    }
}

/// Notifies the observers and tracers that a request has to wait. `polls`: it waits for its file.
#[cold]
pub(super) fn suspended(locked: &LockedRing, request: &mut Request, outcome: &IssueOutcome, polls: bool) {
    if polls && probes::is_on(locked.ring) {
        probes::armed(locked, request);
    }
    if !request.is_watched {
        return;
    }
    request.has_waited = true;
    let step = match outcome {
        IssueOutcome::AwaitsTime => Step::AwaitsTime,
        IssueOutcome::AsksProcesses => Step::AwaitsProcesses,
        IssueOutcome::Delayed => Step::Delayed,
        _ if polls => Step::AwaitsFile,
        _ => Step::Queued(worker_reason(locked, request, outcome)),
    };
    stepped(request, step);
}

fn worker_reason(locked: &LockedRing, request: &Request, outcome: &IssueOutcome) -> WorkerReason {
    if request.has_flag(sqe_flags::ASYNC) {
        return if request.is_forced { WorkerReason::AfterDrain } else { WorkerReason::Asked };
    }
    if request.properties.bears_rights && locked.waiting.rights.is_foreign(request) {
        return WorkerReason::Rights;
    }
    let was_tried = match &request.operation {
        Operation::ReadWrite(_) | Operation::SendReceive(_) | Operation::Accept(_) => true,
        Operation::Open(open) => open.attempted,
        _ => false,
    };
    let would_block = was_tried || !matches!(outcome, IssueOutcome::NeedsWorker);
    if would_block { WorkerReason::WouldBlock } else { WorkerReason::Opcode }
}

fn transfer_of(request: &Request) -> Transfer<'_> {
    if request.has_flag(sqe_flags::BUFFER_SELECT) {
        return Transfer::Unknown;
    }
    match &request.operation {
        Operation::ReadWrite(transfer) if transfer.writes => Transfer::From(transfer.members()),
        Operation::ReadWrite(transfer) => Transfer::Into(transfer.members()),
        Operation::SendReceive(transfer) => {
            let members: &[IoVector] = match &transfer.message {
                Some(message) if message.members.is_any() => message.members.left(),
                _ => core::slice::from_ref(&transfer.part),
            };
            match request.sqe.opcode {
                opcode::RECV | opcode::RECVMSG => Transfer::Into(members),
                _ => Transfer::From(members),
            }
        }
        _ => Transfer::Unknown,
    }
}
