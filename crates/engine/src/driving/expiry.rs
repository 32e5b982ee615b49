//! The end of timeouts: by time, or after a number of completions.

use crate::completion::complete::{self, link_timeout_answer};
use crate::driving::batch;
use crate::request::RequestEntry;
use crate::request::conditions::{Deadline, RequestId};
use crate::request::outcome::Answer;
use crate::ring::LockedRing;
use crate::waiting::cancel::{self, Found};
use crate::waiting::timeout::CLOCKS;
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_uapi::opcode;

/// Completes the timeouts for which enough requests have completed.
pub(crate) fn flush_counted(locked: &mut LockedRing) {
    let tail = locked.queues.cq.tail();
    if !locked.waiting.timeouts.has_counted(tail) {
        return;
    }
    let completions = locked.waiting.timeouts.count_to(tail);
    while let Some(timer) = locked.waiting.timeouts.pop_counted(completions) {
        locked.count_ended_timeout();
        complete::complete(locked, timer.request, 0.into());
    }
}

/// Completes the timeouts that have expired. Each clock is read once, so a repeating timeout
/// repeats at most once per call, however short its span is.
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
    if goes_on && complete::post_more(locked, request.sqe.user_data, result, 0) {
        // The span begins anew, as in the kernel: missed repetitions are not made up for.
        let at = now.saturating_add(deadline.repeat_every);
        let repeats = deadline.repeats.saturating_sub(1);
        locked.waiting.timeouts.insert(request, Deadline { at, repeats, ..deadline }, None);
        return;
    }
    complete::complete(locked, request, Answer { result, failed: !deadline.expiry_succeeds });
}

/// Handles the expiry of a LINK_TIMEOUT. Its CQE comes first, then −ECANCELED for the request that
/// it watches. If a worker has the request, its system call is ended if possible, but the request
/// counts as not found.
fn expire_link(locked: &mut LockedRing, mut watcher: RequestEntry, target: RequestId) {
    let answer = match cancel::cancel_id(locked, target) {
        Found::Cancelled => link_timeout_answer(Errno::ETIME),
        // In the kernel, WAITID occupies no worker, and the search for it returns the number of
        // requests that it found.
        Found::Running(opcode::WAITID) => 1.into(),
        Found::Running(_) | Found::Nothing => link_timeout_answer(Errno::ENOENT),
    };
    watcher.link = None;
    complete::complete(locked, watcher, answer);
}
