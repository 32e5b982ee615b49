//! Sleeps for a few microseconds, without the usual 50 µs of timer slack.
//!
//! Linux lets a timer of an ordinary thread fire up to 50 µs late, so that several may share an
//! interrupt (prctl(2), PR_SET_TIMERSLACK). That is too long for a thread that waits for a device.
//! Measured on a virtual machine (Linux 6.18, sleeps of 30 µs):
//!
//! | sleep | overshoot, median | overshoot, 99th of 100 | processor time |
//! |---|---|---|---|
//! | clock_nanosleep, ppoll, futex with the thread's own slack | 53 µs | 57–97 µs | 3.3–4.5 µs |
//! | timerfd, armed and read | 3.2 µs | 25 µs | 4.2 µs |
//! | clock_nanosleep with the slack set to 1 ns around it | 3.3 µs | 24 µs | 3.6 µs |
//! | clock_nanosleep with the slack read, set to 1 ns, and restored | 3.4 µs | 34 µs | 3.7 µs |
//!
//! A timerfd would need a descriptor for each sleeping thread; a prctl(2) costs 0.09 µs. So this
//! file sleeps as in the table's last row. It restores the slack because the thread may be the
//! program's.

use crate::clock::{Clock, Nanoseconds};
use crate::{Errno, SystemCall, wait};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// Options of prctl(2), which `linux-raw-sys` has only in another module.
const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;

/// Sleeps for a short span on the calling thread, which may be the program's. Errors: `EINTR` if a
/// signal ended the sleep early.
pub fn sleep_precisely(span: Nanoseconds) -> Result<(), Errno> {
    // A thread with a real-time policy has no slack, and is not allowed to set it. If a sandbox
    // denies prctl(2), the thread's slack stays unchanged, and `overshoot` measures its effect.
    let slack = control(PR_GET_TIMERSLACK, 0).unwrap_or(0);
    if slack > 1 {
        let _ = control(PR_SET_TIMERSLACK, 1);
    }
    let slept = wait::nanosleep(span);
    if slack > 1 {
        let _ = control(PR_SET_TIMERSLACK, slack);
    }
    slept
}

fn control(option: u64, value: u64) -> Result<u64, Errno> {
    SystemCall::new(linux::__NR_prctl, [option, value, 0, 0, 0]).run_once()
}

/// The result of [`overshoot`] in nanoseconds, plus 1; 0 before it is measured.
static OVERSHOOT: AtomicU64 = AtomicU64::new(0);

/// Returns how much [`sleep_precisely`] oversleeps on this machine, in nanoseconds. A sleep also
/// takes about this much processor time. The first call measures the overshoot, in half a
/// millisecond: the lower quartile of 15 sleeps. (If the machine is busy at that moment, a median
/// would measure how long other threads keep the processor.)
pub fn overshoot() -> Nanoseconds {
    match OVERSHOOT.load(Ordering::Relaxed) {
        0 => {
            let measured = measure();
            OVERSHOOT.store(measured + 1, Ordering::Relaxed);
            measured
        }
        known => known - 1,
    }
}

fn measure() -> Nanoseconds {
    const SPAN: Nanoseconds = 20_000;
    /// Largest overshoot that is returned: that of a thread whose slack cannot be changed. If a
    /// larger overshoot is measured, it has another cause.
    const MOST: Nanoseconds = 60_000;
    let mut samples = [0; 15];
    for sample in &mut samples {
        let start = Clock::Monotonic.now();
        // If a signal cuts a sleep short, its sample is 0. One wrong sample of 15 hardly changes
        // the result.
        let _ = sleep_precisely(SPAN);
        *sample = (Clock::Monotonic.now() - start).saturating_sub(SPAN);
    }
    samples.sort_unstable();
    samples[samples.len() / 4].min(MOST)
}
