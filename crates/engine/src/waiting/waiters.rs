//! The requests that wait behind one registration, in the order in which they came. Nearly always
//! there is only one. It is stored in the slot itself: memory of its own would be one more cache
//! miss when its event comes, long after the last touch.

use crate::request::RequestEntry;
use crate::request::conditions::{Purpose, TimeSlice};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

pub(crate) struct Waiter {
    pub request: RequestEntry,
    /// The slot's round (count of events) in which the request began to wait.
    pub round: u32,
    pub purpose: Purpose,
    pub slice: TimeSlice,
}

impl Waiter {
    /// Returns whether the request may be called without an event. It must have been called for an
    /// event before. Otherwise it would behave like a request at its first attempt.
    #[inline]
    pub fn can_be_tried(&self) -> bool {
        let was_called = self.request.ready_for != 0;
        was_called && self.request.multishot && self.purpose == Purpose::Retry && self.slice == TimeSlice::Over
    }
}

#[derive(Default)]
pub(super) struct Waiters {
    first: Option<Waiter>,
    /// The requests behind the first; empty if there is no first.
    #[expect(clippy::box_collection, reason = "a slot has room for a pointer")]
    others: Option<Box<VecDeque<Waiter>>>,
}

impl Waiters {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub fn front(&self) -> Option<&Waiter> {
        self.first.as_ref()
    }

    #[inline]
    pub fn push_back(&mut self, waiter: Waiter) {
        if self.first.is_none() {
            self.first = Some(waiter);
        } else {
            self.others.get_or_insert_default().push_back(waiter);
        }
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<Waiter> {
        let waiter = self.first.take();
        if let Some(others) = &mut self.others {
            self.first = others.pop_front();
        }
        waiter
    }

    /// Takes out the first waiter that `is_it`.
    #[inline]
    pub fn take(&mut self, mut is_it: impl FnMut(&Waiter) -> bool) -> Option<Waiter> {
        if is_it(self.first.as_ref()?) {
            return self.pop_front();
        }
        let others = self.others.as_mut()?;
        let place = others.iter().position(is_it)?;
        others.remove(place)
    }
}
