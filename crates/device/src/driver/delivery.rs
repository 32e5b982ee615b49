//! What was accepted, on its way to a device that may have its caller sleep:
//! the kernel's AIO does its share of a request within io_submit(2), and that may
//! be all of it (a write through the page cache, which waits while too much of
//! that is dirty; a file system in user space).
//!
//! A delivery is its carrier's alone, and touches nothing of the queue pair: so
//! it is made without the lock that guards that one, and who wants the queue pair
//! meanwhile, be it for what this very delivery completes, does not wait. Requests
//! of one delivery are taken in the order in which they were accepted; two that
//! are made at the same time have none.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::kernel_aio::Batch;
use usring_sys::{Errno, wait};
use usring_uapi::aio::IoEvent;

/// How often, and after how long, the kernel is asked again that has no memory for
/// a request. There is always room for as many as the queue pair is deep.
const PATIENCE: u32 = 100;
const PAUSE: u64 = 1_000_000;

/// See above. Brought back, it says what the kernel did not take.
pub struct Delivery(pub(super) Box<Parcel>);

impl Delivery {
    pub fn carry_out(&mut self) {
        let mut next = Some(&mut self.0);
        while let Some(parcel) = next {
            parcel.hand_over();
            next = parcel.next.as_mut();
        }
    }
}

/// Some requests for a context of the kernel's.
pub(super) struct Parcel {
    pub batch: Batch,
    /// What their number means, if it is one of ours.
    #[expect(dead_code, reason = "owned for as long as the number is named")]
    pub file: Option<Arc<HeldDescriptor>>,
    /// Which they ring.
    #[expect(dead_code, reason = "owned for as long as the number is named")]
    pub interrupt: Option<Arc<OwnedDescriptor>>,
    /// Answers to those that the kernel did not take.
    pub refused: Vec<IoEvent>,
    /// What was accepted behind them: they had too many segments for one.
    pub next: Option<Box<Parcel>>,
}

impl Parcel {
    pub fn hand_over(&mut self) {
        let mut patience = PATIENCE;
        while !self.batch.is_empty() {
            let error = match self.batch.submit() {
                // No kernel takes nothing and says so; what stands before it may.
                Ok(0) => Errno::EAGAIN,
                Ok(_) => continue,
                Err(error) => error,
            };
            if error == Errno::EAGAIN && patience > 0 {
                patience -= 1;
                let _ = wait::nanosleep(PAUSE);
                continue;
            }
            // The first one's fault; the others may be better.
            let data = self.batch.drop_first();
            self.refused.push(IoEvent { data, res: error.negative().into(), ..IoEvent::default() });
        }
    }
}
