//! futex(2) for usring's own threads. They block every signal, so no wait is interrupted. (The
//! program's threads wait by `sys::wait`, which a signal ends.)
//!
//! In a model a futex is a table of sleepers behind one lock, as in the kernel. loom reports a
//! missing wake-up as a deadlock.

use crate::Errno;
use crate::clock::Nanoseconds;
use crate::sync::AtomicU32;

#[cfg(not(loom))]
pub use machine::{wait, wake};
#[cfg(loom)]
pub use model::{wait, wake};

#[cfg(not(loom))]
mod machine {
    use super::*;
    use crate::clock::{Clock, timespec};
    use crate::syscall::SystemCall;
    use linux_raw_sys::general as linux;

    /// Sleeps while `word` holds `expected`, until a wake-up or for `timeout`. `Ok` means that
    /// looking again is worthwhile, not that anything happened. Errors: `ETIMEDOUT` when the time
    /// is over.
    pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
        // The bit-set form takes an absolute end time, so an interrupted wait continues with the
        // time that is left.
        let end = timeout.map(|span| timespec(Clock::Monotonic.now().saturating_add(span)));
        let end = end.as_ref().map_or(0, |end| &raw const *end as u64);
        let operation = u64::from(linux::FUTEX_WAIT_BITSET | linux::FUTEX_PRIVATE_FLAG);
        let any = u64::from(linux::FUTEX_BITSET_MATCH_ANY);
        let arguments = [word.as_ptr() as u64, operation, u64::from(expected), end, 0, any];
        match SystemCall::with_six(linux::__NR_futex, arguments).run() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Wakes up to `count` threads that sleep on `word`; returns how many.
    pub fn wake(word: &AtomicU32, count: u32) -> u32 {
        let operation = u64::from(linux::FUTEX_WAKE | linux::FUTEX_PRIVATE_FLAG);
        // The kernel's count is signed.
        let count = u64::from(count.min(i32::MAX as u32));
        SystemCall::new(linux::__NR_futex, [word.as_ptr() as u64, operation, count, 0, 0])
            .run()
            .map_or(0, |woken| woken as u32)
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
    }

    loom::lazy_static! {
        static ref TABLE: Mutex<Table> = Mutex::new(Table { sleepers: std::vec::Vec::new(), next: 0 });
        static ref WOKEN: Condvar = Condvar::new();
    }

    pub fn wait(word: &AtomicU32, expected: u32, _: Option<Nanoseconds>) -> Result<(), Errno> {
        let mut table = TABLE.lock().unwrap();
        if word.load(Ordering::SeqCst) != expected {
            return Ok(());
        }
        let ticket = (word as *const _ as usize, table.next);
        table.next += 1;
        table.sleepers.push(ticket);
        while table.sleepers.contains(&ticket) {
            table = WOKEN.wait(table).unwrap();
        }
        Ok(())
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
