//! Sleeping for a few microseconds and not for fifty more.
//!
//! Linux lets a timer of an ordinary thread fire up to 50 µs late, so that
//! several may share an interrupt (prctl(2), PR_SET_TIMERSLACK). Who waits for
//! a device cannot afford that. Measured on a virtual machine (Linux 6.18, 30 µs
//! asked for; overshoot, and processor time of the sleep):
//!
//! | sleep | median | 99th of 100 | processor |
//! |---|---|---|---|
//! | clock_nanosleep, ppoll, futex as they are | 53 µs | 57–97 µs | 3.3–4.5 µs |
//! | timerfd, armed and read | 3.2 µs | 25 µs | 4.2 µs |
//! | clock_nanosleep with the slack set to 1 ns around it | 3.3 µs | 24 µs | 3.6 µs |
//! | and asking for the thread's own slack first | 3.4 µs | 34 µs | 3.7 µs |
//!
//! A timerfd would be a descriptor for each sleeper; a prctl(2) costs 0.09 µs.
//! So the last row is what is done: the slack belongs to the program's thread,
//! and the program finds it as it was.

use crate::clock::{Clock, Nanoseconds};
use crate::{Errno, SystemCall, wait};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// prctl(2)'s options; `linux-raw-sys` has them in a module of its own.
const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;

/// Sleeps for a short span in the calling thread, which may be the program's.
/// `EINTR`: a signal came, and the sleep ended early.
pub fn sleep_precisely(span: Nanoseconds) -> Result<(), Errno> {
    // A thread with a real-time policy has none, and may not get one. Where a
    // sandbox denies the question, the sleep is as long as it is, and
    // `overshoot` says so.
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

/// Nanoseconds, plus one; 0 before it was measured.
static OVERSHOOT: AtomicU64 = AtomicU64::new(0);

/// By how much [`sleep_precisely`] oversleeps on this machine: the lower quarter
/// of a few sleeps, which the first caller makes (half a millisecond). It is
/// about the processor time of a sleep, too. Were the machine busy just then, a
/// median would be the time that others keep the processor, for good.
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
    /// Where the slack cannot be changed; what is more is not the timer's.
    const MOST: Nanoseconds = 60_000;
    let mut samples = [0; 15];
    for sample in &mut samples {
        let start = Clock::Monotonic.now();
        // A signal that cuts one short leaves a sample of 0 among fifteen.
        let _ = sleep_precisely(SPAN);
        *sample = (Clock::Monotonic.now() - start).saturating_sub(SPAN);
    }
    samples.sort_unstable();
    samples[samples.len() / 4].min(MOST)
}
