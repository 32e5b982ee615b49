//! What was accepted, on its way to devices that may have whoever tells them of it
//! sleep: it is carried without the ring's lock, by whoever gives that up.
//!
//! What one thread has submitted is closed, for all channels, under the hold of
//! the lock by which it was submitted: nobody else carries any of it, and the
//! thread's call does not return before all of it is with the kernel. The numbers
//! of its files are good until then, and nothing it submits overtakes what it has
//! submitted. What others deliver meanwhile may.
//!
//! What comes of completions, chains that go on and requests that waited for room,
//! names files that are kept: anybody may carry it, and who must not sleep leaves
//! it to a thread.

use super::{DeviceQueues, reap_one, submit_backlog};
use crate::attendant;
use crate::process::process;
use crate::registered_buffers::RegisteredBuffers;
use crate::ring::{LockedRing, Ring};
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::Delivery;

/// What is carried out for one channel.
type Load = (usize, Delivery);

/// What a ring that is closed lets go of: when the last of its deliveries is back, or
/// the kernel would be told of memory that nobody keeps any more.
#[derive(Default)]
pub(crate) struct Departing {
    devices: DeviceQueues,
    buffers: RegisteredBuffers,
}

impl Departing {
    pub fn of(locked: &mut LockedRing) -> Departing {
        Departing { devices: core::mem::take(&mut locked.devices), buffers: core::mem::take(&mut locked.buffers) }
    }

    /// Whether nothing is being delivered.
    pub fn is_back(&self) -> bool {
        self.devices.channels.iter().all(|queue| queue.away == 0)
    }

    /// Lets go of it. A queue pair that is dropped sees to it that its device touches
    /// no memory any more, which may take as long as the device does, so not under
    /// the ring's lock.
    pub fn go(self) {
        let Departing { devices, mut buffers } = self;
        drop(devices);
        buffers.unshare();
    }
}

/// Deliveries that a driver makes before it leaves the rest to a thread: its own is the
/// first, and what its completions begin (a link goes on) is hardly ever the last.
const ROUNDS: u32 = 8;

/// Delivers what is owed, for a driver that has finished its batch. That may sleep, so
/// the ring's lock is given up for it, and what the ring waits for is watched meanwhile.
/// When this is back all that the driver has submitted itself has been delivered.
#[inline(never)]
pub(crate) fn deliver(mut locked: LockedRing) -> LockedRing {
    for _ in 0..ROUNDS {
        locked = deliver_once(locked);
        if locked.devices.owing == 0 {
            return locked;
        }
        if locked.devices.owes_backlog() {
            break;
        }
    }
    leave_delivery(&mut locked);
    locked
}

/// The same to the end, for a thread that has nothing else to do.
pub(super) fn deliver_all(ring: Arc<Ring>) {
    let mut locked = ring.lock();
    while locked.devices.owing != 0 {
        locked = deliver_once(locked);
    }
    locked.leave();
}

#[inline(always)]
fn deliver_once(mut locked: LockedRing) -> LockedRing {
    let ring = locked.ring;
    let owing = locked.devices.owing;
    attendant::take_over_beside(&mut locked, owing);
    // Of further channels: hardly ever any.
    let mut others = Vec::new();
    let Some((index, mut delivery)) = begin(&mut locked, &mut others) else {
        call_lookers(ring);
        return locked;
    };
    locked.step_aside();
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

/// Ends a delivery of a channel. The backlog follows once no delivery is left.
fn end_one(locked: &mut LockedRing, index: usize) {
    let queue = &mut locked.devices.channels[index];
    queue.away -= 1;
    if queue.is_behind && queue.away == 0 {
        submit_backlog(locked, index);
    }
}

/// Who sleeps where events are looked for is to look now.
#[inline(always)]
fn call_lookers(ring: &Ring) {
    if ring.looks_for_events {
        ring.wakers.wake_all(u32::MAX);
    }
}

/// Closes what is owed. `None`: that was all.
#[inline(always)]
fn begin(locked: &mut LockedRing, others: &mut Vec<Load>) -> Option<Load> {
    let closed = locked.closed;
    let queues = &mut locked.devices;
    (queues.left, queues.owing) = (false, 0);
    if closed {
        return None;
    }
    let mut first = None;
    for index in 0..locked.devices.channels.len() {
        let queue = &mut locked.devices.channels[index];
        if core::mem::take(&mut queue.owes) == 0 {
            continue;
        }
        let Some(delivery) = queue.channel.begin_delivery() else {
            if queue.is_behind && queue.away == 0 {
                submit_backlog(locked, index);
                // What a device refuses at once is complete; the lock is released next.
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
    locked.devices.channels[index].channel.end_delivery(delivery);
    // Not seldom it has been done on the way, or could not be done without waiting.
    if !locked.is_looked_for() {
        reap_one(locked, index);
    }
    end_one(locked, index);
}

#[cold]
fn bring_back_to_closed<'a>(mut locked: LockedRing<'a>, loads: Vec<Load>) -> LockedRing<'a> {
    let ring = locked.ring;
    let departing = locked.departing.as_deref_mut().expect("it waits for what is being delivered");
    for (index, delivery) in loads {
        let queue = &mut departing.devices.channels[index];
        queue.away -= 1;
        queue.channel.end_delivery(delivery);
    }
    if !departing.is_back() {
        return locked;
    }
    let departing = core::mem::take(departing);
    locked.let_go();
    departing.go();
    let mut locked = ring.lock();
    locked.departing = None;
    locked
}

/// The same for whoever gives the lock up anyway; the attendant, which is there for
/// all rings, leaves it to a thread.
#[inline(never)]
pub(crate) fn deliver_or_leave(locked: LockedRing) -> LockedRing {
    if process().attendant.is_current() { left_to_thread(locked) } else { deliver(locked) }
}

/// The same for who must not sleep, unless there is no other way.
pub(crate) fn left_to_thread(mut locked: LockedRing) -> LockedRing {
    leave_delivery(&mut locked);
    if locked.devices.owes_delivery() { deliver_once(locked) } else { locked }
}

/// Leaves what is owed to a [carrier](super::Carriers), if there can be one: else it is
/// owed still.
pub(crate) fn leave_delivery(locked: &mut LockedRing) {
    if locked.devices.owes_delivery() {
        locked.devices.left = process().carriers.call(locked.ring);
    }
}
