//! Sleeps for a few microseconds, without the usual delay of fifty more.
//!
//! Linux lets a timer of an ordinary thread fire up to 50 µs late, so that several may share an
//! interrupt (prctl(2), PR_SET_TIMERSLACK). That is too long for a thread that waits for a device.
//! Measured on a virtual machine (Linux 6.18, sleeps of 30 µs; overshoot, and processor time of a
//! sleep):
//!
//! | sleep | median | 99th of 100 | processor |
//! |---|---|---|---|
//! | clock_nanosleep, ppoll, futex with the thread's own slack | 53 µs | 57–97 µs | 3.3–4.5 µs |
//! | timerfd, armed and read | 3.2 µs | 25 µs | 4.2 µs |
//! | clock_nanosleep with the slack set to 1 ns around it | 3.3 µs | 24 µs | 3.6 µs |
//! | and the thread's own slack read first | 3.4 µs | 34 µs | 3.7 µs |
//!
//! A timerfd would take a descriptor for each sleeper; a prctl(2) costs 0.09 µs. So the code does
//! what the last row says: the slack belongs to the program's thread, and is restored afterwards.

use crate::clock::{Clock, Nanoseconds};
use crate::{Errno, SystemCall, wait};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// Options of prctl(2), which `linux-raw-sys` has only in another module.
const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;

/// Sleeps for a short span on the calling thread, which may be the program's. Errors: `EINTR` if a
/// signal came, and the sleep ended early.
pub fn sleep_precisely(span: Nanoseconds) -> Result<(), Errno> {
    // A thread with a real-time policy has no slack, and may not set it. If a sandbox denies the
    // query, the sleep has its usual length, and `overshoot` reports that.
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

/// The result of [`overshoot`], in nanoseconds, plus one; 0 before the measurement.
static OVERSHOOT: AtomicU64 = AtomicU64::new(0);

/// Returns how much [`sleep_precisely`] oversleeps on this machine: the lower quartile of a few
/// sleeps. The first caller makes them (half a millisecond). This is also about the processor time
/// of a sleep. A median would be wrong for good if the machine was busy at that moment: it would
/// measure how long other threads keep the processor.
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
    /// The overshoot if the slack cannot be changed. Any excess has another cause.
    const MOST: Nanoseconds = 60_000;
    let mut samples = [0; 15];
    for sample in &mut samples {
        let start = Clock::Monotonic.now();
        // A signal may cut one sleep short. That makes only one of the fifteen samples 0.
        let _ = sleep_precisely(SPAN);
        *sample = (Clock::Monotonic.now() - start).saturating_sub(SPAN);
    }
    samples.sort_unstable();
    samples[samples.len() / 4].min(MOST)
}
