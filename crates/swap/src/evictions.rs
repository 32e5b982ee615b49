//! Counts the evictions of a region that are under way. A thread that found nothing to evict sleeps
//! until one of them completes. `evict` begins and completes evictions. `evict`, `background` and
//! `discard` wait for them. A fork counts as an eviction (`inheritance`).
//!
//! | thread | order of its steps |
//! |---|---|
//! | completes an eviction that has made room | `ended` += 1 → `running` -= 1 |
//! | waits | read `ended` → find nothing to evict → read `running` → read `ended` again |
//!
//! If the waiter reads `running` = 0, every eviction that ran at the waiter's first read of `ended`
//! has completed. The waiter's second read of `ended` counts those of them that made room. If both
//! reads are equal, no eviction has made room in between.

use usring_sys::clock::Nanoseconds;
use usring_sys::futex;
use usring_sys::sync::{AtomicU32, Ordering};

/// Counts the evictions of a region. If a thread needs room and finds nothing to evict, it sleeps
/// here until an eviction completes.
pub struct Evictions {
    running: AtomicU32,
    /// Number of evictions that have made room. Waiters sleep on this word, which is a futex.
    ended: AtomicU32,
}

impl Evictions {
    pub fn new() -> Evictions {
        Evictions { running: AtomicU32::new(0), ended: AtomicU32::new(0) }
    }

    pub fn begin(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that an eviction has completed, and wakes every waiter. Waiters wake even if the
    /// eviction has made no room, because they may then have to evict pages themselves.
    pub fn end(&self, has_made_room: bool) {
        self.ended.fetch_add(u32::from(has_made_room), Ordering::Release);
        self.running.fetch_sub(1, Ordering::Release);
        futex::wake(&self.ended, u32::MAX);
    }

    /// Returns how many evictions have made room so far.
    pub fn ended(&self) -> u32 {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns whether an eviction is under way, or has made room since the caller got `ended` from
    /// [`Evictions::ended`].
    pub fn any_since(&self, ended: u32) -> bool {
        self.running.load(Ordering::Acquire) != 0 || self.ended() != ended
    }

    /// Sleeps until an eviction completes, for `timeout` at most. Returns at once if an eviction
    /// has made room since the caller got `ended` from [`Evictions::ended`].
    pub fn wait(&self, ended: u32, timeout: Nanoseconds) {
        let _ = futex::wait(&self.ended, ended, Some(timeout));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    const LONG: Nanoseconds = 3_600_000_000_000;

    /// An eviction that makes no room wakes a waiter, although `ended` stays unchanged. The test
    /// repeats the eviction until the waiter wakes: at the first eviction, it may not sleep yet.
    #[test]
    fn each_end_of_an_eviction_wakes_a_waiter() {
        let evictions = Arc::new(Evictions::new());
        let (awake, woken) = channel();
        let theirs = evictions.clone();
        std::thread::spawn(move || {
            theirs.wait(theirs.ended(), LONG);
            let _ = awake.send(());
        });
        for _ in 0..3_000 {
            evictions.begin();
            evictions.end(false);
            if woken.recv_timeout(Duration::from_millis(10)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
        panic!("a waiter sleeps on for 30 s");
    }

    #[test]
    fn an_eviction_that_ends_before_the_sleep_prevents_the_sleep() {
        let evictions = Evictions::new();
        let ended = evictions.ended();
        assert!(!evictions.any_since(ended));
        evictions.begin();
        assert!(evictions.any_since(ended), "an eviction is running");
        evictions.end(true);
        assert!(evictions.any_since(ended), "an eviction has made room");
        evictions.wait(ended, LONG);
        let ended = evictions.ended();
        evictions.begin();
        evictions.end(false);
        assert!(!evictions.any_since(ended), "the eviction has made no room");
    }
}
