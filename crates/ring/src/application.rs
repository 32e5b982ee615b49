//! The application's halves, as liburing has them: for the Rust API, for tests
//! and for the models. One thread at a time uses each.

use crate::layout;
use crate::memory::{Memory, flags};
use usring_sys::ordering::{Edge, Side};
use usring_sys::sync::Ordering;
use usring_uapi::{Cqe, Sqe};

/// The SQ has no room: submit first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Pushes SQEs.
pub struct SubmissionHalf {
    memory: Memory,
    tail: u32,
}

impl SubmissionHalf {
    /// The half of a ring that nothing was pushed to yet.
    pub fn new(memory: &Memory) -> SubmissionHalf {
        if let Some(array) = memory.layout.array {
            for index in 0..memory.layout.sq_entries {
                memory.rings.word(array + 4 * index as usize).store(index, Ordering::Relaxed);
            }
        }
        SubmissionHalf { memory: memory.clone(), tail: 0 }
    }

    /// For tests: as if this many entries had passed already.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, index: u32) {
        self.tail = index;
        self.publish();
    }

    /// Entries that are pushed and that the engine has not taken.
    #[inline]
    pub fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.memory.rings.header_word(layout::SQ_HEAD).load(Edge::SqHead.acquire()))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() >= self.memory.layout.sq_entries
    }

    /// Writes an SQE into the next slot; the engine sees it after
    /// [`SubmissionHalf::publish`].
    #[inline]
    pub fn fill(&mut self, sqe: &Sqe) -> Result<(), Full> {
        self.fill_slot(sqe, None)
    }

    /// The same with the second 64 bytes of a ring with `SQE128`.
    pub fn fill_wide(&mut self, sqe: &Sqe, extension: [u64; 8]) -> Result<(), Full> {
        assert!(self.memory.layout.has_wide_sqes(), "this ring has SQEs of 64 bytes");
        self.fill_slot(sqe, Some(extension))
    }

    #[inline(always)]
    fn fill_slot(&mut self, sqe: &Sqe, extension: Option<[u64; 8]>) -> Result<(), Full> {
        if self.is_full() {
            return Err(Full);
        }
        let layout = &self.memory.layout;
        let at = ((self.tail & (layout.sq_entries - 1)) as usize) << layout.sqe_shift;
        self.memory.sqes.write(at, *sqe);
        if let Some(extension) = extension {
            self.memory.sqes.write(at + 64, extension);
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Shows the engine every SQE written so far.
    #[inline]
    pub fn publish(&mut self) {
        self.memory.rings.header_word(layout::SQ_TAIL).store(self.tail, Edge::SqTail.release());
    }

    /// Writes and publishes one SQE.
    #[inline]
    pub fn push(&mut self, sqe: &Sqe) -> Result<(), Full> {
        self.fill(sqe)?;
        self.publish();
        Ok(())
    }

    /// After a push to a ring with an SQ thread: whether it sleeps, so that
    /// somebody has to enter with `SQ_WAKEUP`. Has the full barrier that must
    /// stand between the tail and the flag.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        Edge::NeedWakeup.barrier(Side::Waker);
        self.memory.flags() & flags::NEED_WAKEUP != 0
    }

    /// Whether completions wait for room in the CQ.
    #[inline]
    pub fn has_overflow(&self) -> bool {
        self.memory.flags() & flags::CQ_OVERFLOW != 0
    }

    /// Whether task work waits for this thread to enter (`TASKRUN_FLAG`).
    #[inline]
    pub fn has_task_work(&self) -> bool {
        self.memory.flags() & flags::TASKRUN != 0
    }

    /// Entries that the engine dropped for a bad index.
    pub fn dropped(&self) -> u32 {
        self.memory.rings.header_word(layout::SQ_DROPPED).load(Ordering::Relaxed)
    }
}

/// Pops CQEs.
pub struct CompletionHalf {
    memory: Memory,
    head: u32,
}

impl CompletionHalf {
    /// The half of a ring that nothing was popped from yet.
    pub fn new(memory: &Memory) -> CompletionHalf {
        CompletionHalf { memory: memory.clone(), head: 0 }
    }

    /// For tests: as if this many entries had passed already.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, index: u32) {
        self.head = index;
        self.memory.rings.header_word(layout::CQ_HEAD).store(index, Ordering::Relaxed);
    }

    /// CQEs to pop.
    #[inline]
    pub fn len(&self) -> u32 {
        self.memory.rings.header_word(layout::CQ_TAIL).load(Edge::CqTail.acquire()).wrapping_sub(self.head)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the next CQE out and gives its slot back.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "an Iterator would promise that None is the end; here more may come"
    )]
    pub fn next(&mut self) -> Option<Cqe> {
        self.take(|memory, at| memory.rings.read(at))
    }

    /// The same with the second half of a ring with `CQE32`.
    pub fn next_wide(&mut self) -> Option<(Cqe, [u64; 2])> {
        assert!(self.memory.layout.has_wide_cqes(), "this ring has CQEs of 16 bytes");
        self.take(|memory, at| (memory.rings.read(at), memory.rings.read(at + 16)))
    }

    #[inline(always)]
    fn take<T>(&mut self, read: impl FnOnce(&Memory, usize) -> T) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let layout = &self.memory.layout;
        let at = layout::CQES + (((self.head & (layout.cq_entries - 1)) as usize) << layout.cqe_shift);
        let value = read(&self.memory, at);
        self.head = self.head.wrapping_add(1);
        self.memory.rings.header_word(layout::CQ_HEAD).store(self.head, Edge::CqHead.release());
        Some(value)
    }

    /// CQEs that were lost for want of memory.
    pub fn lost(&self) -> u32 {
        self.memory.rings.header_word(layout::CQ_OVERFLOW).load(Ordering::Relaxed)
    }
}
