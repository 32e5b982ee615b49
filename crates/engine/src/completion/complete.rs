//! Completes a request: posts its CQE, starts or cancels the next request of its chain, and
//! releases what the request held.

use crate::completion::{faults, observation};
use crate::probes;
use crate::request::operation::Operation;
use crate::request::operation::send_receive::REPORT_USAGE;
use crate::request::outcome::Answer;
use crate::request::successor::Successor;
use crate::request::{Progress, Request, RequestEntry};
use crate::ring::{LockedRing, Queues, RingState};
use usring_sys::{Errno, unusual};
use usring_uapi::io_uring as abi;
use usring_uapi::io_uring::{IORING_CQE_F_MORE, IORING_CQE_F_NOTIF};
use usring_uapi::{Cqe, sqe_flags};

/// Completes a request: posts exactly one CQE without F_MORE, or no CQE if the request succeeded
/// and has CQE_SKIP_SUCCESS. Exception: a zero-copy send posts a CQE with F_MORE and then its
/// notification.
#[inline(always)]
pub(crate) fn complete(locked: &mut LockedRing, mut request: RequestEntry, answer: Answer) {
    if probes::is_on(locked.ring) {
        // The tracer may have attached after the request's submission.
        request.watch_for_tracer();
    }
    complete_submitted(locked, request, answer);
}

/// Completes a request as [`complete`] does, but without a check for tracers. Called during the
/// request's submission, which has made this check.
#[inline(always)]
pub(crate) fn complete_submitted(locked: &mut LockedRing, mut request: RequestEntry, answer: Answer) {
    if request.fault.is_some() {
        return faults::complete(locked, request, answer);
    }
    if request.is_watched {
        let posts = answer.failed || !request.has_flag(sqe_flags::CQE_SKIP_SUCCESS);
        observation::completed(locked, &mut request, answer, posts);
    }
    locked.queues.statistics.count_completed(request.sqe.opcode, answer.result);
    if answer.failed || !request.has_flag(sqe_flags::CQE_SKIP_SUCCESS) {
        let mut flags = request.cqe_flags;
        if request.buffer.is_some() {
            flags |= locked.registered.buffer_groups.flags_of(&mut request.buffer);
        }
        if request.journal.is_some() {
            let cqes = if flags & IORING_CQE_F_MORE != 0 { 2 } else { 1 };
            end_in_journal(locked, &mut request, cqes);
        }
        let cqe = Cqe { user_data: request.sqe.user_data, res: answer.result, flags };
        let ring = locked.ring;
        let RingState { queues: Queues { cq, .. }, notify: notifications, .. } = &mut **locked;
        cq.post_wide(cqe, || request.extension(ring.posts_events(), &mut notifications.request_events));
        if cqe.flags & IORING_CQE_F_MORE != 0 {
            notify(locked, request.sqe.user_data, notification_result(&request, answer.result));
        }
    } else if request.journal.is_some() {
        end_in_journal(locked, &mut request, 0);
    }
    finish(locked, request, answer);
}

/// Posts the notification (F_NOTIF) of a zero-copy send: the program may now reuse the memory that
/// it sent from. The request's own CQE has announced the notification by F_MORE. `usage`: the
/// notification's result, from the function [`notification_result`].
#[cold]
fn notify(locked: &mut LockedRing, user_data: u64, usage: i32) {
    locked.post(Cqe { user_data, res: usage, flags: IORING_CQE_F_NOTIF });
}

/// Completes a request that has not begun because its chain is broken, with the error in
/// `request.result`. A zero-copy send still gets its notification. But the send's CQE lacks the
/// flag F_MORE, which announces a notification.
pub(crate) fn complete_not_started(locked: &mut LockedRing, mut request: RequestEntry) {
    let notifies = core::mem::take(&mut request.cqe_flags) & IORING_CQE_F_MORE != 0;
    let (user_data, answer) = (request.sqe.user_data, request.result.into());
    complete(locked, request, answer);
    if notifies {
        notify(locked, user_data, 0);
    }
}

/// Completes a request of a broken chain without posting a CQE.
pub(crate) fn complete_without_cqe(locked: &mut LockedRing, mut request: RequestEntry) {
    end_in_journal(locked, &mut request, 0);
    if request.is_watched {
        observation::completed(locked, &mut request, Errno::ECANCELED.negative().into(), false);
    }
    finish(locked, request, Answer { result: 0, failed: true });
}

#[inline(always)]
fn finish(locked: &mut LockedRing, mut request: RequestEntry, answer: Answer) {
    locked.queues.drain.retire();
    if locked.waiting.rights.count_requests() {
        locked.waiting.rights.leave(&request);
    }
    // A buffer that no CQE has named (a success with CQE_SKIP_SUCCESS) counts as consumed, as in
    // the kernel. If the buffer went back to its group, a second read could get a buffer that
    // already holds data.
    request.buffer = None;
    if request.link_timeout.is_some() {
        disarm_link_timeout(locked, &mut request);
    }
    if request.link.is_some() {
        continue_chain(locked, &mut request, answer);
    }
    locked.queues.pool.give_back(request);
    if locked.queues.drain.is_active() {
        locked.release_held();
    }
}

