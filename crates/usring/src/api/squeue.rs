//! The application's end of the submission queue.

use super::entry;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use usring_ring::application::SubmissionHalf;
use usring_ring::{Memory, flags};

pub use io_uring::squeue::{Entry, Entry128, EntryMarker, Flags};

/// The submission queue of a ring, to push requests to.
///
/// The engine sees pushed entries after [`sync`](SubmissionQueue::sync), or when this is dropped.
/// It carries them out when they are submitted; the SQ thread of a ring with `setup_sqpoll` does so
/// at once.
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

    /// Returns whether the SQ thread sleeps, so that a thread must enter with
    /// [`EnterFlags::SQ_WAKEUP`](crate::EnterFlags::SQ_WAKEUP).
    /// [`Submitter::submit`](crate::Submitter::submit) does so by itself.
    ///
    /// The answer is meaningful only after [`sync`](SubmissionQueue::sync). This function contains
    /// the full barrier that must stand between the two.
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
    /// This library fills the array, so the answer is 0.
    pub fn dropped(&self) -> u32 {
        self.half.dropped()
    }

    /// Returns whether completions wait in the backlog for room in the completion queue. Take
    /// completions, then [`submit`](crate::Submitter::submit) brings those of the backlog.
    pub fn cq_overflow(&self) -> bool {
        self.half.has_overflow()
    }

    /// Returns whether completions wait for this thread to enter
    /// ([`setup_taskrun_flag`](crate::Builder::setup_taskrun_flag)).
    pub fn taskrun(&self) -> bool {
        self.half.has_task_work()
    }

    /// Returns the number of entries that the queue can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.memory.layout().sq_entries as usize
    }

    /// Returns the number of entries in the queue.
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
    /// Every address in the entry is valid for the operation's use of it, until its completion is
    /// posted or the ring is dropped. Memory other than the data itself (a path, vectors) needs to
    /// be valid only until the entry was submitted. An address without memory is answered with
    /// `-EFAULT`; memory that belongs to other code is used.
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

    /// Pushes several requests, or none if the queue has no room for all of them.
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
            // SAFETY: the caller promises it for each entry.
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

/// The submission queue has no room: submit first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushError(());

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("submission queue is full")
    }
}

impl Error for PushError {}
