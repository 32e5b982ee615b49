//! A ring as the ring watcher sees it: its entry in the ring watcher's set, and the estimate of how
//! active its program is.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A ring's entry in the ring watcher's set.
#[derive(Default)]
pub(crate) struct WatcherEntry {
    /// Event data of the entry; 0 until the entry is first made.
    pub id: AtomicU64,
    /// The entry is armed in the set, and has not fired since.
    pub armed: AtomicBool,
    /// The entry has fired, and no driver has looked at the ring since.
    pub called: AtomicBool,
    pub activity: Activity,
}

impl WatcherEntry {
    #[inline(always)]
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// Clears `called`, for a driver that is going to look at the ring. Returns whether it was set.
    pub fn take_call(&self) -> bool {
        self.is_called() && self.called.swap(false, Ordering::SeqCst)
    }
}

/// Activity estimate at which idle watching of a ring begins: for a new ring, and at most.
/// [`Activity::note_call`] makes the estimate.
const FIRST_TRIAL: u32 = 64;

const LAST_TRIAL: u32 = 2048;

/// Estimate of how a ring's program behaves. All words are hints, except `idle_watched`.
#[derive(Default)]
pub(crate) struct Activity {
    pub idle_watched: AtomicBool,
    /// Number of waits of the program in which a driver polled all files and timers of the ring;
    /// written by the driver. A thread that only submits does not poll them, so its calls do not
    /// count.
    pub visits: AtomicU32,
    /// The activity estimate: the number of recent waits.
    pub waits: AtomicU32,
    /// Activity that is needed in addition to [`FIRST_TRIAL`].
    pub doubt: AtomicU32,
}

impl Activity {
    #[inline]
    pub fn is_idle_watched(&self) -> bool {
        self.idle_watched.load(Ordering::Relaxed)
    }

    /// Counts a call of the program, to wait or only to submit. A program that submits more than
    /// once per wait may be one that looks at the CQ in memory.
    #[inline]
    pub fn note_call(&self, waits: bool) {
        let before = self.waits.load(Ordering::Relaxed);
        let now = if waits { (before + 2).min(2 * LAST_TRIAL) } else { before.saturating_sub(1) };
        self.waits.store(now, Ordering::Relaxed);
    }

    /// Counts a driver's poll of all that the ring waits for.
    #[inline]
    pub fn visit(&self) {
        self.visits.store(self.visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub fn is_reliable(&self) -> bool {
        self.waits.load(Ordering::Relaxed) >= FIRST_TRIAL + self.doubt.load(Ordering::Relaxed)
    }

    /// Doubles the activity that is needed, because the program has stayed away.
    pub fn doubt(&self) {
        let trial = FIRST_TRIAL + self.doubt.load(Ordering::Relaxed);
        self.doubt.store((2 * trial).min(LAST_TRIAL) - FIRST_TRIAL, Ordering::Relaxed);
    }
}
