//! A ring of the Rust API. It holds the engine's ring by an `Arc`, and the application's ends of
//! both queues.

use super::cqueue::{self, CompletionQueue};
use super::descriptor::Descriptor;
use super::os_error;
use super::squeue::{self, SubmissionQueue};
use super::submitter::Submitter;
use super::{Builder, Parameters};
use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use usring_engine::Ring;
use usring_ring::application::{CompletionHalf, SubmissionHalf};
use usring_sys::shared::SharedMemory;
use usring_sys::{Errno, SystemCall};
use usring_uapi::general as linux;
use usring_uapi::io_uring as abi;

/// An io_uring of this process: two queues, and the engine, which takes requests from the
/// submission queue and posts completions to the completion queue.
///
/// `S` and `C` are the types of the entries: [`squeue::Entry`] or [`squeue::Entry128`], and
/// [`cqueue::Entry`] or [`cqueue::Entry32`].
///
/// Several threads may use one ring through [`submitter`](IoUring::submitter). Each queue belongs
/// to one thread at a time. `&mut self` ensures this, except for
/// [`submission_shared`](IoUring::submission_shared) and
/// [`completion_shared`](IoUring::completion_shared), whose callers must ensure it.
///
/// # Dropping
/// Drop cancels the requests in flight, and returns once nothing uses their memory any more. So it
/// may wait for a system call that cannot be interrupted, such as a disk access. Entries that were
/// pushed and not submitted are discarded. In a forked child, drop does nothing.
///
/// ```
/// use usring::{IoUring, opcode};
///
/// # fn main() -> std::io::Result<()> {
/// let mut ring = IoUring::new(4)?;
/// for user_data in 0..3 {
///     let nop = opcode::Nop::new().build().user_data(user_data);
///     // SAFETY: a NOP names no memory.
///     unsafe { ring.submission().push(&nop).expect("a ring of 4 has room for three") };
/// }
/// assert_eq!(ring.submit_and_wait(3)?, 3);
/// assert_eq!(ring.completion().map(|entry| entry.user_data()).sum::<u64>(), 0 + 1 + 2);
/// # Ok(())
/// # }
/// ```
pub struct IoUring<S = squeue::Entry, C = cqueue::Entry>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    core: Core,
    submission: UnsafeCell<SubmissionHalf>,
    completion: UnsafeCell<CompletionHalf>,
    entries: PhantomData<fn(S) -> C>,
}

// SAFETY: through `&IoUring` only `submission_shared` and `completion_shared` reach the two cells,
// and their callers promise that one thread at a time uses each. All other fields are `Sync`.
unsafe impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Sync for IoUring<S, C> {}

/// The parts of a ring that its queues and its submitters share.
pub(super) struct Core {
    pub ring: Arc<Ring>,
    pub parameters: Parameters,
    pub descriptor: Descriptor,
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.ring.is_inherited() {
            // In a forked child, leaks the engine's ring. Only the parent process may close it, and
            // threads of the parent may have held the ring's locks at the fork.
            mem::forget(self.ring.clone());
            return;
        }
        self.descriptor.retire();
        self.ring.close_and_wait();
    }
}

impl IoUring<squeue::Entry, cqueue::Entry> {
    /// Makes a ring of `entries` submission queue entries, rounded up to a power of two, and twice
    /// as many completion queue entries.
    ///
    /// # Errors
    /// Those of [`Builder::build`].
    pub fn new(entries: u32) -> io::Result<Self> {
        Self::builder().build(entries)
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> IoUring<S, C> {
    /// Returns a [`Builder`] for a ring with these kinds of entries.
    #[must_use]
    pub fn builder() -> Builder<S, C> {
        Builder::default()
    }

    pub(super) fn new_from(ring: Arc<Ring>, parameters: abi::io_uring_params) -> Self {
        IoUring {
            submission: UnsafeCell::new(SubmissionHalf::new(ring.memory())),
            completion: UnsafeCell::new(CompletionHalf::new(ring.memory())),
            core: Core { ring, parameters: Parameters(parameters), descriptor: Descriptor::default() },
            entries: PhantomData,
        }
    }

    /// Returns a handle to submit, to wait for completions and to register.
    #[inline]
    pub fn submitter(&self) -> Submitter<'_> {
        Submitter::new(&self.core)
    }

    /// Returns the parameters that the ring was made with.
    #[inline]
    pub fn params(&self) -> &Parameters {
        &self.core.parameters
    }

    /// Submits the pushed requests: [`Submitter::submit`].
    #[inline]
    pub fn submit(&self) -> io::Result<usize> {
        self.submitter().submit()
    }

    /// Submits all pushed entries, and waits until `want` completions are in the queue:
    /// [`Submitter::submit_and_wait`].
    #[inline]
    pub fn submit_and_wait(&self, want: usize) -> io::Result<usize> {
        self.submitter().submit_and_wait(want)
    }

    /// Returns the submitter and both queues at once. The submitter sees pushed entries only after
    /// [`SubmissionQueue::sync`], or after the queue was dropped.
    #[inline]
    pub fn split(&mut self) -> (Submitter<'_>, SubmissionQueue<'_, S>, CompletionQueue<'_, C>) {
        let submission = SubmissionQueue::new(self.submission.get_mut(), self.core.ring.memory());
        let completion = CompletionQueue::new(self.completion.get_mut(), &self.core);
        (Submitter::new(&self.core), submission, completion)
    }

    /// Returns the submission queue.
    #[inline]
    pub fn submission(&mut self) -> SubmissionQueue<'_, S> {
        SubmissionQueue::new(self.submission.get_mut(), self.core.ring.memory())
    }

