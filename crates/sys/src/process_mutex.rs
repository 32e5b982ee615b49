//! The mutex of a ring (the kernel's `uring_lock`). Its word lies in memory that forked processes
//! share, so at most one thread of all these processes holds the mutex. The value that the mutex
//! protects is not shared: each process has its own.
//!
//! The word:
//!
//! | bits | content |
//! |---|---|
//! | 0–28 | number of the process that holds the lock, or held it last ([`crate::process_number`]) |
//! | 29 | unused |
//! | 30 | `HELD` |
//! | 31 | `CONTENDED`: a thread may sleep on the word |
//!
//! - **Change of the holding process.** If a thread's own process was also the last holder, the
//!   thread acquires the lock by one compare-and-swap. Otherwise `lock` calls `catch_up`, which
//!   updates this process's value with the changes that other processes have made.
//! - **A dead holder.** A thread sleeps on the word for 5 ms at most. If the holding process is
//!   dead by then, the thread acquires the lock in its place.
//! - **Hand-over of work within a process**, by the rule of [`crate::mutex`]: a thread publishes
//!   work without the lock, then tries the lock. If another thread of its process holds the lock,
//!   that holder checks for work after it has unlocked ([`Edge::HandOver`]). A holder in another
//!   process does not check. `try_lock` then returns [`HeldBy::OtherProcess`], and the thread that
//!   published the work must try the lock again.

use crate::clock::Nanoseconds;
use crate::ordering::{Edge, Side};
use crate::sync::{AtomicU32, MutPtr, Ordering, UnsafeCell, relax};
use crate::{Errno, futex};
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

const HELD: u32 = 1 << 30;
const CONTENDED: u32 = 1 << 31;
const NUMBER: u32 = (1 << 29) - 1;

/// Number of attempts to acquire the lock before the thread sleeps in the kernel. All attempts
/// together take about as long as a sleep on the futex and its wake-up.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// Longest single sleep on the mutex's word. After the sleep, the thread checks whether the process
/// that holds the lock is alive.
const LONGEST_SLEEP_NS: Nanoseconds = 5_000_000;

/// Returns whether the process with this number is alive.
pub type IsAlive = fn(u32) -> bool;

/// One process's view of the mutex of a ring. `W` points to the mutex's word in shared memory.
pub struct ProcessMutex<T, W> {
    word: W,
    /// This process's number. While the lock is free, the word has this value if this process was
    /// the last holder.
    own: u32,
    is_alive: IsAlive,
    value: UnsafeCell<T>,
}

// SAFETY: only the lock's holder reaches the value, one thread at a time.
unsafe impl<T: Send, W: Send> Send for ProcessMutex<T, W> {}
// SAFETY: only the lock's holder reaches the value, one thread at a time.
unsafe impl<T: Send, W: Sync> Sync for ProcessMutex<T, W> {}

/// How another process has used a lock since this process last held the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Another process held the lock and released it.
    OtherHolder,
    /// Another process died while it held the lock. It may have been in the middle of a change of
    /// the shared memory.
    HolderDied,
}

/// The holder of a lock that [`ProcessMutex::try_lock`] could not acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// A thread of this process. It checks for published work after it has unlocked.
    ThisProcess,
    /// A thread of another process.
    OtherProcess,
}

impl<T, W: Deref<Target = AtomicU32>> ProcessMutex<T, W> {
    /// Makes a mutex on a word that no other process uses yet.
    pub fn new(word: W, own: u32, is_alive: IsAlive, value: T) -> Self {
        word.store(own, Ordering::Relaxed);
        Self::join(word, own, is_alive, value)
    }

    /// Makes this process's view of a mutex on a word that other processes use.
    pub fn join(word: W, own: u32, is_alive: IsAlive, value: T) -> Self {
        debug_assert!(own & !NUMBER == 0, "the number of a process has 29 bits");
        ProcessMutex { word, own, is_alive, value: UnsafeCell::new(value) }
    }

    /// Returns the number that stands for this process in the mutex's word.
    pub fn own(&self) -> u32 {
        self.own
    }

