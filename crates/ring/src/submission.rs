//! The engine's half of the SQ: it consumes.
//!
//! Indices and tail are the program's to scribble on, so they are loaded once
//! and bounded, and the head is kept here and only ever told to the program.
//! An entry is copied once, into private memory; whoever reads a field twice
//! reads the copy.

use crate::layout;
use crate::memory::{Memory, flags};
use usring_sys::ordering::Edge;
use usring_sys::sync::Ordering;
use usring_uapi::Sqe;

/// An index array's entry pointed nowhere: no request, no CQE; counted in the
/// ring's `dropped` word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped;

/// See the head of this file. Belongs to whoever holds the ring's lock.
pub struct SubmissionQueue {
    memory: Memory,
    /// Next entry to take; published by [`SubmissionQueue::commit`].
    head: u32,
    /// End of the batch that [`SubmissionQueue::pending`] found.
    tail: u32,
    /// Where the SQE that was taken last lies.
    last: usize,
    dropped: u32,
}

impl SubmissionQueue {
    pub fn new(memory: &Memory) -> SubmissionQueue {
        SubmissionQueue { memory: memory.clone(), head: 0, tail: 0, last: 0, dropped: 0 }
    }

    /// For tests: as if this many entries had passed already.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, index: u32) {
        (self.head, self.tail) = (index, index);
        self.commit();
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How many entries there are to take. Loads the tail: what is pushed
    /// later belongs to the next batch.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        let tail = self.memory.rings.header_word(layout::SQ_TAIL).load(Edge::SqTail.acquire());
        let pending = tail.wrapping_sub(self.head).min(self.memory.layout.sq_entries);
        self.tail = self.head.wrapping_add(pending);
        pending
    }

    /// Takes the next entry of the batch that [`SubmissionQueue::pending`]
    /// found.
    #[expect(
        clippy::should_implement_trait,
        reason = "an Iterator would promise that None is the end; here it ends a batch"
    )]
    pub fn next(&mut self) -> Option<Result<Sqe, Dropped>> {
        let mut sqe = Sqe::default();
        self.next_into(&mut sqe).map(|taken| taken.map(|()| sqe))
    }

    /// The same, copied straight to where it is going to stay.
    #[inline(always)]
    pub fn next_into(&mut self, sqe: &mut Sqe) -> Option<Result<(), Dropped>> {
        if self.head == self.tail {
            return None;
        }
        let layout = &self.memory.layout;
        let mut index = self.head & (layout.sq_entries - 1);
        self.head = self.head.wrapping_add(1);
        if let Some(array) = layout.array {
            index = self.memory.rings.word(array + 4 * index as usize).load(Ordering::Relaxed);
            if index >= layout.sq_entries {
                return Some(Err(self.drop_entry()));
            }
        }
        self.last = (index as usize) << layout.sqe_shift;
        *sqe = self.memory.sqes.read(self.last);
        Some(Ok(()))
    }

    #[cold]
    fn drop_entry(&mut self) -> Dropped {
        self.dropped = self.dropped.wrapping_add(1);
        self.memory.rings.header_word(layout::SQ_DROPPED).store(self.dropped, Ordering::Relaxed);
        Dropped
    }

    /// The second 64 bytes of the SQE that was taken last, on a ring with
    /// `SQE128`. To be read once and before [`SubmissionQueue::commit`].
    pub fn extension(&self) -> Option<[u64; 8]> {
        self.memory.layout.has_wide_sqes().then(|| self.memory.sqes.read(self.last + 64))
    }

    /// Gives the slots of all entries taken so far back to the program, which
    /// may overwrite them at once.
    #[inline]
    pub fn commit(&mut self) {
        self.memory.rings.header_word(layout::SQ_HEAD).store(self.head, Edge::SqHead.release());
    }

    pub fn set_flag(&self, bits: u32) {
        self.memory.set_flag(bits);
    }

    pub fn clear_flag(&self, bits: u32) {
        self.memory.clear_flag(bits);
    }

    /// For the SQ thread, before it sleeps: sets `NEED_WAKEUP`, passes a full
    /// barrier, and looks once more. `true` says that there is nothing, and
    /// that a program that pushes from now on sees the flag and enters with
    /// `SQ_WAKEUP`.
    ///
    /// The thread announces itself on its sleep word first, so that an enter
    /// that comes right after the flag finds it; and when it is awake again,
    /// calls [`SubmissionQueue::end_sleep`] before it looks for work.
    pub fn prepare_sleep(&mut self) -> bool {
        self.set_flag(flags::NEED_WAKEUP);
        self.pending() == 0
    }

    pub fn end_sleep(&self) {
        self.clear_flag(flags::NEED_WAKEUP);
    }
}
