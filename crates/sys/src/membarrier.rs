//! A full barrier in every thread of the process at once (membarrier(2)): lets
//! one side of a store-look pair, the rare one, pay for both.

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

/// Whether this process may have the barrier at its full strength.
pub fn register() -> bool {
    membarrier(REGISTER_PRIVATE_EXPEDITED).is_ok()
}

/// Lets the kernel note that this process will have barriers, also for code that
/// is rewritten. With one thread that costs microseconds, later 10 ms and more.
pub fn prepare() {
    let _ = membarrier(REGISTER_PRIVATE_EXPEDITED);
    let _ = membarrier(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE);
}

/// The barrier; whether it was one. Where the kernel has no membarrier(2) only
/// this thread gets one.
pub fn everywhere() -> bool {
    fence(Ordering::SeqCst);
    // EPERM: this process (a forked child, say) has not registered yet.
    membarrier(PRIVATE_EXPEDITED)
        .or_else(|_| membarrier(REGISTER_PRIVATE_EXPEDITED).and_then(|_| membarrier(PRIVATE_EXPEDITED)))
        .or_else(|_| membarrier(GLOBAL))
        .is_ok()
}