    /// Waits for the lock and acquires it. If another process has held the lock since this process
    /// held it last, calls `catch_up` before it returns.
    #[inline(always)]
    pub fn lock(&self, catch_up: impl FnOnce(&mut T, Since)) -> Guard<'_, T, W> {
        let taken = self.word.compare_exchange(self.own, self.own | HELD, Edge::Lock.acquire(), Ordering::Relaxed);
        if taken.is_ok() { self.guard() } else { self.lock_slowly(catch_up) }
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, catch_up: impl FnOnce(&mut T, Since)) -> Guard<'_, T, W> {
        let previous = self.wait();
        self.guard_after(previous, catch_up)
    }

    /// Acquires the lock if it is free. Executes a full barrier before it reads the lock's word. If
    /// another thread of this process holds the lock, that thread checks for work after it has
    /// unlocked. It then sees the earlier stores of this thread.
    #[inline]
    pub fn try_lock(&self, catch_up: impl FnOnce(&mut T, Since)) -> Result<Guard<'_, T, W>, HeldBy> {
        Edge::HandOver.barrier_beside_rmw(Side::Waker);
        let mut free = self.own;
        loop {
            match self.word.compare_exchange(free, self.own | HELD, Edge::Lock.acquire(), Ordering::Relaxed) {
                Ok(previous) => return Ok(self.guard_after(previous, catch_up)),
                Err(now) if now & HELD == 0 => free = now,
                Err(now) if now & NUMBER == self.own => return Err(HeldBy::ThisProcess),
                Err(_) => return Err(HeldBy::OtherProcess),
            }
        }
    }

    fn guard(&self) -> Guard<'_, T, W> {
        Guard { value: ManuallyDrop::new(self.value.get_mut()), mutex: self }
    }

    #[inline(always)]
    fn guard_after(&self, previous: u32, catch_up: impl FnOnce(&mut T, Since)) -> Guard<'_, T, W> {
        let mut guard = self.guard();
        if previous & NUMBER != self.own {
            let since = if previous & HELD != 0 { Since::HolderDied } else { Since::OtherHolder };
            catch_up(&mut guard, since);
        }
        guard
    }

    /// Waits for the lock and acquires it. Returns the value that the lock's word had just before
    /// this thread acquired the lock.
    fn wait(&self) -> u32 {
        let mut spins = SPINS;
        // After its sleep, this thread does not know whether more threads sleep on the word. So it
        // acquires the lock with `CONTENDED` set (in `slept`), and its unlock wakes the next
        // sleeper.
        let mut slept = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word & HELD == 0 {
                if self.take(word, slept) {
                    return word;
                }
            } else if spins > 0 {
                spins -= 1;
                relax();
            } else if word & CONTENDED != 0 || self.change(word, word | CONTENDED) {
                slept = CONTENDED;
                let outcome = futex::wait_shared(&self.word, word | CONTENDED, Some(LONGEST_SLEEP_NS));
                let is_over = outcome == Err(Errno::ETIMEDOUT) && word & NUMBER != self.own;
                if is_over && !(self.is_alive)(word & NUMBER) && self.take(word | CONTENDED, CONTENDED) {
                    return word;
                }
            }
        }
    }

    fn take(&self, from: u32, contended: u32) -> bool {
        let to = self.own | HELD | contended;
        self.word.compare_exchange(from, to, Edge::Lock.acquire(), Ordering::Relaxed).is_ok()
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Runs published work. If another thread of this process holds the lock, leaves the work to that
/// thread, which checks for work after it has unlocked. Called by a thread that has published work
/// or has just unlocked.
///
/// If another process holds the lock, this function calls `wait`, because that process does not see
/// the work. `wait` waits for the lock and returns its guard. If the caller must not wait, `wait`
/// passes the work to another thread, and returns `None`. `run` does the work and unlocks.
#[inline(always)]
pub fn run_unattended<G>(
    has_work: impl Fn() -> bool,
    try_lock: impl Fn() -> Result<G, HeldBy>,
    wait: impl Fn() -> Option<G>,
    mut run: impl FnMut(G),
) {
    while has_work() {
        let guard = match try_lock() {
            Ok(guard) => guard,
            Err(HeldBy::ThisProcess) => return,
            Err(HeldBy::OtherProcess) => match wait() {
                Some(guard) => guard,
                None => return,
            },
        };
        run(guard);
    }
}

/// Proof that the lock is held. Dropping the guard unlocks and is a full barrier. After the drop,
/// the thread must check for published work (see "Hand-over of work" at the head of this file).
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a, T, W: Deref<Target = AtomicU32>> {
    value: ManuallyDrop<MutPtr<T>>,
    mutex: &'a ProcessMutex<T, W>,
}

// SAFETY: any thread of the process may release the lock, and `T: Send` lets that thread use the
// value.
unsafe impl<T: Send, W: Deref<Target = AtomicU32> + Sync> Send for Guard<'_, T, W> {}
// SAFETY: `&Guard` gives `&T` and nothing else.
unsafe impl<T: Sync, W: Deref<Target = AtomicU32> + Sync> Sync for Guard<'_, T, W> {}

impl<T, W: Deref<Target = AtomicU32>> Deref for Guard<'_, T, W> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: while the guard lives, the lock is held, and no other thread accesses the value.
        unsafe { (*self.value).deref() }
    }
}

impl<T, W: Deref<Target = AtomicU32>> DerefMut for Guard<'_, T, W> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: while the guard lives, the lock is held, and `&mut self` makes this the only
        // reference.
        unsafe { (*self.value).deref() }
    }
}

impl<T, W: Deref<Target = AtomicU32>> Drop for Guard<'_, T, W> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `value` is dropped here once and not used again. (The drop comes before the
        // unlock. Otherwise loom would report the next holder's access as a conflict.)
        unsafe { ManuallyDrop::drop(&mut self.value) };
        let mutex = self.mutex;
        if mutex.word.swap(mutex.own, Edge::Lock.release()) & CONTENDED != 0 {
            futex::wake_shared(&mutex.word, 1);
        }
        Edge::HandOver.barrier_beside_rmw(Side::Sleeper);
    }
}
