//! Deferred submits: requests that were accepted for devices on which a submit may sleep. The
//! thread that releases the ring's lock submits them, after the release.
//!
//! - A thread's own requests, for all channels, are taken for submission under the same hold of the
//!   lock under which they were accepted. No other thread submits any of them.
//! - The thread's call does not return before the kernel has all of them. Until then the numbers of
//!   their files are valid.
//! - No later request of the thread overtakes its earlier ones. Requests that other threads submit
//!   meanwhile may.
//!
//! Completions lead to further requests: chains that go on, and requests that waited for room.
//! Their files are kept, so any thread may submit them. A thread that must not sleep leaves them to
//! a submit helper.

use crate::driving::reap::{reap_one, submit_backlog};
use crate::driving::ring_watcher;
use crate::driving::submit_helpers::carriers;
use crate::ring::{Exit, LockedRing, Ring};
use crate::waiting::tasks::tasks;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::Delivery;

/// A channel's index, and the batch that is being submitted for it.
type Load = (usize, Delivery);

/// Most deferred submits that a driver makes before it leaves the rest to a submit helper. The
/// first is its own. Requests that its completions start (a link goes on) usually lead to further
/// ones.
const ROUNDS: u32 = 8;

/// Makes the deferred submits of a driver that has finished its batch. They may sleep, so the
/// ring's lock is released for them, and what the ring waits for is watched meanwhile. On return,
/// all that the driver itself submitted has been handed to the devices.
#[inline(never)]
pub(crate) fn deliver(mut locked: LockedRing) -> LockedRing {
    for _ in 0..ROUNDS {
        locked = deliver_once(locked);
        if locked.devices.queues.owing == 0 {
            return locked;
        }
        if locked.devices.queues.owes_backlog() {
            break;
        }
    }
    leave_delivery(&mut locked);
    locked
}

/// Makes deferred submits until none is left, for a thread that has nothing else to do.
pub(super) fn deliver_all(ring: Arc<Ring>) {
    let mut locked = ring.lock();
    while locked.devices.queues.owing != 0 {
        locked = deliver_once(locked);
    }
    locked.release(Exit::Leave);
}

#[inline(always)]
fn deliver_once(mut locked: LockedRing) -> LockedRing {
    let ring = locked.ring;
    let owing = locked.devices.queues.owing;
    ring_watcher::take_over_beside(&mut locked, owing);
    // Batches of further channels; there are rarely any.
    let mut others = Vec::new();
    let Some((index, mut delivery)) = begin(&mut locked, &mut others) else {
        call_lookers(ring);
        return locked;
    };
    locked.release(Exit::ToSubmit);
    call_lookers(ring);
    delivery.carry_out();
    others.iter_mut().for_each(|(_, delivery)| delivery.carry_out());
    locked = ring.lock();
    if locked.closed {
        others.push((index, delivery));
        return bring_back_to_closed(locked, others);
    }
    bring_one_back(&mut locked, index, delivery);
    if !others.is_empty() {
        bring_others_back(&mut locked, others);
    }
    locked.finish_batch();
    locked
}

/// Ends a deferred submit of a channel. The backlog follows once none is under way.
fn end_one(locked: &mut LockedRing, index: usize) {
    let queue = &mut locked.devices.queues.channels[index];
    queue.away -= 1;
    if queue.is_behind && queue.away == 0 {
        submit_backlog(locked, index);
    }
}

/// Wakes the threads that sleep instead of polling for events: they have to poll now.
#[inline(always)]
fn call_lookers(ring: &Ring) {
    if ring.looks_for_events {
        ring.wakers.wake_all(u32::MAX);
    }
}

/// Takes all deferred requests for submission: returns the first channel's batch, and adds further
/// ones to `others`. `None`: there was no batch.
#[inline(always)]
fn begin(locked: &mut LockedRing, others: &mut Vec<Load>) -> Option<Load> {
    let closed = locked.closed;
    let queues = &mut locked.devices.queues;
    (queues.left, queues.owing) = (false, 0);
    if closed {
        return None;
    }
    let mut first = None;
    for index in 0..locked.devices.queues.channels.len() {
        let queue = &mut locked.devices.queues.channels[index];
        if core::mem::take(&mut queue.owes) == 0 {
            continue;
        }
        let Some(delivery) = queue.channel.begin_delivery() else {
            if queue.is_behind && queue.away == 0 {
                submit_backlog(locked, index);
                // Requests that a device refuses at once are complete, and the lock is released
                // next.
                locked.finish_batch();
            }
            continue;
        };
        queue.away += 1;
        match first {
            None => first = Some((index, delivery)),
            Some(_) => others.push((index, delivery)),
        }
    }
    first
}

#[cold]
fn bring_others_back(locked: &mut LockedRing, others: Vec<Load>) {
    for (index, delivery) in others {
        bring_one_back(locked, index, delivery);
    }
}

#[inline(always)]
fn bring_one_back(locked: &mut LockedRing, index: usize, delivery: Delivery) {
    locked.devices.queues.channels[index].channel.end_delivery(delivery);
    // The device has often completed some requests by now, or could not take them without waiting.
    if !locked.is_looked_for() {
        reap_one(locked, index);
    }
    end_one(locked, index);
}

#[cold]
fn bring_back_to_closed<'a>(mut locked: LockedRing<'a>, loads: Vec<Load>) -> LockedRing<'a> {
    let ring = locked.ring;
    let departing = locked.devices.departing.as_deref_mut().expect("it waits for what is being delivered");
    for (index, delivery) in loads {
        let queue = &mut departing.devices.channels[index];
        queue.away -= 1;
        queue.channel.end_delivery(delivery);
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

/// Makes the deferred submits for a thread that releases the lock anyway. The ring watcher, which
/// serves all rings, leaves them to a submit helper.
#[inline(never)]
pub(crate) fn deliver_or_leave(locked: LockedRing) -> LockedRing {
    if tasks().is_current() { left_to_thread(locked) } else { deliver(locked) }
}

/// Leaves deferred submits to a submit helper, for a thread that must not sleep. If no helper can
/// be started, makes them itself.
pub(crate) fn left_to_thread(mut locked: LockedRing) -> LockedRing {
    leave_delivery(&mut locked);
    if locked.devices.queues.owes_delivery() { deliver_once(locked) } else { locked }
}

/// Leaves deferred submits to a [submit helper](super::submit_helpers). They stay pending if none
/// can be started.
pub(crate) fn leave_delivery(locked: &mut LockedRing) {
    if locked.devices.queues.owes_delivery() {
        locked.devices.queues.left = carriers().call(locked.ring);
    }
}
