//! Deferred submits: requests for devices on which a submit may sleep. The driver accepts such
//! requests under the ring's lock, and submits them after it has released the lock.
//!
//! - Before a driver releases the lock under which it accepted requests, it takes the requests out
//!   of the channels (the ring's queue pairs on devices). So no other thread submits any of them.
//! - The driver's io_uring_enter(2) does not return before the kernel has all of these requests.
//!   The descriptor numbers of their files stay valid until then, because a program may close a
//!   file of a request only after the call.
//! - No later request of the driver's thread overtakes its earlier ones. Requests that other
//!   threads submit at this time may overtake them.
//!
//! Completions cause further submits: the next requests of chains, and requests that waited for a
//! free slot of a channel. Each of these requests holds a duplicate of its file, so any thread may
//! submit the request. A thread that must not sleep leaves these submits to a submit helper.

use crate::driving::reap::{reap_one, submit_awaiting};
use crate::driving::ring_watcher;
use crate::driving::submit_helpers::submit_helpers;
use crate::ring::{Exit, LockedRing, Ring};
use crate::waiting::tasks::tasks;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::DeferredSubmit;

/// The index of a channel (the ring's queue pair on a device), and the requests that are being
/// submitted to it.
type Batch = (usize, DeferredSubmit);

/// Maximum number of flushes (submits of all deferred requests) that a driver makes before it
/// leaves the remaining requests to a submit helper. The first flush submits the driver's own
/// requests. Later flushes submit members of chains that completions have started, and such
/// requests usually start more requests.
const MOST_FLUSHES: u32 = 8;

/// Submits the deferred requests of a driver that has finished its batch. The submits may sleep, so
/// this function releases the ring's lock for them. Meanwhile the ring watcher watches the ring. On
/// return, the devices have all requests that the driver itself accepted.
#[inline(never)]
pub(crate) fn flush(mut locked: LockedRing) -> LockedRing {
    for _ in 0..MOST_FLUSHES {
        locked = flush_once(locked);
        if locked.devices.queues.pending == 0 {
            return locked;
        }
        if locked.devices.queues.has_pending_that_waited() {
            break;
        }
    }
    leave_pending(&mut locked);
    locked
}

/// Submits deferred requests until there are none, for a thread that has nothing else to do.
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
    // `begin` returns the batch of the first device with deferred requests. It puts the batches of
    // other devices into `others`. Usually only one device has a batch.
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
        return end_batches_of_closed(locked, others);
    }
    end_batch(&mut locked, index, batch);
    if !others.is_empty() {
        end_other_batches(&mut locked, others);
    }
    locked.finish_batch();
    locked
}

/// Ends a deferred submit of a channel (the ring's queue pair on a device). If the channel has no
/// other deferred submit under way, submits the requests that wait for a free slot of the channel.
fn end_one(locked: &mut LockedRing, index: usize) {
    let queue = &mut locked.devices.queues.channels[index];
    queue.in_flush -= 1;
    if queue.must_await_slot && queue.in_flush == 0 {
        submit_awaiting(locked, index);
    }
}

/// Wakes the waiters of a ring whose waiters poll devices. They sleep while no request is in flight
/// on a device, and now a request is in flight.
#[inline(always)]
fn wake_polling_waiters(ring: &Ring) {
    if ring.waiters_poll {
        ring.wakers.wake_all(u32::MAX);
    }
}

/// Takes all deferred requests out of the channels (queue pairs on devices). Returns the first
/// channel's batch, and adds the batches of further channels to `others`. `None`: no request was
/// deferred.
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
            if queue.must_await_slot && queue.in_flush == 0 {
                submit_awaiting(locked, index);
                // A device may have refused requests at once. Their CQEs are published here,
                // because the caller releases the lock next.
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
fn end_other_batches(locked: &mut LockedRing, others: Vec<Batch>) {
    for (index, batch) in others {
        end_batch(locked, index, batch);
    }
}

#[inline(always)]
fn end_batch(locked: &mut LockedRing, index: usize, batch: DeferredSubmit) {
    locked.devices.queues.channels[index].channel.end_deferred(batch);
    // By now, the device has often completed some requests, or refused those that would block. So
    // the channel is polled here.
    if !locked.waiters_poll_devices() {
        reap_one(locked, index);
    }
    end_one(locked, index);
}

#[cold]
fn end_batches_of_closed<'a>(mut locked: LockedRing<'a>, batches: Vec<Batch>) -> LockedRing<'a> {
    let ring = locked.ring;
    let resources = locked.devices.closed_ring_resources.as_deref_mut().expect("kept until deferred submits end");
    for (index, batch) in batches {
        let queue = &mut resources.devices.channels[index];
        queue.in_flush -= 1;
        queue.channel.end_deferred(batch);
    }
    if !resources.submits_have_ended() {
        return locked;
    }
    let resources = core::mem::take(resources);
    locked.release(Exit::Bare);
    resources.release_resources();
    let mut locked = ring.lock();
    locked.devices.closed_ring_resources = None;
    locked
}

/// Makes the deferred submits of a driver that leaves the ring. If the driver is the ring watcher,
/// leaves them to a submit helper: the ring watcher serves all rings and must not sleep.
#[inline(never)]
pub(crate) fn flush_or_leave(locked: LockedRing) -> LockedRing {
    if tasks().is_current() { leave_to_helper(locked) } else { flush(locked) }
}

/// Leaves deferred submits to a submit helper, for a thread that must not sleep. If no helper can
/// be started, the calling thread makes them itself.
pub(crate) fn leave_to_helper(mut locked: LockedRing) -> LockedRing {
    leave_pending(&mut locked);
    if locked.devices.queues.has_pending_submits() { flush_once(locked) } else { locked }
}

/// Leaves deferred submits to a [submit helper](super::submit_helpers). The submits stay pending if
/// no helper can be started.
pub(crate) fn leave_pending(locked: &mut LockedRing) {
    if locked.devices.queues.has_pending_submits() {
        locked.devices.queues.left_to_helper = submit_helpers().call(locked.ring);
    }
}
