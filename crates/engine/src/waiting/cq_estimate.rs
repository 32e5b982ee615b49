//! Estimates, from earlier waits on a ring, how long a waiter sleeps and how long it polls the CQ.
//! The estimates serve rings whose SQ thread polls the devices. `driving::cq_wait` does the
//! waiting.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use usring_sys::clock::{self, Nanoseconds};
use usring_sys::{processor, timer_slack};

/// Longest time, in nanoseconds, for which one wait polls the CQ.
pub(crate) const MOST_POLL: Nanoseconds = 50_000;
/// Bounds of the processor time that waits may use, in 64ths of the waits' length. The lower bound
/// applies to waits that get few completions, the upper bound to waits that get many.
const SHARE_BOUNDS: (u64, u64) = (40, 48);
/// Largest value of [`CqWaits::balance`] (processor time that waits may still use), in nanoseconds.
/// The smallest value is the negative of this.
const MOST_BALANCE: i64 = 100_000;
/// After polls of no use, at most this many consecutive waits sleep without polling.
const MOST_WAITS_WITHOUT_POLLING: u64 = 64;
/// The waiter measures the processor time of only one sleep in this many, because a measurement
/// takes two system calls.
const SLEEPS_PER_MEASUREMENT: u64 = 8;
/// Longest time, in nanoseconds, that enters the estimates. A longer measurement counts as this
/// time.
const MOST_COUNTED_NS: Nanoseconds = 10_000_000;

/// Measurements of a ring's waits. Times are in nanoseconds. If two waiters write a value at once,
/// one of the two updates may be lost. A lost update only makes the estimates less exact.
#[derive(Default)]
pub(crate) struct CqWaits {
    /// Weighted mean of the time from a wait's start until a completion arrived (`learn_arrival`
    /// says which waits count). The latest 8 or so waits weigh most. 0: no measurement yet.
    pub arrival: AtomicU64,
    /// Weighted mean of the deviation from `arrival`.
    pub spread: AtomicU64,
    /// Mean length of the waits that polled.
    pub polled: AtomicU64,
    /// Mean length of the waits that only slept.
    pub slept: AtomicU64,
    /// Mean processor time of one sleep.
    pub sleep_cost: AtomicU64,
    /// Number of sleeps so far.
    pub sleeps: AtomicU64,
    /// Mean time by which timers fired late, less the machine's usual lateness
    /// (`timer_slack::overshoot`).
    pub late: AtomicU64,
    /// Mean number of completions per wait, in 16ths.
    pub completions_per_wait: AtomicU64,
    /// Processor time, in nanoseconds, that waits may still use; negative: waits have used too
    /// much.
    pub balance: AtomicI64,
    /// Number of coming waits that must not poll.
    pub without: AtomicU64,
    /// Number of waits without polling that followed the last useless poll. If the next poll is
    /// useless, too, twice as many waits without polling follow it.
    pub penalty: AtomicU64,
}

/// Record of one wait: how it ended, and how much processor time it used.
#[derive(Default)]
pub(crate) struct WaitRecord {
    /// Processor time that the wait's sleeps used.
    pub asleep: Nanoseconds,
    pub polling: Nanoseconds,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The completion arrived while the waiter still slept by a timer, before it polled the CQ.
    Overslept,
    /// The completion arrived while the waiter polled the CQ.
    Seen,
    /// The waiter stopped polling before the completion arrived.
    Missed,
    #[default]
    Slept,
}

pub(crate) fn get(word: &AtomicU64) -> Nanoseconds {
    word.load(Ordering::Relaxed)
}

pub(crate) fn set(word: &AtomicU64, value: Nanoseconds) {
    word.store(value.min(MOST_COUNTED_NS), Ordering::Relaxed);
}

/// Adds `value` to a weighted mean, in which the latest 8 or so values weigh most. A mean of 0
/// means that there is no value yet.
fn average(word: &AtomicU64, value: Nanoseconds) {
    let mean = get(word);
    set(word, if mean == 0 { value } else { (7 * mean + value).div_ceil(8) });
}

impl CqWaits {
    /// Returns for how many nanoseconds to sleep by a timer before polling; 0: no such sleep.
    pub fn timer_sleep(&self) -> Nanoseconds {
        let (mean, spread) = (get(&self.arrival), get(&self.spread));
        let late = timer_slack::overshoot() + get(&self.late);
        let earliest = mean.saturating_sub(2 * spread).max(mean / 2);
        let span = earliest.saturating_sub(late);
        // A timer fires late, and a sleep uses about as much processor time as its timer is late.
        // So a sleep saves processor time only if it is longer than this lateness.
        if span > late {
            return span;
        }
        // Only a sleep by a timer measures how late timers fire, and this wait makes no such sleep.
        // So the estimate of the lateness shrinks with each such wait: the machine may be less busy
        // by now.
        set(&self.late, get(&self.late).saturating_sub(1 + get(&self.late) / 256));
        0
    }

    /// Returns for how many nanoseconds to poll the CQ; 0: not at all. `elapsed`: nanoseconds since
    /// the wait's start.
    pub fn poll(&self, elapsed: Nanoseconds) -> Nanoseconds {
        let (mean, spread) = (get(&self.arrival), get(&self.spread));
        let without = get(&self.without);
        if without != 0 {
            set(&self.without, without - 1);
            return 0;
        }
        let expected = mean.saturating_sub(elapsed) + spread;
        let is_affordable = self.balance.load(Ordering::Relaxed) > 0;
        if mean == 0 || expected > MOST_POLL || !is_affordable || processor::is_the_only_one() {
            return 0;
        }
        if get(&self.slept) != 0 && get(&self.polled) >= get(&self.slept) {
            // Polling has not shortened the waits. After [`MOST_WAITS_WITHOUT_POLLING`] waits
            // without polling, a wait polls again.
            set(&self.without, MOST_WAITS_WITHOUT_POLLING);
            set(&self.polled, 0);
            return 0;
        }
        // Computed as the retransmission time-out of RFC 6298: the mean plus four times the
        // deviation.
        (mean + (4 * spread).max(mean)).saturating_sub(elapsed).clamp(expected, MOST_POLL)
    }

