//! futex(2) for usring's own threads. These threads block every signal, so no signal interrupts a
//! wait here. (Threads of the program wait by `sys::wait`, which a signal ends.)
//!
//! The functions `…_shared` are for words in memory that several processes share. The kernel
//! identifies such a word by its page in memory, and not by its address.
//!
//! In a loom model a futex is a table of sleepers with one lock, as in the kernel. loom reports a
//! lost wake-up as a deadlock.

use crate::Errno;
use crate::clock::Nanoseconds;
use crate::sync::AtomicU32;

#[cfg(not(loom))]
pub use machine::{wait, wait_shared, wake, wake_shared};
#[cfg(loom)]
pub use model::{expire, wait, wait_shared, wake, wake_shared};

#[cfg(not(loom))]
mod machine {
    use super::*;
    use crate::clock::{Clock, timespec};
    use crate::syscall::SystemCall;
    use crate::width;
    use linux_raw_sys::general as linux;

    /// Sleeps while `word` holds `expected`: until a wake-up, and for `timeout` at most. After `Ok`
    /// the caller reads `word` again, because `word` may still hold `expected`. Errors: `ETIMEDOUT`
    /// when the time is over.
    pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
        wait_by(linux::FUTEX_PRIVATE_FLAG, word, expected, timeout)
    }

    /// Sleeps while `word`, which several processes share, holds `expected`: until a wake-up by
    /// [`wake_shared`], and for `timeout` at most. The results are those of [`wait`].
    pub fn wait_shared(word: &AtomicU32, expected: u32, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
        wait_by(0, word, expected, timeout)
    }

    fn wait_by(scope: u32, word: &AtomicU32, expected: u32, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
        // FUTEX_WAIT_BITSET takes an absolute end time. So after an interruption, the wait
        // continues only for the rest of the time.
        let end = timeout.map(|span| timespec(Clock::Monotonic.now().saturating_add(span)));
        let end = end.as_ref().map_or(0, |end| &raw const *end as u64);
        let operation = u64::from(linux::FUTEX_WAIT_BITSET | scope);
        let any = u64::from(linux::FUTEX_BITSET_MATCH_ANY);
        let arguments = [word.as_ptr() as u64, operation, u64::from(expected), end, 0, any];
        match SystemCall::with_six(linux::__NR_futex, arguments).run() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Wakes up to `count` threads that sleep on `word`; returns the number of threads woken.
    pub fn wake(word: &AtomicU32, count: u32) -> u32 {
        wake_by(linux::FUTEX_PRIVATE_FLAG, word, count)
    }

    /// Wakes up to `count` threads, of any process, that sleep on a shared `word`. Returns the
    /// number of threads woken.
    pub fn wake_shared(word: &AtomicU32, count: u32) -> u32 {
        wake_by(0, word, count)
    }

    fn wake_by(scope: u32, word: &AtomicU32, count: u32) -> u32 {
        let operation = u64::from(linux::FUTEX_WAKE | scope);
        // The kernel's count is signed.
        let count = u64::from(count.min(i32::MAX as u32));
        SystemCall::new(linux::__NR_futex, [word.as_ptr() as u64, operation, count, 0, 0]).run().map_or(0, width::low)
    }
}

#[cfg(loom)]
mod model {
    use super::*;
    use crate::sync::Ordering;
    use loom::sync::{Condvar, Mutex};

    struct Table {
        sleepers: std::vec::Vec<(usize, u32)>,
        next: u32,
        /// Whether all sleeps on shared words have reached their time limits. [`expire`] sets it.
        expired: bool,
    }

    loom::lazy_static! {
        static ref TABLE: Mutex<Table> = Mutex::new(Table { sleepers: std::vec::Vec::new(), next: 0, expired: false });
        static ref WOKEN: Condvar = Condvar::new();
    }

    pub fn wait(word: &AtomicU32, expected: u32, _: Option<Nanoseconds>) -> Result<(), Errno> {
        sleep(word, expected, false)
    }

    /// Sleeps as [`wait`] does, and ends with `ETIMEDOUT` once [`expire`] was called.
    pub fn wait_shared(word: &AtomicU32, expected: u32, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
        sleep(word, expected, timeout.is_some())
    }

    fn sleep(word: &AtomicU32, expected: u32, is_limited: bool) -> Result<(), Errno> {
        let mut table = TABLE.lock().unwrap();
        if word.load(Ordering::SeqCst) != expected {
            return Ok(());
        }
        let ticket = (word as *const _ as usize, table.next);
        table.next += 1;
        table.sleepers.push(ticket);
        while table.sleepers.contains(&ticket) {
            if is_limited && table.expired {
                table.sleepers.retain(|sleeper| *sleeper != ticket);
                drop(table);
                // The caller will try again in a loop. Before the next attempt, loom has to run the
                // other threads.
                loom::thread::yield_now();
                return Err(Errno::ETIMEDOUT);
            }
            table = WOKEN.wait(table).unwrap();
        }
        Ok(())
    }

    /// Makes all present and later sleeps with a time limit on shared words end with `ETIMEDOUT`.
    pub fn expire() {
        TABLE.lock().unwrap().expired = true;
        WOKEN.notify_all();
    }

    pub fn wake_shared(word: &AtomicU32, count: u32) -> u32 {
        wake(word, count)
    }

    pub fn wake(word: &AtomicU32, count: u32) -> u32 {
        let address = word as *const _ as usize;
        let mut table = TABLE.lock().unwrap();
        let mut left = count;
        table.sleepers.retain(|(sleeper, _)| {
            let woken = *sleeper == address && left > 0;
            left -= u32::from(woken);
            !woken
        });
        WOKEN.notify_all();
        count - left
    }
}
