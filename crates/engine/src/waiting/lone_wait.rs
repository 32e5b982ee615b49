//! Estimates how long a thread polls for a lone transfer's completion before it sleeps. A lone
//! transfer is the only request in flight.
//!
//! A sleep with its wake-up takes some ten microseconds. A transfer of a file that the kernel
//! serves may take hardly longer. So the waiter first polls for the completion in the kernel's AIO
//! ring. That ring lies in memory, so a poll needs no system call.
//!
//! - Earlier waits give an estimate of a transfer's time. A waiter polls for at most twice this
//!   time.
//! - A waiter does not poll if the estimate is above a limit ([`set_limit`]).
//! - A useless poll lengthens the wait, and so the estimate. Waiters stop polling once the estimate
//!   is above the limit.

use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::processor;
use usring_sys::ticks::Ticks;

/// Unless [`set_limit`] changes it, a waiter polls only if the expected wait is at most this long,
/// in nanoseconds.
pub const DEFAULT_LIMIT: Nanoseconds = 15_000;
static LIMIT: AtomicU64 = AtomicU64::new(DEFAULT_LIMIT);

/// Sets the longest expected wait for which waiters of this process poll (`usring run --spin`), in
/// nanoseconds; 0: no polling.
pub fn set_limit(limit: Nanoseconds) {
    LIMIT.store(limit, Ordering::Relaxed);
}

/// Estimate of how long a ring's waits for lone transfers (the only request in flight) take.
#[derive(Default)]
pub(crate) struct LoneWaits {
    /// Weighted mean of the waits' lengths, in nanoseconds. The last 8 or so waits weigh most. 0:
    /// no wait was measured yet.
    mean: Nanoseconds,
}

impl LoneWaits {
    /// Records the length of a wait for a lone transfer. `began`: when the wait began. `None`:
    /// records nothing, because the transfer did not end the wait, or was not the only request.
    pub fn record(&mut self, began: Option<Ticks>) {
        let Some(began) = began else { return };
        let length = Ticks::now().since(began).max(1);
        self.mean = if self.mean == 0 { length } else { (7 * self.mean + length.min(4 * self.mean)).div_ceil(8) };
    }

    /// Returns how many nanoseconds to poll; 0: not at all.
    pub fn budget(&self) -> Nanoseconds {
        let is_short = self.mean != 0 && self.mean <= LIMIT.load(Ordering::Relaxed);
        if is_short && !processor::is_the_only_one() { 2 * self.mean } else { 0 }
    }
}
