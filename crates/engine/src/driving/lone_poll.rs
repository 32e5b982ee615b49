//! Polls for the completion of a lone transfer (the only request in flight) before the thread that
//! waits for it sleeps. `lone_wait` estimates for how long polling saves time.

use crate::driving::wait::WaitCall;
use crate::ring::{Exit, LockedRing, Ring};
use alloc::sync::Arc;
use usring_sys::clock::Nanoseconds;
use usring_sys::signals;
use usring_sys::ticks::Ticks;

/// Called when a wait begins. If the wait is for a lone transfer (the only request in flight),
/// polls for the transfer's completion, for at most `most` nanoseconds (`None`: the caller sets no
/// limit). Stores in `began` the time at which the wait began. Now and then releases the ring's
/// lock, so that other threads can take it.
///
/// Returns `None`, with the lock released, if there is work to do, a signal has come, or another
/// thread has posted the completion. Otherwise returns the held lock, and the waiter may sleep.
#[inline]
pub(crate) fn poll<'a>(
    ring: &'a Arc<Ring>,
    locked: LockedRing<'a>,
    call: &WaitCall,
    most: Option<Nanoseconds>,
    began: &mut Option<Ticks>,
) -> Option<LockedRing<'a>> {
    if began.is_some() || !is_lone(&locked, call) {
        return Some(locked);
    }
    let start = *began.insert(Ticks::now());
    match locked.devices.queues.lone_waits.budget() {
        0 => Some(locked),
        budget => {
            let end = start.after(most.map_or(budget, |most| most.min(budget)));
            poll_until(ring, locked, call, end)
        }
    }
}

/// Returns whether the wait needs exactly one more completion, and this completion can only be that
/// of one transfer on a file that the kernel serves. So no request of the ring may wait for a file.
#[inline]
fn is_lone(locked: &LockedRing, call: &WaitCall) -> bool {
    locked.devices.queues.in_flight() == 1
        && call.completions == locked.queues.cq.arrived_since(call.head_at_start(&locked.ring.memory)) + 1
        && locked.waiting.polls.armed() == 0
        && locked.devices.queues.waiter().is_some()
}

fn poll_until<'a>(
    ring: &'a Arc<Ring>,
    mut locked: LockedRing<'a>,
    call: &WaitCall,
    end: Ticks,
) -> Option<LockedRing<'a>> {
    const POLLS_PER_HOLD: u32 = 16;
    loop {
        for _ in 0..POLLS_PER_HOLD {
            if locked.devices.queues.spin() || ring.has_work_left() || signals::interrupted() {
                locked.release(Exit::Pause);
                return None;
            }
            if Ticks::now() >= end {
                return Some(locked);
            }
        }
        locked.release(Exit::Pause);
        locked = ring.lock();
        // Another thread may have posted the completion while this thread did not hold the lock.
        let arrived = locked.queues.cq.arrived_since(call.head_at_start(&ring.memory));
        if locked.devices.queues.in_flight() != 1 || arrived >= call.completions {
            locked.release(Exit::Pause);
            return None;
        }
    }
}
