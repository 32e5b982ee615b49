//! Issues the requests of a ring that may be issued now. Some of them became issuable while a
//! driver issued or completed other requests. The others are the next requests of chains.

use crate::driving::fire;
use crate::request::successor::Successor;
use crate::ring::LockedRing;
use crate::submission::issue;

/// Issues all issuable requests, and rings the doorbells of their devices. Also issues the next
/// requests of chains: the driver that completes a request has to start the next one, because
/// perhaps no other driver comes later.
#[inline]
pub(crate) fn run_issuable(locked: &mut LockedRing) {
    run_issuable_of_batch(locked);
    while !locked.queues.successors.is_empty() {
        fire::poll_before_successors(locked);
        run_successors(locked);
    }
    locked.devices.queues.ring_doorbells();
}

/// Starts the next request of each chain whose current request has completed. Before each start,
/// tries the runnable requests (those due for an attempt without an event) that became due earlier.
#[inline(never)]
fn run_successors(locked: &mut LockedRing) {
    let tail = locked.queues.cq.tail();
    locked.waiting.timeouts.begin_batch(tail);
    for _ in 0..locked.queues.successors.len() {
        let Some(Successor { request, slices_before }) = locked.queues.successors.pop_front() else { break };
        if locked.waiting.polls.has_runnable() {
            fire::run_slices_up_to(locked, slices_before);
        }
        issue::issue(locked, request);
    }
    run_issuable_of_batch(locked);
}

/// Issues all issuable requests without ringing the devices' doorbells. The driver rings them at
/// the end of its batch.
#[inline]
pub(crate) fn run_issuable_of_batch(locked: &mut LockedRing) {
    while let Some(request) = locked.queues.issuable.pop_front() {
        issue::issue(locked, request);
    }
}
