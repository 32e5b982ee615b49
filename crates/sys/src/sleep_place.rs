//! Where the leader of a ring sleeps if it waits not on the ring's epoll set but on a kernel AIO
//! context, for a number of completions. Neighbour: [`crate::sleep`], whose word announces and
//! claims the sleep.
//!
//! | step | sleeper | waker |
//! |---|---|---|
//! | 1 | [`SleepPlace::begin`] | publish the work |
//! | 2 | announce | claim |
//! | 3 | look at the work; sleep on the AIO context | signal the eventfd; [`SleepPlace::wake`] |
//! | 4 | retract | |
//! | 5 | [`SleepPlace::end`] | |
//!
//! A claim reads the announcement, so step 1 of the sleeper happens before step 3 of the waker: the
//! edge is that of the sleep word. A waker may hold the ring's lock instead of a claim. It then
//! sees step 1 by the lock, which the sleeper releases after step 2. A wake-up after step 5 has no
//! effect.

use crate::mutex::Mutex;
use crate::sync::{AtomicU32, Ordering};

/// The place of the leader's sleep, of type `P`.
pub struct SleepPlace<P> {
    /// Number of events that the leader sleeps for at this place; 0: it does not sleep there. With
    /// 0, wakers need not take the lock.
    count: AtomicU32,
    place: Mutex<Option<(P, u32)>>,
}

impl<P> SleepPlace<P> {
    pub fn new() -> Self {
        SleepPlace { count: AtomicU32::new(0), place: Mutex::new(None) }
    }

    /// Notes that the leader is about to announce a sleep for this many events.
    pub fn begin(&self, place: P, count: u32) {
        *self.place.lock() = Some((place, count));
        self.count.store(count, Ordering::Relaxed);
    }

    /// Notes that the leader is awake, or that the ring is closed.
    pub fn end(&self) {
        self.count.store(0, Ordering::Relaxed);
        *self.place.lock() = None;
    }

    /// Wakes the leader if it sleeps at a noted place; `wake` gets the place and the number of
    /// events.
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
