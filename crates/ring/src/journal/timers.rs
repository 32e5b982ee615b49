//! The timeouts in a ring's journal. If the process of a timeout dies, another process takes the
//! timeout over. So the journal holds the condition on which the timeout ends.
//!
//! The conditions lie in *timers*. A slot with the flag `TIMED` has the number of its timer in its
//! index word. A timer is free if no such slot has its number. To change a condition, the process
//! writes the new condition to a free timer, and then stores the number of that timer in the slot.
//! So a process that dies meanwhile leaves the old condition or the new one.

use super::{HELD, Journal, JournalSlot, NEW, POSTED};
use alloc::vec::Vec;
use usring_sys::sync::Ordering;
use usring_sys::width;

/// Flag of a timeout in flight: [`NEW`] and [`HELD`] together. No other request has both flags.
pub(super) const TIMED: u32 = NEW | HELD;

/// Flag of a request that was behind a timeout in its chain when the timeout began. Its value is
/// both bits, [`NEW`] and [`POSTED`]. After the timeout has ended, the flag has no effect: the
/// journal treats the request like a request without a flag.
pub(super) const LINKED: u32 = NEW | POSTED;

/// Number of timers. If a timeout finds no free timer, no other process takes it over when its
/// process dies.
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
const NEXT: usize = 28;

/// Bit of the flags: the timer counts completions.
const COUNTS: u32 = 1 << 31;

/// The condition on which a timeout ends, in terms that all processes of a ring share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalTimer {
    /// Time of expiry, in nanoseconds.
    pub at: u64,
    /// Nanoseconds after which the timeout expires again; 0: the timeout expires only once.
    pub every: u64,
    /// Number of expiries that are left; 0: no limit.
    pub repeats: u32,
    /// Number of completions of the ring at which the timeout ends; `None`: completions do not end
    /// it.
    pub count: Option<u32>,
    /// The next request of the timeout's chain, which [`Journal::link`] has marked.
    pub next: Option<JournalSlot>,
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
        let words = [
            (REPEATS, timer.repeats),
            (COUNT, timer.count.unwrap_or(0)),
            (FLAGS, flags),
            (NEXT, timer.next.map_or(0, |next| next.0 + 1)),
        ];
        for (offset, word) in words {
            self.memory.word(at + offset).store(word, Ordering::Relaxed);
        }
        self.set_index(slot.0, width::count(free));
        self.set_owner(slot.0, self.own | TIMED);
    }

    /// Removes the conditions of this process's timeouts from the journal. So no other process
    /// takes these timeouts over if this process dies.
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
            next: word(NEXT).checked_sub(1).map(JournalSlot),
        })
    }

    /// Marks requests of this process that wait behind a timeout in its chain. `members` has the
    /// order of the chain. The caller then calls [`Journal::time`] for the timeout, with the first
    /// of `members` as `next`.
    pub fn link(&self, members: &[JournalSlot]) {
        let mut next = 0;
        for slot in members.iter().rev() {
            self.set_index(slot.0, next);
            self.set_owner(slot.0, self.own | LINKED);
            next = slot.0 + 1;
        }
    }

    /// Returns the slots of the requests behind a timeout in its chain, in order.
    fn chain(&self, timeout: u32) -> impl Iterator<Item = u32> {
        let is_linked = |slot: &u32| *slot < self.slots && self.owner(*slot).1 == LINKED;
        let first = self.timer(JournalSlot(timeout)).and_then(|timer| timer.next);
        let next = move |slot: &u32| self.index(*slot).checked_sub(1).filter(is_linked);
        // No chain has more requests than the journal has slots.
        core::iter::successors(first.map(|slot| slot.0).filter(is_linked), next).take(self.slots as usize)
    }

    /// Returns the slots of all requests behind timeouts of any process.
    pub(super) fn behind_timeouts(&self) -> Vec<u32> {
        let timeouts = self.used().filter(|slot| self.owner(*slot).1 == TIMED);
        timeouts.flat_map(|timeout| self.chain(timeout)).collect()
    }

    /// Takes over the requests behind a timeout in its chain. This process has taken over the
    /// timeout itself. Returns their slots in order, each with its `user_data`. The caller makes a
    /// new engine request for each slot.
    pub fn take_chain(&mut self, timeout: JournalSlot) -> Vec<(JournalSlot, u64)> {
        let members: Vec<u32> = self.chain(timeout.0).collect();
        members.into_iter().map(|slot| self.take_over(slot)).collect()
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
