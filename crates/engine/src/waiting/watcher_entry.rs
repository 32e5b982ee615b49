//! The ring watcher's knowledge of a ring: the ring's entry in the ring watcher's epoll set, and an
//! estimate of how active the ring's program is. The estimate decides about *idle watching*: a
//! cheaper watch at intervals (`driving::idle_watch`).

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A ring's entry in the ring watcher's set.
#[derive(Default)]
pub(crate) struct WatcherEntry {
    /// Event data of the ring's entry in the ring watcher's epoll set; 0 until the ring is first
    /// put there.
    pub id: AtomicU64,
    /// Whether the ring's entry is armed in the ring watcher's set, and has not fired since.
    pub armed: AtomicBool,
    /// Whether the ring has to be driven. Set when the entry fires, and cleared by the next driver.
    pub must_be_driven: AtomicBool,
    pub activity: Activity,
}

impl WatcherEntry {
    #[inline(always)]
    pub fn must_be_driven(&self) -> bool {
        self.must_be_driven.load(Ordering::Relaxed)
    }

    /// Clears `must_be_driven`, because the calling driver is about to do all due work of the ring.
    /// Returns whether `must_be_driven` was set.
    pub fn take_must_be_driven(&self) -> bool {
        self.must_be_driven() && self.must_be_driven.swap(false, Ordering::SeqCst)
    }
}

/// Value of [`Activity::waits`] at which idle watching of a new ring begins. Idle watching is a
/// cheaper watch at intervals (`driving::idle_watch`).
const FIRST_TRIAL: u32 = 64;

/// Largest value of [`Activity::waits`] that is needed before idle watching begins. The needed
/// value doubles, up to this limit, each time that idle watching ends because no thread of the
/// program is in the ring.
const LAST_TRIAL: u32 = 2048;

/// Estimate of how a ring's program behaves. Only `idle_watched` is exact.
#[derive(Default)]
pub(crate) struct Activity {
    pub idle_watched: AtomicBool,
    /// Number of times that a waiting thread has checked the ring for work (`driving::wait`). Only
    /// the thread that holds the ring's lock writes this number. Calls that do not wait do not
    /// count.
    pub visits: AtomicU32,
    /// Rises with each wait, and falls with each call that only submits: see
    /// [`Activity::note_call`].
    pub waits: AtomicU32,
    /// Value of `waits` that is needed in addition to [`FIRST_TRIAL`] before idle watching begins.
    pub additional_waits: AtomicU32,
}

impl Activity {
    #[inline]
    pub fn is_idle_watched(&self) -> bool {
        self.idle_watched.load(Ordering::Relaxed)
    }

    /// Records an enter(2) of the program: one that waits (`waits`), or one that only submits. A
    /// program that submits more than once per wait perhaps reads the CQ in memory instead of
    /// waiting.
    #[inline]
    pub fn note_call(&self, waits: bool) {
        let before = self.waits.load(Ordering::Relaxed);
        let now = if waits { (before + 2).min(2 * LAST_TRIAL) } else { before.saturating_sub(1) };
        self.waits.store(now, Ordering::Relaxed);
    }

    /// Counts a visit: a waiting thread checks the ring for work.
    #[inline]
    pub fn count_visit(&self) {
        self.visits.store(self.visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub fn is_reliable(&self) -> bool {
        self.waits.load(Ordering::Relaxed) >= FIRST_TRIAL + self.additional_waits.load(Ordering::Relaxed)
    }

    /// Doubles the value of [`Activity::waits`] at which idle watching begins again, up to
    /// [`LAST_TRIAL`]. Called when idle watching has ended, because no thread of the program has
    /// visited the ring for a while.
    pub fn require_more_waits(&self) {
        let trial = FIRST_TRIAL + self.additional_waits.load(Ordering::Relaxed);
        self.additional_waits.store((2 * trial).min(LAST_TRIAL) - FIRST_TRIAL, Ordering::Relaxed);
    }
}
