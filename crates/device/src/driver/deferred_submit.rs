//! Deferred submits: batches of accepted requests for a device whose notification may sleep. The
//! kernel's AIO does a part of each request within io_submit(2), and sometimes all of it. For
//! example, a write through the page cache waits while too much of the cache is dirty. A file
//! system in user space may take any time.
//!
//! - A batch belongs to the thread that submits it, and accesses nothing of the queue pair.
//! - So the thread needs no lock of the queue pair. Other threads may use the queue pair meanwhile,
//!   and may even find completions of this batch's requests.
//! - The requests of a batch are submitted in the order in which they were accepted. Two batches
//!   that are submitted at one time have no order.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::kernel_aio::Batch;
use usring_sys::{Errno, wait};
use usring_uapi::aio::IoEvent;

/// Maximum number of retries of an io_submit(2) that fails with EAGAIN. The AIO context always has
/// room for the queue pair's depth, so EAGAIN means that the kernel has no memory. The thread
/// sleeps for `PAUSE` nanoseconds between two attempts.
const MOST_RETRIES: u32 = 100;
const PAUSE: u64 = 1_000_000;

/// A deferred submit: one or more batches of requests. After [`DeferredSubmit::run`] the batches
/// contain the errors of the requests that the kernel refused.
pub struct DeferredSubmit(pub(super) Box<PendingBatch>);

impl DeferredSubmit {
    pub fn run(&mut self) {
        let mut next = Some(&mut self.0);
        while let Some(pending) = next {
            pending.submit_all();
            next = pending.next.as_mut();
        }
    }
}

/// A batch of requests for an AIO context of the kernel, with the descriptors that must stay open
/// until the batch is submitted.
pub(super) struct PendingBatch {
    pub iocbs: Batch,
    /// The device's own file. It stays open because the batch's requests contain its descriptor
    /// number. `None` if the requests are for files of the program (`Target::Named`).
    #[expect(dead_code, reason = "owned for as long as the number is named")]
    pub file: Option<Arc<HeldDescriptor>>,
    /// The eventfd of the interrupt. It stays open because the batch's requests contain its
    /// descriptor number.
    #[expect(dead_code, reason = "owned for as long as the number is named")]
    pub interrupt: Option<Arc<OwnedDescriptor>>,
    /// Completions of the requests that the kernel refused.
    pub refused: Vec<IoEvent>,
    /// Whether io_submit(2) itself is denied to this process, whatever the call submits.
    pub is_denied: bool,
    /// The next batch. Its requests were accepted after those of this batch, which had no room for
    /// their segments.
    pub next: Option<Box<PendingBatch>>,
}

impl PendingBatch {
    pub fn submit_all(&mut self) {
        let mut retries_left = MOST_RETRIES;
        while !self.iocbs.is_empty() {
            let error = match self.iocbs.submit() {
                // The kernel does not return 0 for a batch with requests, but a seccomp filter may.
                Ok(0) => Errno::EAGAIN,
                Ok(_) => continue,
                Err(error) => error,
            };
            if error == Errno::EAGAIN && retries_left > 0 {
                retries_left -= 1;
                let _ = wait::nanosleep(PAUSE);
                continue;
            }
            self.is_denied = self.is_denied || may_be_from_filter(error) && self.iocbs.is_call_refused();
            // The error belongs to the batch's first request. The kernel may still accept the later
            // requests.
            let data = self.iocbs.drop_first();
            self.refused.push(IoEvent { data, res: error.negative().into(), ..IoEvent::default() });
        }
    }
}

/// Returns whether the error may come from a seccomp filter, which refuses every io_submit(2). A
/// security module returns one of these errors, too, but refuses only one request.
fn may_be_from_filter(error: Errno) -> bool {
    matches!(error, Errno::EPERM | Errno::ENOSYS | Errno::EACCES)
}
