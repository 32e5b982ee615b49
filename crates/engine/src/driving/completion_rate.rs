//! The rate of completions during one wait, and the pauses that a waiter makes so that several
//! completions gather: see `wait::pause_for_more_events`.
//!
//! The rate gives the time in which the missing completions are expected. A pause lasts at most
//! half of this time, and never longer than [`LONGEST_PAUSE_NS`]. If all completions so far arrived
//! at one time, their rate is unknown, and the waiter does not pause.

use usring_sys::clock::{Clock, Nanoseconds};

/// The longest pause in nanoseconds. The waiter may see its last completion late by up to this
/// time.
const LONGEST_PAUSE_NS: Nanoseconds = 500_000;
/// The shortest pause in nanoseconds. A timer is not precise enough for a shorter one.
const SHORTEST_PAUSE_NS: Nanoseconds = 60_000;

/// The rate at which completions have arrived during one wait.
#[derive(Default)]
pub(super) struct CompletionRate {
    /// The time at which the wait first saw completions (monotonic clock), and the number of these
    /// completions. Reading the clock is a system call, but the waiter reads it only between two
    /// sleeps.
    first: Option<(Nanoseconds, u32)>,
}

impl CompletionRate {
    /// Returns how long a waiter pauses so that several completions gather; `None`: no pause. The
    /// waiter has `ready` completions and needs `needed` more.
    pub fn pause(&mut self, ready: u32, needed: u32) -> Option<Nanoseconds> {
        if ready == 0 || needed < 2 {
            return None;
        }
        let now = Clock::Monotonic.now();
        let (since, before) = *self.first.get_or_insert((now, ready));
        let come = ready.checked_sub(before).filter(|come| *come > 0)?;
        pause_after(now.saturating_sub(since) / u64::from(come), needed)
    }
}

/// Returns how long a waiter pauses so that several completions gather; `None`: no pause. The
/// waiter needs `needed` more completions, and one arrives per `interval`.
fn pause_after(interval: Nanoseconds, needed: u32) -> Option<Nanoseconds> {
    let pause = (interval.saturating_mul(u64::from(needed)) / 2).min(LONGEST_PAUSE_NS);
    // A pause saves wake-ups only if several completions arrive during it.
    (pause >= SHORTEST_PAUSE_NS && pause / 2 >= interval).then_some(pause)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_half_of_the_expected_wait_within_bounds() {
        assert_eq!(pause_after(10_000, 20), Some(100_000));
        assert_eq!(pause_after(100_000, 20), Some(LONGEST_PAUSE_NS));
        assert_eq!(pause_after(300_000, 20), None);
        assert_eq!(pause_after(10_000, 2), None);
        assert_eq!(pause_after(0, 1000), None);
    }

    /// Calls `pause` twice, 20 ms apart, the second time with 100,000 more completions. At such a
    /// rate, a pause saves wake-ups. The second call returns a pause if, by its clock, 12 ms to 25
    /// s have passed between the calls.
    #[test]
    fn a_wait_pauses_once_it_knows_the_rate() {
        let mut rate = CompletionRate::default();
        assert_eq!(rate.pause(1, 1000), None);
        let since = Clock::Monotonic.now();
        while Clock::Monotonic.now() - since < 20_000_000 {}
        assert!(rate.pause(100_001, 1000).is_some());
    }

    #[test]
    fn there_is_no_pause_before_the_rate_is_known_or_for_the_last_event() {
        let mut rate = CompletionRate::default();
        assert_eq!(rate.pause(0, 64), None);
        assert_eq!(rate.pause(1, 63), None);
        assert_eq!(rate.pause(63, 1), None);
    }
}