    /// Returns the submission queue of a ring that several threads share.
    ///
    /// # Safety
    /// No other [`SubmissionQueue`] of this ring exists while this one does.
    #[inline]
    pub unsafe fn submission_shared(&self) -> SubmissionQueue<'_, S> {
        // SAFETY: the caller promises that no other `SubmissionQueue` uses this half.
        SubmissionQueue::new(unsafe { &mut *self.submission.get() }, self.core.ring.memory())
    }

    /// Returns the completion queue.
    #[inline]
    pub fn completion(&mut self) -> CompletionQueue<'_, C> {
        CompletionQueue::new(self.completion.get_mut(), &self.core)
    }

    /// Returns the completion queue of a ring that several threads share.
    ///
    /// # Safety
    /// No other [`CompletionQueue`] of this ring exists while this one does.
    #[inline]
    pub unsafe fn completion_shared(&self) -> CompletionQueue<'_, C> {
        // SAFETY: the caller promises that no other `CompletionQueue` uses this half.
        CompletionQueue::new(unsafe { &mut *self.completion.get() }, &self.core)
    }

    /// Maps `length` bytes of the ring's memory, as mmap(2) on a kernel ring's descriptor would.
    /// `offset` is one of `IORING_OFF_*`. A buffer ring registered with `IOU_PBUF_RING_MMAP` is at
    /// offset `0x8000_0000 | group << 16`. The mapping stays until the caller unmaps it by
    /// munmap(2), even after the ring is dropped.
    ///
    /// # Errors
    /// - `EINVAL`: no memory is at `offset`, or that memory is shorter than `length`.
    /// - `EOWNERDEAD`: the ring is a parent process's.
    pub fn map(&self, offset: u64, length: usize) -> io::Result<NonNull<u8>> {
        if self.core.ring.is_inherited() {
            return Err(os_error(Errno::EOWNERDEAD));
        }
        let address = self.core.ring.map(offset, length).map_err(os_error)?;
        NonNull::new(address as *mut u8).ok_or_else(|| os_error(Errno::ENOMEM))
    }

    /// Applies madvise(2) with MADV_DONTFORK to all of the ring's memory.
    pub(super) fn keep_from_children(&self) -> io::Result<()> {
        let advice = u64::from(linux::MADV_DONTFORK);
        let advise = |part: &SharedMemory| {
            let arguments = [part.address() as u64, part.length() as u64, advice, 0, 0];
            SystemCall::new(linux::__NR_madvise, arguments).run().map(drop).map_err(os_error)
        };
        let parts = self.core.ring.memory().parts();
        parts.into_iter().filter(|part| part.mapping().is_some()).try_for_each(advise)
    }
}

/// Returns a descriptor for event loops: poll and epoll report it readable while the completion
/// queue is not empty.
///
/// - The first call makes the descriptor. Dropping the ring closes it.
/// - It is an eventfd that the program must neither read nor write.
/// - It may be readable once although the queue is empty, if the event loop takes a completion
///   while another thread posts one.
/// - The result is −1 if the process can open no more descriptors, or if the ring is a parent
///   process's.
///
/// ```
/// use std::os::fd::AsRawFd;
/// use usring::{IoUring, opcode};
///
/// # fn main() -> std::io::Result<()> {
/// let mut ring = IoUring::new(4)?;
/// let mut watched = libc::pollfd { fd: ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
/// // SAFETY: a NOP names no memory.
/// unsafe { ring.submission().push(&opcode::Nop::new().build()).expect("an empty ring has room") };
/// ring.submit()?;
/// // SAFETY: the array is one `pollfd`, as its count says.
/// assert_eq!(unsafe { libc::poll(&mut watched, 1, 1000) }, 1, "readable at once");
/// ring.completion().for_each(drop);
/// // SAFETY: the array is one `pollfd`, as its count says.
/// assert_eq!(unsafe { libc::poll(&mut watched, 1, 0) }, 0, "nothing is left");
/// # Ok(())
/// # }
/// ```
impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> AsRawFd for IoUring<S, C> {
    fn as_raw_fd(&self) -> RawFd {
        self.core.descriptor.number(&self.core.ring)
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> fmt::Debug for IoUring<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoUring").field("params", &self.core.parameters).finish_non_exhaustive()
    }
}
