//! The threads of a pool: started for the jobs of a queue, asleep while it is empty, and ended
//! after a while. `workers` and `driving::submit_helpers` are such pools.
//!
//! The counts belong to the lock of the queue. The signal is a futex word that a thread raises
//! after it has queued a job; an idle thread sleeps on it.

use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::{Errno, futex};

/// Nanoseconds after which an idle thread ends.
const IDLE_LIMIT: u64 = 5_000_000_000;

/// The counts of a pool's threads.
#[derive(Default)]
pub(crate) struct IdleThreads {
    all: u32,
    idle: u32,
}

impl IdleThreads {
    /// Counts the threads to start so that each of `queued` jobs has one, at most `most` of them
    /// and `limit` in all. Returns how many; the caller starts them.
    pub fn add_for(&mut self, queued: usize, most: u32, limit: u32) -> u32 {
        let wanted = (queued as u32).saturating_sub(self.idle);
        let added = wanted.min(limit.saturating_sub(self.all)).min(most);
        self.all += added;
        added
    }

    /// Returns whether a thread sleeps that a new job is to wake.
    pub fn has_idle(&self) -> bool {
        self.idle > 0
    }

    /// Counts a thread that ends, or that could not be started.
    pub fn remove(&mut self) {
        self.all -= 1;
    }

    pub fn is_empty(&self) -> bool {
        self.all == 0
    }
}

/// Sleeps until `signal` differs from `seen`, without the lock of the queue. Returns the lock, and
/// whether the thread has slept long enough to end. `threads`: the counts of its pool.
pub(crate) fn sleep<'a, S>(
    queue: &'a Mutex<S>,
    mut state: Guard<'a, S>,
    (signal, seen): (&AtomicU32, u32),
    threads: impl Fn(&mut S) -> &mut IdleThreads,
) -> (Guard<'a, S>, bool) {
    threads(&mut state).idle += 1;
    drop(state);
    let outcome = futex::wait(signal, seen, Some(IDLE_LIMIT));
    let mut state = queue.lock();
    threads(&mut state).idle -= 1;
    (state, outcome == Err(Errno::ETIMEDOUT))
}

/// Announces to the idle threads that a job has been queued. Wakes one of them if `wakes`.
pub(crate) fn signal(signal: &AtomicU32, wakes: bool) {
    signal.fetch_add(1, Ordering::SeqCst);
    if wakes {
        futex::wake(signal, 1);
    }
}
