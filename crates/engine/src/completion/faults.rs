//! The end of a request that gets a fault (`usring run --inject`): its answer, and the delay before
//! its CQE.

use crate::completion::{complete, order};
use crate::request::conditions::Deadline;
use crate::request::fault::FaultStage;
use crate::request::outcome::Answer;
use crate::request::{Progress, Request, RequestEntry};
use crate::ring::LockedRing;
use usring_inject::rule::Answer as Injected;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, wait, width};

/// Ends a request that has a fault. `answer` is the request's own answer, without the fault.
#[cold]
#[inline(never)]
pub(crate) fn complete(locked: &mut LockedRing, mut request: RequestEntry, mut answer: Answer) {
    let Some(mut pending) = request.fault.take() else { return complete::complete(locked, request, answer) };
    // A request that was cancelled, or has never begun, keeps its own answer.
    let has_own_answer = matches!(request.progress, Progress::Refused | Progress::NotStarted);
    if pending.is_ordered {
        let is_over = has_own_answer || matches!(pending.stage, FaultStage::Leaving(_));
        return order::end(locked, request, pending, answer, is_over);
    }
    if has_own_answer {
        return complete::complete(locked, request, answer);
    }
    let fault = pending.fault;
    if matches!(pending.stage, FaultStage::Leaving(_)) {
        return post(locked, request, answer, fault.overflow);
    }
    if let Some(injected) = fault.answer {
        answer = answer_of(&request, injected);
    } else if let Some(whole) = pending.whole {
        answer.failed |= u64::try_from(answer.result).is_ok_and(|bytes| bytes < whole);
    }
    if let Some(flip) = fault.flip
        && let Ok(bytes) = u64::try_from(answer.result)
    {
        let selected = request.buffer.map(|buffer| IoVector { base: buffer.address.0, length: buffer.length.into() });
        flip.apply(selected.as_ref().map_or(&pending.memory, core::slice::from_ref), bytes);
    }
    let delay = fault.delay_exit;
    let waits = delay != 0 && delays(locked, delay);
    let reorders = fault.reorder.filter(|_| !waits && !locked.ring.is_polled());
    if !waits && reorders.is_none() {
        return post(locked, request, answer, fault.overflow);
    }
    pending.stage = FaultStage::Leaving(answer);
    request.fault = Some(pending);
    match reorders {
        Some(count) => hold_back(locked, request, count),
        None => hold(locked, request, delay),
    }
}

/// Completes a request. `overflows`: its CQE goes to the backlog even if the CQ has room.
pub(super) fn post(locked: &mut LockedRing, request: RequestEntry, answer: Answer, overflows: bool) {
    locked.queues.cq.force_overflow(overflows);
    complete::complete(locked, request, answer);
    locked.queues.cq.force_overflow(false);
}

/// Longest time, in nanoseconds, for which a fault of `usring run --inject` holds a completion
/// back. During this time, later completions can overtake the completion.
const REORDER_LIMIT_NS: Nanoseconds = 10_000_000;

/// Delays a completion until `count` later CQEs have been posted, but for at most
/// [`REORDER_LIMIT_NS`].
fn hold_back(locked: &mut LockedRing, request: RequestEntry, count: u32) {
    let at = Clock::Monotonic.now().saturating_add(REORDER_LIMIT_NS);
    let tail = locked.queues.cq.tail();
    let completes_at = locked.waiting.timeouts.count_to(tail) + i64::from(count);
    locked.waiting.timeouts.insert(request, Deadline { at, ..Deadline::default() }, Some(completes_at));
}

/// Returns the answer that a rule of `usring run --inject` gives in place of the request's own
/// answer.
pub(crate) fn answer_of(request: &Request, injected: Injected) -> Answer {
    match injected {
        Injected::Error(number) => Errno::new(number.into()).negative().into(),
        Injected::Value(value) => {
            let result = width::int(value.cast_unsigned());
            Answer { result, failed: request.is_failure(result) }
        }
    }
}

/// Returns whether the caller can leave a delay of this many nanoseconds to the ring's list of
/// timers. On a ring with IOPOLL, no thread waits for timers. So on such a ring, this function
/// itself sleeps for the delay, and returns `false`.
pub(crate) fn delays(locked: &LockedRing, delay: Nanoseconds) -> bool {
    let is_polled = locked.ring.is_polled();
    if is_polled {
        let _ = wait::nanosleep(delay);
    }
    !is_polled
}

/// Makes a request wait for `delay` nanoseconds, in the ring's list of timers.
pub(crate) fn hold(locked: &mut LockedRing, request: RequestEntry, delay: Nanoseconds) {
    let at = Clock::Monotonic.now().saturating_add(delay);
    locked.waiting.timeouts.insert(request, Deadline { at, ..Deadline::default() }, None);
}

/// Continues a request that a fault or `usring run --order` has put into the ring's list of timers.
/// Called when the request's time in the list is over.
pub(crate) fn expire(locked: &mut LockedRing, request: RequestEntry) {
    match &request.fault {
        Some(pending) if pending.is_ordered => order::expire(locked, request),
        _ => resume(locked, request),
    }
}

/// Continues a request whose delay is over.
pub(crate) fn resume(locked: &mut LockedRing, request: RequestEntry) {
    match request.fault.as_ref().map(|pending| pending.stage) {
        Some(FaultStage::Leaving(answer)) => complete::complete(locked, request, answer),
        _ => locked.queues.issuable.push_back(request),
    }
}

impl LockedRing<'_> {
    /// Signals the ring's eventfd and its descriptor, as a completion would.
    pub(crate) fn signal_without_completion(&self) {
        if let Some(event) = &self.notify.event_descriptor {
            event.signal(&self.ring.memory, false);
        }
        self.ring.readiness.signal();
    }
}
