//! One device for all ordinary files of the program. usring uses it for transfers by the kernel's
//! AIO, most of which are direct (O_DIRECT). Each request names its file. The kernel checks size,
//! alignment and permissions of every request, and the device returns the kernel's results
//! unchanged. So the device keeps no state of a file that could become stale: the program may close
//! the file, extend it, or reuse its descriptor number.

use super::queue::{AioQueue, Target};
use crate::driver::{Driver, LONGEST_TRANSFER, MOST_SEGMENTS, QueueOptions, QueuePair};
use crate::geometry::{ANY_NUMBER, Features, Geometry};
use alloc::boxed::Box;
use usring_sys::{Errno, eventfd};

/// The device for transfers with `O_DIRECT` on regular files and block devices. For any other file
/// the kernel would make the whole transfer within the submission.
pub struct KernelFiles;

impl Driver for KernelFiles {
    /// Returns limits that no request exceeds. The kernel checks each request.
    fn geometry(&self) -> Geometry {
        Geometry {
            size: i64::MAX as u64,
            block: 1,
            alignment: 1,
            transfer: LONGEST_TRANSFER,
            segments: MOST_SEGMENTS,
            queues: ANY_NUMBER,
            features: Features { polls: true, kernel_holds_memory: true, ..Features::default() },
        }
    }

    /// Opens a queue pair.
    ///
    /// Errors: `EAGAIN` if the machine has no more AIO contexts (`/proc/sys/fs/aio-max-nr`);
    /// `ENOSYS`; the errors with which a sandbox refuses io_setup(2).
    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        let interrupt = match options.interrupts {
            true => Some(eventfd::create()?.into_private()?),
            false => None,
        };
        let context = AioQueue::context(options.depth)?;
        Ok(Box::new(AioQueue::open(context, Target::Named, options.depth, interrupt)?))
    }
}
