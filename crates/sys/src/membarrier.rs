//! Executes a full barrier in every thread of the process at once (membarrier(2)). This serves two
//! sides that each store a word and then read the other's word. The side that runs rarely executes
//! this barrier. The side that runs often then needs only a compiler fence.

use crate::{Errno, SystemCall};
use core::sync::atomic::{Ordering, fence};
use linux_raw_sys::general as linux;

const GLOBAL: u64 = 1 << 0;
const PRIVATE_EXPEDITED: u64 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: u64 = 1 << 4;
const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: u64 = 1 << 6;

fn membarrier(command: u64) -> Result<u64, Errno> {
    SystemCall::new(linux::__NR_membarrier, [command, 0, 0, 0, 0]).run()
}

/// Registers this process for the expedited barrier of membarrier(2). Returns whether the kernel
/// accepts.
pub fn register() -> bool {
    membarrier(REGISTER_PRIVATE_EXPEDITED).is_ok()
}

/// Registers this process for expedited barriers, and for those after a change of code (SYNC_CORE).
/// This takes microseconds in a process with one thread, and 10 ms or more with several threads.
pub fn prepare() {
    let _ = membarrier(REGISTER_PRIVATE_EXPEDITED);
    let _ = membarrier(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE);
}

/// Executes a full barrier in all threads of the process. Returns whether that succeeded. If the
/// kernel refuses membarrier(2), only this thread executes a barrier.
pub fn everywhere() -> bool {
    fence(Ordering::SeqCst);
    // EPERM means that this process has not registered yet. It may be a forked child. The process
    // then registers and tries again.
    membarrier(PRIVATE_EXPEDITED)
        .or_else(|_| membarrier(REGISTER_PRIVATE_EXPEDITED).and_then(|_| membarrier(PRIVATE_EXPEDITED)))
        .or_else(|_| membarrier(GLOBAL))
        .is_ok()
}
