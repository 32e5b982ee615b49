//! Requests of processes that have ended, on a ring that several processes use. A waiter in another
//! process completes these requests, because it may wait for their CQEs.
//!
//! The kernel completes a request of an ended process when the request's worker runs or its file
//! becomes ready. Here the waiter completes all such requests at once, because the workers and
//! descriptors that served them ended with their process. A timeout continues as a request of the
//! waiter's process. On a ring with SQPOLL all requests are those of the SQ thread, and end with
//! the SQ thread's process, as in the kernel.

use crate::driving::{dispatch, expiry};
use crate::ring::{Exit, LockedRing, Ring};
use crate::submission::opcode_table;
use crate::waiting::shared_timers;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_ring::JournalSlot;
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_sys::process_number;
use usring_uapi::io_uring as abi;
use usring_uapi::opcode;

/// Longest sleep, in nanoseconds, of a waiter on a shared ring while other processes have requests
/// in flight. After the sleep, the waiter checks whether those processes are alive.
const CHECK_INTERVAL_NS: Nanoseconds = 10_000_000;
/// Longest sleep, in nanoseconds, of a waiter on a shared ring while no other process has requests
/// in flight. A limit is needed, because another process may die during the sleep. Before its
/// death, that process may have submitted a request, or have published CQEs without waking the
/// waiter.
const LONGEST_SLEEP: Nanoseconds = 100_000_000;

/// Completes the requests of processes that have ended, with −ECANCELED. On a ring without SQPOLL,
/// turns their timeouts into timeouts of this process instead. Issues the requests that an IO_DRAIN
/// has held back and that now have nothing left to wait for. A waiter of a shared ring calls this
/// function before it sleeps. Returns whether the caller has to finish the batch, because there are
/// CQEs to publish or requests to start.
#[cold]
pub(crate) fn complete(locked: &mut LockedRing) -> bool {
    let has_orphans = locked.journal().has_orphans(process_number::is_alive);
    complete_known(locked, has_orphans)
}

/// Does what [`complete`] does, for a waiter that is about to sleep. If processes have ended, first
/// polls the files of this process's requests, because their CQEs may be enough for the waiter.
/// Does not poll if `polled` says that the waiter has done so. In the kernel, the requests of an
/// ended process complete only at an event.
#[cold]
pub(crate) fn complete_before_sleep(locked: &mut LockedRing, polled: &mut bool) -> bool {
    let has_orphans = locked.journal().has_orphans(process_number::is_alive);
    if has_orphans && !*polled && locked.waiting.polls.armed() > 0 {
        *polled = true;
        dispatch::poll(locked);
        locked.finish_batch();
        return true;
    }
    complete_known(locked, has_orphans)
}

/// Does what [`complete`] does. `has_orphans`: whether the journal has requests of processes that
/// have ended.
fn complete_known(locked: &mut LockedRing, has_orphans: bool) -> bool {
    let mut goes_on = false;
    let orphans = |locked: &mut LockedRing| locked.journal().take_orphans(process_number::is_alive);
    let mut ended = if has_orphans { orphans(locked) } else { Vec::new() };
    while !ended.is_empty() {
        for (slot, user_data) in ended {
            if adopt_timeout(locked, slot, user_data) {
                goes_on = true;
            } else {
                locked.complete_orphan(slot, user_data, Errno::ECANCELED);
            }
        }
        // A timeout that was just completed may have had requests linked behind it. These requests
        // are orphans now, and the next round of this loop completes them.
        ended = orphans(locked);
    }
    if goes_on {
        // An adopted timeout also counts CQEs that were posted before its adoption, so it may be
        // complete already.
        expiry::complete_counted(locked);
    }
    if locked.queues.drain.is_active() {
        locked.release_held();
    }
    goes_on || locked.queues.cq.has_unannounced() || !locked.queues.successors.is_empty()
}

/// Completes the requests of an SQ thread that has ended with its process, for a caller that is
/// about to return `EOWNERDEAD`. No later call of this process would complete them.
#[cold]
#[inline(never)]
pub(crate) fn complete_for_lost_thread(ring: &Arc<Ring>) {
    let mut locked = ring.lock();
    locked.queues.sq.need_wakeup();
    if ring.is_shared() && complete(&mut locked) {
        locked.finish_batch();
    }
    locked.release(Exit::Leave);
}

/// Turns a timeout of a process that has ended into a timeout of this process. Returns `false` if
/// the request is no timeout, if there is no memory for it, or if the ring has SQPOLL.
fn adopt_timeout(locked: &mut LockedRing, slot: JournalSlot, user_data: u64) -> bool {
    if locked.ring.has(abi::IORING_SETUP_SQPOLL) {
        return false;
    }
    let Some(timer) = locked.journal().timer(slot) else { return false };
    let Some(mut request) = locked.queues.pool.take() else { return false };
    request.sqe = shared_timers::sqe(user_data);
    let row = opcode_table::row(request.sqe.opcode);
    request.begin(&row.properties);
    locked.adopt_timer(request, slot, &timer, &opcode_table::row(opcode::NOP).properties);
    true
}

/// Returns how long a waiter of a shared ring may sleep at most, in nanoseconds. `span`: the limit
/// for other reasons, such as the waiter's timeout.
pub(crate) fn bound_sleep(locked: &mut LockedRing, span: Option<Nanoseconds>) -> Nanoseconds {
    let longest = if locked.journal().has_others() { CHECK_INTERVAL_NS } else { LONGEST_SLEEP };
    span.map_or(longest, |span| span.min(longest))
}

/// Returns the interval, in nanoseconds, at which the ring watcher checks whether the other
/// processes of a shared ring are alive. The ring watcher makes the check because perhaps no thread
/// of this process waits in io_uring_enter(2). `None`: no check is needed, because no request of
/// this process waits for another process, and this process does not poll the ring's descriptor.
pub(crate) fn check_interval(locked: &LockedRing) -> Option<Nanoseconds> {
    if !locked.ring.is_shared() {
        return None;
    }
    if locked.queues.drain.has_deferred() || !locked.waiting.remote_changes.is_empty() {
        return Some(CHECK_INTERVAL_NS);
    }
    locked.ring.readiness.is_polled().then_some(LONGEST_SLEEP)
}
