//! The mutex for data that the threads of one process share: a futex word with three states. (A
//! ring's lock is [`crate::process_mutex`].) Without contention it costs one compare-and-swap to
//! lock and one swap to unlock.
//!
//! # Hand-over
//! A thread publishes work for a ring without the ring's lock, and then tries the lock. If another
//! thread holds the lock, that thread has to do the work. Two rules ensure this
//! ([`Edge::HandOver`]):
//! - **Unlocking is a full barrier, and a holder that has unlocked checks for work once more.**
//! - [`Mutex::try_lock`] executes a full barrier before it reads the lock's word.
//!
//! So either the publisher acquires the lock, or the holder sees the work.
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
/// The mutex is locked, and a thread may sleep on its word.
const CONTENDED: u32 = 2;

/// Number of attempts to acquire the lock before the thread sleeps in the kernel. All attempts
/// together take about as long as a sleep on the futex and its wake-up.
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

    /// Waits for the lock and acquires it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(UNLOCKED, LOCKED, Edge::Lock.acquire(), Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        self.guard()
    }

    /// Acquires the lock if it is free. Executes a full barrier before it reads the lock's word. If
    /// another thread holds the lock, that thread checks for work after it has unlocked. It then
    /// sees the earlier stores of this thread.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        Edge::HandOver.barrier_beside_rmw(Side::Waker);
        match self.state.compare_exchange(UNLOCKED, LOCKED, Edge::Lock.acquire(), Ordering::Relaxed) {
            Ok(_) => Some(self.guard()),
            Err(_) => None,
        }
    }

    /// Returns whether a thread holds the lock. Only a hint: the lock may change hands at any
    /// moment.
    pub fn is_locked(&self) -> bool {
        self.state.load(Ordering::Relaxed) != UNLOCKED
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
        // After its sleep, this thread does not know whether more threads sleep on the mutex's
        // word. So it acquires the lock as `CONTENDED`, and its unlock wakes the next sleeper.
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

/// Proof that the lock is held. Dropping the guard unlocks and is a full barrier. A thread that has
/// released a ring's lock then checks for work (see "Hand-over" at the head of this file).
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

// SAFETY: any thread may release the lock, and `T: Send` lets that thread use the value.
unsafe impl<T: Send> Send for Guard<'_, T> {}
// SAFETY: `&Guard` gives `&T` and nothing else.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: while the guard lives, the lock is held, and no other thread accesses the value.
        unsafe { (*self.value).deref() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: while the guard lives, the lock is held, and `&mut self` makes this the only
        // reference.
        unsafe { (*self.value).deref() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `value` is dropped here once and not used again. (The drop comes before the
        // unlock. Otherwise loom would report the next holder's access as a conflict.)
        unsafe { ManuallyDrop::drop(&mut self.value) };
        if self.mutex.state.swap(UNLOCKED, Edge::Lock.release()) == CONTENDED {
            futex::wake(&self.mutex.state, 1);
        }
        Edge::HandOver.barrier_beside_rmw(Side::Sleeper);
    }
}
