//! Deferred submits: accepted requests on their way to a device whose notification may sleep. The
//! kernel's AIO does a part of each request within io_submit(2), and sometimes all of it. Examples
//! are a write through the page cache, which waits while too much of the cache is dirty, and a file
//! system in user space.
//!
//! - A batch belongs to the thread that carries it out, and touches nothing of the queue pair.
//! - So it is carried out without the lock of the queue pair. Other threads may use the queue pair
//!   meanwhile, and may even take completions of this batch's requests.
//! - The requests of a batch are submitted in the order in which they were accepted. Concurrent
//!   deliveries have no order.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::kernel_aio::Batch;
use usring_sys::{Errno, wait};
use usring_uapi::aio::IoEvent;

/// How often a submission is retried for which the kernel has no memory, and the pause between two
/// tries in nanoseconds. The context itself always has room for the queue pair's depth.
const PATIENCE: u32 = 100;
const PAUSE: u64 = 1_000_000;

/// A deferred submit. After [`DeferredSubmit::run`] it contains the requests that the kernel did
/// not take.
pub struct DeferredSubmit(pub(super) Box<PendingBatch>);

impl DeferredSubmit {
    pub fn run(&mut self) {
        let mut next = Some(&mut self.0);
        while let Some(pending) = next {
            pending.hand_over();
            next = pending.next.as_mut();
        }
    }
}

/// A batch of requests for an AIO context of the kernel, with the descriptors that must stay open
/// until the batch is submitted.
pub(super) struct PendingBatch {
    pub iocbs: Batch,
    /// The file whose descriptor number the requests contain, if it is the device's own.
    #[expect(dead_code, reason = "owned for as long as the number is named")]
    pub file: Option<Arc<HeldDescriptor>>,
    /// The eventfd whose descriptor number the requests contain.
    #[expect(dead_code, reason = "owned for as long as the number is named")]
    pub interrupt: Option<Arc<OwnedDescriptor>>,
    /// Completions of the requests that the kernel did not take.
    pub refused: Vec<IoEvent>,
    /// Whether io_submit(2) itself is refused, whatever it submits.
    pub is_denied: bool,
    /// The next batch, of requests that were accepted later: this batch had no room for their
    /// segments.
    pub next: Option<Box<PendingBatch>>,
}

impl PendingBatch {
    pub fn hand_over(&mut self) {
        let mut patience = PATIENCE;
        while !self.iocbs.is_empty() {
            let error = match self.iocbs.submit() {
                // The kernel never returns 0 here, but a seccomp filter may.
                Ok(0) => Errno::EAGAIN,
                Ok(_) => continue,
                Err(error) => error,
            };
            if error == Errno::EAGAIN && patience > 0 {
                patience -= 1;
                let _ = wait::nanosleep(PAUSE);
                continue;
            }
            self.is_denied = self.is_denied || is_filters(error) && self.iocbs.is_call_refused();
            // The error is the first request's; the kernel may accept the others.
            let data = self.iocbs.drop_first();
            self.refused.push(IoEvent { data, res: error.negative().into(), ..IoEvent::default() });
        }
    }
}

/// Returns whether the error may come from a seccomp filter. It may also be a security module's
/// answer to one request.
fn is_filters(error: Errno) -> bool {
    matches!(error, Errno::EPERM | Errno::ENOSYS | Errno::EACCES)
}
