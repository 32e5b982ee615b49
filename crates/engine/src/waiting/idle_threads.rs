//! The threads of a pool. A thread is started for the jobs of the pool's queue, sleeps while the
//! queue is empty, and ends when it has been idle for [`IDLE_LIMIT`]. `workers` and
//! `driving::submit_helpers` are such pools.
//!
//! The lock of the queue guards the counts of [`IdleThreads`]. Idle threads sleep on the pool's
//! futex. A thread that has queued a job increments the futex word.

use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::{Errno, futex, width};

/// Nanoseconds without a job after which a thread ends.
const IDLE_LIMIT: u64 = 5_000_000_000;

/// The number of a pool's threads, and of those that sleep.
#[derive(Default)]
pub(crate) struct IdleThreads {
    all: u32,
    idle: u32,
}

impl IdleThreads {
    /// Adds to the count the new threads that `queued` jobs need: at most `most` per call, and no
    /// more than `limit` threads in all. Returns the number added. The caller starts these threads.
    pub fn add_for(&mut self, queued: usize, most: u32, limit: u32) -> u32 {
        let wanted = width::count(queued).saturating_sub(self.idle);
        let added = wanted.min(limit.saturating_sub(self.all)).min(most);
        self.all += added;
        added
    }

    /// Returns whether a thread of the pool sleeps, so that a new job can wake it.
    pub fn has_idle(&self) -> bool {
        self.idle > 0
    }

    /// Removes one thread from the count, because it ends or could not be started.
    pub fn remove(&mut self) {
        self.all -= 1;
    }

    pub fn is_empty(&self) -> bool {
        self.all == 0
    }
}

/// Puts an idle thread of a pool to sleep until `futex` differs from `seen`, for at most
/// [`IDLE_LIMIT`]. Releases the lock of the pool's job queue (`state`) during the sleep. Returns
/// the lock, taken again, and whether the sleep has lasted [`IDLE_LIMIT`]. `threads` finds the
/// [`IdleThreads`] in the state that the lock guards.
pub(crate) fn sleep<'a, S>(
    queue: &'a Mutex<S>,
    mut state: Guard<'a, S>,
    (futex, seen): (&AtomicU32, u32),
    threads: impl Fn(&mut S) -> &mut IdleThreads,
) -> (Guard<'a, S>, bool) {
    threads(&mut state).idle += 1;
    drop(state);
    let outcome = futex::wait(futex, seen, Some(IDLE_LIMIT));
    let mut state = queue.lock();
    threads(&mut state).idle -= 1;
    (state, outcome == Err(Errno::ETIMEDOUT))
}

/// Notifies idle threads that a job has been queued. Wakes one of them if `wakes`.
pub(crate) fn note_job(futex: &AtomicU32, wakes: bool) {
    futex.fetch_add(1, Ordering::SeqCst);
    if wakes {
        futex::wake(futex, 1);
    }
}
