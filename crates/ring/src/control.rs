//! The words behind a ring's queues that the engine shares with itself in other processes: all that
//! have inherited the ring by fork(2). A program has no use for them.

use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::shared::{SharedMemory, View};
use usring_sys::sharing::SharingWord;
use usring_sys::sleep::SleepWord;
use usring_sys::sync::Arc;

/// Offsets, in bytes. The lock and the sleep word have a cache line each.
const LOCK: usize = 0;
const STATE: usize = 4;
const SHARING: usize = 8;
const SLEEP: usize = 64;
/// Bytes of all words.
pub(crate) const LENGTH: usize = 128;
/// The words begin at a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// The ring is not enabled yet (R_DISABLED).
const DISABLED: u32 = 1;

/// The words that all processes of a ring share.
#[derive(Debug)]
pub struct Control {
    state: View<AtomicU32>,
    sharing: View<SharingWord>,
    memory: Arc<SharedMemory>,
    start: usize,
}

impl Control {
    pub(crate) fn new(memory: &Arc<SharedMemory>, start: usize) -> Control {
        let state = View::of(memory, start + STATE);
        Control { state, sharing: View::of(memory, start + SHARING), memory: memory.clone(), start }
    }

    /// Sets the words of a new ring, which one process uses.
    pub fn begin(&self, is_disabled: bool) {
        self.state.store(if is_disabled { DISABLED } else { 0 }, Ordering::Relaxed);
        self.sharing.begin();
    }

    /// Returns the word of the ring's lock.
    pub fn lock(&self) -> View<AtomicU32> {
        View::of(&self.memory, self.start + LOCK)
    }

    /// Returns the word on which the ring's waiters sleep.
    pub fn sleep(&self) -> View<SleepWord> {
        View::of(&self.memory, self.start + SLEEP)
    }

    /// Returns whether the ring has not been enabled yet. If it has, the enabling thread's writes
    /// are visible.
    #[inline(always)]
    pub fn is_disabled(&self) -> bool {
        self.state.load(Ordering::Acquire) & DISABLED != 0
    }

    /// Enables the ring.
    pub fn enable(&self) {
        self.state.fetch_and(!DISABLED, Ordering::Release);
    }

    /// Returns the word that says whether several processes use the ring.
    #[inline(always)]
    pub fn sharing(&self) -> &SharingWord {
        &self.sharing
    }
}
