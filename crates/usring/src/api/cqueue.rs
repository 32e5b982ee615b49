//! The application's end of the completion queue.

use super::entry;
use super::ring::Core;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use usring_ring::Memory;
use usring_ring::application::CompletionHalf;
use usring_sys::sync::{AtomicU32, Ordering};
use usring_uapi::io_uring::IORING_CQ_EVENTFD_DISABLED;

pub use io_uring::cqueue::{Entry, Entry32, EntryMarker, buffer_more, buffer_select, more, notif, sock_nonempty};

/// The completion queue of a ring: an iterator over the completions that were posted before the
/// last [`sync`](CompletionQueue::sync). Borrowing the queue counts as a sync.
pub struct CompletionQueue<'a, E: EntryMarker = Entry> {
    half: &'a mut CompletionHalf,
    core: &'a Core,
    /// Number of completions that the last `sync` found and the program has not taken yet.
    left: u32,
    entries: PhantomData<fn() -> E>,
}

impl<'a, E: EntryMarker> CompletionQueue<'a, E> {
    #[inline]
    pub(super) fn new(half: &'a mut CompletionHalf, core: &'a Core) -> Self {
        let left = half.len();
        CompletionQueue { half, core, left, entries: PhantomData }
    }

    /// Reads the queue's tail again. The iterator then also returns completions that were posted
    /// since the last `sync`.
    #[inline]
    pub fn sync(&mut self) {
        self.clear_readiness();
        self.left = self.half.len();
    }

    #[inline]
    fn clear_readiness(&self) {
        self.core.descriptor.clear_readiness(|| self.half.is_empty());
    }

    /// Returns an object that reports whether the ring has completions, for code that does not hold
    /// the queue. The object may outlive the ring. (The `io-uring` crate's function is `unsafe`,
    /// because there the object must not outlive the ring.)
    #[inline]
    pub fn status(&self) -> CompletionStatus {
        CompletionStatus { memory: self.core.ring.memory().clone() }
    }

    /// Returns the number of completions that were lost because there was no memory for the
    /// backlog.
    pub fn overflow(&self) -> u32 {
        self.half.lost()
    }

    fn flags(&self) -> &AtomicU32 {
        self.core.ring.memory().rings().word(self.core.parameters.0.cq_off.flags as usize)
    }

    /// Returns whether new completions leave the counter of the registered eventfd unchanged.
    pub fn eventfd_disabled(&self) -> bool {
        self.flags().load(Ordering::Acquire) & IORING_CQ_EVENTFD_DISABLED != 0
    }

    /// Makes new completions leave the counter of the registered eventfd
    /// ([`register_eventfd`](crate::Submitter::register_eventfd)) unchanged.
    pub fn disable_eventfd(&self) {
        self.flags().fetch_or(IORING_CQ_EVENTFD_DISABLED, Ordering::Release);
    }

    /// Makes new completions raise the counter of the registered eventfd again.
    pub fn enable_eventfd(&self) {
        self.flags().fetch_and(!IORING_CQ_EVENTFD_DISABLED, Ordering::Release);
    }

    /// Returns the number of entries that the queue can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.core.ring.memory().layout().cq_entries as usize
    }

    /// Returns whether the program has taken every completion that the last
    /// [`sync`](CompletionQueue::sync) found.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Returns whether the last [`sync`](CompletionQueue::sync) found a full queue, and the program
    /// has taken nothing since.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Takes completions until `entries` is full or the queue is empty, and returns the filled part
    /// of `entries`.
    #[inline]
    pub fn fill<'b>(&mut self, entries: &'b mut [MaybeUninit<E>]) -> &'b mut [E] {
        let count = self.len().min(entries.len());
        for slot in &mut entries[..count] {
            slot.write(self.take());
        }
        // SAFETY: the first `count` entries were just initialised.
        unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<E>(), count) }
    }

    /// Takes the oldest completion. The caller has checked that `left` is not 0.
    #[inline(always)]
    fn take(&mut self) -> E {
        const MISSING: &str = "the program's own memory holds the ring, and something has overwritten it";
        let (cqe, extension) = if const { entry::is_wide_cqe::<E>() } {
            self.half.next_wide().expect(MISSING)
        } else {
            (self.half.next().expect(MISSING), [0; 2])
        };
        self.left -= 1;
        entry::completion(cqe, extension)
    }
}

impl<E: EntryMarker> Drop for CompletionQueue<'_, E> {
    #[inline]
    fn drop(&mut self) {
        self.clear_readiness();
    }
}

impl<E: EntryMarker> Iterator for CompletionQueue<'_, E> {
    type Item = E;

    #[inline]
    fn next(&mut self) -> Option<E> {
        if self.left == 0 { None } else { Some(self.take()) }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl<E: EntryMarker> ExactSizeIterator for CompletionQueue<'_, E> {}

impl<E: EntryMarker> fmt::Debug for CompletionQueue<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// Reports whether a ring has completions. It takes two loads and neither a lock nor a system call.
/// The answer may be outdated when the caller gets it.
pub struct CompletionStatus {
    memory: Memory,
}

impl CompletionStatus {
    /// Returns whether the program has taken every completion that was posted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.memory.ready() == 0
    }
}

impl fmt::Debug for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionStatus").field("is_empty", &self.is_empty()).finish()
    }
}
