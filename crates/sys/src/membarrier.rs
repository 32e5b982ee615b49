//! A full barrier in every thread of the process at once (membarrier(2)). If two sides each store a
//! word and then read the other's, the side that runs rarely passes this barrier. The frequent side
//! then needs none.

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

/// Registers this process for the expedited barrier; returns whether the kernel grants it.
pub fn register() -> bool {
    membarrier(REGISTER_PRIVATE_EXPEDITED).is_ok()
}

/// Registers this process for barriers, including those that follow a change of code (SYNC_CORE).
/// This costs microseconds with one thread, and 10 ms or more with several.
pub fn prepare() {
    let _ = membarrier(REGISTER_PRIVATE_EXPEDITED);
    let _ = membarrier(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE);
}

/// Passes the barrier in all threads; returns whether it reached them all. Without membarrier(2)
/// only this thread passes a barrier.
pub fn everywhere() -> bool {
    fence(Ordering::SeqCst);
    // EPERM: this process (a forked child, say) has not registered yet.
    membarrier(PRIVATE_EXPEDITED)
        .or_else(|_| membarrier(REGISTER_PRIVATE_EXPEDITED).and_then(|_| membarrier(PRIVATE_EXPEDITED)))
        .or_else(|_| membarrier(GLOBAL))
        .is_ok()
}
