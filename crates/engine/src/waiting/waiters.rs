//! The requests that wait at one entry of the epoll set, in order of arrival. Nearly always there
//! is only one request. The slot of the poll table holds that request itself: separate memory, last
//! used long ago, would cost one more cache miss when the event comes.

use crate::request::conditions::{Purpose, TimeSlice};
use crate::request::{Request, RequestEntry};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

pub(crate) struct Waiter {
    pub request: RequestEntry,
    /// Value of `Slot::round` (the number of events that the slot has handled) when the request
    /// began to wait.
    pub round: u32,
    pub purpose: Purpose,
    pub slice: TimeSlice,
}

impl Waiter {
    /// Returns whether the driver may try the request although the epoll set has reported no event
    /// (a guess of `expected`). The request must be a multishot that an event has woken before.
    /// Until such an event, `ready_for` is 0, which the opcode takes for the request's first try.
    #[inline]
    pub fn can_be_tried(&self) -> bool {
        let was_woken = self.request.ready_for != 0;
        was_woken && self.request.multishot && self.purpose == Purpose::Retry && self.slice == TimeSlice::Over
    }

    /// Returns whether the request is a multishot that waits for its next time slice.
    #[inline]
    pub fn is_multishot_in_slices(&self) -> bool {
        self.slice == TimeSlice::Runnable && self.purpose == Purpose::Retry && self.request.multishot
    }
}

#[derive(Default)]
pub(super) struct Waiters {
    first: Option<Waiter>,
    /// The waiters after `first`; empty if `first` is `None`.
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

    /// Returns the requests, the first one first.
    pub fn requests_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        let others = self.others.iter_mut().flat_map(|others| others.iter_mut());
        self.first.iter_mut().chain(others).map(|waiter| &mut *waiter.request)
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

    /// Removes and returns the first waiter for which `is_it` returns true.
    #[inline]
    pub fn take(&mut self, mut is_it: impl FnMut(&Waiter) -> bool) -> Option<Waiter> {
        if is_it(self.first.as_ref()?) {
            return self.pop_front();
        }
        let others = self.others.as_mut()?;
        let index = others.iter().position(is_it)?;
        others.remove(index)
    }
}