    /// Returns how much processor time waits may use, in 64ths of the waits' length. A late wake-up
    /// delays all completions of the wait, so more completions per wait justify a larger share.
    fn allowed_share(&self) -> u64 {
        let doubled = (get(&self.completions_per_wait) / 64).checked_ilog2().unwrap_or(0);
        (SHARE_BOUNDS.0 + 6 * u64::from(doubled)).min(SHARE_BOUNDS.1)
    }

    /// Learns from a wait of `length` nanoseconds that ended with `completions` CQEs in the CQ.
    pub fn learn(&self, length: Nanoseconds, completions: u32, record: &WaitRecord) {
        average(&self.completions_per_wait, 16 * u64::from(completions));
        let used = (record.asleep + record.polling).min(length);
        let allowed = length.min(MOST_COUNTED_NS) * self.allowed_share() / 64;
        let balance = self.balance.load(Ordering::Relaxed) + allowed.cast_signed() - used.cast_signed();
        self.balance.store(balance.clamp(-MOST_BALANCE, MOST_BALANCE), Ordering::Relaxed);
        match record.outcome {
            Outcome::Slept => average(&self.slept, length),
            Outcome::Overslept => {}
            Outcome::Seen => {
                average(&self.polled, length);
                set(&self.penalty, 0);
            }
            Outcome::Missed => {
                average(&self.polled, length);
                let penalty = (2 * get(&self.penalty)).clamp(1, MOST_WAITS_WITHOUT_POLLING);
                set(&self.penalty, penalty);
                set(&self.without, penalty);
            }
        }
        self.learn_arrival(length, record.outcome);
    }

    fn learn_arrival(&self, length: Nanoseconds, outcome: Outcome) {
        // `Overslept`: no thread saw when the completion arrived. This code assumes that it arrived
        // after half of the wait. (If the whole wait counted, the mean would grow. A larger mean
        // makes the next sleep longer.) `Slept`: the completion arrived some time before the wait
        // ended. So the wait's length counts only if it is below the mean, or if there is no mean
        // yet.
        match outcome {
            Outcome::Slept if (1..=length).contains(&get(&self.arrival)) => {}
            Outcome::Overslept => self.arrived_after(length / 2),
            _ => self.arrived_after(length),
        }
    }

    fn arrived_after(&self, length: Nanoseconds) {
        let (mean, spread) = (get(&self.arrival), get(&self.spread));
        if mean == 0 {
            set(&self.arrival, length);
            return set(&self.spread, length / 2);
        }
        // A wait much longer than the mean says little about the device: the whole machine may have
        // been busy.
        let length = length.min(4 * mean);
        set(&self.spread, (3 * spread + length.abs_diff(mean)).div_ceil(4));
        set(&self.arrival, (7 * mean + length).div_ceil(8));
    }

    /// Calls `sleep`. Returns its result and its processor time in nanoseconds. Measures only every
    /// [`SLEEPS_PER_MEASUREMENT`]th sleep. For all others, returns the mean of the measured times.
    pub fn measure_sometimes<T>(&self, sleep: impl FnOnce() -> T) -> (T, Nanoseconds) {
        let number = self.sleeps.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(SLEEPS_PER_MEASUREMENT) {
            return (sleep(), get(&self.sleep_cost));
        }
        let start = clock::thread_time();
        let answer = sleep();
        let cost = clock::thread_time().saturating_sub(start);
        average(&self.sleep_cost, cost);
        (answer, cost)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Simulates waits on a device with a latency of 14 µs. A sleep takes 16 µs of processor time
    /// and ends 16 µs late. A wait that polls takes `seen_after`. Returns the fraction of waits
    /// that polled, and the fraction of a processor that all waits used.
    fn simulate(waits: &CqWaits, seen_after: Nanoseconds) -> (f64, f64) {
        const WAITS: u64 = 20_000;
        let (mut looks, mut used, mut passed) = (0, 0, 0);
        for _ in 0..WAITS {
            let is_polling = waits.poll(0) != 0;
            let (length, record) = match is_polling {
                true => (seen_after, WaitRecord { asleep: 0, polling: seen_after, outcome: Outcome::Seen }),
                false => (30_000, WaitRecord { asleep: 16_000, polling: 0, outcome: Outcome::Slept }),
            };
            waits.learn(length, 4, &record);
            looks += u64::from(is_polling);
            used += record.asleep + record.polling;
            passed += length;
        }
        (looks as f64 / WAITS as f64, used as f64 / passed as f64)
    }

    #[test]
    fn cq_waits_poll_only_within_their_share_of_a_processor() {
        let (looks, share) = simulate(&CqWaits::default(), 14_000);
        assert!(share < 0.64, "{share}");
        assert!(looks > 0.2 || processor::is_the_only_one(), "{looks}");
    }

    #[test]
    fn polling_stops_if_it_does_not_shorten_the_waits() {
        let (looks, _) = simulate(&CqWaits::default(), 31_000);
        assert!(looks < 0.05, "{looks}");
    }
}
