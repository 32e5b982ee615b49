//! The word that records whether several processes use a ring, and the protocol by which a process
//! begins to use a ring of its parent. Neighbours: [`crate::sleep`] has the ring's sleep word, and
//! [`crate::process_mutex`] is the ring's lock.
//!
//! While one process uses the ring, one waiter may be its leader (sleep in that process's epoll
//! set). Waiters also run task work that other threads of the process publish. Another process can
//! neither wake a thread in that epoll set nor see that work. So once a second process begins to
//! use the ring, no waiter leads, and no work is left to waiters.
//!
//! A waiter may become leader just when another process begins to use the ring ([`Edge::Share`]):
//!
//! | step | process that begins: [`SharingWord::join`] | waiter: [`SharingWord::try_lead`] |
//! |---|---|---|
//! | 1 | marks the ring as shared | records in the sleep word that it is the leader |
//! | 2 | full barrier | full barrier |
//! | 3 | if there is a leader: has the leader's process wake it | if the ring is shared: resigns |
//!
//! At least one of the two sees the other's step 1. A thread of the leader's process learns from
//! [`SharingWord::has_late_leader`] that it has to wake the leader. The leader then resigns, and
//! finds the ring shared before it sleeps again.
//!
//! A thread may publish work for a waiter just when another process begins to use the ring:
//!
//! | step | process that begins | thread that publishes work: [`SharingWord::leave_to_waiter`] |
//! |---|---|---|
//! | 1 | marks the ring as shared | puts the work on its process's list |
//! | 2 | announces a sleep in the sleep word | claims the announced sleepers |
//! | 3 | | if the ring is shared: runs the work itself |
//!
//! The claim of a sleeper is an acquire, and the announcement of its sleep a release. So a thread
//! that claims a sleeper of another process sees that the ring is shared, and does not leave the
//! work to that sleeper.
//!
//! A thread may register something that only its process knows (a private registration), just when
//! another process begins to use the ring:
//!
//! | step | process that begins | thread that registers: [`SharingWord::keep_private`] |
//! |---|---|---|
//! | 1 | marks the ring as shared | records that there are private registrations |
//! | 2 | full barrier | full barrier |
//! | 3 | if there are private registrations: waits until they are published | if the ring is shared: publishes them |
//!
//! At least one of the two sees the other's step 1.

use crate::ordering::{Edge, Side};
use crate::sleep::{SleepWord, Wake};
use crate::sync::{AtomicU32, Ordering};

/// Bit: a process that did not make the ring uses the ring, or has used it.
const SHARED: u32 = 1 << 31;
/// Mask of the number of users. Each process that uses the ring is a user. A process that ended
/// without a call of [`SharingWord::leave`] also counts.
const USERS: u32 = SHARED - 1;

/// The word that records whether several processes use a ring. It lies in memory that these
/// processes share.
#[derive(Debug)]
#[repr(transparent)]
pub struct SharingWord(AtomicU32);

impl SharingWord {
    /// Makes the word of a new ring, for loom models. (A real ring uses [`SharingWord::begin`].)
    #[cfg(loom)]
    pub fn model() -> SharingWord {
        SharingWord(AtomicU32::new(1))
    }

    /// Initialises the word of a new ring. Only one process uses such a ring.
    pub fn begin(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Returns whether several processes use the ring, or have used it. The answer may become
    /// `true` at any moment, and then stays `true`.
    #[inline(always)]
    pub fn is_shared(&self) -> bool {
        self.0.load(Ordering::Relaxed) & SHARED != 0
    }

    /// Adds a process to the ring's users, and marks the ring as shared. Returns whether a waiter
    /// of another process is the leader. If so, the caller has to make that process wake the
    /// leader.
    #[must_use = "a leader that is not woken sleeps in a place that this process cannot reach"]
    pub fn join(&self, sleep: &SleepWord) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.0.fetch_or(SHARED, Ordering::Relaxed);
        Edge::Share.barrier_beside_rmw(Side::Waker);
        sleep.is_led()
    }

    /// Removes a process from the ring's users. Returns whether other users are left. A process
    /// that ended without calling this function still counts.
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) & USERS > 1
    }

    /// Tries to make the caller the ring's leader. Returns `false` if another thread is the leader,
    /// or the ring is shared.
    #[inline]
    pub fn try_lead(&self, sleep: &SleepWord) -> bool {
        if self.is_shared() || !sleep.try_lead() {
            return false;
        }
        Edge::Share.barrier_beside_rmw(Side::Sleeper);
        let stays = !self.is_shared();
        if !stays && sleep.resign() == Wake::Futex {
            sleep.wake_futex();
        }
        stays
    }

    /// Records in `private` that this process has registered something that other processes do not
    /// see. Returns `false` if the ring is shared: the caller then has to publish the registration.
    pub fn keep_private(&self, private: &AtomicU32) -> bool {
        private.swap(1, Ordering::AcqRel);
        Edge::Share.barrier_beside_rmw(Side::Sleeper);
        !self.is_shared()
    }

    /// Returns whether the ring still has a leader although it is shared by now. If so, the caller
    /// (a thread of the leader's process) wakes the leader.
    pub fn has_late_leader(&self, sleep: &SleepWord) -> bool {
        self.is_shared() && sleep.is_led()
    }

    /// Tries to leave task work to a waiter of this process. (Only threads of this process see the
    /// work.) `wake` wakes a waiter, and returns whether a waiter slept. Returns `false` if the
    /// caller has to run the work itself.
    #[inline]
    pub fn leave_to_waiter(&self, wake: impl FnOnce() -> bool) -> bool {
        !self.is_shared() && wake() && !self.is_shared()
    }
}
