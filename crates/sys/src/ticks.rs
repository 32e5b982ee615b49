//! Reads the time from the processor's time-stamp counter (TSC), without a system call. Used to
//! measure spans within a thread's wait: a system call would take a large part of such a span.
//! ([`crate::clock`] explains why usring does not use the vDSO's clock.)

use crate::clock::{Clock, Nanoseconds};
use crate::processor;
use core::sync::atomic::{AtomicU64, Ordering};

/// A point in time, in ticks of the time-stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(pub u64);

/// Nanoseconds in 2³² ticks; 0 until [`calibrate`] has measured them. [`SLOW`] if the time-stamp
/// counter does not run at a constant rate. Then a tick is a nanosecond of the monotonic clock.
static SCALE: AtomicU64 = AtomicU64::new(0);
const SLOW: u64 = u64::MAX;
/// How long [`calibrate`] compares the time-stamp counter with the monotonic clock. The times of
/// the beginning and of the end may be wrong by some tens of nanoseconds. So the measured rate may
/// be wrong by about 0.01 %.
const COMPARISON: Nanoseconds = 1_000_000;

/// Measures the rate of the time-stamp counter, if no call has done so yet. Takes a millisecond.
/// Must be called at setup, before the first [`Ticks::now`].
pub fn calibrate() {
    if SCALE.load(Ordering::Relaxed) != 0 {
        return;
    }
    let scale = if has_constant_rate() { compare() } else { SLOW };
    SCALE.store(scale, Ordering::Relaxed);
}

impl Ticks {
    /// Returns the present point in time. [`calibrate`] must have been called.
    #[inline]
    pub fn now() -> Ticks {
        if SCALE.load(Ordering::Relaxed) == SLOW { Ticks(Clock::Monotonic.now()) } else { Ticks(counter()) }
    }

    /// Returns the span from `earlier` to this point in time. Returns 0 if `earlier` is the later
    /// of the two: the counters of two processors may differ slightly.
    #[inline]
    pub fn since(self, earlier: Ticks) -> Nanoseconds {
        let ticks = self.0.saturating_sub(earlier.0);
        match SCALE.load(Ordering::Relaxed) {
            SLOW => ticks,
            scale => {
                #[expect(clippy::cast_possible_truncation, reason = "a span between two reads fits in 64 bits")]
                let span = ((u128::from(ticks) * u128::from(scale)) >> 32) as u64;
                span
            }
        }
    }

    /// Returns the point in time that is `span` later.
    #[inline]
    pub fn after(self, span: Nanoseconds) -> Ticks {
        let ticks = match SCALE.load(Ordering::Relaxed) {
            SLOW | 0 => span,
            scale => scaled(span, scale),
        };
        Ticks(self.0.saturating_add(ticks))
    }
}

/// Returns `span · 2³² / scale`, at most `u64::MAX`.
#[inline]
fn scaled(span: Nanoseconds, scale: u64) -> u64 {
    u64::try_from((u128::from(span) << 32) / u128::from(scale)).unwrap_or(u64::MAX)
}

#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, which accesses no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns whether the time-stamp counter is invariant (CPUID 0x8000_0007, EDX bit 8).
fn has_constant_rate() -> bool {
    const HIGHEST: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    processor::features(HIGHEST).eax >= POWER && processor::features(POWER).edx & INVARIANT != 0
}

fn compare() -> u64 {
    let start = read_both();
    loop {
        let end = read_both();
        let span = end.0 - start.0;
        if span >= COMPARISON {
            let ticks = (end.1 - start.1).max(1);
            return scaled(span, ticks);
        }
    }
}

/// Reads the monotonic clock and the time-stamp counter at nearly one moment. Makes four such pairs
/// of reads, and returns the fastest pair. In a pair during which the thread lost its processor,
/// the two times do not belong together; such a pair is slow.
fn read_both() -> (Nanoseconds, u64) {
    let pair = || {
        let (before, clock, after) = (counter(), Clock::Monotonic.now(), counter());
        (after - before, (clock, before + (after - before) / 2))
    };
    let closest = [pair(), pair(), pair(), pair()].into_iter().min();
    closest.map_or_else(Default::default, |(_, both)| both)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ticks_agree_with_the_monotonic_clock() {
        calibrate();
        let start = (Clock::Monotonic.now(), Ticks::now());
        while Clock::Monotonic.now() - start.0 < 20_000_000 {}
        let (clock, ticks) = (Clock::Monotonic.now() - start.0, Ticks::now().since(start.1));
        assert!(ticks.abs_diff(clock) < clock / 100, "clock {clock} ns, ticks {ticks} ns");
        let back = start.1.after(1_000_000).since(start.1);
        assert!(back.abs_diff(1_000_000) <= 2, "{back} ns");
    }

    #[test]
    fn a_span_of_more_ticks_than_the_counter_has_lasts_until_its_end() {
        const THREE_GIGAHERTZ: u64 = (1 << 32) / 3;
        assert_eq!(scaled(3_000_000_000, THREE_GIGAHERTZ), 9_000_000_002);
        assert_eq!(scaled(u64::MAX / 2, THREE_GIGAHERTZ), u64::MAX);
    }
}
