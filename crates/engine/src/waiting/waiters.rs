//! The requests that wait behind one registration, in the order in which they
//! came. Nearly always that is one: it stands in the slot itself, and not in
//! memory of its own, which would have to be fetched as well when its event
//! comes, long after it was touched last.

use super::fast_poll::Purpose;
use super::poll_slot::Turn;
use crate::request::RequestEntry;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

pub(super) struct Waiter {
    pub request: RequestEntry,
    /// The file's round in which it began to wait.
    pub round: u32,
    pub purpose: Purpose,
    pub turn: Turn,
}

impl Waiter {
    /// Whether it may be called without an event, of which it has had one before:
    /// without any it would take itself for one that begins.
    #[inline]
    pub fn can_be_tried(&self) -> bool {
        let was_called = self.request.ready_for != 0;
        was_called && self.request.multishot && self.purpose == Purpose::Retry && self.turn == Turn::Over
    }
}

#[derive(Default)]
pub(super) struct Waiters {
    first: Option<Waiter>,
    /// Those behind the first; where there is none, nobody.
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

    /// Takes out the first one that `is_it`.
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
