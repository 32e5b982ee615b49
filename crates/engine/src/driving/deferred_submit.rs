//! Deferred submits: requests that were accepted for devices on which a submit may sleep. The
//! thread that releases the ring's lock submits them, after the release.
//!
//! - A thread takes its own requests for submission before it releases the lock under which they
//!   were accepted. No other thread submits any of them.
//! - The thread's call does not return before the kernel has all of them. Until then the program's
//!   numbers of their files are valid.
//! - No later request of the thread overtakes its earlier ones. Requests that other threads submit
//!   at the same time may overtake them.
//!
//! Completions lead to further requests: the next members of chains, and requests that waited for a
//! free slot. Each of these holds a duplicate of its file, so any thread may submit it. A thread
//! that must not sleep leaves them to a submit helper.

use crate::driving::reap::{reap_one, submit_backlog};
use crate::driving::ring_watcher;
use crate::driving::submit_helpers::submit_helpers;
use crate::ring::{Exit, LockedRing, Ring};
use crate::waiting::tasks::tasks;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::DeferredSubmit;

/// A channel's index, and the batch that is being submitted for it.
type Batch = (usize, DeferredSubmit);

/// Most deferred submits that a driver makes before it leaves the rest to a submit helper. The
/// first submit is the driver's own. If its completions start further requests (members of a
/// chain), those usually start more.
const MOST_FLUSHES: u32 = 8;

/// Makes the deferred submits of a driver that has finished its batch. They may sleep, so the
/// ring's lock is released for them, and the ring watcher takes over the ring meanwhile. On return,
/// the devices have all requests that the driver itself submitted.
#[inline(never)]
pub(crate) fn flush(mut locked: LockedRing) -> LockedRing {
    for _ in 0..MOST_FLUSHES {
        locked = flush_once(locked);
        if locked.devices.queues.pending == 0 {
            return locked;
        }
        if locked.devices.queues.has_pending_backlog() {
            break;
        }
    }
    leave_pending(&mut locked);
    locked
}

/// Makes all deferred submits, for a thread that has nothing else to do.
pub(super) fn flush_all(ring: Arc<Ring>) {
    let mut locked = ring.lock();
    while locked.devices.queues.pending != 0 {
        locked = flush_once(locked);
    }
    locked.release(Exit::Leave);
}

#[inline(always)]
fn flush_once(mut locked: LockedRing) -> LockedRing {
    let ring = locked.ring;
    let pending = locked.devices.queues.pending;
    ring_watcher::take_over_beside(&mut locked, pending);
    // Batches of further channels; usually there are none.
    let mut others = Vec::new();
    let Some((index, mut batch)) = begin(&mut locked, &mut others) else {
        wake_polling_waiters(ring);
        return locked;
    };
    locked.release(Exit::ToSubmit);
    wake_polling_waiters(ring);
    batch.run();
    others.iter_mut().for_each(|(_, batch)| batch.run());
    locked = ring.lock();
    if locked.closed {
        others.push((index, batch));
        return bring_back_to_closed(locked, others);
    }
    bring_one_back(&mut locked, index, batch);
    if !others.is_empty() {
        bring_others_back(&mut locked, others);
    }
    locked.finish_batch();
    locked
}

/// Ends a deferred submit of a channel. The backlog is submitted once no deferred submit is under
/// way.
fn end_one(locked: &mut LockedRing, index: usize) {
    let queue = &mut locked.devices.queues.channels[index];
    queue.in_flush -= 1;
    if queue.is_behind && queue.in_flush == 0 {
        submit_backlog(locked, index);
    }
}

/// Wakes the threads that sleep because there was nothing to poll. A request is now in flight on a
/// device, so they have to poll.
#[inline(always)]
fn wake_polling_waiters(ring: &Ring) {
    if ring.waiters_poll {
        ring.wakers.wake_all(u32::MAX);
    }
}

/// Takes all deferred requests for submission. Returns the first channel's batch, and adds those of
/// further channels to `others`. `None`: no request was deferred.
#[inline(always)]
fn begin(locked: &mut LockedRing, others: &mut Vec<Batch>) -> Option<Batch> {
    let closed = locked.closed;
    let queues = &mut locked.devices.queues;
    (queues.left_to_helper, queues.pending) = (false, 0);
    if closed {
        return None;
    }
    let mut first = None;
    for index in 0..locked.devices.queues.channels.len() {
        let queue = &mut locked.devices.queues.channels[index];
        if core::mem::take(&mut queue.pending) == 0 {
            continue;
        }
        let Some(batch) = queue.channel.begin_deferred() else {
            if queue.is_behind && queue.in_flush == 0 {
                submit_backlog(locked, index);
                // Requests that a device refuses at once are complete, and the lock is released
                // next.
                locked.finish_batch();
            }
            continue;
        };
        queue.in_flush += 1;
        match first {
            None => first = Some((index, batch)),
            Some(_) => others.push((index, batch)),
        }
    }
    first
}

#[cold]
fn bring_others_back(locked: &mut LockedRing, others: Vec<Batch>) {
    for (index, batch) in others {
        bring_one_back(locked, index, batch);
    }
}

#[inline(always)]
fn bring_one_back(locked: &mut LockedRing, index: usize, batch: DeferredSubmit) {
    locked.devices.queues.channels[index].channel.end_deferred(batch);
    // By now, the device has often completed some requests, or refused those that would have to
    // wait.
    if !locked.waiters_poll_devices() {
        reap_one(locked, index);
    }
    end_one(locked, index);
}

#[cold]
fn bring_back_to_closed<'a>(mut locked: LockedRing<'a>, batches: Vec<Batch>) -> LockedRing<'a> {
    let ring = locked.ring;
    let departing = locked.devices.departing.as_deref_mut().expect("it waits for what is being delivered");
    for (index, batch) in batches {
        let queue = &mut departing.devices.channels[index];
        queue.in_flush -= 1;
        queue.channel.end_deferred(batch);
    }
    if !departing.is_back() {
        return locked;
    }
    let departing = core::mem::take(departing);
    locked.release(Exit::Bare);
    departing.go();
    let mut locked = ring.lock();
    locked.devices.departing = None;
    locked
}

/// Makes the deferred submits of a thread that releases the lock anyway. The ring watcher leaves
/// them to a submit helper, because it serves all rings.
#[inline(never)]
pub(crate) fn flush_or_leave(locked: LockedRing) -> LockedRing {
    if tasks().is_current() { leave_to_helper(locked) } else { flush(locked) }
}

/// Leaves deferred submits to a submit helper, for a thread that must not sleep. If no helper can
/// be started, the thread makes them itself.
pub(crate) fn leave_to_helper(mut locked: LockedRing) -> LockedRing {
    leave_pending(&mut locked);
    if locked.devices.queues.has_pending_submits() { flush_once(locked) } else { locked }
}

/// Leaves deferred submits to a [submit helper](super::submit_helpers). They stay pending if no
/// helper can be started.
pub(crate) fn leave_pending(locked: &mut LockedRing) {
    if locked.devices.queues.has_pending_submits() {
        locked.devices.queues.left_to_helper = submit_helpers().call(locked.ring);
    }
}
