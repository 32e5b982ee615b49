//! Records on which kernel AIO context a ring's leader sleeps, and for how many completions.
//! (Usually a leader sleeps in the ring's epoll set.) Neighbour: [`crate::sleep`], by whose word
//! the leader announces its sleep and a waker claims it.
//!
//! | step | sleeper | waker |
//! |---|---|---|
//! | 1 | [`SleepPlace::begin`] | publish the work |
//! | 2 | announce | claim |
//! | 3 | check for work; sleep on the AIO context | signal the eventfd; [`SleepPlace::wake`] |
//! | 4 | retract | |
//! | 5 | [`SleepPlace::end`] | |
//!
//! A claim reads the announcement, so the sleeper's step 1 happens before the waker's step 3. A
//! waker that holds the ring's lock needs no claim: the sleeper releases that lock after its step
//! 2, so the waker sees its step 1. A wake-up after step 5 has no effect.

use crate::mutex::Mutex;
use crate::sync::{AtomicU32, Ordering};

/// Where the ring's leader sleeps, if it does not sleep in the ring's epoll set. `P` describes the
/// place, such as an AIO context.
pub struct SleepPlace<P> {
    /// Number of events for which the leader sleeps at `place`; 0 if the leader does not sleep
    /// there. While this word is 0, wakers need not lock `place`.
    count: AtomicU32,
    place: Mutex<Option<(P, u32)>>,
}

impl<P> SleepPlace<P> {
    pub fn new() -> Self {
        SleepPlace { count: AtomicU32::new(0), place: Mutex::new(None) }
    }

    /// Records that the leader is about to announce a sleep at `place`, for `count` events.
    pub fn begin(&self, place: P, count: u32) {
        *self.place.lock() = Some((place, count));
        self.count.store(count, Ordering::Relaxed);
    }

    /// Records that the leader no longer sleeps at such a place: it is awake, or the ring is
    /// closed.
    pub fn end(&self) {
        self.count.store(0, Ordering::Relaxed);
        *self.place.lock() = None;
    }

    /// If the leader sleeps at a place that [`Self::begin`] has recorded, calls `wake` with this
    /// place and the number of events.
    #[inline]
    pub fn wake(&self, wake: impl FnOnce(&P, u32)) {
        if self.count.load(Ordering::Relaxed) != 0
            && let Some((place, count)) = &*self.place.lock()
        {
            wake(place, *count);
        }
    }
}

impl<P> Default for SleepPlace<P> {
    fn default() -> Self {
        SleepPlace::new()
    }
}
