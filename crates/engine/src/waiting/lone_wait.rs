//! Looking for a lone transfer's completion before the thread that waits for it sleeps.
//!
//! A thread takes some ten microseconds to sleep and to be woken. Where a transfer of the kernel's
//! files takes hardly longer, the waiter looks for its completion in the kernel's AIO ring, which
//! is memory.
//!
//! - The waits before give an estimate of a transfer's time. A look lasts at most twice as long.
//! - There is no look if the estimate is above a limit ([`set_limit`]).
//! - A look in vain makes the estimate longer, so the next looks cease by themselves.

use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::processor;
use usring_sys::ticks::Ticks;

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
    pub fn budget(&self) -> Nanoseconds {
        let is_short = self.mean != 0 && self.mean <= LIMIT.load(Ordering::Relaxed);
        if is_short && !processor::is_only() { 2 * self.mean } else { 0 }
    }
}
