//! Asks other processes of a shared ring to cancel or change requests that this process does not
//! have. Serves ASYNC_CANCEL, POLL_REMOVE, TIMEOUT_REMOVE, and the synchronous cancellation.
//!
//! A process first searches its own requests. Then it asks other processes for a *remote change*: a
//! cancellation or another change of their requests. It asks each process that may have matching
//! requests, one after the other. The remote change and the answers to it pass through the change
//! slot in the ring's memory (`usring_ring::change_slot`). All answers are combined into the result
//! of the request that needs the change. `driving::shared_work` makes the changes that other
//! processes ask for.
//!
//! An asked process that has died or is stopped does not answer. So while a remote change waits for
//! an answer, the ring watcher checks every 10 ms whether the asked process is alive
//! (`driving::ended`). An answer may take longer than [`LONGEST_USE`] while another remote change
//! waits for the change slot. Then the other change gets the slot, and the process without an
//! answer is asked again later.

use crate::completion::complete;
use crate::request::conditions::CancelKey;
use crate::request::outcome::IssueOutcome;
use crate::request::{Request, RequestEntry};
use crate::ring::LockedRing;
use crate::waiting::cancel;
use crate::waiting::remote_changes::{Asker, Change, PENDING, RemoteChange, result_of};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};
use usring_ring::change_slot::ChangeSlot;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::{Errno, process_number};
use usring_uapi::io_uring as abi;

/// Longest time, in nanoseconds, that a remote change (a change that this process asks another
/// process to make) uses the ring's change slot without an answer. If no other remote change waits
/// for the slot, there is no limit.
const LONGEST_USE: Nanoseconds = 20_000_000;
/// Time, in nanoseconds, for which an asked process must have been silent before this process
/// checks whether the asked process is stopped.
const LEAST_SILENCE: Nanoseconds = 5_000_000;

/// Returns the outcome of a request that cancels or changes other requests. `answer`: the result if
/// only the requests of this process count.
pub(crate) fn outcome(locked: &mut LockedRing, request: &mut Request, answer: Result<i32, Errno>) -> IssueOutcome {
    if locked.ring.is_shared() { shared_outcome(locked, request, answer) } else { IssueOutcome::of(answer) }
}

#[cold]
fn shared_outcome(locked: &mut LockedRing, request: &mut Request, answer: Result<i32, Errno>) -> IssueOutcome {
    let answer = answer.unwrap_or_else(Errno::negative);
    let Some(change) = Change::of(&request.operation) else { return IssueOutcome::done(answer) };
    let answer = cancel_orphans(locked, &change, answer);
    if others(locked, &change, answer).is_empty() {
        return IssueOutcome::done(answer);
    }
    request.result = answer;
    IssueOutcome::AsksProcesses
}

/// Cancels the orphans (requests of processes that have ended) that the change selects. `answer`:
/// the result for this process's requests. Returns `answer`, combined with the result for the
/// orphans.
fn cancel_orphans(locked: &mut LockedRing, change: &Change, answer: i32) -> i32 {
    let Some(wanted) = change.orphan_filter().filter(|_| change.needs_next_process(answer)) else { return answer };
    let mut cancelled = 0;
    while let Some((slot, user_data)) = locked.journal().take_one_orphan(wanted, process_number::is_alive) {
        locked.complete_orphan(slot, user_data, Errno::ECANCELED);
        cancelled += 1;
        if !change.counts() {
            return 0;
        }
    }
    if cancelled == 0 { answer } else { change.combined(answer, cancelled) }
}

/// Asks other processes to make the change that `request` (such as an ASYNC_CANCEL) makes.
/// `request.result` is the result for this process's requests.
pub(crate) fn begin(locked: &mut LockedRing, request: RequestEntry) {
    let answer = request.result;
    match Change::of(&request.operation) {
        Some(change) => ask(locked, change, Asker::Request(request), answer),
        None => complete::complete(locked, request, answer.into()),
    }
}

/// Asks other processes for a synchronous cancellation, if one of them may have a request that the
/// key selects. `answer`: the result for this process's requests.
///
/// Returns `Ok` with the final answer if no process has to be asked. Otherwise returns `Err` with
/// the word in which the answer will arrive. Until then the word is [`PENDING`].
pub(crate) fn begin_call(
    locked: &mut LockedRing,
    key: &CancelKey,
    answer: Result<i32, Errno>,
) -> Result<Result<i32, Errno>, Arc<AtomicI32>> {
    if !locked.ring.is_shared() {
        return Ok(answer);
    }
    let change = Change::Cancel(*key);
    let answer = cancel_orphans(locked, &change, answer.unwrap_or_else(Errno::negative));
    if others(locked, &change, answer).is_empty() {
        return Ok(result_of(answer));
    }
    let answer_word = Arc::new(AtomicI32::new(PENDING));
    ask(locked, change, Asker::Call(answer_word.clone()), answer);
    Err(answer_word)
}

