//! Faults at the issue of a request (`usring run --inject`). A process with rules submits requests
//! with the rows of a second table, whose issue asks the rules first. So a process without rules
//! pays nothing.

use crate::completion::faults::{self, answer_of};
use crate::request::fault::{FaultStage, PendingFault};
use crate::request::operation::Operation;
use crate::request::outcome::IssueOutcome;
use crate::request::{Request, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::opcode_table::{self, Row};
use crate::submission::recording;
use alloc::boxed::Box;
use alloc::vec::Vec;
use usring_inject::decide::{Call, Names, NoNames};
use usring_inject::names::{OfCall, OfDescriptor, OfPath};
use usring_inject::{Fault, Kind, armed, calls};
use usring_sys::own_threads::{self, Owner};
use usring_sys::plain::IoVector;
use usring_sys::unusual::{self, Unusual};
use usring_sys::{descriptor, signals};
use usring_uapi::opcode::COUNT;
use usring_uapi::sqe_flags;

static TABLE: [Row; COUNT] = opcode_table::armed(issue, recording::work);

/// Returns the row of an opcode for a request that may get a fault.
pub(crate) fn row(opcode: u8) -> &'static Row {
    TABLE.get(usize::from(opcode)).unwrap_or_else(|| opcode_table::row(opcode))
}

/// Returns whether requests need the rows of the second table.
pub(crate) fn have_rows() -> bool {
    unusual::has(Unusual::Faults) || unusual::has(Unusual::Recording)
}

/// Issues a request that may get a fault.
fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    match begin(locked, request) {
        Some(outcome) => outcome,
        None => recording::issue(locked, request),
    }
}

/// Begins a request's fault, if it gets one. Returns the outcome of a request that is not to be
/// issued now.
#[cold]
#[inline(never)]
pub(crate) fn begin(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    if !unusual::has(Unusual::Faults) {
        return None;
    }
    if !request.was_asked {
        request.was_asked = true;
        let fault = ask(locked, request)?;
        let stage = FaultStage::Decided;
        request.fault = Some(Box::new(PendingFault { fault, stage, whole: None, memory: Vec::new() }));
        fault.signal.into_iter().for_each(|signal| raise(signal.into()));
        if fault.spurious {
            signal_without_completion(locked);
        }
    }
    let pending = request.fault.as_mut()?;
    let fault = pending.fault;
    if pending.stage == FaultStage::Decided && fault.delay_enter != 0 && faults::delays(locked, fault.delay_enter) {
        pending.stage = FaultStage::Entering;
        return Some(IssueOutcome::Delayed);
    }
    if pending.stage == FaultStage::Begun {
        return None;
    }
    pending.stage = FaultStage::Begun;
    if let Some(answer) = fault.answer
        && !fault.makes_call()
    {
        let answer = answer_of(request, answer);
        if answer.result < 0 {
            recording::note_failure(request);
        }
        return Some(IssueOutcome::Done(answer));
    }
    if let Some(whole) = shorten(request, &fault)
        && let Some(pending) = &mut request.fault
    {
        pending.whole = Some(whole);
    }
    if fault.flip.is_some()
        && let Some(pending) = &mut request.fault
    {
        pending.memory = members_of(&request.operation);
    }
    None
}

/// Signals the ring's eventfd and its descriptor, as a completion would.
fn signal_without_completion(locked: &LockedRing) {
    if let Some(event) = &locked.notify.event_descriptor {
        event.signal(&locked.ring.memory, false);
    }
    locked.ring.readiness.signal();
}

/// Returns the memory that a transfer names.
fn members_of(operation: &Operation) -> Vec<IoVector> {
    match operation {
        Operation::ReadWrite(transfer) => transfer.members().into(),
        Operation::SendReceive(transfer) => alloc::vec![transfer.part],
        _ => Vec::new(),
    }
}

/// Returns whether a request is to be cancelled, because it has to wait.
pub(super) fn cancels(request: &Request) -> bool {
    request.fault.as_ref().is_some_and(|pending| pending.fault.cancel && pending.stage == FaultStage::Begun)
}

/// Sends a signal to the calling thread, or to the process if the thread is one of usring's own.
fn raise(signal: u32) {
    let thread = signals::thread_id();
    let is_own = matches!(own_threads::owner_of(thread), Owner::Usring | Owner::Submitter);
    if is_own || signals::send_to_thread(thread, signal).is_err() {
        signals::send_to_process(signal);
    }
}

/// Has a request wait for its delay.
pub(super) fn hold(locked: &mut LockedRing, request: RequestEntry) {
    let delay = request.fault.as_ref().map_or(0, |pending| pending.fault.delay_enter);
    faults::hold(locked, request, delay);
}

fn ask(locked: &LockedRing, request: &Request) -> Option<Fault> {
    let sqe = &request.sqe;
    let is_fixed = request.has_flag(sqe_flags::FIXED_FILE);
    let of_ring = !locked.ring.has_events();
    let (of_call, of_path, of_descriptor);
    let names: &dyn Names = match &request.operation {
        Operation::Call(call) if !call.on_file => match calls::by_number(call.call.number) {
            Some(plain) => {
                of_call = OfCall { call: plain, arguments: &call.call.arguments };
                &of_call
            }
            None => &NoNames,
        },
        Operation::Open(open) => {
            of_path = OfPath { folder: open.directory, path: &open.path };
            &of_path
        }
        _ if request.properties.needs_file => {
            of_descriptor = OfDescriptor(request.file.number);
            &of_descriptor
        }
        _ => &NoNames,
    };
    armed::ask(&Call {
        kind: if of_ring { Kind::Ring } else { Kind::Aio },
        number: sqe.opcode.into(),
        descriptor: (request.properties.needs_file && !is_fixed).then_some(sqe.fd),
        user_data: Some(if of_ring { sqe.user_data } else { sqe.pad2 }),
        ring: of_ring.then_some(locked.ring.number),
        thread: signals::thread_id(),
        names,
    })
}

/// Direct transfers are shortened to a multiple of this, the block of most disks.
const BLOCK: u64 = 4096;

/// Shortens a transfer as the fault says. Returns its length before; `None`: it stays as it is.
fn shorten(request: &mut Request, fault: &Fault) -> Option<u64> {
    fault.short?;
    let number = request.file.number;
    let selects = request.has_flag(sqe_flags::BUFFER_SELECT);
    match &mut request.operation {
        Operation::ReadWrite(transfer) => {
            let whole = transfer.total;
            let mut limit = fault.limit(whole)?;
            if descriptor::is_direct(number) {
                limit = limit / BLOCK * BLOCK;
            }
            if limit == 0 {
                return None;
            }
            let members = transfer.vector.as_deref_mut().unwrap_or(core::slice::from_mut(&mut transfer.first));
            cut(members, limit);
            (transfer.total, transfer.wanted) = (limit, limit);
            Some(whole)
        }
        Operation::SendReceive(transfer) => {
            if transfer.message.as_ref().is_some_and(|message| message.members.is_any()) {
                return None;
            }
            let whole = transfer.part.length;
            let limit = fault.limit(whole)?;
            transfer.part.length = limit;
            if selects {
                transfer.wanted = u32::try_from(limit).unwrap_or(u32::MAX);
            }
            Some(whole)
        }
        _ => None,
    }
}

/// Limits a vector to its first bytes.
fn cut(members: &mut [IoVector], mut limit: u64) {
    for member in members {
        member.length = member.length.min(limit);
        limit -= member.length;
    }
}
