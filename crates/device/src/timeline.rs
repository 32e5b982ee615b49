//! A queue of completions that are held back, each until its own due time.

use crate::batches::AT_ONCE;
use crate::request::{Completion, Completions};
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use usring_sys::Errno;
use usring_sys::ticks::Ticks;

/// Completions ordered by due time. The capacity is fixed, so the path of a request allocates
/// nothing.
pub(crate) struct Timeline {
    heap: BinaryHeap<Reverse<Waiting>>,
    /// Number of completions added so far. Each completion gets this number, so that completions
    /// with equal due times keep their order.
    added: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: Ticks,
    number: u64,
    token: u32,
    result: i32,
}

impl Timeline {
    pub fn new(room: u32) -> Result<Timeline, Errno> {
        let mut heap = BinaryHeap::new();
        heap.try_reserve_exact(room as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(Timeline { heap, added: 0 })
    }

    pub fn add(&mut self, due: Ticks, completion: Completion) {
        self.added += 1;
        let Completion { token, result } = completion;
        self.heap.push(Reverse(Waiting { due, number: self.added, token, result }));
    }

    /// Returns the due time of the first completion. `None` if there is no completion.
    pub fn earliest(&self) -> Option<Ticks> {
        self.heap.peek().map(|Reverse(waiting)| waiting.due)
    }

    /// Moves due completions to `completions`, as many as fit there. Returns how many it moved.
    /// Reads the clock at most once. Does not read it if there is no completion, or if the due time
    /// of the first completion is [`AT_ONCE`].
    pub fn collect(&mut self, completions: &mut Completions) -> u32 {
        let now = match self.earliest() {
            None => return 0,
            Some(AT_ONCE) => AT_ONCE,
            Some(_) => Ticks::now(),
        };
        let mut collected = 0;
        while let Some(Reverse(Waiting { due, token, result, .. })) = self.heap.peek()
            && *due <= now
            && completions.has_room()
        {
            completions.push(Completion { token: *token, result: *result });
            self.heap.pop();
            collected += 1;
        }
        collected
    }
}
