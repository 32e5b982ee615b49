//! The requests that are due for their next time slice, in the order in which they became due.

use super::{PollTable, Tag};
use crate::request::conditions::TimeSlice;
use crate::waiting::waiters::Waiter;
use usring_sys::width;

impl PollTable {
    /// Returns whether a request may be runnable (due for its next time slice). `false`: certainly
    /// no request is runnable.
    #[inline]
    pub fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    pub fn runnable_count(&self) -> usize {
        self.runnable.len()
    }

    /// Returns the number of the newest time slice of a request that has become due. Slices are
    /// numbered in the order in which they become due. So the result is also how many slices have
    /// become due so far.
    pub fn slices_due(&self) -> u32 {
        self.slices_begun.wrapping_add(width::count(self.runnable.len()))
    }

    /// Returns whether the next time slice is due and has a number of at most `last`. Slices are
    /// numbered in the order in which they become due.
    pub fn is_slice_due_up_to(&self, last: u32) -> bool {
        self.has_runnable() && last.wrapping_sub(self.slices_begun).cast_signed() > 0
    }

    /// Removes and returns the request that has been runnable for longest. `None`: no request is
    /// runnable, or the request has been removed from its slot meanwhile. The caller tries the
    /// request and then ends the slot's round.
    pub fn begin_slice(&mut self) -> Option<(Tag, Waiter)> {
        let tag = self.runnable.pop_front()?;
        self.slices_begun = self.slices_begun.wrapping_add(1);
        let slot = self.slot(tag)?;
        let waiter = slot.waiters.take(|waiter| waiter.slice == TimeSlice::Runnable)?;
        slot.firing = true;
        self.waiting -= 1;
        Some((tag, waiter))
    }
}
