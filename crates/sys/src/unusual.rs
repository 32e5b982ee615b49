//! Records the states of the process in which a submission needs additional checks. All states are
//! bits of one word, so an ordinary submission needs a single load.
//!
//! The upper half of the word is the semaphore of the probes ([`crate::probes`]). For each probe
//! that a tracer uses, the kernel or a debugger adds 1 to it. So this one load also shows whether a
//! tracer is there.

use core::sync::atomic::{AtomicU32, Ordering};

/// A state in which submissions need additional checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Unusual {
    /// Threads of the program may have different credentials ([`crate::credentials`]).
    Credentials = 1 << 0,
    /// The allocator uses its reserve ([`crate::memory_reserve`]).
    LowMemory = 1 << 1,
    /// Requests may get faults (`usring run --inject`).
    Faults = 1 << 2,
    /// Changes of files are recorded (`usring crash`).
    Recording = 1 << 3,
    /// Observers see each request (`usring run --check`).
    Observed = 1 << 4,
    /// Completions come in an order that a seed chooses (`usring run --order`).
    Order = 1 << 5,
}

/// The bits of the semaphore.
const PROBED: u32 = 0xffff_0000;

/// The states, and the semaphore in the two upper bytes.
// SAFETY: the section holds writable data. perf(1) finds semaphores only in a section of this name.
#[unsafe(link_section = ".probes")]
pub(crate) static STATES: AtomicU32 = AtomicU32::new(0);

/// Returns whether the process is in any [`Unusual`] state, or has a tracer, by one load.
#[inline(always)]
pub fn any() -> bool {
    STATES.load(Ordering::Relaxed) != 0
}

/// Returns whether the process is in the state `state`.
#[inline(always)]
pub fn has(state: Unusual) -> bool {
    STATES.load(Ordering::Relaxed) & state as u32 != 0
}

/// Returns whether a tracer uses a probe ([`crate::probes`]).
#[inline(always)]
pub fn is_probed() -> bool {
    STATES.load(Ordering::Relaxed) & PROBED != 0
}

/// Notes that the process enters the given state.
pub fn set(state: Unusual) {
    STATES.fetch_or(state as u32, Ordering::Release);
}

/// Notes that the process leaves the given state.
pub fn clear(state: Unusual) {
    STATES.fetch_and(!(state as u32), Ordering::Release);
}
