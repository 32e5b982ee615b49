//! A build with `--cfg perturbed` (`cargo xtask soak interleavings`) sometimes holds a
//! thread up between two steps of a protocol, where it is interrupted once in a million
//! times otherwise: at the ends of an [`Edge`](crate::ordering::Edge), and on both sides
//! of a system call, by which threads wake each other, sleep, and see what files bring.
//! The models see every interleaving of one protocol; this shows what several do
//! together. In any other build there is nothing of it.

/// At the end of an edge.
#[inline(always)]
pub(crate) fn perturb() {
    #[cfg(perturbed)]
    at_random(32, 1024);
}

/// Before a system call that we make, and after it. There are fewer of them than of
/// edges, and more happens at each.
#[inline(always)]
pub(crate) fn perturb_call() {
    #[cfg(perturbed)]
    at_random(8, 128);
}

/// Of so many steps one lets others run, and of so many one sleeps.
#[cfg(perturbed)]
#[cold]
fn at_random(yields: u64, sleeps: u64) {
    use crate::syscall::{PASS_MARK, syscall6};
    use linux_raw_sys::general as linux;

    /// Others get through a few calls meanwhile.
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
    // SAFETY: the kernel reads the constant, and keeps nothing. The instruction itself:
    // a call of ours would be held up, too.
    let _ = unsafe { syscall6(number, arguments) };
}
