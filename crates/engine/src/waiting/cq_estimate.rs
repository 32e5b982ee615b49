//! The estimates by which a waiter decides whether to sleep or to poll the CQ, on a ring whose SQ
//! thread polls the devices. They come from the ring's earlier waits. `driving::cq_wait` does the
//! waiting.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use usring_sys::clock::{self, Nanoseconds};
use usring_sys::{processor, timer_slack};

/// Most nanoseconds for which a wait polls the CQ.
pub(crate) const MOST_POLL: Nanoseconds = 50_000;
/// Least and most processor time that waits may use, in 64ths of their length.
const SHARES: (u64, u64) = (40, 48);
/// Most nanoseconds of unused processor time that are saved up for later waits.
const MOST_BALANCE: i64 = 100_000;
/// Most consecutive waits that only sleep, after polling in vain.
const MOST_WITHOUT: u64 = 64;
/// One of this many sleeps has its processor time measured, which takes two system calls.
const MEASURED: u64 = 8;
/// The longest wait that counts for the estimates, in nanoseconds.
const LONGEST: Nanoseconds = 10_000_000;

/// Measurements of a ring's waits, in nanoseconds if not said otherwise. The words are hints: an
/// update may get lost if two waiters write at once.
#[derive(Default)]
pub(crate) struct CqWaits {
    /// Mean time and mean deviation until a completion was there, from waits that saw it come. The
    /// latest eight or so weigh most. 0: no measurement yet.
    pub arrival: AtomicU64,
    pub spread: AtomicU64,
    /// Mean length of the waits that polled, and of those that only slept.
    pub polled: AtomicU64,
    pub slept: AtomicU64,
    /// Mean processor time of a sleep, and the number of sleeps so far.
    pub sleep_cost: AtomicU64,
    pub sleeps: AtomicU64,
    /// Mean time by which timers fired late, beyond the machine's least delay
    /// (`timer_slack::overshoot`).
    pub late: AtomicU64,
    /// Mean number of completions per wait, in 16ths.
    pub brought: AtomicU64,
    /// Processor time that waits may still use.
    pub balance: AtomicI64,
    /// Number of coming waits that do not poll, and the number that the next poll in vain will set.
    pub without: AtomicU64,
    pub penalty: AtomicU64,
}

/// Record of one wait: how it ended, and the processor time that it used.
#[derive(Default)]
pub(crate) struct Account {
    /// Processor time used while asleep.
    pub asleep: Nanoseconds,
    pub polling: Nanoseconds,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The completion came while the timer's sleep lasted.
    Overslept,
    /// The waiter was polling the CQ when the completion came.
    Seen,
    /// The waiter stopped polling before the completion came.
    Missed,
    #[default]
    Slept,
}

pub(crate) fn get(word: &AtomicU64) -> Nanoseconds {
    word.load(Ordering::Relaxed)
}

pub(crate) fn set(word: &AtomicU64, value: Nanoseconds) {
    word.store(value.min(LONGEST), Ordering::Relaxed);
}

/// Adds a value to a mean in which the latest eight or so values weigh most. A mean of 0 has no
/// value yet.
fn average(word: &AtomicU64, value: Nanoseconds) {
    let mean = get(word);
    set(word, if mean == 0 { value } else { (7 * mean + value).div_ceil(8) });
}

impl CqWaits {
    /// Returns how many nanoseconds to sleep by a timer before polling; 0: no such sleep.
    pub fn timer_sleep(&self) -> Nanoseconds {
        let (mean, spread) = (get(&self.arrival), get(&self.spread));
        let late = timer_slack::overshoot() + get(&self.late);
        let earliest = mean.saturating_sub(2 * spread).max(mean / 2);
        let span = earliest.saturating_sub(late);
        // A sleep costs about as much processor time as it is late.
        if span > late {
            return span;
        }
        // The lateness decays while no sleep measures it: the machine may be quiet again.
        set(&self.late, get(&self.late).saturating_sub(1 + get(&self.late) / 256));
        0
    }

