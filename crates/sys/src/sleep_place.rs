//! Where the leader of a ring sleeps when it does not sleep on the ring's epoll set: on the
//! completions of a kernel AIO context, so many of them. Neighbour: [`crate::sleep`], by whose
//! word the sleep is announced and claimed.
//!
//! | step | sleeper | waker |
//! |---|---|---|
//! | 1 | [`SleepPlace::begin`] | publish the work |
//! | 2 | announce | claim |
//! | 3 | look at the work; sleep there | signal the epoll set's eventfd; [`SleepPlace::wake`] |
//! | 4 | retract | |
//! | 5 | [`SleepPlace::end`] | |
//!
//! A claim reads what the announcement wrote, so step 1 of the sleeper happens before step 3 of the
//! waker: the edge is that of the sleep word. A waker that holds the ring's lock instead of a claim
//! sees step 1 by the lock, which the sleeper releases after step 2. A wake-up that comes after
//! step 5 is for nothing.

use crate::mutex::Mutex;
use crate::sync::{AtomicU32, Ordering};

/// The place of the leader's sleep, of type `P`.
pub struct SleepPlace<P> {
    /// Number of events that the leader sleeps for; 0: it does not sleep there. Spares wakers the
    /// lock.
    count: AtomicU32,
    place: Mutex<Option<(P, u32)>>,
}

impl<P> SleepPlace<P> {
    pub fn new() -> Self {
        SleepPlace { count: AtomicU32::new(0), place: Mutex::new(None) }
    }

    /// The leader is about to announce a sleep for this many events.
    pub fn begin(&self, place: P, count: u32) {
        *self.place.lock() = Some((place, count));
        self.count.store(count, Ordering::Relaxed);
    }

    /// The leader is awake, or the ring is closed.
    pub fn end(&self) {
        self.count.store(0, Ordering::Relaxed);
        *self.place.lock() = None;
    }

    /// Wakes a leader that sleeps there.
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
