//! The word that says whether several processes use a ring, and what the process that made the ring
//! does about it. Neighbours: [`crate::sleep`], whose word all waiters of the ring share, and
//! [`crate::process_mutex`], the ring's lock.
//!
//! While one process uses the ring, a waiter may lead (sleep in that process's epoll set), and a
//! waiter runs the work that other threads of its process bring. Another process can neither reach
//! the epoll set nor see that work. So both end when a second process begins to use the ring.
//!
//! A waiter that becomes leader, and a process that begins ([`Edge::Share`]):
//!
//! | step | process that begins: [`SharingWord::join`] | waiter: [`SharingWord::lead`] |
//! |---|---|---|
//! | 1 | marks the ring as shared | notes in the sleep word that it leads |
//! | 2 | full barrier | full barrier |
//! | 3 | if a waiter leads: has the leader's process wake it | if the ring is shared: resigns |
//!
//! At least one of the two sees the other. The leader's process wakes the leader by
//! [`SharingWord::has_late_leader`]. The leader then resigns, and finds the mark when it comes to
//! sleep again.
//!
//! A thread that brings work, and a process that begins:
//!
//! | step | process that begins | thread that brings work: [`SharingWord::leave_to_waiter`] |
//! |---|---|---|
//! | 1 | marks the ring as shared | puts the work on its process's list |
//! | 2 | announces a sleep in the sleep word | claims the announced sleepers |
//! | 3 | | if the ring is shared: runs the work itself |
//!
//! A claim acquires what the announcement released. So a thread that claims a sleeper of another
//! process sees the mark, and does not count on that sleeper.

use crate::ordering::{Edge, Side};
use crate::sleep::{SleepWord, Wake};
use crate::sync::{AtomicU32, Ordering};

/// A process besides the one that made the ring uses it, or has used it.
const SHARED: u32 = 1 << 31;
/// Number of processes that use the ring, and of those that ended without leaving it.
const USERS: u32 = SHARED - 1;

/// The word; see the head of this file. It lies in memory that the ring's processes share.
#[derive(Debug)]
#[repr(transparent)]
pub struct SharingWord(AtomicU32);

impl SharingWord {
    /// Makes the word of a new ring, for models. (That of a ring begins by [`SharingWord::begin`].)
    #[cfg(loom)]
    pub fn model() -> SharingWord {
        SharingWord(AtomicU32::new(1))
    }

    /// Sets the word of a new ring, which one process uses.
    pub fn begin(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Returns whether several processes use the ring, or have used it. A ring that is shared stays
    /// so. Another process may begin to share it at any moment.
    #[inline(always)]
    pub fn is_shared(&self) -> bool {
        self.0.load(Ordering::Relaxed) & SHARED != 0
    }

    /// Adds a process to the ring's users, and marks the ring as shared. Returns whether a waiter
    /// of another process leads. The caller then has that process wake its leader.
    #[must_use = "a leader that is not woken sleeps in a place that this process cannot reach"]
    pub fn join(&self, sleep: &SleepWord) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.0.fetch_or(SHARED, Ordering::Relaxed);
        Edge::Share.barrier_beside_rmw(Side::Waker);
        sleep.is_led()
    }

    /// Takes a process off the ring's users. Returns whether others are left. Those that have ended
    /// without leaving the ring count, too.
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) & USERS > 1
    }

    /// Tries to become the ring's leader. `false`: another thread leads, or the ring is shared.
    #[inline]
    pub fn lead(&self, sleep: &SleepWord) -> bool {
        if self.is_shared() || !sleep.lead() {
            return false;
        }
        Edge::Share.barrier_beside_rmw(Side::Sleeper);
        let stays = !self.is_shared();
        if !stays && sleep.resign() == Wake::Futex {
            sleep.wake_futex();
        }
        stays
    }

    /// Returns whether a waiter leads although the ring is shared: it began before. The caller, in
    /// the leader's process, wakes it.
    pub fn has_late_leader(&self, sleep: &SleepWord) -> bool {
        self.is_shared() && sleep.is_led()
    }

    /// Wakes a waiter for work that only threads of this process see; `wake` returns whether a
    /// thread slept. Returns `false` if the caller has to run the work itself.
    #[inline]
    pub fn leave_to_waiter(&self, wake: impl FnOnce() -> bool) -> bool {
        !self.is_shared() && wake() && !self.is_shared()
    }
}
