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

/// The completion queue of a ring: an iterator over the completions that were there when it was
/// borrowed or last [`sync`](CompletionQueue::sync)ed.
pub struct CompletionQueue<'a, E: EntryMarker = Entry> {
    half: &'a mut CompletionHalf,
    core: &'a Core,
    /// Completions that this object saw and has not taken yet.
    left: u32,
    entries: PhantomData<fn() -> E>,
}

impl<'a, E: EntryMarker> CompletionQueue<'a, E> {
    #[inline]
    pub(super) fn new(half: &'a mut CompletionHalf, core: &'a Core) -> Self {
        let left = half.len();
        CompletionQueue { half, core, left, entries: PhantomData }
    }

    /// Reads the queue again, so that completions posted since are seen.
    #[inline]
    pub fn sync(&mut self) {
        self.settle();
        self.left = self.half.len();
    }

    #[inline]
    fn settle(&self) {
        self.core.descriptor.settle(|| self.half.is_empty());
    }

    /// Returns an object that reports whether there are completions, for a caller that does not
    /// hold the queue. It may outlive the ring. (The `io-uring` crate's function is `unsafe`,
    /// because there it may not.)
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

    /// Returns whether completions leave a registered eventfd as it is.
    pub fn eventfd_disabled(&self) -> bool {
        self.flags().load(Ordering::Acquire) & IORING_CQ_EVENTFD_DISABLED != 0
    }

    /// Stops completions from adding to an eventfd registered by
    /// [`register_eventfd`](crate::Submitter::register_eventfd).
    pub fn disable_eventfd(&self) {
        self.flags().fetch_or(IORING_CQ_EVENTFD_DISABLED, Ordering::Release);
    }

    /// Has completions add to a registered eventfd again.
    pub fn enable_eventfd(&self) {
        self.flags().fetch_and(!IORING_CQ_EVENTFD_DISABLED, Ordering::Release);
    }

    /// Returns the number of entries that the queue can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.core.ring.memory().layout().cq_entries as usize
    }

    /// Returns whether no completion is left of those seen at the last
    /// [`sync`](CompletionQueue::sync).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Returns whether the queue was full at the last [`sync`](CompletionQueue::sync), and nothing
    /// was taken since.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Takes as many completions as there are and `entries` has room for.
    #[inline]
    pub fn fill<'b>(&mut self, entries: &'b mut [MaybeUninit<E>]) -> &'b mut [E] {
        let count = self.len().min(entries.len());
        for slot in &mut entries[..count] {
            slot.write(self.take());
        }
        // SAFETY: the first `count` entries were just written.
        unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<E>(), count) }
    }

    /// Takes one of the `left` completions.
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
        self.settle();
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

/// Reports whether a ring has completions: two loads, no lock, no call. The answer may be stale
/// when the caller gets it.
pub struct CompletionStatus {
    memory: Memory,
}

impl CompletionStatus {
    /// Returns whether every posted completion was taken.
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
