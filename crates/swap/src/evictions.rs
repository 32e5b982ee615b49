//! The evictions of a region that are under way: a thread that found nothing to evict sleeps
//! until one of them ends. `evict` begins and ends them; `background` and `discard` wait, too.
//!
//! Order: an eviction adds to `ended` before it leaves `running`. So a thread that read `ended`
//! first and then finds nothing running sees the eviction in `ended`.

use usring_sys::clock::Nanoseconds;
use usring_sys::futex;
use usring_sys::sync::{AtomicU32, Ordering};

/// Counts evictions; see the head of this file.
pub struct Evictions {
    running: AtomicU32,
    /// Evictions that have made room; the word that waiters sleep on.
    ended: AtomicU32,
}

impl Evictions {
    pub fn new() -> Evictions {
        Evictions { running: AtomicU32::new(0), ended: AtomicU32::new(0) }
    }

    pub fn begin(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends an eviction and wakes every waiter. An eviction that has made no room wakes them,
    /// too: they look again, and may have to evict themselves.
    pub fn end(&self, has_made_room: bool) {
        self.ended.fetch_add(u32::from(has_made_room), Ordering::Release);
        self.running.fetch_sub(1, Ordering::Release);
        futex::wake(&self.ended, u32::MAX);
    }

    /// Returns how many evictions have made room so far.
    pub fn ended(&self) -> u32 {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns whether an eviction has made room since `ended` was read, or is under way.
    pub fn any_since(&self, ended: u32) -> bool {
        self.running.load(Ordering::Acquire) != 0 || self.ended() != ended
    }

    /// Sleeps until an eviction ends, for `patience` at most. Returns at once if one has made
    /// room since `ended` was read.
    pub fn wait(&self, ended: u32, patience: Nanoseconds) {
        let _ = futex::wait(&self.ended, ended, Some(patience));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    const LONG: Nanoseconds = 3_600_000_000_000;

    /// An eviction that made no room leaves `ended` as it was, so only its wake-up ends the sleep.
    /// The waiter may not be asleep yet when an eviction ends, so the test ends many.
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
        assert!(evictions.any_since(ended), "one is running");
        evictions.end(true);
        assert!(evictions.any_since(ended), "one has made room");
        evictions.wait(ended, LONG);
        let ended = evictions.ended();
        evictions.begin();
        evictions.end(false);
        assert!(!evictions.any_since(ended), "it has made no room");
    }
}
