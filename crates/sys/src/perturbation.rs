//! Random delays, in a build with `--cfg perturbed` (`cargo xtask soak interleavings`). They delay
//! a thread between two steps of a protocol, where an interruption is otherwise one in a million.
//! Each end of an [`Edge`](crate::ordering::Edge) may delay, and so may each system call, before
//! and after. (Threads wake each other, sleep, and see files change by system calls.)
//!
//! The models see every interleaving of one protocol; this build shows several protocols together.
//! Any other build contains none of it.

/// Delays at the end of an edge.
#[inline(always)]
pub(crate) fn perturb() {
    #[cfg(perturbed)]
    at_random(32, 1024);
}

/// Delays before and after a system call of usring. There are fewer calls than edges, and more
/// happens at each.
#[inline(always)]
pub(crate) fn perturb_call() {
    #[cfg(perturbed)]
    at_random(8, 128);
}

/// Yields in one of `yields` steps, and sleeps in one of `sleeps`.
#[cfg(perturbed)]
#[cold]
fn at_random(yields: u64, sleeps: u64) {
    use crate::syscall::{PASS_MARK, syscall6};
    use linux_raw_sys::general as linux;

    /// Long enough for other threads to make a few calls.
    static SLEEP: usring_uapi::Timespec = usring_uapi::Timespec { tv_sec: 0, tv_nsec: 100_000 };

    // SAFETY: every x86-64 processor has the counter, and user mode may read it.
    let counter = unsafe { core::arch::x86_64::_rdtsc() };
    // The upper bits of a product are as good as random (Fibonacci hashing).
    let random = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let (number, arguments) = if random.is_multiple_of(sleeps) {
        (linux::__NR_nanosleep, [&raw const SLEEP as u64, 0, 0, 0, 0, PASS_MARK])
    } else if random.is_multiple_of(yields) {
        (linux::__NR_sched_yield, [0, 0, 0, 0, 0, PASS_MARK])
    } else {
        return;
    };
    // SAFETY: the kernel reads the constant and keeps no reference. The bare instruction is used
    // because a `SystemCall` would be delayed, too.
    let _ = unsafe { syscall6(number, arguments) };
}
