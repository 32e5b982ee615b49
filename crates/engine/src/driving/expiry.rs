//! Completes timeouts: those whose time has come, and those that count completions.

use crate::completion::complete::{self, link_timeout_answer};
use crate::completion::faults;
use crate::driving::batch;
use crate::request::RequestEntry;
use crate::request::conditions::{Deadline, RequestId};
use crate::request::outcome::Answer;
use crate::ring::LockedRing;
use crate::waiting::cancel::{self, Found};
use crate::waiting::timeout::{CLOCKS, JournaledTimeout};
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_uapi::opcode;

/// Completes the timeouts that have reached their number of completions, if the CQ has CQEs that
/// were not counted yet.
pub(crate) fn flush_counted(locked: &mut LockedRing) {
    if locked.waiting.timeouts.has_counted(locked.queues.cq.tail()) {
        complete_counted(locked);
    }
}

/// Completes the timeouts that have reached their number of completions.
pub(crate) fn complete_counted(locked: &mut LockedRing) {
    let tail = locked.queues.cq.tail();
    let completions = locked.waiting.timeouts.count_to(tail);
    while let Some(timer) = locked.waiting.timeouts.pop_counted(completions) {
        if timer.request.is_delayed() {
            faults::resume(locked, timer.request);
            continue;
        }
        locked.count_ended_timeout();
        complete::complete(locked, timer.request, 0.into());
    }
}

/// Completes the timeouts that have expired. Reads each clock once, so a repeating timeout repeats
/// at most once per call, however short its interval is.
pub(crate) fn expire(locked: &mut LockedRing) {
    if locked.waiting.timeouts.is_empty() {
        return;
    }
    for clock in CLOCKS {
        if !locked.waiting.timeouts.are_any(clock) {
            continue;
        }
        let now = clock.now();
        while let Some(timer) = locked.waiting.timeouts.pop_expired(clock, now) {
            if timer.request.is_delayed() {
                faults::expire(locked, timer.request);
                continue;
            }
            match timer.deadline.watches {
                Some(target) => expire_link(locked, timer.request, target),
                None => expire_timeout(locked, timer.request, timer.deadline, now),
            }
        }
    }
    batch::run_issuable(locked);
}

fn expire_timeout(locked: &mut LockedRing, request: RequestEntry, deadline: Deadline, now: Nanoseconds) {
    locked.count_ended_timeout();
    let result = Errno::ETIME.negative();
    let goes_on = deadline.repeat_every != 0 && deadline.repeats != 1;
    if goes_on && complete::post_more(locked, &request, result, 0) {
        // The interval begins anew at the present time, as in the kernel. So if this repetition is
        // late, all later repetitions are late, too.
        let at = now.saturating_add(deadline.repeat_every);
        let repeats = deadline.repeats.saturating_sub(1);
        let journaled = JournaledTimeout::new(&request, Deadline { at, repeats, ..deadline });
        locked.waiting.timeouts.insert(request, journaled.deadline, None);
        locked.note_timer(&journaled, None);
        return;
    }
    complete::complete(locked, request, Answer { result, failed: !deadline.expiry_succeeds });
}

/// Handles the expiry of a LINK_TIMEOUT. Posts the timeout's CQE first, and then the CQE of the
/// request that the timeout watches, with −ECANCELED. If a worker already runs that request,
/// interrupts the worker's system call if possible. The timeout's CQE then says that the request
/// was not found (ENOENT).
fn expire_link(locked: &mut LockedRing, mut watcher: RequestEntry, target: RequestId) {
    let answer = match cancel::cancel_id(locked, target) {
        Found::Cancelled => link_timeout_answer(Errno::ETIME),
        // In the kernel, WAITID occupies no worker, so the search for the request succeeds and
        // returns 1, the number of requests found. The LINK_TIMEOUT gets this result.
        Found::Running(opcode::WAITID) => 1.into(),
        Found::Running(_) | Found::Nothing => link_timeout_answer(Errno::ENOENT),
    };
    watcher.link = None;
    complete::complete(locked, watcher, answer);
}
