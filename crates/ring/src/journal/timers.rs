//! The timeouts in a ring's journal. If the process of a timeout dies, another process takes the
//! timeout over. So the journal holds the condition on which the timeout ends.
//!
//! A slot with the flag `TIMED` has the number of a timer in its index. A changed condition is
//! written to a free timer, whose number then replaces the old one in the slot. So a process that
//! dies leaves the old condition or the new one. A timer is free if no slot with the flag has its
//! number.

use super::{HELD, Journal, JournalSlot, NEW};
use alloc::vec::Vec;
use usring_sys::sync::Ordering;
use usring_sys::width;

/// Flag of a timeout in flight: [`NEW`] and [`HELD`] together. No other request has both flags.
pub(super) const TIMED: u32 = NEW | HELD;

/// Number of timers. A timeout that finds no free timer ends with its process.
const MOST: usize = 256;
const TIMER: usize = 32;
/// Bytes of all timers.
pub(super) const LENGTH: usize = MOST * TIMER;

/// Offsets of a timer's words.
const AT: usize = 0;
const EVERY: usize = 8;
const REPEATS: usize = 16;
const COUNT: usize = 20;
const FLAGS: usize = 24;

/// Bit of the flags: the timer counts completions.
const COUNTS: u32 = 1 << 31;

/// The condition on which a timeout ends, in terms that all processes of a ring share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalTimer {
    /// Time of expiry, in nanoseconds.
    pub at: u64,
    /// Nanoseconds after which the timeout expires again; 0: it does not.
    pub every: u64,
    /// Number of expiries that are left; 0: no limit.
    pub repeats: u32,
    /// Number of completions of the ring with which the timeout ends; `None`: it counts none.
    pub count: Option<u32>,
    /// The clock and other properties, as the engine encodes them in the lower 31 bits.
    pub flags: u32,
}

impl Journal {
    /// Marks the request in `slot` as a timeout, and stores its condition in a free timer. Another
    /// process can then take the timeout over if this process dies. If no timer is free, nothing is
    /// stored, and the timeout ends with this process.
    pub fn time(&mut self, slot: JournalSlot, timer: JournalTimer) {
        let Some(free) = self.free_timer() else { return self.set_owner(slot.0, self.own) };
        let at = self.timer_at(free);
        self.memory.write(at + AT, timer.at);
        self.memory.write(at + EVERY, timer.every);
        let flags = timer.flags | if timer.count.is_some() { COUNTS } else { 0 };
        for (offset, word) in [(REPEATS, timer.repeats), (COUNT, timer.count.unwrap_or(0)), (FLAGS, flags)] {
            self.memory.word(at + offset).store(word, Ordering::Relaxed);
        }
        self.set_index(slot.0, width::count(free));
        self.set_owner(slot.0, self.own | TIMED);
    }

    /// Makes the timeouts of this process ordinary requests, which end when this process dies.
    pub fn forget_timers(&mut self) {
        let timed: Vec<u32> = self.used().filter(|slot| self.owner(*slot) == (self.own, TIMED)).collect();
        timed.into_iter().for_each(|slot| self.set_owner(slot, self.own));
    }

    /// Returns the condition of a timeout; `None`: the journal holds no condition for the request.
    pub fn timer(&self, slot: JournalSlot) -> Option<JournalTimer> {
        let (_, flag) = self.owner(slot.0);
        let number = self.index(slot.0) as usize;
        if flag != TIMED || number >= MOST {
            return None;
        }
        let at = self.timer_at(number);
        let word = |offset| self.memory.word(at + offset).load(Ordering::Relaxed);
        let flags = word(FLAGS);
        Some(JournalTimer {
            at: self.memory.read(at + AT),
            every: self.memory.read(at + EVERY),
            repeats: word(REPEATS),
            count: (flags & COUNTS != 0).then(|| word(COUNT)),
            flags: flags & !COUNTS,
        })
    }

    fn timer_at(&self, number: usize) -> usize {
        self.at(self.slots) + number * TIMER
    }

    fn free_timer(&self) -> Option<usize> {
        let mut used = [0u64; MOST / 64];
        for slot in self.used().filter(|slot| self.owner(*slot).1 == TIMED) {
            let number = self.index(slot) as usize;
            if let Some(word) = used.get_mut(number / 64) {
                *word |= 1 << (number % 64);
            }
        }
        (0..MOST).find(|number| used[number / 64] & 1 << (number % 64) == 0)
    }
}
