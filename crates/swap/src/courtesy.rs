//! Giving the processor away, between two looks or two clusters: with more threads
//! than processors, one waits for its page while another computes, evicts, or waits for
//! its own. The kernel's polling ends where its thread is to be rescheduled; this is
//! as near as a process comes to that.
//!
//! It is worth it among threads that all do so. Somebody who computes keeps the
//! processor for a time slice of some milliseconds, and after one of these nothing
//! is given away for a while: twice as long as it took, and twice that each time
//! that he is still there then.

use usring_sys::processor;
use usring_sys::ticks::Ticks;

/// Whoever had the processor for longer than this, in nanoseconds, did not give it back
/// by himself.
const LONG_TURN: u64 = 1_000_000;

/// Longest time in which nothing is given away, in turns.
const MOST_TURNS: u64 = 64;

#[derive(Debug, Default)]
pub struct Courtesy {
    crowded_until: Ticks,
    /// How long it was for, the last time, in nanoseconds.
    pause: u64,
}

impl Courtesy {
    /// Lets others run. `false`, if they would for too long.
    pub fn give_way(&mut self, now: Ticks) -> bool {
        if now < self.crowded_until {
            return false;
        }
        processor::give_way();
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
