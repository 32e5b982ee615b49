//! Faults at the issue of a request (`usring run --inject`). In a process with rules of `--inject`,
//! each request gets its row from a second opcode table, whose issue function asks the rules first.
//! So requests of a process without rules make no additional check.

use crate::completion::faults::{self, answer_of};
use crate::completion::order;
use crate::observers;
use crate::op::read_write;
use crate::request::fault::{FaultStage, PendingFault};
use crate::request::operation::Operation;
use crate::request::outcome::IssueOutcome;
use crate::request::{Request, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::opcode_table::{self, Row};
use crate::submission::{observation, recording};
use alloc::boxed::Box;
use alloc::vec::Vec;
use usring_inject::decide::{Call, Names, NoNames};
use usring_inject::names::{OfCall, OfDescriptor, OfPath};
use usring_inject::rule::{Effect, IssuePath};
use usring_inject::{Fault, armed, calls};
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

/// Returns whether requests need the rows of this file's table: for faults, for the recording of
/// `usring crash`, or for an observer that needs the steps of requests.
pub(crate) fn have_rows() -> bool {
    unusual::has(Unusual::Faults) || unusual::has(Unusual::Recording) || observers::need_steps()
}

/// Issues a request that may get a fault.
fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    if let Some(outcome) = begin(locked, request) {
        let is_transfer = matches!(request.operation, Operation::ReadWrite(_));
        if matches!(outcome, IssueOutcome::Delayed) && is_transfer && request.properties.needs_ring_at_issue {
            // The program may unregister the transfer's buffer during the fault's delay. So the
            // request takes a reference to the buffer now. An error is ignored here, because the
            // request takes the reference again when it is issued after the delay, and then gets
            // the error.
            let _ = read_write::hold_registered_buffer(locked, request);
        }
        return outcome;
    }
    let is_first = request.poll_slot == 0 && !request.has_flag(sqe_flags::ASYNC);
    if request.is_watched {
        observation::issued(request);
    }
    let outcome = recording::issue(locked, request);
    if request.is_watched {
        observation::handed_over(request, &outcome);
    }
    if is_first && matches!(outcome, IssueOutcome::Done(_)) {
        ask_for_issue_path(locked, request, IssuePath::Inline);
    }
    outcome
}

/// Asks the rules of `usring run --inject` about a request whose issue path is known now. The
/// request was done inline, or it is about to wait for its file or for a worker.
fn ask_for_issue_path(locked: &mut LockedRing, request: &mut Request, issue_path: IssuePath) {
    let has_order = request.fault.as_ref().is_some_and(|pending| pending.is_ordered);
    if request.fault.is_some() && !has_order || !unusual::has(Unusual::Faults) {
        return;
    }
    let Some(fault) = ask(locked, request, Some(issue_path)) else { return };
    if has_order {
        order::forget(locked, request);
    }
    // A request that was done inline has already run, so a fault can no longer replace it.
    // `completion::faults` applies the rest of the fault.
    let (stage, memory) = match issue_path {
        IssuePath::Inline => (FaultStage::Begun, members_of(&request.operation)),
        IssuePath::Poll | IssuePath::Worker => (FaultStage::Decided, Vec::new()),
    };
    enter(locked, request, PendingFault { fault, stage, whole: None, memory, is_ordered: false });
}

/// Attaches a fault to a request. Sends the signal and the spurious notification that the fault may
/// include.
fn enter(locked: &LockedRing, request: &mut Request, pending: PendingFault) {
    let fault = pending.fault;
    request.fault = Some(Box::new(pending));
    fault.signal.into_iter().for_each(|signal| raise(signal.into()));
    if fault.spurious {
        locked.signal_without_completion();
    }
}

/// Asks the rules of `usring run --inject` about a request that is about to wait for its file or
/// for a worker. Returns `outcome`, with one exception: a fault or the seed of `usring run --order`
/// replaces or delays a request for a worker. Then returns the outcome that the fault or the seed
/// decides.
pub(super) fn divert(
    locked: &mut LockedRing,
    request: &mut Request,
    outcome: IssueOutcome,
    issue_path: IssuePath,
) -> IssueOutcome {
    ask_for_issue_path(locked, request, issue_path);
    // If the request waits for its file, its fault begins when the file is ready.
    if issue_path == IssuePath::Worker { begin(locked, request).unwrap_or(outcome) } else { outcome }
}

/// Begins a request's fault, if it gets one. Otherwise, the seed of `usring run --order` may choose
/// when the request completes. Returns the outcome of a request that the fault replaces, or that
/// the fault or the seed delays. `None`: the caller issues the request.
#[cold]
#[inline(never)]
pub(crate) fn begin(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    if let Some(outcome) = begin_fault(locked, request) {
        return Some(outcome);
    }
    if unusual::has(Unusual::Order) && request.fault.is_none() && order::begin(locked, request) {
        return Some(IssueOutcome::Delayed);
    }
    None
}

fn begin_fault(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    if !unusual::has(Unusual::Faults) {
        return None;
    }
    if !request.was_asked {
        request.was_asked = true;
        if let Some(fault) = ask(locked, request, None) {
            let stage = FaultStage::Decided;
            enter(locked, request, PendingFault { fault, stage, whole: None, memory: Vec::new(), is_ordered: false });
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
            recording::note_failure(request, fault.effect == Effect::Drop);
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

/// Returns the memory that a transfer names.
fn members_of(operation: &Operation) -> Vec<IoVector> {
    match operation {
        Operation::ReadWrite(transfer) => transfer.members().into(),
        Operation::SendReceive(transfer) => alloc::vec![transfer.part],
        _ => Vec::new(),
    }
}

/// Returns whether a fault cancels the request as soon as it has to wait.
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

/// Makes a request wait for the delay of its fault, or until the seed of `usring run --order`
/// chooses it.
pub(super) fn hold(locked: &mut LockedRing, request: RequestEntry) {
    match &request.fault {
        Some(pending) if pending.is_ordered => order::hold(locked, request),
        Some(pending) => {
            let delay = pending.fault.delay_enter;
            faults::hold(locked, request, delay);
        }
        None => faults::hold(locked, request, 0),
    }
}

fn ask(locked: &LockedRing, request: &mut Request, issue_path: Option<IssuePath>) -> Option<Fault> {
    let mut count = request.rule_count;
    let fault = ask_about(locked, request, issue_path, &mut count);
    request.rule_count = count;
    fault
}

fn ask_about(locked: &LockedRing, request: &Request, issue_path: Option<IssuePath>, count: &mut u64) -> Option<Fault> {
    let sqe = &request.sqe;
    let is_fixed = request.has_flag(sqe_flags::FIXED_FILE);
    let (kind, user_data, ring) = locked.ring.rule_words(sqe);
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
    let call = Call {
        kind,
        number: sqe.opcode.into(),
        descriptor: (request.properties.needs_file && !is_fixed).then_some(sqe.fd),
        user_data: Some(user_data),
        ring,
        thread: signals::thread_id(),
        names,
        issue_path,
    };
    armed::fault_of_request(&call, count)
}

/// Direct transfers are shortened to a multiple of this number of bytes, the block size of most
/// disks.
const BLOCK: u64 = 4096;

/// Shortens a transfer as the fault says. Returns the transfer's original length. `None`: the
/// transfer was not shortened.
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
