//! Cancels requests of a process that is stopped, at the order of another process. A stopped
//! process does not run, so it could not answer a question in the change slot.
//!
//! The cancelling process sets the flag `CANCELLED` and posts a notice. When the stopped process
//! continues and next gets the ring's lock, it first cancels the marked requests. If it is killed
//! instead, the marked requests are orphans (requests of an ended process).

use super::timers::TIMED;
use super::{HELD, Journal, JournalSlot, LINKED, OrphanFilter, POSTED};
use alloc::vec::Vec;

/// Flag of a request that its process has to cancel: [`HELD`] and [`POSTED`] together.
pub(super) const CANCELLED: u32 = HELD | POSTED;

impl Journal {
    /// Marks the requests in flight of the process `owner` that match `wanted`. If `all` is
    /// `false`, marks only the first such request. Returns the number of marked requests.
    pub fn mark_cancelled(&self, owner: u32, wanted: OrphanFilter, all: bool) -> u32 {
        let behind_timeouts = self.behind_timeouts();
        let is_wanted = |slot: &u32| {
            let (own, flag) = self.owner(*slot);
            own == owner
                && matches!(flag, 0 | TIMED | LINKED)
                && (flag == TIMED || !wanted.is_timeout)
                && !behind_timeouts.contains(slot)
                && wanted.user_data.is_none_or(|user_data| self.user_data(*slot) == user_data)
        };
        let most = if all { usize::MAX } else { 1 };
        let marked: Vec<u32> = self.used().filter(is_wanted).take(most).collect();
        marked.iter().for_each(|slot| self.set_owner(*slot, owner | CANCELLED));
        usring_sys::width::count(marked.len())
    }

    /// Returns the slots of this process's requests that another process has marked for
    /// cancellation. A slot keeps the mark until its request has ended.
    pub fn own_cancelled(&self) -> Vec<JournalSlot> {
        self.used().filter(|slot| self.owner(*slot) == (self.own, CANCELLED)).map(JournalSlot).collect()
    }
}
