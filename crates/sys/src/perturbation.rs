//! Delays threads at random, in a build with `--cfg perturbed` (`cargo xtask soak interleavings`).
//! A delay hits a thread between two steps of a protocol. Without a delay, a thread is interrupted
//! there once in a million times. A thread may be delayed at each end of an
//! [`Edge`](crate::ordering::Edge), and before and after each system call. (By system calls threads
//! wake each other, sleep, and see files change.)
//!
//! A loom model checks every interleaving of one protocol; this build tests several protocols
//! together. Other builds contain none of this code.

/// Delays the calling thread at random, at one end of an ordering edge.
#[inline(always)]
pub(crate) fn perturb() {
    #[cfg(perturbed)]
    at_random(32, 1024);
}

/// Delays the calling thread at random, before or after a system call of usring. Such a delay is
/// more likely than a delay at an edge, because system calls are rarer than edges.
#[inline(always)]
pub(crate) fn perturb_call() {
    #[cfg(perturbed)]
    at_random(8, 128);
}

/// Yields the processor in one of `yields` calls on average, and sleeps in one of `sleeps`.
#[cfg(perturbed)]
#[cold]
fn at_random(yields: u64, sleeps: u64) {
    use crate::syscall::{PASS_MARK, syscall6};
    use linux_raw_sys::general as linux;

    /// 100 µs: long enough for other threads to make a few calls.
    static SLEEP: usring_uapi::Timespec = usring_uapi::Timespec { tv_sec: 0, tv_nsec: 100_000 };

    // SAFETY: every x86-64 processor has RDTSC, which accesses no memory, and user mode may execute
    // it.
    let counter = unsafe { core::arch::x86_64::_rdtsc() };
    // Random bits: the upper bits of a product are as good as random (Fibonacci hashing).
    let random = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let (number, arguments) = if random.is_multiple_of(sleeps) {
        (linux::__NR_nanosleep, [&raw const SLEEP as u64, 0, 0, 0, 0, PASS_MARK])
    } else if random.is_multiple_of(yields) {
        (linux::__NR_sched_yield, [0, 0, 0, 0, 0, PASS_MARK])
    } else {
        return;
    };
    // SAFETY: the kernel at most reads the static `SLEEP`, and keeps no reference. (The call is not
    // made by a `SystemCall`, because that call would be delayed itself.)
    let _ = unsafe { syscall6(number, arguments) };
}
