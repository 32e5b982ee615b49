//! Determines and sets the processors on which a thread may run. Also reads a processor's features,
//! prefetches, and yields.

use crate::SystemCall;
use core::arch::x86_64::{__cpuid_count, CpuidResult};
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

/// Number of processors that a [`Mask`] can name.
const LIMIT: usize = 1024;

/// An affinity mask, as sched_setaffinity(2) takes it.
pub type Mask = [u64; LIMIT / 64];

fn allowed() -> Mask {
    let mut mask: Mask = [0; LIMIT / 64];
    let arguments = [0, size_of::<Mask>() as u64, mask.as_mut_ptr() as u64, 0, 0];
    let _ = SystemCall::new(linux::__NR_sched_getaffinity, arguments).run();
    mask
}

/// Returns the number of processors on which this thread may run; at least 1.
pub fn count() -> u32 {
    allowed().iter().map(|word| word.count_ones()).sum::<u32>().max(1)
}

/// Returns the processor's answer to CPUID for `leaf`, subleaf 0. The caller checks that the
/// processor has this leaf. In the answer for leaf 0, `eax` is the last leaf. In the answer for
/// leaf `0x8000_0000`, `eax` is the last extended leaf.
pub fn features(leaf: u32) -> CpuidResult {
    // SAFETY: every x86-64 processor has this instruction, and it changes no memory.
    #[allow(unused_unsafe, reason = "it is unsafe before Rust 1.94")]
    unsafe {
        __cpuid_count(leaf, 0)
    }
}

/// Prefetches the cache lines of a value that is about to be used.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    const CACHE_LINE_BYTES: usize = 64;
    let start: *const T = value;
    for line in (0..size_of::<T>()).step_by(CACHE_LINE_BYTES) {
        // SAFETY: a prefetch changes no memory and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_byte_add(line).cast()) };
    }
}

/// Returns whether usring can use only one processor. The answer is determined at the first call,
/// for the thread that makes it, and kept for later calls.
pub fn is_the_only_one() -> bool {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let known = COUNT.load(Ordering::Relaxed);
    if known != 0 {
        return known == 1;
    }
    let count = count();
    COUNT.store(count, Ordering::Relaxed);
    count == 1
}

/// Returns whether this thread may run on a processor.
pub fn is_allowed(processor: u32) -> bool {
    let processor = processor as usize;
    processor < LIMIT && allowed()[processor / 64] & 1 << (processor % 64) != 0
}

/// Returns whether this thread may run on every processor of a mask. Ignores processors with
/// numbers above the last allowed one: whether they exist cannot be determined.
pub fn are_allowed(mask: &Mask) -> bool {
    let allowed = allowed();
    let last = allowed.iter().rposition(|&word| word != 0).unwrap_or(0);
    let beyond = u64::MAX.checked_shl(u64::BITS - allowed[last].leading_zeros()).unwrap_or(0);
    let refused = |index: usize| mask[index] & !allowed[index];
    (0..last).all(|index| refused(index) == 0) && refused(last) & !beyond == 0
}

/// Restricts this thread to the processors of a mask, as far as the kernel permits. An empty mask
/// changes nothing.
pub fn stay_among(mask: &Mask) {
    let arguments = [0, size_of::<Mask>() as u64, mask.as_ptr() as u64, 0, 0];
    let _ = SystemCall::new(linux::__NR_sched_setaffinity, arguments).run();
}

/// Binds this thread to one processor, if the kernel permits the thread to run there.
pub fn stay_on(processor: u32) {
    let mut mask: Mask = [0; LIMIT / 64];
    mask[processor as usize / 64] = 1 << (processor % 64);
    stay_among(&mask);
}

/// Yields the processor to other threads (sched_yield(2)).
pub fn yield_now() {
    let _ = SystemCall::new(linux::__NR_sched_yield, [0; 5]).run();
}
