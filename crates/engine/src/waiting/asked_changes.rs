//! Asks other processes of a shared ring to cancel or change requests that only they have:
//! ASYNC_CANCEL, POLL_REMOVE, TIMEOUT_REMOVE, and the synchronous cancellation.
//!
//! A process first searches its own requests. Then it asks the processes that may have others, one
//! after the other. An *ask* is one such change. It and its answers pass through the change slot in
//! the ring's memory (`usring_ring::change_slot`). The request that asks completes with the answer.
//! `driving::shared_work` makes the changes that other processes ask for.
//!
//! An asked process that dies does not answer, nor does one that is stopped. So while an ask is
//! open, the ring watcher checks every 10 ms whether the asked process is alive (`driving::ended`).
//! If a process does not answer in time and another ask waits for the change slot, the other ask
//! comes first. The process is asked again later.

use crate::completion::complete;
use crate::request::conditions::CancelKey;
use crate::request::outcome::IssueOutcome;
use crate::request::{Request, RequestEntry};
use crate::ring::LockedRing;
use crate::waiting::asks::{Ask, Asker, Change, PENDING, result_of};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};
use usring_ring::change_slot::ChangeSlot;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::{Errno, process_number};

/// Longest time, in nanoseconds, that an unanswered ask occupies the ring's change slot while
/// another ask waits for it.
const LONGEST_USE: Nanoseconds = 20_000_000;

/// Returns the outcome of a request that cancels or changes other requests. `answer`: its result
/// for the requests of this process.
pub(crate) fn outcome(locked: &mut LockedRing, request: &mut Request, answer: Result<i32, Errno>) -> IssueOutcome {
    if locked.ring.is_shared() { shared_outcome(locked, request, answer) } else { IssueOutcome::of(answer) }
}

#[cold]
fn shared_outcome(locked: &mut LockedRing, request: &mut Request, answer: Result<i32, Errno>) -> IssueOutcome {
    let answer = answer.unwrap_or_else(Errno::negative);
    let Some(change) = Change::of(&request.operation) else { return IssueOutcome::done(answer) };
    let answer = with_dead(locked, &change, answer);
    if others(locked, &change, answer).is_empty() {
        return IssueOutcome::done(answer);
    }
    request.result = answer;
    IssueOutcome::AsksProcesses
}

/// Cancels the requests of processes that have ended which the change removes. `answer`: that of
/// this process. Returns the answer with theirs.
fn with_dead(locked: &mut LockedRing, change: &Change, answer: i32) -> i32 {
    let Some(wanted) = change.of_dead().filter(|_| change.goes_on(answer)) else { return answer };
    let mut cancelled = 0;
    while let Some((slot, user_data)) = locked.journal().take_one_from_dead(wanted, process_number::is_alive) {
        locked.post_for_dead(slot, user_data, Errno::ECANCELED);
        cancelled += 1;
        if !change.counts() {
            return 0;
        }
    }
    if cancelled == 0 { answer } else { change.together(answer, cancelled) }
}

/// Asks other processes for the change that a request makes. `request.result` is the answer of this
/// process.
pub(crate) fn begin(locked: &mut LockedRing, request: RequestEntry) {
    let answer = request.result;
    match Change::of(&request.operation) {
        Some(change) => ask(locked, change, Asker::Request(request), answer),
        None => complete::complete(locked, request, answer.into()),
    }
}

/// Asks other processes for a synchronous cancellation, if one of them may have a request that the
/// key selects. `answer`: the answer of this process. Returns the answer, or the word that gets it.
/// The word holds [`PENDING`] until then.
pub(crate) fn begin_call(
    locked: &mut LockedRing,
    key: &CancelKey,
    answer: Result<i32, Errno>,
) -> Result<Result<i32, Errno>, Arc<AtomicI32>> {
    if !locked.ring.is_shared() {
        return Ok(answer);
    }
    let change = Change::Cancel(*key);
    let answer = with_dead(locked, &change, answer.unwrap_or_else(Errno::negative));
    if others(locked, &change, answer).is_empty() {
        return Ok(result_of(answer));
    }
    let place = Arc::new(AtomicI32::new(PENDING));
    ask(locked, change, Asker::Call(place.clone()), answer);
    Err(place)
}

