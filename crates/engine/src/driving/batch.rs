//! Requests that may be issued now: those that have become issuable while others were issued or
//! completed, and the successors of chains.

use crate::driving::fire;
use crate::ring::LockedRing;
use crate::submission::issue;

/// Issues issuable requests until none is left, and rings the devices' doorbells for them.
/// Whichever driver ends a request of a chain also starts the next one, because no other driver may
/// come by later.
#[inline]
pub(crate) fn run_issuable(locked: &mut LockedRing) {
    run_issuable_of_batch(locked);
    while !locked.queues.successors.is_empty() {
        fire::poll_before_successors(locked);
        run_successors(locked);
    }
    locked.devices.queues.ring_doorbells();
}

/// Moves each waiting chain on by one request.
#[inline(never)]
fn run_successors(locked: &mut LockedRing) {
    let tail = locked.queues.cq.tail();
    locked.waiting.timeouts.begin_batch(tail);
    let state = &mut **locked;
    core::mem::swap(&mut state.queues.issuable, &mut state.queues.successors);
    run_issuable_of_batch(locked);
}

/// Issues issuable requests in the middle of a batch. Leaves the devices' doorbells to the batch's
/// end.
#[inline]
pub(crate) fn run_issuable_of_batch(locked: &mut LockedRing) {
    while let Some(request) = locked.queues.issuable.pop_front() {
        issue::issue(locked, request);
    }
}
