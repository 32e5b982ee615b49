//! The states of the process in which a submission needs additional checks. They are one word, so
//! an ordinary submission pays a single load for all of them.

use core::sync::atomic::{AtomicU32, Ordering};

/// A state in which submissions need additional checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Unusual {
    /// Threads of the program may differ in their rights ([`crate::credentials`]).
    Credentials = 1 << 0,
    /// The allocator uses its reserve ([`crate::memory_reserve`]).
    LowMemory = 1 << 1,
}

static STATES: AtomicU32 = AtomicU32::new(0);

/// Returns whether the process is in any of these states. One load.
#[inline(always)]
pub fn any() -> bool {
    STATES.load(Ordering::Relaxed) != 0
}

/// Returns whether the process is in this state.
#[inline(always)]
pub fn has(state: Unusual) -> bool {
    STATES.load(Ordering::Relaxed) & state as u32 != 0
}

/// Notes that the process enters the state.
pub fn set(state: Unusual) {
    STATES.fetch_or(state as u32, Ordering::Release);
}

/// Notes that the process leaves the state.
pub fn clear(state: Unusual) {
    STATES.fetch_and(!(state as u32), Ordering::Release);
}
