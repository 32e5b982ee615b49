//! A lock that whoever dies with it leaves open.
//!
//! A vfork child works in its parent's memory and may be killed at any instruction, with the parent
//! and its locks going on. Where such a child takes a lock of the process, the kernel has to know whose it
//! is: the word holds the thread's number (a PI futex), a dead holder is told of (`ESRCH`), and
//! one that dies while others sleep passes the lock on.
//!
//! (The number is that of the holder's own namespace; a child that shares its parent's memory in a namespace of its
//! own is not told apart there.)

use crate::{Errno, SystemCall, signals, wait};
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

const FREE: u32 = 0;
/// How long it is left alone where the kernel cannot say who has it, in nanoseconds.
const PAUSE: u64 = 1_000_000;

/// See the head of this file.
#[derive(Debug, Default)]
pub struct OwnerLock(AtomicU32);

/// The lock, held.
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

    /// Waits for the lock. The caller's signals are closed, so that no handler of its own waits for it.
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
                // Its holder is dead, and nobody sleeps: it is taken from him as it was.
                Err(Errno::ESRCH) => seen = before,
                // Its holder is about to be.
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
        // In a forked child the number is another's, and so is the lock.
        if self.owner == current()
            && word.compare_exchange(self.owner, FREE, Ordering::Release, Ordering::Relaxed).is_err()
        {
            // Somebody sleeps. Where the kernel knows of nobody, it is a word like any other.
            if self.lock.control(linux::FUTEX_UNLOCK_PI).is_err() {
                word.store(FREE, Ordering::Release);
            }
        }
    }
}

fn current() -> u32 {
    signals::thread_id()
}
