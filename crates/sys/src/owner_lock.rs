//! A lock that becomes free when its holder dies.
//!
//! A vfork child works in its parent's memory and may be killed at any instruction. The parent then
//! continues with the locks of this memory. If such a child acquires a lock of the process, the
//! kernel must know the lock's owner. So the lock's word holds the owner's thread id (a PI futex):
//! - The kernel reports a dead holder by `ESRCH`.
//! - If the holder dies while other threads sleep, the kernel passes the lock on.
//!
//! Limit: the id is valid in the holder's own PID namespace. A child that shares its parent's
//! memory may be in another PID namespace. Its id may then equal that of another thread.

use crate::{Errno, SystemCall, signals, wait};
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

const FREE: u32 = 0;
/// Pause between two attempts to acquire the lock, in nanoseconds. Used if the kernel cannot
/// determine the lock's holder.
const PAUSE: u64 = 1_000_000;

/// A lock that becomes free when its holder dies; see the head of this file.
#[derive(Debug, Default)]
pub struct OwnerLock(AtomicU32);

/// Proof that an [`OwnerLock`] is held. Dropping the guard unlocks.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct OwnerGuard<'a> {
    lock: &'a OwnerLock,
    owner: u32,
}

impl OwnerLock {
    pub const fn new() -> Self {
        OwnerLock(AtomicU32::new(FREE))
    }

    /// Waits for the lock and acquires it. The caller has blocked all signals. Otherwise a signal
    /// handler could wait for the lock on the thread that holds it.
    pub fn lock(&self) -> OwnerGuard<'_> {
        let owner = current();
        let mut seen = FREE;
        loop {
            if self.0.compare_exchange(seen, owner, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return OwnerGuard { lock: self, owner };
            }
            seen = FREE;
            let before = self.0.load(Ordering::Relaxed);
            match self.control(linux::FUTEX_LOCK_PI) {
                Ok(()) => return OwnerGuard { lock: self, owner },
                // The holder is dead, and no thread sleeps on the word. So this thread replaces the
                // dead holder's id by its own.
                Err(Errno::ESRCH) => seen = before,
                // The holder is exiting.
                Err(Errno::EAGAIN) => {}
                Err(_) => drop(wait::nanosleep(PAUSE)),
            }
        }
    }

    fn control(&self, operation: u32) -> Result<(), Errno> {
        let operation = u64::from(operation | linux::FUTEX_PRIVATE_FLAG);
        SystemCall::new(linux::__NR_futex, [self.0.as_ptr() as u64, operation, 0, 0, 0]).run().map(drop)
    }
}

impl Drop for OwnerGuard<'_> {
    fn drop(&mut self) {
        let word = &self.lock.0;
        // This may be a forked child, which has a copy of the guard. The parent's thread still
        // holds the lock, so the child does not release it.
        if self.owner == current()
            && word.compare_exchange(self.owner, FREE, Ordering::Release, Ordering::Relaxed).is_err()
        {
            // The lock's word shows that a thread sleeps, so the kernel has to unlock it. If the
            // kernel finds no sleeping thread, it refuses, and a plain store unlocks the word.
            if self.lock.control(linux::FUTEX_UNLOCK_PI).is_err() {
                word.store(FREE, Ordering::Release);
            }
        }
    }
}

fn current() -> u32 {
    signals::thread_id()
}
