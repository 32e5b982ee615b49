//! The completions of devices: polls the ring's channels (its queue pairs on the devices),
//! completes the requests that the devices have carried out, and arms the devices' interrupts.

use crate::completion::complete;
use crate::op::block_device;
use crate::request::outcome::{Answer, ChannelIndex};
use crate::ring::LockedRing;
use crate::submission::{device_submit, suspend};
use crate::waiting::device_queues::DeviceQueues;
use crate::waiting::fast_poll;
use crate::waiting::poll_table::DEVICE_DATA;
use usring_sys::{Errno, epoll, width};

/// On a ring whose SQ thread polls the devices, CQEs are published each time this many are posted,
/// and not only at the end of the batch.
const CQES_PER_PUBLICATION: usize = 8;

/// [`reap_and_arm`] makes at most this many consecutive polls without a completion, if the device
/// refuses to arm its interrupt. A device refuses that while it may have completions. After these
/// polls, a timer causes the next poll.
const MOST_EMPTY_POLLS: u32 = 64;

/// Completes the requests that devices have carried out. Returns whether there were any. Never
/// blocks.
#[inline(always)]
pub(crate) fn reap(locked: &mut LockedRing) -> bool {
    if locked.devices.queues.in_flight == 0 {
        return false;
    }
    let mut any = false;
    for index in 0..locked.devices.queues.channels.len() {
        any |= reap_one(locked, index);
    }
    locked.devices.queues.ring_doorbells();
    any
}

#[inline(always)]
pub(super) fn reap_one(locked: &mut LockedRing, index: usize) -> bool {
    let DeviceQueues { channels, completions, .. } = &mut locked.devices.queues;
    completions.clear();
    channels[index].channel.poll(completions);
    !completions.as_slice().is_empty() && complete_polled(locked, index)
}

/// Completes the requests that a poll of the channel (the ring's queue pair on a device) has
/// reported as done. If the device could not carry out a request, passes it to a worker instead. If
/// the poll filled the buffer for completions, polls again. Returns `true`, the result of
/// [`reap_one`].
#[inline(never)]
fn complete_polled(locked: &mut LockedRing, index: usize) -> bool {
    let mut completions = core::mem::take(&mut locked.devices.queues.completions);
    loop {
        for (number, completion) in completions.as_slice().iter().enumerate() {
            let queue = &mut locked.devices.queues.channels[index];
            let Some(request) = queue.out[completion.token as usize].take() else { continue };
            queue.free.push(completion.token);
            locked.devices.queues.in_flight -= 1;
            if completion.result < 0 && locked.devices.queues.channels[index].needs_worker(&request, completion.result)
            {
                if completion.result == Errno::EOPNOTSUPP.negative() {
                    block_device::note_without_nowait(locked, &request);
                }
                suspend::hand_to_worker(locked, request);
                continue;
            }
            locked.queues.statistics.count_polled(request.sqe.opcode);
            let failed = request.is_failure(completion.result);
            complete::complete(locked, request, Answer { result: completion.result, failed });
            if number % CQES_PER_PUBLICATION == CQES_PER_PUBLICATION - 1 && locked.ring.is_polled_by_thread() {
                publish_early(locked);
            }
        }
        let has_had_room = completions.has_room();
        completions.clear();
        let queue = &mut locked.devices.queues.channels[index];
        queue.armed = false;
        // While a deferred submit to this device is under way, further requests wait, so that the
        // requests of the submit go first.
        if queue.must_await_slot && queue.in_flush == 0 {
            submit_awaiting(locked, index);
        }
        if has_had_room {
            break;
        }
        locked.devices.queues.channels[index].channel.poll(&mut completions);
    }
    locked.devices.queues.completions = completions;
    true
}

/// Publishes all CQEs posted so far except the last. A waiter that polls the CQ in memory then sees
/// them early. Also wakes sleeping waiters: a waiter can wake up while this thread posts the
/// remaining CQEs of the batch.
fn publish_early(locked: &mut LockedRing) {
    locked.queues.cq.publish_early();
    // No barrier is needed: a sleeper that this call misses is woken at the end of the batch.
    locked.ring.wakers.wake_all(locked.count_for_sleepers());
}

/// Submits the requests that wait for a free slot of the channel (the ring's queue pair on a
/// device). The channel has free slots now, or its last deferred submit has ended. If the submit
/// made here is deferred, too, further requests have to wait. Otherwise they would overtake the
/// requests of this submit.
#[cold]
pub(super) fn submit_awaiting(locked: &mut LockedRing, index: usize) {
    let queue = &mut locked.devices.queues.channels[index];
    queue.must_await_slot = false;
    let waiting = core::mem::take(&mut queue.awaiting_slot);
    locked.devices.queues.in_flight -= width::count(waiting.len());
    for request in waiting {
        device_submit::submit(locked, request, ChannelIndex(width::count(index)));
    }
    let queue = &mut locked.devices.queues.channels[index];
    queue.must_await_slot |= queue.pending != 0;
}

/// Arms the devices' interrupts, which then signal the ring's epoll set. A driver calls this
/// function before it sleeps or leaves the ring. Returns `false` if a request may have completed
/// already, or if a device has no interrupt. The caller then polls the devices before it sleeps or
/// leaves.
pub(crate) fn arm_interrupts(locked: &mut LockedRing) -> bool {
    let mut all = true;
    for index in 0..locked.devices.queues.channels.len() {
        let queue = &locked.devices.queues.channels[index];
        if queue.channel.in_flight() > 0 && !queue.armed {
            all &= arm_one(locked, index).is_ok_and(|armed| armed);
        }
    }
    all
}

fn arm_one(locked: &mut LockedRing, index: usize) -> Result<bool, Errno> {
    let interrupt = locked.devices.queues.channels[index].channel.interrupt().ok_or(Errno::EOPNOTSUPP)?;
    if !locked.devices.queues.channels[index].watched {
        fast_poll::ensure_set(locked)?;
        let set = locked.waiting.polls.set().ok_or(Errno::ENOMEM)?;
        set.add(interrupt, epoll::IN | epoll::EDGE, DEVICE_DATA)?;
        locked.devices.queues.channels[index].watched = true;
    }
    let queue = &mut locked.devices.queues.channels[index];
    queue.armed = queue.channel.arm_interrupt();
    Ok(queue.armed)
}

/// Polls all devices after an interrupt. The interrupt's event in the epoll set does not say which
/// device sent the interrupt.
pub(crate) fn reap_after_interrupt(locked: &mut LockedRing) {
    locked.devices.queues.channels.iter_mut().for_each(|queue| queue.armed = false);
    reap(locked);
}

/// Completes what the devices have done, and arms interrupts for requests still in flight. Called
/// by a driver that leaves a ring without IOPOLL. A device may refuse to arm its interrupt although
/// polls find no completion. After [`MOST_EMPTY_POLLS`] such polls in a row, a timer polls the
/// devices later.
pub(crate) fn reap_and_arm(locked: &mut LockedRing) {
    let mut empty_polls = 0;
    while locked.devices.queues.in_flight() > 0 && !arm_interrupts(locked) {
        let found = reap(locked);
        locked.finish_batch();
        empty_polls = if found { 0 } else { empty_polls + 1 };
        if empty_polls == MOST_EMPTY_POLLS {
            locked.devices.queues.polled_later = true;
            return;
        }
        if !found && locked.devices.queues.lacks_interrupt() {
            return;
        }
    }
}
