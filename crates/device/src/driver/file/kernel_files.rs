//! All files of the kernel's as one device: what a program has opened by itself,
//! with O_DIRECT, and wants polled. Each request names its file; where it ends,
//! how it is aligned and what may be done with it the kernel alone decides, at
//! every request anew, and its answers are passed on as they are. So there is
//! nothing to be kept of a file, and nothing to go stale: the program may close
//! it, make it longer or open another one by its number.

use super::queue::{AioQueue, Target};
use crate::driver::{Driver, LONGEST_TRANSFER, MOST_SEGMENTS, QueueOptions, QueuePair};
use crate::geometry::{ANY_NUMBER, Features, Geometry};
use alloc::boxed::Box;
use usring_sys::{Errno, eventfd};

/// For transfers with `O_DIRECT` on regular files and block devices: of anything
/// else the kernel would make the whole transfer while it is being submitted.
pub struct KernelFiles;

impl Driver for KernelFiles {
    /// Nobody goes by it: see above.
    fn geometry(&self) -> Geometry {
        Geometry {
            size: i64::MAX as u64,
            block: 1,
            alignment: 1,
            transfer: LONGEST_TRANSFER,
            segments: MOST_SEGMENTS,
            queues: ANY_NUMBER,
            features: Features { polls: true, lends_memory: true, ..Features::default() },
        }
    }

    /// Errors: those of a context of the kernel's AIO: `EAGAIN` where the machine
    /// has no more (`/proc/sys/fs/aio-max-nr`), `ENOSYS`, what a sandbox answers.
    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        let interrupt = match options.interrupts {
            true => Some(eventfd::create()?.into_private()?),
            false => None,
        };
        let context = AioQueue::context(options.depth)?;
        Ok(Box::new(AioQueue::open(context, Target::Named, options.depth, interrupt)?))
    }
}
