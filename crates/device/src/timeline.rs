//! Completions that wait for their time.

use crate::request::{Completion, Completions};
use alloc::collections::{BinaryHeap, VecDeque};
use core::cmp::Reverse;
use usring_sys::Errno;
use usring_sys::ticks::Ticks;

/// Completions by the time they are due. Has room for a fixed number, so that
/// nothing is allocated on the way of a request.
pub(crate) enum Timeline {
    /// Where each comes due after the one before it: all take the same time.
    InOrder(VecDeque<Waiting>),
    Sorted {
        heap: BinaryHeap<Reverse<Waiting>>,
        /// Numbers them: what is due at the same time comes out as it went in.
        added: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Waiting {
    due: Ticks,
    number: u64,
    token: u32,
    result: i32,
}

/// Due at once, whatever the clock says.
pub(crate) const AT_ONCE: Ticks = Ticks(0);

impl Timeline {
    pub fn in_order(room: u32) -> Result<Timeline, Errno> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(room as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(Timeline::InOrder(queue))
    }

    pub fn sorted(room: u32) -> Result<Timeline, Errno> {
        let mut heap = BinaryHeap::new();
        heap.try_reserve_exact(room as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(Timeline::Sorted { heap, added: 0 })
    }

    #[inline]
    pub fn add(&mut self, due: Ticks, completion: Completion) {
        let Completion { token, result } = completion;
        match self {
            Timeline::InOrder(queue) => queue.push_back(Waiting { due, number: 0, token, result }),
            Timeline::Sorted { heap, added } => {
                *added += 1;
                heap.push(Reverse(Waiting { due, number: *added, token, result }));
            }
        }
    }

    /// When the next one is due.
    #[inline]
    pub fn earliest(&self) -> Option<Ticks> {
        match self {
            Timeline::InOrder(queue) => queue.front().map(|waiting| waiting.due),
            Timeline::Sorted { heap, .. } => heap.peek().map(|Reverse(waiting)| waiting.due),
        }
    }

    /// Hands over what is due, as far as there is room. Reads the clock once at
    /// most: not where nothing waits for it.
    #[inline]
    pub fn collect(&mut self, completions: &mut Completions) {
        let now = match self.earliest() {
            None => return,
            Some(AT_ONCE) => AT_ONCE,
            Some(_) => Ticks::now(),
        };
        match self {
            Timeline::InOrder(queue) => {
                while let Some(waiting) = queue.front()
                    && waiting.due <= now
                    && completions.has_room()
                {
                    completions.push(waiting.completion());
                    queue.pop_front();
                }
            }
            Timeline::Sorted { heap, .. } => {
                while let Some(Reverse(waiting)) = heap.peek()
                    && waiting.due <= now
                    && completions.has_room()
                {
                    completions.push(waiting.completion());
                    heap.pop();
                }
            }
        }
    }
}

impl Waiting {
    #[inline]
    fn completion(&self) -> Completion {
        Completion { token: self.token, result: self.result }
    }
}