    /// Returns how many nanoseconds to poll the CQ, `elapsed` nanoseconds after the wait's start;
    /// 0: no polling.
    pub fn poll(&self, elapsed: Nanoseconds) -> Nanoseconds {
        let (mean, spread) = (get(&self.arrival), get(&self.spread));
        let without = get(&self.without);
        if without != 0 {
            set(&self.without, without - 1);
            return 0;
        }
        let expected = mean.saturating_sub(elapsed) + spread;
        let is_affordable = self.balance.load(Ordering::Relaxed) > 0;
        if mean == 0 || expected > MOST_POLL || !is_affordable || processor::is_only() {
            return 0;
        }
        if get(&self.slept) != 0 && get(&self.polled) >= get(&self.slept) {
            // Polling has not shortened the waits. After [`MOST_WITHOUT`] waits, the next one tries
            // it again.
            set(&self.without, MOST_WITHOUT);
            set(&self.polled, 0);
            return 0;
        }
        // The time-out that RFC 6298 would choose for an answer: the mean plus four times its
        // deviation.
        (mean + (4 * spread).max(mean)).saturating_sub(elapsed).clamp(expected, MOST_POLL)
    }

    /// Returns the processor time that waits may use, in 64ths of their length. A late wake-up
    /// delays every completion that the wait brings. So the more completions it brings, the larger
    /// the share.
    fn share(&self) -> u64 {
        let doubled = (get(&self.brought) / 64).checked_ilog2().unwrap_or(0);
        (SHARES.0 + 6 * u64::from(doubled)).min(SHARES.1)
    }

    /// Records a wait of `length` nanoseconds, which brought `brought` completions.
    pub fn account(&self, length: Nanoseconds, brought: u32, account: &Account) {
        average(&self.brought, 16 * u64::from(brought));
        let used = (account.asleep + account.polling).min(length);
        let allowed = length.min(LONGEST) * self.share() / 64;
        let balance = self.balance.load(Ordering::Relaxed) + allowed as i64 - used as i64;
        self.balance.store(balance.clamp(-MOST_BALANCE, MOST_BALANCE), Ordering::Relaxed);
        match account.outcome {
            Outcome::Slept => average(&self.slept, length),
            Outcome::Overslept => {}
            Outcome::Seen => {
                average(&self.polled, length);
                set(&self.penalty, 0);
            }
            Outcome::Missed => {
                average(&self.polled, length);
                let penalty = (2 * get(&self.penalty)).clamp(1, MOST_WITHOUT);
                set(&self.penalty, penalty);
                set(&self.without, penalty);
            }
        }
        self.learn_arrival(length, account.outcome);
    }

    fn learn_arrival(&self, length: Nanoseconds, outcome: Outcome) {
        // A sleep that was too long counts as half its length. Otherwise it would lengthen the
        // mean, and with it the next sleep. A wait that only slept is longer than the completion
        // took.
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
        // A wait during which the whole machine was busy says little about the device.
        let length = length.min(4 * mean);
        set(&self.spread, (3 * spread + length.abs_diff(mean)).div_ceil(4));
        set(&self.arrival, (7 * mean + length).div_ceil(8));
    }

    /// Calls `sleep`. Returns its result, and the processor time that it took (of every
    /// [`MEASURED`]th sleep; else the mean).
    pub fn metered<T>(&self, sleep: impl FnOnce() -> T) -> (T, Nanoseconds) {
        let number = self.sleeps.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(MEASURED) {
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

    /// Simulates waits on a device of 14 µs, where a sleep takes 16 µs of processor time and ends
    /// that much late. Returns the share of waits that polled, and the waits' share of a processor.
    fn simulate(waits: &CqWaits, seen_after: Nanoseconds) -> (f64, f64) {
        const WAITS: u64 = 20_000;
        let (mut looks, mut used, mut passed) = (0, 0, 0);
        for _ in 0..WAITS {
            let is_polling = waits.poll(0) != 0;
            let (length, account) = match is_polling {
                true => (seen_after, Account { asleep: 0, polling: seen_after, outcome: Outcome::Seen }),
                false => (30_000, Account { asleep: 16_000, polling: 0, outcome: Outcome::Slept }),
            };
            waits.account(length, 4, &account);
            looks += u64::from(is_polling);
            used += account.asleep + account.polling;
            passed += length;
        }
        (looks as f64 / WAITS as f64, used as f64 / passed as f64)
    }

    #[test]
    fn cq_waits_poll_only_within_their_share_of_a_processor() {
        let (looks, share) = simulate(&CqWaits::default(), 14_000);
        assert!(share < 0.64, "{share}");
        assert!(looks > 0.2 || processor::is_only(), "{looks}");
    }

    #[test]
    fn polling_stops_if_it_does_not_shorten_the_waits() {
        let (looks, _) = simulate(&CqWaits::default(), 31_000);
        assert!(looks < 0.05, "{looks}");
    }
}
