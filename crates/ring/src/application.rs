//! The application's halves of both queues, as in liburing. The Rust API, tests and loom models use
//! them. Only one thread may use a half at a time.

use crate::layout;
use crate::memory::{Memory, flags};
use usring_sys::ordering::{Edge, Side};
use usring_sys::sync::Ordering;
use usring_uapi::{Cqe, Sqe};

/// Error: the SQ has no room. The application must submit first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The application's half of the SQ, which pushes SQEs.
pub struct SubmissionHalf {
    memory: Memory,
    tail: u32,
}

impl SubmissionHalf {
    /// Makes the application's half of an SQ to which no SQE has been pushed.
    pub fn new(memory: &Memory) -> SubmissionHalf {
        if let Some(array) = memory.layout.array {
            for index in 0..memory.layout.sq_entries {
                memory.rings.word(array + 4 * index as usize).store(index, Ordering::Relaxed);
            }
        }
        SubmissionHalf { memory: memory.clone(), tail: 0 }
    }

    /// Makes this half continue at `index`, as if `index` entries had passed through the queue. For
    /// tests of indices that wrap around.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, index: u32) {
        self.tail = index;
        self.publish();
    }

    /// Returns the number of pushed entries that the engine has not consumed.
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

    /// Writes an SQE into the next slot. The engine sees the SQE after [`SubmissionHalf::publish`].
    #[inline]
    pub fn fill(&mut self, sqe: &Sqe) -> Result<(), Full> {
        self.fill_slot(sqe, None)
    }

    /// Writes an SQE of 128 bytes into the next slot of a ring with `SQE128`. The engine sees the
    /// SQE after [`SubmissionHalf::publish`].
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

    /// Shows the engine all SQEs written so far.
    #[inline]
    pub fn publish(&mut self) {
        self.memory.rings.header_word(layout::SQ_TAIL).store(self.tail, Edge::SqTail.release());
    }

    /// Writes an SQE and publishes it.
    #[inline]
    pub fn push(&mut self, sqe: &Sqe) -> Result<(), Full> {
        self.fill(sqe)?;
        self.publish();
        Ok(())
    }

    /// Returns whether the SQ thread sleeps, so that the application must call io_uring_enter(2)
    /// with `SQ_WAKEUP`. The application calls this function after it has stored the tail. The
    /// function executes a full barrier before it loads the flag.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        Edge::NeedWakeup.barrier(Side::Waker);
        self.memory.flags() & flags::NEED_WAKEUP != 0
    }

    /// Returns whether CQEs wait in the backlog for room in the CQ.
    #[inline]
    pub fn has_overflow(&self) -> bool {
        self.memory.flags() & flags::CQ_OVERFLOW != 0
    }

    /// Returns whether task work (completions that the engine has not yet posted) waits until this
    /// thread calls io_uring_enter(2) (`TASKRUN_FLAG`).
    #[inline]
    pub fn has_task_work(&self) -> bool {
        self.memory.flags() & flags::TASKRUN != 0
    }

    /// Returns the number of entries that the engine has dropped because of an invalid SQ array
    /// index.
    pub fn dropped(&self) -> u32 {
        self.memory.rings.header_word(layout::SQ_DROPPED).load(Ordering::Relaxed)
    }
}

/// The application's half of the CQ, which pops CQEs.
pub struct CompletionHalf {
    memory: Memory,
    head: u32,
}

impl CompletionHalf {
    /// Makes the application's half of a CQ from which no CQE has been popped.
    pub fn new(memory: &Memory) -> CompletionHalf {
        CompletionHalf { memory: memory.clone(), head: 0 }
    }

    /// Makes this half continue at `index`, as if `index` entries had passed through the queue. For
    /// tests of indices that wrap around.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, index: u32) {
        self.head = index;
        self.memory.rings.header_word(layout::CQ_HEAD).store(index, Ordering::Relaxed);
    }

    /// Returns the number of CQEs that can be popped.
    #[inline]
    pub fn len(&self) -> u32 {
        self.memory.rings.header_word(layout::CQ_TAIL).load(Edge::CqTail.acquire()).wrapping_sub(self.head)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the next CQE out and releases its slot.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "an Iterator would promise that None is the end; here more may come"
    )]
    pub fn next(&mut self) -> Option<Cqe> {
        self.take(|memory, at| memory.rings.read(at))
    }

    /// Copies out the next CQE of a ring with `CQE32`, together with its extension, and releases
    /// its slot.
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

    /// Returns the number of CQEs that were lost because the system had no memory for the backlog.
    pub fn lost(&self) -> u32 {
        self.memory.rings.header_word(layout::CQ_OVERFLOW).load(Ordering::Relaxed)
    }
}
