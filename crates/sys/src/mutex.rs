//! The mutex of all data that the threads of one process share: a futex word with three states. (A
//! ring's lock is [`crate::process_mutex`].) Uncontended, it costs one compare-and-swap to lock and
//! one swap to unlock.
//!
//! # Hand-over
//! Work for a ring is published without its lock. The publisher then tries the lock; if another
//! thread holds it, the publisher leaves the work to that holder. The rule has two sides
//! ([`Edge::HandOver`]):
//! - **Unlocking is a full barrier, and a holder that has unlocked looks at the work once more.**
//! - [`Mutex::try_lock`] has its barrier in front.
//!
//! So either the publisher gets the lock, or the holder sees the work.
//!
//! There is no poisoning: a panic in usring ends the process.

use crate::futex;
use crate::ordering::{Edge, Side};
use crate::sync::{AtomicU32, MutPtr, Ordering, UnsafeCell, relax};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

const UNLOCKED: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and a thread may sleep on the word.
const CONTENDED: u32 = 2;

/// Attempts before the thread sleeps in the kernel: about the time that the sleep and its wake-up
/// would cost.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the lock's holder reaches the value, one thread at a time.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: only the lock's holder reaches the value, one thread at a time.
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

    /// Takes the lock if it is free. A full barrier comes before the read of the lock's word. So a
    /// holder that looks after unlocking sees what this thread stored earlier.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        Edge::HandOver.barrier_beside_rmw(Side::Waker);
        match self.state.compare_exchange(UNLOCKED, LOCKED, Edge::Lock.acquire(), Ordering::Relaxed) {
            Ok(_) => Some(self.guard()),
            Err(_) => None,
        }
    }

    /// Returns whether a thread held the lock a moment ago; a hint.
    pub fn is_locked(&self) -> bool {
        self.state.load(Ordering::Relaxed) != UNLOCKED
    }

    /// Returns the value of a lock that no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self`, so no guard exists.
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
        // From here on this thread cannot know whether other threads sleep, too, so it takes the
        // lock as a contended one.
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

/// The held lock. Dropping it unlocks and is a full barrier. The head of this file says what the
/// holder has to do next.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a, T> {
    value: ManuallyDrop<MutPtr<T>>,
    mutex: &'a Mutex<T>,
}

impl<'a, T> Guard<'a, T> {
    /// Returns the mutex that this guard holds.
    pub fn mutex(guard: &Self) -> &'a Mutex<T> {
        guard.mutex
    }
}

// SAFETY: any thread may unlock a futex, and the value may be sent if the mutex may.
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
        // SAFETY: this thread holds the lock, and `&mut self` makes this the only reference.
        unsafe { (*self.value).deref() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: dropped here once and not used again. It must be dropped before the unlock:
        // otherwise a model would report the next holder's access as a conflict.
        unsafe { ManuallyDrop::drop(&mut self.value) };
        if self.mutex.state.swap(UNLOCKED, Edge::Lock.release()) == CONTENDED {
            futex::wake(&self.mutex.state, 1);
        }
        Edge::HandOver.barrier_beside_rmw(Side::Sleeper);
    }
}
