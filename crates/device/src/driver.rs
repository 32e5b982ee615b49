//! The two traits that a kind of device implements: the driver, which all users share, and its
//! queue pairs. Each queue pair belongs to one ring, AIO context or thread.

mod deferred_submit;
pub mod file;
pub mod gone;
pub mod null;
pub mod ram;
pub mod storage;
pub mod vhost_user;

pub use deferred_submit::DeferredSubmit;

use crate::geometry::Geometry;
use crate::request::{Completions, DeviceRequest};
use alloc::boxed::Box;
use usring_sys::Errno;
use usring_sys::kernel_aio::Waiter;
use usring_sys::plain::IoVector;
use usring_uapi::general as linux;

/// Maximum number of bytes of a request on a device that sets no smaller limit itself. It is
/// Linux's limit for one call (`MAX_RW_COUNT`), so a result of 32 bits can hold it.
pub const LONGEST_TRANSFER: u32 = 0x7fff_f000;
/// Maximum number of segments of a request on a device that sets no smaller limit itself.
pub const MOST_SEGMENTS: u32 = linux::UIO_MAXIOV;

/// A device of one kind (`null`, `ram`, …), or a wrapper around a device.
pub trait Driver: Send + Sync {
    fn geometry(&self) -> Geometry;

    /// Opens a queue pair. May block, because it is not on the path of a request.
    ///
    /// Errors: those of the driver's system calls or of its back end; `ENOMEM`.
    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno>;

    /// Executes a request for which a queue pair returned [`Submission::NeedsWorker`]. Blocks the
    /// calling thread. Returns the bytes transferred.
    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        let _ = request;
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns whether a forked child may open queue pairs of its own on this driver, through which
    /// it reaches its parent's blocks. Calls `keep` with each descriptor that must stay open in the
    /// child.
    fn keep_after_fork(&self, keep: &mut dyn FnMut(i32)) -> bool {
        let _ = keep;
        false
    }

    /// Announces memory that the program uses for many transfers (registered buffers, buffer
    /// rings). A driver whose back end can share memory shares it, and then transfers without a
    /// copy. Other drivers ignore the call.
    fn share_memory(&self, memory: IoVector) {
        let _ = memory;
    }

    /// Ends the sharing that [`Driver::share_memory`] began, after the last transfer.
    fn unshare_memory(&self, memory: IoVector) {
        let _ = memory;
    }

    /// Ends the sharings that [`Driver::share_memory`] has marked as replaced: the program had
    /// mapped other memory at their addresses. The caller calls this after the last transfer that
    /// may use the replaced sharings.
    fn unshare_replaced(&self, memory: IoVector) {
        let _ = memory;
    }
}

/// Options of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Maximum number of requests in flight in the queue pair. The requests' tokens (the numbers
    /// that completions return) are below this number.
    pub depth: u32,
    /// Whether the thread that uses the queue pair may sleep on [`QueuePair::interrupt`]. If not,
    /// the thread only polls, and the device sends no interrupts.
    pub interrupts: bool,
}

/// Result of [`QueuePair::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Submission {
    /// The queue pair has accepted the request, which will complete. The device may see the request
    /// only after [`QueuePair::ring_doorbell`].
    Accepted,
    /// The queue pair has no room for the request until another request completes.
    Full,
    /// The request would block. A thread that may block must pass it to [`Driver::execute`].
    NeedsWorker,
    /// The request has failed with this error. It gets no completion.
    Refused(Errno),
}

/// A submission queue and a completion queue of a device.
pub trait QueuePair: Send {
    /// Submits a request without blocking. After this call, the queue pair accesses the request's
    /// memory only if the result was [`Submission::Accepted`].
    fn submit(&mut self, request: &DeviceRequest) -> Submission;

    /// Notifies the device of all accepted requests. Called once per batch. If
    /// [`QueuePair::defers_submits`] returns `true`, the thread may have to sleep in this call.
    fn ring_doorbell(&mut self);

    /// Returns whether a thread may have to sleep in [`QueuePair::ring_doorbell`]. A user calls the
    /// queue pair under a lock. If other threads wait for that lock, the user makes a *deferred
    /// submit*, during which the lock is free:
    ///
    /// 1. [`QueuePair::begin_deferred`], with the lock.
    /// 2. [`DeferredSubmit::run`], without the lock.
    /// 3. [`QueuePair::end_deferred`], with the lock.
    fn defers_submits(&self) -> bool {
        false
    }

    /// Begins a deferred submit of all accepted requests. `None` if [`DeferredSubmit::run`] would
    /// have nothing to do.
    fn begin_deferred(&mut self) -> Option<DeferredSubmit> {
        self.ring_doorbell();
        None
    }

    /// Ends a deferred submit whose [`DeferredSubmit::run`] has returned.
    fn end_deferred(&mut self, batch: DeferredSubmit) {
        let _ = batch;
    }

    /// Appends the completions of completed requests to `completions`, in any order, as many as fit
    /// there. Never blocks.
    fn poll(&mut self, completions: &mut Completions);

    /// Returns whether a poll may find completions. Users call it repeatedly between polls, so it
    /// must be cheap. A queue pair that cannot know without a poll returns `true`.
    fn has_completions(&mut self) -> bool {
        true
    }

    /// Returns the descriptor of the interrupt. It becomes readable at the first completion after
    /// [`QueuePair::arm_interrupt`]. `None` if the queue pair was opened without interrupts.
    fn interrupt(&self) -> Option<i32>;

    /// Returns a means for a thread to sleep until several requests have completed, if the device
    /// has one. The thread need not arm the interrupt before this sleep.
    fn waiter(&self) -> Option<Waiter> {
        None
    }

    /// Suppresses the interrupt for requests that are submitted from now on: their completions do
    /// not signal it. Such requests cost less. Arming the interrupt ends this mode.
    fn suppress_interrupts(&mut self) {}

    /// Returns whether a request is in flight that was submitted while interrupts were suppressed.
    /// Its completion does not signal the interrupt, even if the interrupt has been armed since.
    fn has_suppressed(&self) -> bool {
        false
    }

    /// Arms the interrupt: the next completion makes [`QueuePair::interrupt`] readable. Returns
    /// `false` if a request may have completed already. The user must then poll, because the
    /// descriptor may stay unreadable.
    fn arm_interrupt(&mut self) -> bool;
}
