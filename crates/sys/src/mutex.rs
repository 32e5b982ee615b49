//! The lock of a ring (the kernel's `uring_lock`) and of everything else that
//! needs one: a futex word with three states. Uncontended it costs one
//! compare-and-swap to take and one swap to release.
//!
//! # Hand-over
//! Work for a ring is published without its lock; whoever publishes tries the
//! lock afterwards, and if somebody holds it, leaves the work to that holder.
//! So **unlocking is a full barrier, and a holder who lets go looks at the
//! work once more**; [`Mutex::try_lock`] is the other side and has its barrier
//! in front. Either the publisher gets the lock, or the holder sees the work
//! ([`Edge::HandOver`]).
//!
//! There is no poisoning: a panic of ours ends the process.

use crate::futex;
use crate::ordering::{Edge, Side};
use crate::sync::{AtomicU32, MutPtr, Ordering, UnsafeCell, relax};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

const UNLOCKED: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and somebody may sleep on the word.
const CONTENDED: u32 = 2;

/// How often a holder is given time before the kernel is asked: about as long
/// as the sleep and its wake-up would cost.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock reaches the value, one thread at a time.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Mutex { state: AtomicU32::new(UNLOCKED), value: UnsafeCell::new(value) }
    }

    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Mutex { state: AtomicU32::new(UNLOCKED), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(UNLOCKED, LOCKED, Edge::Lock.acquire(), Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        self.guard()
    }

    /// The lock, if nobody holds it. A full barrier stands before the look at
    /// the lock's word: what this thread stored earlier is seen by a holder
    /// who looks after unlocking.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        Edge::HandOver.barrier_beside_rmw(Side::Waker);
        match self.state.compare_exchange(UNLOCKED, LOCKED, Edge::Lock.acquire(), Ordering::Relaxed) {
            Ok(_) => Some(self.guard()),
            Err(_) => None,
        }
    }

    /// Whether somebody held it a moment ago; a hint.
    pub fn is_locked(&self) -> bool {
        self.state.load(Ordering::Relaxed) != UNLOCKED
    }

    /// The value, of a lock that nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self`: no guard exists.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    fn guard(&self) -> Guard<'_, T> {
        Guard { value: ManuallyDrop::new(self.value.get_mut()), mutex: self }
    }

    #[cold]
    fn lock_contended(&self) {
        let mut spins = SPINS;
        while spins > 0 {
            spins -= 1;
            if self.state.load(Ordering::Relaxed) == UNLOCKED
                && self.state.compare_exchange(UNLOCKED, LOCKED, Edge::Lock.acquire(), Ordering::Relaxed).is_ok()
            {
                return;
            }
            relax();
        }
        // From here on this thread cannot know whether others sleep as well,
        // so it takes the lock as a contended one.
        while self.state.swap(CONTENDED, Edge::Lock.acquire()) != UNLOCKED {
            let _ = futex::wait(&self.state, CONTENDED, None);
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("locked", &self.is_locked()).finish_non_exhaustive()
    }
}

/// The lock, held. Dropping it unlocks and is a full barrier: see the head of
/// this file for what the holder has to do next.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a, T> {
    value: ManuallyDrop<MutPtr<T>>,
    mutex: &'a Mutex<T>,
}

impl<'a, T> Guard<'a, T> {
    /// The lock that this guard holds.
    pub fn mutex(guard: &Self) -> &'a Mutex<T> {
        guard.mutex
    }
}

// SAFETY: a futex does not care which thread unlocks it, and the value may go
// where the mutex may.
unsafe impl<T: Send> Send for Guard<'_, T> {}
// SAFETY: `&Guard` gives `&T` and nothing else.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock for as long as the guard lives.
        unsafe { (*self.value).deref() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` is the only reference given out.
        unsafe { (*self.value).deref() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: dropped here once and not used again. It has to go before
        // the lock, so that a model does not take the next holder's use for a
        // conflict with this one.
        unsafe { ManuallyDrop::drop(&mut self.value) };
        if self.mutex.state.swap(UNLOCKED, Edge::Lock.release()) == CONTENDED {
            futex::wake(&self.mutex.state, 1);
        }
        Edge::HandOver.barrier_beside_rmw(Side::Sleeper);
    }
}