/// Records in the journal of a shared ring (the list of requests in flight) that the request ends
/// with this many CQEs. The caller posts these CQEs next.
#[cold]
fn end_in_journal(locked: &mut LockedRing, request: &mut Request, cqes: u32) {
    let Queues { journal, cq, .. } = &mut locked.queues;
    match (journal, request.journal.take()) {
        (Some(journal), Some(slot)) if cqes == 0 => journal.remove(slot),
        (Some(journal), Some(slot)) => journal.end(slot, cqes, cq),
        _ => {}
    }
}

/// Posts one of many CQEs of a multishot request, with F_MORE. Returns `false`, and posts nothing,
/// if the CQ is full. The multishot must then end: its last CQE has no F_MORE and may go to the
/// backlog.
pub(crate) fn post_more(locked: &mut LockedRing, request: &Request, result: i32, flags: u32) -> bool {
    if locked.queues.cq.is_full() {
        return false;
    }
    let flags = flags | IORING_CQE_F_MORE;
    if request.is_watched || unusual::is_probed() {
        observation::posted(locked, request, result, flags);
    }
    locked.queues.cq.post(Cqe { user_data: request.sqe.user_data, res: result, flags });
    true
}

/// Posts a CQE for the tag of a registered file or buffer that was released. Such a CQE belongs to
/// no request.
pub(crate) fn post_tag(locked: &mut LockedRing, user_data: u64) {
    locked.post(Cqe { user_data, res: 0, flags: 0 });
}

/// Continues a chain after one of its requests has completed: starts the next request, or cancels
/// all that follow.
fn continue_chain(locked: &mut LockedRing, completed: &mut Request, answer: Answer) {
    let Some(mut next) = completed.link.take() else { return };
    next.recorded_batch = 0;
    if next.is_link_timeout() {
        match detach_link_timeout(locked, next) {
            Some(behind) => next = behind,
            None => return,
        }
    }
    if answer.failed && !completed.has_flag(sqe_flags::IO_HARDLINK) {
        cancel_rest(locked, next, completed);
    } else {
        if completed.progress == Progress::Ran {
            // In the kernel, the worker that ran the completed request would also run the next one,
            // and a worker raises no SIGPIPE. So the next request must not raise SIGPIPE here.
            next.suppress_sigpipe();
        }
        queue_successor(locked, next);
    }
}

/// Queues a request that may start now (a [`Successor`]). The driver starts it only after two
/// groups of requests: it first retries the requests whose retry was due earlier, and starts the
/// requests that were queued earlier.
fn queue_successor(locked: &mut LockedRing, request: RequestEntry) {
    let slices_before = Some(locked.waiting.polls.slices_due());
    locked.queues.successors.push_back(Successor { request, slices_before });
}

/// Cancels the requests of a chain that follow the request `failed`.
fn cancel_rest(locked: &mut LockedRing, first: RequestEntry, failed: &Request) {
    let silent = failed.has_flag(sqe_flags::CQE_SKIP_SUCCESS);
    let mut next = Some(first);
    while let Some(mut request) = next {
        next = request.link.take();
        if probes::is_on(locked.ring) {
            probes::cancelled(locked, failed, &request);
        }
        cancel_member(locked, request, silent);
    }
}

/// Cancels one request of a broken chain. A request whose prepare failed keeps the error of its
/// prepare. `silent`: the request that broke the chain has CQE_SKIP_SUCCESS. The cancelled request
/// then gets no CQE, whatever its own flags are.
pub(crate) fn cancel_member(locked: &mut LockedRing, mut member: RequestEntry, silent: bool) {
    if silent {
        return complete_without_cqe(locked, member);
    }
    if member.progress != Progress::Refused {
        member.result = Errno::ECANCELED.negative();
    }
    member.progress = Progress::NotStarted;
    queue_successor(locked, member);
}

/// Unlinks the LINK_TIMEOUT that follows a request which has completed without waiting. The
/// LINK_TIMEOUT completes by itself. Returns the next request of the chain, which now follows the
/// completed request. `None`: the LINK_TIMEOUT was the last of the chain.
pub(crate) fn detach_link_timeout(locked: &mut LockedRing, mut watcher: RequestEntry) -> Option<RequestEntry> {
    let next = watcher.link.take();
    queue_successor(locked, watcher);
    next
}

/// Returns the answer of a LINK_TIMEOUT that completes with `error`. This answer never counts as a
/// failure, so a LINK_TIMEOUT with CQE_SKIP_SUCCESS posts no CQE.
pub(crate) fn link_timeout_answer(error: Errno) -> Answer {
    Answer { result: error.negative(), failed: false }
}

/// Disarms the LINK_TIMEOUT that watches a request, because the request has completed in time.
fn disarm_link_timeout(locked: &mut LockedRing, request: &mut Request) {
    let Some(id) = request.link_timeout.take() else { return };
    if let Some(watcher) = locked.waiting.timeouts.take(id) {
        complete(locked, watcher, link_timeout_answer(Errno::ECANCELED));
    }
}

/// Returns the result for the notification of a zero-copy send: IORING_NOTIF_USAGE_ZC_COPIED if the
/// program asked how the data was sent (REPORT_USAGE), else 0.
pub(crate) fn notification_result(request: &Request, result: i32) -> i32 {
    match &request.operation {
        // usring always copies the data.
        Operation::SendReceive(transfer) if transfer.has(REPORT_USAGE) && result >= 0 => {
            abi::IORING_NOTIF_USAGE_ZC_COPIED.cast_signed()
        }
        _ => 0,
    }
}
