//! The application's end of the submission queue.

use super::entry;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use usring_ring::application::SubmissionHalf;
use usring_ring::{Memory, flags};

pub use io_uring::squeue::{Entry, Entry128, EntryMarker, Flags};

/// The submission queue of a ring, to which the program pushes requests.
///
/// The engine sees pushed entries after [`sync`](SubmissionQueue::sync), or after this object is
/// dropped. [`Submitter::submit`](crate::Submitter::submit) then starts them. On a ring with
/// `setup_sqpoll` the SQ thread starts them at once.
pub struct SubmissionQueue<'a, E: EntryMarker = Entry> {
    half: &'a mut SubmissionHalf,
    memory: &'a Memory,
    entries: PhantomData<fn(E)>,
}

impl<'a, E: EntryMarker> SubmissionQueue<'a, E> {
    #[inline]
    pub(super) fn new(half: &'a mut SubmissionHalf, memory: &'a Memory) -> Self {
        SubmissionQueue { half, memory, entries: PhantomData }
    }

    /// Publishes the pushed entries to the engine.
    #[inline]
    pub fn sync(&mut self) {
        self.half.publish();
    }

    /// Returns whether the SQ thread sleeps. If so, a thread must enter the ring with
    /// [`EnterFlags::SQ_WAKEUP`](crate::EnterFlags::SQ_WAKEUP).
    /// [`Submitter::submit`](crate::Submitter::submit) does so by itself.
    ///
    /// Call [`sync`](SubmissionQueue::sync) first. This function begins with the full barrier that
    /// must stand between publishing the entries and reading the flag that the SQ thread sets
    /// before it sleeps.
    #[inline]
    pub fn need_wakeup(&self) -> bool {
        self.half.needs_wakeup()
    }

    /// Returns whether the SQ thread sleeps, for a caller that has executed a `SeqCst` fence since
    /// the last [`sync`](SubmissionQueue::sync). Without the fence a wake-up can be missed.
    #[inline]
    pub fn need_wakeup_after_intermittent_seqcst(&self) -> bool {
        self.memory.flags() & flags::NEED_WAKEUP != 0
    }

    /// Returns how many entries the engine has dropped because of a bad index in the index array.
    /// The answer is always 0, because this library writes the indices itself.
    pub fn dropped(&self) -> u32 {
        self.half.dropped()
    }

    /// Returns whether completions are in the backlog because the completion queue is full. After
    /// the program has taken completions, [`submit`](crate::Submitter::submit) moves completions
    /// from the backlog to the queue.
    pub fn cq_overflow(&self) -> bool {
        self.half.has_overflow()
    }

    /// Returns whether completions are pending that are posted only when this thread enters the
    /// ring ([`setup_taskrun_flag`](crate::Builder::setup_taskrun_flag)).
    pub fn taskrun(&self) -> bool {
        self.half.has_task_work()
    }

    /// Returns the number of entries that the queue can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.memory.layout().sq_entries as usize
    }

    /// Returns the number of entries in the queue that the engine has not taken yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.half.len() as usize
    }

    /// Returns whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.half.is_empty()
    }

    /// Returns whether the queue is full.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.half.is_full()
    }

    /// Pushes a request.
    ///
    /// # Errors
    /// [`PushError`]: the queue is full.
    ///
    /// # Safety
    /// - The memory of the data that the entry names stays valid for the operation until its
    ///   completion is posted or the ring is dropped.
    /// - Other memory that the entry names (a path, vectors) stays valid until the entry is
    ///   submitted.
    ///
    /// An entry may name an address where no memory is mapped: the request then completes with
    /// `-EFAULT`.
    #[inline]
    pub unsafe fn push(&mut self, entry: &E) -> Result<(), PushError> {
        let sqe = entry::sqe(entry);
        let pushed = if const { entry::is_wide_sqe::<E>() } {
            self.half.fill_wide(&sqe, entry::sqe_extension(entry))
        } else {
            self.half.fill(&sqe)
        };
        pushed.map_err(|_full| PushError(()))
    }

    /// Pushes all of `entries`, or none if the queue has too little room.
    ///
    /// # Errors
    /// [`PushError`]: the queue has too little room.
    ///
    /// # Safety
    /// The promises of [`push`](SubmissionQueue::push), for each entry.
    #[inline]
    pub unsafe fn push_multiple(&mut self, entries: &[E]) -> Result<(), PushError> {
        if self.capacity() - self.len() < entries.len() {
            return Err(PushError(()));
        }
        for entry in entries {
            // SAFETY: the caller makes the promises of `push` for each entry.
            unsafe { self.push(entry)? };
        }
        Ok(())
    }
}

impl<E: EntryMarker> Drop for SubmissionQueue<'_, E> {
    #[inline]
    fn drop(&mut self) {
        self.half.publish();
    }
}

impl<E: EntryMarker> fmt::Debug for SubmissionQueue<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmissionQueue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// The submission queue is full. The caller must submit before it can push more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushError(());

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("submission queue is full")
    }
}

impl Error for PushError {}
