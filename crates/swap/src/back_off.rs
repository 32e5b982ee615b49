//! Yields the processor between two polls of a device, or between the evictions of two clusters.
//! With more threads than processors, a polling thread would otherwise keep another thread from
//! computing, evicting or polling. The kernel ends its own polling when the scheduler wants the
//! processor; a process can only yield.
//!
//! Yielding pays only if the other threads yield, too. A thread that computes does not yield. It
//! keeps the processor for a time slice of some milliseconds (a *long turn*). If such a thread got
//! the processor by a yield, the yielding thread afterwards makes a *pause*: for some time it does
//! not yield.
//! - The first pause is twice as long as the long turn.
//! - If a yield soon after a pause meets a long turn again, the pause doubles, up to [`MOST_TURNS`]
//!   times the turn.

use usring_sys::processor;
use usring_sys::ticks::Ticks;

/// Least length of a long turn, in nanoseconds. If a yield takes longer, another thread has used
/// the processor without yielding.
const LONG_TURN: u64 = 1_000_000;

/// Longest pause without yields, as a multiple of the long turn that caused the pause. The long
/// turn is the time slice of another thread.
const MOST_TURNS: u64 = 64;

#[derive(Debug, Default)]
pub struct BackOff {
    crowded_until: Ticks,
    /// Length of the pause that was set last, in nanoseconds.
    pause: u64,
}

impl BackOff {
    /// Yields the processor and returns `true`. During a pause (see the head of this file), returns
    /// `false` and does not yield. The caller should then sleep.
    pub fn try_yield(&mut self, now: Ticks) -> bool {
        if now < self.crowded_until {
            return false;
        }
        processor::yield_now();
        let after = Ticks::now();
        let turn = after.since(now);
        if turn > LONG_TURN {
            let is_still_there = now.since(self.crowded_until) < self.pause;
            let longer = if is_still_there { 2 * self.pause } else { 0 };
            self.pause = longer.clamp(2 * turn, MOST_TURNS * turn);
            self.crowded_until = after.after(self.pause);
        }
        true
    }
}