/// Returns the other processes that have to be asked for a change. The list is empty if `answer`,
/// the result for this process's requests, is enough. The journal names the processes that have
/// requests, but lacks requests from before the ring was shared. All of these belong to the process
/// that made the ring. While there are such requests, that process is asked, too.
fn others(locked: &mut LockedRing, change: &Change, answer: i32) -> Vec<u32> {
    if !change.needs_next_process(answer) {
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
fn ask(locked: &mut LockedRing, mut change: Change, asker: Asker, answer: i32) {
    let mut rest = others(locked, &change, answer);
    let file = named_file(locked, &mut change).unwrap_or_else(|_| {
        rest.clear();
        None
    });
    locked.waiting.remote_changes.add(change, asker, rest, answer, file);
    proceed(locked);
}

/// Duplicates the file that a cancellation names by a descriptor, and stores the duplicate's number
/// in the cancellation's key. Other processes compare their requests' files with the duplicate.
/// `None`: the change names no file.
fn named_file(locked: &LockedRing, change: &mut Change) -> Result<Option<OwnedDescriptor>, Errno> {
    let Change::Cancel(key) = change else { return Ok(None) };
    if !key.has(abi::IORING_ASYNC_CANCEL_FD) {
        return Ok(None);
    }
    cancel::resolve(key, locked)?;
    let file = descriptor::duplicate_private(key.file)?;
    key.file = file.number();
    Ok(Some(file))
}

/// Answers for a process that was asked for a change and is stopped: marks the requests that the
/// change cancels, so that the process cancels them when it continues. `since`: when the process
/// was asked. Returns `None` if the process is not stopped, or if the journal does not show which
/// requests the change cancels.
fn answer_of_stopped(locked: &mut LockedRing, change: &Change, target: u32, since: Nanoseconds) -> Option<i32> {
    let wanted = change.orphan_filter()?;
    if Clock::Monotonic.now() < since + LEAST_SILENCE || !process_number::is_stopped(target) {
        return None;
    }
    let marked = locked.journal().mark_cancelled(target, wanted, change.counts());
    locked.call_other_processes();
    Some(match change.counts() {
        true => marked.cast_signed(),
        false if marked != 0 => 0,
        false => Errno::ENOENT.negative(),
    })
}

fn slot(locked: &LockedRing) -> ChangeSlot {
    locked.ring.control.change_slot(locked.ring.process_number())
}

/// Advances the queue of remote changes (changes that this process asks other processes to make).
/// Takes an answer that has arrived, asks the next process, and completes each remote change for
/// which no process is left.
pub(crate) fn proceed(locked: &mut LockedRing) {
    let slot = slot(locked);
    while let Some(first) = locked.waiting.remote_changes.first()
        && slot.is_available(process_number::is_alive)
    {
        if let Some((target, since)) = first.target {
            let change = first.change;
            let answer = slot.answered().or_else(|| answer_of_stopped(locked, &change, target, since));
            if answer.is_none() && may_answer(locked, target) {
                if !free_overdue_slot(locked, &slot, since) {
                    return;
                }
                continue;
            }
            let answer = answer.unwrap_or(Errno::ENOENT.negative());
            locked.waiting.remote_changes.first_mut().into_iter().for_each(|first| first.note(answer));
        }
        let Some(first) = locked.waiting.remote_changes.first_mut() else { return };
        match first.rest.pop() {
            Some(next) => {
                first.target = Some((next, Clock::Monotonic.now()));
                slot.ask(next, first.change.encode());
                locked.call_other_processes();
            }
            None => {
                free_slot(locked, &slot);
                locked.waiting.remote_changes.take_first().into_iter().for_each(|over| end(locked, over));
            }
        }
    }
}

/// Frees the ring's change slot, through which processes ask each other for changes. If another
/// process waits for the slot, wakes all other processes and returns `true`.
fn free_slot(locked: &mut LockedRing, slot: &ChangeSlot) -> bool {
    let is_wanted = slot.free();
    if is_wanted {
        locked.call_other_processes();
    }
    is_wanted
}

/// Frees the ring's change slot if the process that was asked has not answered within
/// [`LONGEST_USE`], and another remote change waits for the slot. `since`: when the process was
/// asked. Returns whether the next remote change of this process may use the slot at once.
fn free_overdue_slot(locked: &mut LockedRing, slot: &ChangeSlot, since: Nanoseconds) -> bool {
    let is_awaited = locked.waiting.remote_changes.has_several() || slot.is_wanted();
    if !is_awaited || Clock::Monotonic.now() < since + LONGEST_USE {
        return false;
    }
    locked.waiting.remote_changes.requeue_first();
    !free_slot(locked, slot)
}

/// Returns whether a process that was asked for a change may still answer: it is alive, and may
/// have requests of the ring.
fn may_answer(locked: &mut LockedRing, target: u32) -> bool {
    let is_there = locked.ring.control.maker() == Some(target) || locked.journal().others(None).contains(&target);
    is_there && process_number::is_alive(target)
}

fn end(locked: &mut LockedRing, over: RemoteChange) {
    match over.asker {
        Asker::Request(request) => complete::complete(locked, request, over.answer.into()),
        Asker::Call(answer_word) => answer_word.store(over.answer, Ordering::Release),
    }
}

/// Withdraws the remote change of a synchronous cancellation, because the system call that asked
/// for the cancellation no longer waits for the answer. The answer may have arrived in
/// `answer_word` just before.
pub(crate) fn withdraw(locked: &mut LockedRing, answer_word: &Arc<AtomicI32>) {
    if locked.waiting.remote_changes.withdraw(answer_word) {
        release_slot(locked);
        proceed(locked);
    }
}

/// Frees the ring's change slot if this process uses it.
fn release_slot(locked: &mut LockedRing) {
    let slot = slot(locked);
    if slot.is_own() {
        free_slot(locked, &slot);
    }
}

/// Drops all remote changes, because the ring is closed. A system call that waits for a remote
/// change gets the combined answer of the processes asked so far.
pub(crate) fn forget(locked: &mut LockedRing) {
    while let Some(ask) = locked.waiting.remote_changes.take_first() {
        release_slot(locked);
        if let Asker::Call(answer_word) = ask.asker {
            answer_word.store(ask.answer, Ordering::Release);
        }
    }
}
