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
/// What was pushed is seen by the engine after [`sync`](SubmissionQueue::sync)
/// or when this is dropped; it is carried out when it is submitted, or at once
/// by the SQ thread of a ring with `setup_sqpoll`.
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

    /// Shows the engine what was pushed.
    #[inline]
    pub fn sync(&mut self) {
        self.half.publish();
    }

    /// Whether the SQ thread sleeps, so that somebody has to enter with
    /// [`EnterFlags::SQ_WAKEUP`](crate::EnterFlags::SQ_WAKEUP);
    /// [`Submitter::submit`](crate::Submitter::submit) does so by itself. Means
    /// something after [`sync`](SubmissionQueue::sync) only; contains the full
    /// barrier that has to stand between the two.
    #[inline]
    pub fn need_wakeup(&self) -> bool {
        self.half.needs_wakeup()
    }

    /// The same for a caller with a `SeqCst` fence of its own since the last
    /// [`sync`](SubmissionQueue::sync). Without one a wake-up can be missed.
    #[inline]
    pub fn need_wakeup_after_intermittent_seqcst(&self) -> bool {
        self.memory.flags() & flags::NEED_WAKEUP != 0
    }

    /// Entries that the engine has dropped because the index array pointed
    /// nowhere. The array is filled by this library, so: 0.
    pub fn dropped(&self) -> u32 {
        self.half.dropped()
    }

    /// Whether completions wait in the backlog for room in the completion
    /// queue. Make room, then [`submit`](crate::Submitter::submit) brings them.
    pub fn cq_overflow(&self) -> bool {
        self.half.has_overflow()
    }

    /// Whether completions wait for this thread to enter
    /// ([`setup_taskrun_flag`](crate::Builder::setup_taskrun_flag)).
    pub fn taskrun(&self) -> bool {
        self.half.has_task_work()
    }

    /// Entries that the queue can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.memory.layout().sq_entries as usize
    }

    /// Entries in the queue.
    #[inline]
    pub fn len(&self) -> usize {
        self.half.len() as usize
    }

    /// Whether there is no entry in the queue.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.half.is_empty()
    }

    /// Whether there is no room in the queue.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.half.is_full()
    }

    /// Pushes a request.
    ///
    /// # Errors
    /// [`PushError`]: there is no room.
    ///
    /// # Safety
    /// Every address in the entry is good for what the operation does with it,
    /// until its completion has come (or, of what it points to besides the data
    /// itself, until it was submitted), or the ring was dropped. A bad one is
    /// answered with `-EFAULT`; one that means somebody else's memory is used.
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

    /// Pushes several requests, or none if there is no room for all of them.
    ///
    /// # Errors
    /// [`PushError`]: there is not room enough.
    ///
    /// # Safety
    /// Each entry as for [`push`](SubmissionQueue::push).
    #[inline]
    pub unsafe fn push_multiple(&mut self, entries: &[E]) -> Result<(), PushError> {
        if self.capacity() - self.len() < entries.len() {
            return Err(PushError(()));
        }
        for entry in entries {
            // SAFETY: as the caller vouches.
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
