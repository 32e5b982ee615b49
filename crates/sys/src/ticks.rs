//! A clock that costs no system call: the processor's time-stamp counter. For spans within a
//! thread's wait, where a system call would take a large part of the measured time. (The vDSO's
//! clock is no alternative: see [`crate::clock`].)

use crate::clock::{Clock, Nanoseconds};
use core::sync::atomic::{AtomicU64, Ordering};

/// A point in time, in ticks of the counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(pub u64);

/// Nanoseconds in 2³² ticks; 0 before the measurement. [`SLOW`] if the counter does not run evenly:
/// ticks are then nanoseconds of the monotonic clock.
static SCALE: AtomicU64 = AtomicU64::new(0);
const SLOW: u64 = u64::MAX;
/// How long the counter is compared with the clock. The error of a reading is some tens of
/// nanoseconds at each end, 0.01 % of this.
const COMPARISON: Nanoseconds = 1_000_000;

/// Measures the counter, for a millisecond, unless that has been done. Call it on the control path,
/// before the first [`Ticks::now`].
pub fn calibrate() {
    if SCALE.load(Ordering::Relaxed) != 0 {
        return;
    }
    let scale = if is_even() { compare() } else { SLOW };
    SCALE.store(scale, Ordering::Relaxed);
}

impl Ticks {
    /// Returns the present point in time. [`calibrate`] must have been called.
    #[inline]
    pub fn now() -> Ticks {
        if SCALE.load(Ordering::Relaxed) == SLOW { Ticks(Clock::Monotonic.now()) } else { Ticks(counter()) }
    }

    /// Returns the span since an earlier point; 0 if that point is not earlier (counters of two
    /// processors may differ slightly).
    #[inline]
    pub fn since(self, earlier: Ticks) -> Nanoseconds {
        let ticks = self.0.saturating_sub(earlier.0);
        match SCALE.load(Ordering::Relaxed) {
            SLOW => ticks,
            scale => ((u128::from(ticks) * u128::from(scale)) >> 32) as u64,
        }
    }

    /// Returns the point that is `span` later.
    #[inline]
    pub fn after(self, span: Nanoseconds) -> Ticks {
        let ticks = match SCALE.load(Ordering::Relaxed) {
            SLOW | 0 => span,
            scale => ((u128::from(span) << 32) / u128::from(scale)) as u64,
        };
        Ticks(self.0.saturating_add(ticks))
    }
}

#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; it only reads a register.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns whether the counter runs at a constant rate (CPUID 0x8000_0007, EDX bit 8: invariant
/// TSC).
fn is_even() -> bool {
    use core::arch::x86_64::__cpuid;
    const HIGHEST: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    __cpuid(HIGHEST).eax >= POWER && __cpuid(POWER).edx & INVARIANT != 0
}

fn compare() -> u64 {
    let start = read_both();
    loop {
        let end = read_both();
        let span = end.0 - start.0;
        if span >= COMPARISON {
            let ticks = (end.1 - start.1).max(1);
            return ((u128::from(span) << 32) / u128::from(ticks)) as u64;
        }
    }
}

/// Reads clock and counter at one moment: the closest of a few pairs. A thread that lost its
/// processor between the two reads would otherwise be wrong for good.
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
}
