//! The words behind a ring's queues that the engine shares with itself in other processes: all that
//! have inherited the ring by fork(2). A program has no use for them.

use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::shared::{SharedMemory, View};
use usring_sys::sleep::SleepWord;
use usring_sys::sync::Arc;

/// Offsets, in bytes. The lock and the sleep word have a cache line each.
const LOCK: usize = 0;
const STATE: usize = 4;
const USERS: usize = 8;
const SLEEP: usize = 64;
/// Bytes of all words.
pub(crate) const LENGTH: usize = 128;
/// The words begin at a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// The ring is not enabled yet (R_DISABLED).
const DISABLED: u32 = 1;
/// A process besides the one that made the ring uses it, or has used it.
const SHARED: u32 = 2;

/// The words that all processes of a ring share.
#[derive(Debug)]
pub struct Control {
    state: View<AtomicU32>,
    users: View<AtomicU32>,
    memory: Arc<SharedMemory>,
    start: usize,
}

impl Control {
    pub(crate) fn new(memory: &Arc<SharedMemory>, start: usize) -> Control {
        let word = |offset| View::of(memory, start + offset);
        Control { state: word(STATE), users: word(USERS), memory: memory.clone(), start }
    }

    /// Sets the words of a new ring, which one process uses.
    pub fn begin(&self, is_disabled: bool) {
        self.state.store(if is_disabled { DISABLED } else { 0 }, Ordering::Relaxed);
        self.users.store(1, Ordering::Relaxed);
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

    /// Returns whether several processes use the ring, or have used it. A ring that is shared stays
    /// so. Another process may begin to share it at any moment.
    #[inline(always)]
    pub fn is_shared(&self) -> bool {
        self.state.load(Ordering::Relaxed) & SHARED != 0
    }

    /// Adds a process to the ring's users, and marks the ring as shared.
    pub fn share(&self) {
        self.state.fetch_or(SHARED, Ordering::Relaxed);
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes this process off the ring's users. Returns whether others are left. Those that have
    /// ended without closing the ring count, too.
    pub fn leave(&self) -> bool {
        self.users.fetch_sub(1, Ordering::AcqRel) > 1
    }
}
