//! The two faces that a kind of device implements: the driver, which everybody
//! shares, and its queue pairs, each of which belongs to one ring, context or
//! thread.

mod delivery;
pub mod file;
pub mod gone;
pub mod null;
pub mod ram;
pub mod vhost_user;

pub use delivery::Delivery;

use crate::geometry::Geometry;
use crate::request::{Completions, DeviceRequest};
use alloc::boxed::Box;
use usring_sys::Errno;
use usring_sys::kernel_aio::Waiter;
use usring_sys::plain::IoVector;

/// Most bytes of one request, where nothing else limits them: what Linux
/// transfers in one call (`MAX_RW_COUNT`); a result has room for it.
pub const LONGEST_TRANSFER: u32 = 0x7fff_f000;
/// Most segments of one request, where nothing else limits them (`UIO_MAXIOV`).
pub const MOST_SEGMENTS: u32 = 1024;

/// One device of a kind (`null`, `ram`, …), or a wrapper around one.
pub trait Driver: Send + Sync {
    fn geometry(&self) -> Geometry;

    /// Opens a queue pair. May block: it is the control path.
    ///
    /// Errors: what the driver's system calls or its back end answer; `ENOMEM`.
    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno>;

    /// Carries out, in the calling thread and blocking, a request that a queue
    /// pair answered with [`Submission::NeedsWorker`]. Answers bytes.
    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        let _ = request;
        Err(Errno::EOPNOTSUPP)
    }

    /// Whether a forked child may go on with this driver, by queue pairs of its own that reach
    /// the same blocks, if the descriptors that `keep` is told stay open in it.
    fn hand_down(&self, keep: &mut dyn FnMut(i32)) -> bool {
        let _ = keep;
        false
    }

    /// The program says that these bytes are its for many transfers
    /// (registered buffers, buffer rings): a driver whose back end can share
    /// memory does so, and transfers from and to it without a copy. No promise.
    fn share_memory(&self, memory: IoVector) {
        let _ = memory;
    }

    /// Counterpart of [`Driver::share_memory`], after the last transfer.
    fn unshare_memory(&self, memory: IoVector) {
        let _ = memory;
    }
}

/// How a queue pair will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Most requests that are out at the same time; tokens are below it.
    pub depth: u32,
    /// Whether its user sleeps on [`QueuePair::interrupt`] (else it only polls, and
    /// the device is told to interrupt nobody).
    pub interrupts: bool,
}

/// What came of handing a request to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Submission {
    /// It will be completed; the device need not have been told before
    /// [`QueuePair::ring_doorbell`].
    Accepted,
    /// No room now; there will be after a completion.
    Full,
    /// It would block here: [`Driver::execute`] does it.
    NeedsWorker,
    /// Its answer, at once; no completion will follow.
    Refused(Errno),
}

/// A submission queue and a completion queue of a device.
pub trait QueuePair: Send {
    /// Takes a request. Never blocks, never touches its memory after any
    /// answer but [`Submission::Accepted`].
    fn submit(&mut self, request: &DeviceRequest) -> Submission;

    /// Tells the device of everything that was accepted: once per batch. Sleeps
    /// only where [`QueuePair::is_delivered_to`].
    fn ring_doorbell(&mut self);

    /// Whether telling the device may sleep. Who holds a lock that others want
    /// tells it in two steps then, the sleep between them.
    fn is_delivered_to(&self) -> bool {
        false
    }

    /// The first step: what is to be carried out and brought back. `None`: there
    /// is nothing more to tell.
    fn begin_delivery(&mut self) -> Option<Delivery> {
        self.ring_doorbell();
        None
    }

    /// The second step, after [`Delivery::carry_out`].
    fn end_delivery(&mut self, delivery: Delivery) {
        let _ = delivery;
    }

    /// Collects what has completed, in any order, as far as there is room.
    /// Never blocks.
    fn poll(&mut self, completions: &mut Completions);

    /// Whether a look may find something now. Cheap: it is asked over and over
    /// between two looks. `true` where that cannot be told without the look itself.
    fn has_news(&mut self) -> bool {
        true
    }

    /// The descriptor that becomes readable after [`QueuePair::arm_interrupt`];
    /// `None` unless opened with interrupts.
    fn interrupt(&self) -> Option<i32>;

    /// How a thread sleeps for several completions at once, where there is such a way; its
    /// looks need no armed interrupt.
    fn waiter(&self) -> Option<Waiter> {
        None
    }

    /// Lets requests go out whose completions do not signal the interrupt, which is cheaper, until
    /// the interrupt is armed for the first time.
    fn silence(&mut self) {}

    /// Whether requests are out of which an armed interrupt does not tell.
    fn has_silent(&self) -> bool {
        false
    }

    /// Asks to be told of the next completion through [`QueuePair::interrupt`].
    /// `false` if there may be a completion already: poll first, the
    /// descriptor may stay silent.
    fn arm_interrupt(&mut self) -> bool;
}
