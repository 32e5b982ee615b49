//! What the calling thread is allowed beyond others.

use crate::SystemCall;
use linux_raw_sys::general as linux;

const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;

/// Whether it may give I/O the realtime class (ioprio_set(2)).
pub fn may_be_realtime() -> bool {
    // Version 3, this thread; effective, permitted, inheritable, twice 32 bits.
    let header = [0x2008_0522u32, 0];
    let mut sets = [[0u32; 3]; 2];
    let arguments = [&raw const header as u64, &raw mut sets as u64, 0, 0, 0];
    let asked = SystemCall::new(linux::__NR_capget, arguments).run();
    asked.is_ok() && sets[0][0] & (1 << CAP_SYS_ADMIN | 1 << CAP_SYS_NICE) != 0
}
