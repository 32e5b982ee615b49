//! The engine's half of the SQ, which consumes entries.
//!
//! - The program may write any value to the tail and to the index array. So the engine loads each
//!   of these words once and bounds the value.
//! - [`SubmissionQueue`] keeps the head in private memory, and writes it to the shared word. It
//!   reads the shared word only after another process has consumed entries.
//! - An SQE is copied once into private memory, and all fields are read from the copy.

use crate::layout;
use crate::memory::{Memory, flags};
use usring_sys::ordering::Edge;
use usring_sys::sync::Ordering;
use usring_uapi::Sqe;

/// The reason why an entry of the SQ makes no request and no CQE: its number in the index array was
/// out of range. The ring's `dropped` word counts such entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped;

/// The engine's half of the SQ. Only the holder of the ring's lock uses it.
pub struct SubmissionQueue {
    memory: Memory,
    /// Index of the next entry to consume; [`SubmissionQueue::commit`] publishes it.
    head: u32,
    /// Index after the last entry of the batch that [`SubmissionQueue::pending`] found.
    tail: u32,
    /// Byte offset of the SQE that was consumed last.
    last: usize,
    dropped: u32,
}

impl SubmissionQueue {
    pub fn new(memory: &Memory) -> SubmissionQueue {
        SubmissionQueue { memory: memory.clone(), head: 0, tail: 0, last: 0, dropped: 0 }
    }

    /// Makes the queue continue at `index`, as if `index` entries had passed through it. For tests
    /// of indices that wrap around.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, index: u32) {
        (self.head, self.tail) = (index, index);
        self.commit();
    }

    /// Continues after the entries that the engine of another process has consumed.
    pub fn catch_up(&mut self) {
        self.head = self.memory.rings.header_word(layout::SQ_HEAD).load(Ordering::Relaxed);
        self.tail = self.head;
    }

    /// Loads the tail and returns the number of entries to consume. An entry pushed after this call
    /// belongs to the next batch.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        let tail = self.memory.rings.header_word(layout::SQ_TAIL).load(Edge::SqTail.acquire());
        let pending = tail.wrapping_sub(self.head).min(self.memory.layout.sq_entries);
        self.tail = self.head.wrapping_add(pending);
        pending
    }

    /// Consumes and returns the next entry of the batch that [`SubmissionQueue::pending`] found.
    /// `None` at the end of the batch.
    #[expect(
        clippy::should_implement_trait,
        reason = "an Iterator would promise that None is the end; here it ends a batch"
    )]
    pub fn next(&mut self) -> Option<Result<Sqe, Dropped>> {
        let mut sqe = Sqe::default();
        self.next_into(&mut sqe).map(|taken| taken.map(|()| sqe))
    }

    /// Consumes the next entry of the batch and copies it directly to `sqe`. `None` at the end of
    /// the batch.
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

    /// Returns the second 64 bytes of the SQE that was consumed last; `None` without `SQE128`. The
    /// caller calls this once, before [`SubmissionQueue::commit`]. After `commit` the program may
    /// overwrite the bytes.
    pub fn extension(&self) -> Option<[u64; 8]> {
        self.memory.layout.has_wide_sqes().then(|| self.memory.sqes.read(self.last + 64))
    }

    /// Returns the index of the entry that was taken last.
    pub fn last_index(&self) -> u32 {
        self.head.wrapping_sub(1)
    }

    /// Returns the index of the first entry that no process has taken. Valid only right after
    /// [`SubmissionQueue::catch_up`].
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Releases the slots of all entries consumed so far. After this call the program may overwrite
    /// the slots.
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

    /// Prepares the SQ thread's sleep: sets `NEED_WAKEUP`, executes a full barrier, and checks for
    /// entries again. Returns whether the SQ is empty. If so, a program that pushes later sees the
    /// flag and calls io_uring_enter(2) with `SQ_WAKEUP`.
    ///
    /// The SQ thread takes these steps:
    ///
    /// 1. It announces on its sleep word that it sleeps. A program that then sees the flag calls
    ///    io_uring_enter(2), and that call finds a sleeper to wake.
    /// 2. It calls this function for each of its rings, and sleeps if all calls return `true`.
    /// 3. It calls [`SubmissionQueue::end_sleep`] before it checks for entries again.
    pub fn prepare_sleep(&mut self) -> bool {
        self.need_wakeup();
        self.pending() == 0
    }

    /// Sets `NEED_WAKEUP` and executes a full barrier. An SQ thread that ends leaves the flag set.
    /// So the program calls io_uring_enter(2), which reports that the SQ thread has ended.
    pub fn need_wakeup(&self) {
        self.set_flag(flags::NEED_WAKEUP);
    }

    /// Clears `NEED_WAKEUP`, after the SQ thread has woken.
    pub fn end_sleep(&self) {
        self.clear_flag(flags::NEED_WAKEUP);
    }
}
