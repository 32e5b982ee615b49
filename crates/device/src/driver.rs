//! The two traits of a kind of device: the driver, which all users share, and its queue pairs, each
//! of which belongs to one ring, context or thread.

mod deferred_submit;
pub mod file;
pub mod gone;
pub mod null;
pub mod ram;
pub mod vhost_user;

pub use deferred_submit::DeferredSubmit;

use crate::geometry::Geometry;
use crate::request::{Completions, DeviceRequest};
use alloc::boxed::Box;
use usring_sys::Errno;
use usring_sys::kernel_aio::Waiter;
use usring_sys::plain::IoVector;

/// Maximum bytes of a request without another limit: Linux's limit for one call (`MAX_RW_COUNT`).
/// It fits into a result.
pub const LONGEST_TRANSFER: u32 = 0x7fff_f000;
/// Maximum number of segments of a request without another limit (`UIO_MAXIOV`).
pub const MOST_SEGMENTS: u32 = 1024;

/// A device of one kind (`null`, `ram`, …), or a wrapper around a device.
pub trait Driver: Send + Sync {
    fn geometry(&self) -> Geometry;

    /// Opens a queue pair. On the control path; may block.
    ///
    /// Errors: those of the driver's system calls or of its back end; `ENOMEM`.
    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno>;

    /// Executes a request for which a queue pair returned [`Submission::NeedsWorker`]. Blocks the
    /// calling thread. Returns the bytes.
    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        let _ = request;
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns whether a forked child may use this driver with queue pairs of its own, which reach
    /// the same blocks. The descriptors passed to `keep` must stay open in the child.
    fn keep_after_fork(&self, keep: &mut dyn FnMut(i32)) -> bool {
        let _ = keep;
        false
    }

    /// Announces memory that the program uses for many transfers (registered buffers, buffer
    /// rings). If its back end can share memory, the driver shares this memory and transfers
    /// without a copy. The driver may ignore the call.
    fn share_memory(&self, memory: IoVector) {
        let _ = memory;
    }

    /// Ends what [`Driver::share_memory`] began, after the last transfer.
    fn unshare_memory(&self, memory: IoVector) {
        let _ = memory;
    }
}

/// Options of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Maximum number of requests in flight; tokens are smaller.
    pub depth: u32,
    /// Whether the user sleeps on [`QueuePair::interrupt`]. If not, the user only polls, and the
    /// device sends no interrupts.
    pub interrupts: bool,
}

/// Result of [`QueuePair::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Submission {
    /// The request will complete. The device need not learn of it before
    /// [`QueuePair::ring_doorbell`].
    Accepted,
    /// There is no room until a request completes.
    Full,
    /// The request would block here; [`Driver::execute`] executes it.
    NeedsWorker,
    /// The request fails immediately with this error; there will be no completion.
    Refused(Errno),
}

/// A submission queue and a completion queue of a device.
pub trait QueuePair: Send {
    /// Submits a request. Never blocks. Touches the request's memory later only if the result is
    /// [`Submission::Accepted`].
    fn submit(&mut self, request: &DeviceRequest) -> Submission;

    /// Notifies the device of all accepted requests, once per batch. Sleeps only if
    /// [`QueuePair::defers_submits`].
    fn ring_doorbell(&mut self);

    /// Returns whether notifying the device may sleep. A user with a contended lock then uses a
    /// deferred submit, which releases the lock for the sleep:
    ///
    /// 1. [`QueuePair::begin_deferred`], with the lock.
    /// 2. [`DeferredSubmit::run`], without the lock.
    /// 3. [`QueuePair::end_deferred`], with the lock.
    fn defers_submits(&self) -> bool {
        false
    }

    /// Begins a deferred submit. Returns the batch to carry out and to bring back; `None` if
    /// there is nothing left to do.
    fn begin_deferred(&mut self) -> Option<DeferredSubmit> {
        self.ring_doorbell();
        None
    }

    /// Ends a deferred submit, after [`DeferredSubmit::run`].
    fn end_deferred(&mut self, batch: DeferredSubmit) {
        let _ = batch;
    }

    /// Appends completions in any order, as far as there is room. Never blocks.
    fn poll(&mut self, completions: &mut Completions);

    /// Returns whether a poll may find completions. Cheap, because users call it repeatedly between
    /// polls. `true` if only a poll can find out.
    fn has_completions(&mut self) -> bool {
        true
    }

    /// Returns the descriptor that becomes readable after [`QueuePair::arm_interrupt`]; `None`
    /// unless the queue pair was opened with interrupts.
    fn interrupt(&self) -> Option<i32>;

    /// Returns a way for a thread to sleep until several requests have completed, if the device has
    /// one. It needs no armed interrupt.
    fn waiter(&self) -> Option<Waiter> {
        None
    }

    /// Lets the requests submitted from now on complete without signalling the interrupt, which is
    /// cheaper. Arming the interrupt ends this.
    fn silence(&mut self) {}

    /// Returns whether requests are in flight whose completions do not signal an armed interrupt.
    fn has_silent(&self) -> bool {
        false
    }

    /// Asks for a signal of [`QueuePair::interrupt`] at the next completion. `false` if there may
    /// be a completion already: the user must poll first, as the descriptor may stay unreadable.
    fn arm_interrupt(&mut self) -> bool;
}
