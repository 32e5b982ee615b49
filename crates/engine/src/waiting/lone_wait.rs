//! Looking for a lone transfer's completion before the thread that waits for it sleeps.
//!
//! A thread takes some ten microseconds to sleep and to be woken. Where a transfer of the kernel's
//! files takes hardly longer, the waiter looks for its completion in the kernel's AIO ring, which
//! is memory.
//!
//! - The waits before give an estimate of a transfer's time. A look lasts at most twice as long.
//! - There is no look if the estimate is above a limit ([`set_limit`]).
//! - A look in vain makes the estimate longer, so the next looks cease by themselves.

use crate::ring::{LockedRing, Ring};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::ticks::Ticks;
use usring_sys::{processor, signals};

/// Longest expected wait, in nanoseconds, during which the waiter looks, unless [`set_limit`]
/// changes it.
pub const DEFAULT_LIMIT: Nanoseconds = 15_000;
static LIMIT: AtomicU64 = AtomicU64::new(DEFAULT_LIMIT);

/// Sets the limit for the process (`usring run --spin`); 0: no looks.
pub fn set_limit(limit: Nanoseconds) {
    LIMIT.store(limit, Ordering::Relaxed);
}

/// Estimate of how long such waits of a ring take.
#[derive(Default)]
pub(crate) struct LoneWaits {
    /// Mean length, in which the latest eight or so weigh most; 0: there has been none.
    mean: Nanoseconds,
}

impl LoneWaits {
    /// Records a wait that has ended with its completion. `began`: when it began, if it was a wait
    /// for a lone transfer.
    pub fn record(&mut self, began: Option<Ticks>) {
        let Some(began) = began else { return };
        let length = Ticks::now().since(began).max(1);
        self.mean = if self.mean == 0 { length } else { (7 * self.mean + length.min(4 * self.mean)).div_ceil(8) };
    }

    /// Returns how long to look; 0: not at all.
    fn budget(&self) -> Nanoseconds {
        let is_short = self.mean != 0 && self.mean <= LIMIT.load(Ordering::Relaxed);
        if is_short && !processor::is_only() { 2 * self.mean } else { 0 }
    }
}

/// Looks for a lone transfer's completion at the beginning of a wait. Notes that beginning in
/// `began`, and looks no longer than `most`. Now and then it releases the lock for other threads
/// that want it. Returns `None` if there is something to do; the lock is then released.
#[inline]
pub(crate) fn look<'a>(
    ring: &'a Arc<Ring>,
    locked: LockedRing<'a>,
    wanted: u32,
    most: Option<Nanoseconds>,
    began: &mut Option<Ticks>,
) -> Option<LockedRing<'a>> {
    if began.is_some() || !is_lone(&locked, wanted) {
        return Some(locked);
    }
    let start = *began.insert(Ticks::now());
    match locked.devices.lone_waits.budget() {
        0 => Some(locked),
        budget => {
            let end = start.after(most.map_or(budget, |most| most.min(budget)));
            look_until(ring, locked, wanted, end)
        }
    }
}

/// Returns whether a wait for one more completion waits for a single transfer of the kernel's
/// files, and for nothing else that the ring would have to watch.
#[inline]
fn is_lone(locked: &LockedRing, wanted: u32) -> bool {
    locked.devices.in_flight() == 1
        && wanted == locked.cq.ready() + 1
        && locked.polls.armed() == 0
        && locked.devices.waiter().is_some()
}

fn look_until<'a>(ring: &'a Arc<Ring>, mut locked: LockedRing<'a>, wanted: u32, end: Ticks) -> Option<LockedRing<'a>> {
    const LOOKS_PER_TURN: u32 = 16;
    loop {
        for _ in 0..LOOKS_PER_TURN {
            if locked.devices.spin() || ring.has_work_left() || signals::interrupted() {
                locked.unlock();
                return None;
            }
            if Ticks::now() >= end {
                return Some(locked);
            }
        }
        locked.unlock();
        locked = ring.lock();
        // Another thread may have posted the completion that the wait is for.
        if locked.devices.in_flight() != 1 || locked.cq.ready() >= wanted {
            locked.unlock();
            return None;
        }
    }
}