/// Returns the other processes to ask; empty if this process's `answer` is enough. The journal
/// names the processes with requests. It lacks requests from before the ring was shared. So the
/// process that made the ring is asked, too, while it has such requests.
fn others(locked: &mut LockedRing, change: &Change, answer: i32) -> Vec<u32> {
    if !change.goes_on(answer) {
        return Vec::new();
    }
    let mut others = locked.journal().others(change.user_data());
    let control = &locked.ring.control;
    if let Some(maker) = control.maker()
        && locked.ring.is_adopted()
        && control.has_unjournaled()
        && !others.contains(&maker)
    {
        others.push(maker);
    }
    others.retain(|process| process_number::is_alive(*process));
    others
}

#[cold]
fn ask(locked: &mut LockedRing, change: Change, asker: Asker, answer: i32) {
    let rest = others(locked, &change, answer);
    locked.waiting.asks.add(change, asker, rest, answer);
    proceed(locked);
}

fn slot(locked: &LockedRing) -> ChangeSlot {
    locked.ring.control.change_slot(locked.ring.process_number())
}

/// Advances the queue of asks: takes an answer that has arrived, asks the next process, and
/// completes each ask for which no process is left.
pub(crate) fn proceed(locked: &mut LockedRing) {
    let slot = slot(locked);
    while let Some(first) = locked.waiting.asks.first()
        && slot.is_available(process_number::is_alive)
    {
        if let Some((asked, since)) = first.asked {
            let answer = slot.answered();
            if answer.is_none() && may_answer(locked, asked) {
                if !put_off(locked, &slot, since) {
                    return;
                }
                continue;
            }
            let answer = answer.unwrap_or(Errno::ENOENT.negative());
            locked.waiting.asks.first_mut().into_iter().for_each(|first| first.note(answer));
        }
        let Some(first) = locked.waiting.asks.first_mut() else { return };
        match first.rest.pop() {
            Some(next) => {
                first.asked = Some((next, Clock::Monotonic.now()));
                slot.ask(next, first.change.encode());
                locked.call_other_processes();
            }
            None => {
                free(locked, &slot);
                locked.waiting.asks.take_first().into_iter().for_each(|over| end(locked, over));
            }
        }
    }
}

/// Frees the ring's change slot. If another process waits for the slot, wakes the other processes
/// and returns `true`.
fn free(locked: &mut LockedRing, slot: &ChangeSlot) -> bool {
    let is_wanted = slot.free();
    if is_wanted {
        locked.call_other_processes();
    }
    is_wanted
}

/// Frees the ring's change slot if the asked process has not answered in time and another ask waits
/// for the slot. `since`: when the process was asked. Returns whether the next ask of this process
/// may use the slot at once.
fn put_off(locked: &mut LockedRing, slot: &ChangeSlot, since: Nanoseconds) -> bool {
    let is_awaited = locked.waiting.asks.has_several() || slot.is_wanted();
    if !is_awaited || Clock::Monotonic.now() < since + LONGEST_USE {
        return false;
    }
    locked.waiting.asks.put_off_first();
    !free(locked, slot)
}

/// Returns whether a process that is asked may still answer.
fn may_answer(locked: &mut LockedRing, asked: u32) -> bool {
    let is_there = locked.ring.control.maker() == Some(asked) || locked.journal().others(None).contains(&asked);
    is_there && process_number::is_alive(asked)
}

fn end(locked: &mut LockedRing, over: Ask) {
    match over.asker {
        Asker::Request(request) => complete::complete(locked, request, over.answer.into()),
        Asker::Call(place) => place.store(over.answer, Ordering::Release),
    }
}

/// Withdraws the ask of a system call that has stopped waiting. The answer may have arrived in
/// `place` just before.
pub(crate) fn withdraw(locked: &mut LockedRing, place: &Arc<AtomicI32>) {
    if locked.waiting.asks.withdraw(place) {
        give_up(locked);
        proceed(locked);
    }
}

/// Frees the slot if this process uses it.
fn give_up(locked: &mut LockedRing) {
    let slot = slot(locked);
    if slot.is_own() {
        free(locked, &slot);
    }
}

/// Drops all asks, because the ring is closed. Waiting system calls get the answer of the processes
/// asked so far.
pub(crate) fn forget(locked: &mut LockedRing) {
    while let Some(ask) = locked.waiting.asks.take_first() {
        give_up(locked);
        if let Asker::Call(place) = ask.asker {
            place.store(ask.answer, Ordering::Release);
        }
    }
}
