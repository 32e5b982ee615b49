//! enter(2) on a polled ring with an SQ thread: the SQ thread alone polls the
//! devices, and the caller waits for CQEs in memory.
//!
//! Only the SQ thread's completions, and a worker's, which the SQ thread posts,
//! can end such a wait. A polled ring waits for no file and no timer. So the
//! waiter needs the CQ and the sleep word. It never takes the ring's lock, which
//! the SQ thread takes and releases all the time.
//!
//! A sleep costs processor time, and the wake-up comes late: 3 µs on one machine,
//! 12 µs on another. A look at the CQ is never late, but takes the whole
//! processor. A wait combines both, by what the ring's earlier waits measured:
//!
//! 1. It sleeps by a timer until shortly before the expected completion, where
//!    the device is slow enough for a timer.
//! 2. It looks at the CQ, for at most [`MOST_LOOK`]. [`CqWaits::look`] decides.
//! 3. It sleeps until the SQ thread wakes it.
//!
//! Three rules bound the look:
//! - All waits together use a share of a processor, [`CqWaits::share`].
//! - Looks have to shorten the waits. Where processors are scarce they do not:
//!   the waiter keeps the SQ thread or the device's back end off the processor.
//! - A look in vain makes the next waits sleep, more of them each time.

use crate::completion::wait::{self, WaitCall};
use crate::ring::Ring;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use usring_sys::clock::{self, Nanoseconds};
use usring_sys::sleep::Sleeper;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, processor, signals, timer_slack};

/// Looks between two readings of the clock.
const LOOKS: u32 = 16;
/// The longest look.
const MOST_LOOK: Nanoseconds = 50_000;
/// Least and most processor time that waits may use, in 64ths of their length.
const SHARES: (u64, u64) = (40, 48);
/// The most processor time that unused share adds up to.
const MOST_BALANCE: i64 = 100_000;
/// The most consecutive waits without a look, after looks in vain.
const MOST_WITHOUT: u64 = 64;
/// One of this many sleeps has its processor time measured, which takes two system calls.
const MEASURED: u64 = 8;
/// Longer waits say nothing about the device.
const LONGEST: Nanoseconds = 10_000_000;

/// Measurements of a ring's waits. The words are hints: an update may get lost if two waiters make
/// theirs at once.
#[derive(Default)]
pub(crate) struct CqWaits {
    /// Mean time and mean deviation until a completion was there, from waits that saw it come. The
    /// latest eight or so weigh most. 0: not known.
    arrival: AtomicU64,
    spread: AtomicU64,
    /// Mean length of the waits that looked, and of those that only slept.
    looked: AtomicU64,
    slept: AtomicU64,
    /// Mean processor time of one sleep, and the number of sleeps.
    sleep_cost: AtomicU64,
    sleeps: AtomicU64,
    /// Mean time by which a timer's sleep was too long, less the machine's best.
    late: AtomicU64,
    /// Mean number of completions that a wait brought, in 16ths.
    brought: AtomicU64,
    /// Processor time that waits may still use.
    balance: AtomicI64,
    /// Waits to go without a look, and the number after the next look in vain.
    without: AtomicU64,
    penalty: AtomicU64,
}

/// Record of one wait.
#[derive(Default)]
struct Account {
    /// Processor time used while asleep.
    asleep: Nanoseconds,
    looking: Nanoseconds,
    outcome: Outcome,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Outcome {
    /// The completion came while the timer's sleep lasted.
    Overslept,
    /// A look saw it.
    Seen,
    /// The look ended before the completion came.
    Missed,
    #[default]
    Slept,
}

fn get(word: &AtomicU64) -> Nanoseconds {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: Nanoseconds) {
    word.store(value.min(LONGEST), Ordering::Relaxed);
}

/// Adds a value to a mean in which the latest eight or so weigh most; 0: no mean yet.
fn average(word: &AtomicU64, value: Nanoseconds) {
    let mean = get(word);
    set(word, if mean == 0 { value } else { (7 * mean + value).div_ceil(8) });
}

impl CqWaits {
    /// Returns how long to sleep by a timer; 0: not at all.
    fn nap(&self) -> Nanoseconds {
        let (mean, spread) = (get(&self.arrival), get(&self.spread));
        let late = timer_slack::overshoot() + get(&self.late);
        let earliest = mean.saturating_sub(2 * spread).max(mean / 2);
        let nap = earliest.saturating_sub(late);
        // A sleep costs about as much processor time as it is late.
        if nap > late {
            return nap;
        }
        // The lateness decays while it is not measured: the machine may be quiet again.
        set(&self.late, get(&self.late).saturating_sub(1 + get(&self.late) / 256));
        0
    }

    /// Returns how long to look, this long after the wait's start; 0: not at all.
    fn look(&self, elapsed: Nanoseconds) -> Nanoseconds {
        let (mean, spread) = (get(&self.arrival), get(&self.spread));
        let without = get(&self.without);
        if without != 0 {
            set(&self.without, without - 1);
            return 0;
        }
        let expected = mean.saturating_sub(elapsed) + spread;
        let is_affordable = self.balance.load(Ordering::Relaxed) > 0;
        if mean == 0 || expected > MOST_LOOK || !is_affordable || processor::is_only() {
            return 0;
        }
        if get(&self.slept) != 0 && get(&self.looked) >= get(&self.slept) {
            // Looks do not shorten the waits. After [`MOST_WITHOUT`] waits, the next one tries
            // again.
            set(&self.without, MOST_WITHOUT);
            set(&self.looked, 0);
            return 0;
        }
        // The look lasts as long as RFC 6298 would wait for an answer.
        (mean + (4 * spread).max(mean)).saturating_sub(elapsed).clamp(expected, MOST_LOOK)
    }

    /// Returns the processor time that waits may use, in 64ths of their length. A late wake-up
    /// delays every completion that the wait brings. So the more completions it brings, the larger
    /// the share.
    fn share(&self) -> u64 {
        let doubled = (get(&self.brought) / 64).checked_ilog2().unwrap_or(0);
        (SHARES.0 + 6 * u64::from(doubled)).min(SHARES.1)
    }

    /// Counts a wait of this length, which brought `brought` completions.
    fn account(&self, length: Nanoseconds, brought: u32, account: &Account) {
        average(&self.brought, 16 * u64::from(brought));
        let used = (account.asleep + account.looking).min(length);
        let allowed = length.min(LONGEST) * self.share() / 64;
        let balance = self.balance.load(Ordering::Relaxed) + allowed as i64 - used as i64;
        self.balance.store(balance.clamp(-MOST_BALANCE, MOST_BALANCE), Ordering::Relaxed);
        match account.outcome {
            Outcome::Slept => average(&self.slept, length),
            Outcome::Overslept => {}
            Outcome::Seen => {
                average(&self.looked, length);
                set(&self.penalty, 0);
            }
            Outcome::Missed => {
                average(&self.looked, length);
                let penalty = (2 * get(&self.penalty)).clamp(1, MOST_WITHOUT);
                set(&self.penalty, penalty);
                set(&self.without, penalty);
            }
        }
        self.learn_arrival(length, account.outcome);
    }

    fn learn_arrival(&self, length: Nanoseconds, outcome: Outcome) {
        // A sleep that was too long counts as half its length, or it would confirm itself. A wait
        // that only slept is longer than the completion took.
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

    /// Sleeps; returns the answer, and the processor time that the sleep took.
    fn metered<T>(&self, sleep: impl FnOnce() -> T) -> (T, Nanoseconds) {
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

/// Waits for `call.completions` CQEs. Returns `EINTR` and `ETIME` only if the CQ is empty.
pub(crate) fn wait(ring: &Ring, call: &mut WaitCall) -> Result<(), Errno> {
    if ring.memory.ready() >= call.completions {
        return Ok(());
    }
    let start = Ticks::now();
    let mut account = Account::default();
    let waited = wait_in_turn(ring, call, start, &mut account);
    ring.cq_waits.account(Ticks::now().since(start), ring.memory.ready(), &account);
    waited
}

/// Sleeps by a timer, looks and sleeps, as far as each step is worth it.
fn wait_in_turn(ring: &Ring, call: &mut WaitCall, start: Ticks, account: &mut Account) -> Result<(), Errno> {
    let (waits, wanted) = (&ring.cq_waits, call.completions);
    let nap = waits.nap();
    if nap != 0 {
        account.asleep += sleep_by_timer(ring, call, nap)?;
        let late = lateness(Ticks::now().since(start), nap);
        set(&waits.late, (7 * get(&waits.late) + late) / 8);
        if ring.memory.ready() >= wanted {
            account.outcome = Outcome::Overslept;
            return Ok(());
        }
    }
    let elapsed = Ticks::now().since(start);
    let budget = waits.look(elapsed);
    if budget != 0 {
        let found = look(ring, wanted, budget);
        account.looking = Ticks::now().since(start) - elapsed;
        account.outcome = if found { Outcome::Seen } else { Outcome::Missed };
        if found {
            return Ok(());
        }
    }
    let (slept, cost) = waits.metered(|| sleep(ring, call));
    account.asleep += cost;
    slept
}

/// Returns by how much a timer's sleep was later than this machine's sleeps are at best.
fn lateness(slept: Nanoseconds, nap: Nanoseconds) -> Nanoseconds {
    slept.saturating_sub(nap).saturating_sub(timer_slack::overshoot()).min(MOST_LOOK)
}

/// Sleeps by a timer, not beyond the call's deadline; returns the processor time.
/// Errors: `EINTR` and `ETIME`, if the CQ is empty.
fn sleep_by_timer(ring: &Ring, call: &mut WaitCall, span: Nanoseconds) -> Result<Nanoseconds, Errno> {
    let left = match wait::time_left(call, ring.memory.ready(), None) {
        Ok(left) => left.unwrap_or(span),
        Err(error) => return or_what_there_is(ring, error).map(|()| 0),
    };
    let (slept, cost) = ring.cq_waits.metered(|| timer_slack::sleep_precisely(span.min(left)));
    match slept {
        Err(Errno::EINTR) => or_what_there_is(ring, Errno::EINTR).map(|()| cost),
        _ => Ok(cost),
    }
}

/// Looks for a while; returns whether there are enough CQEs.
fn look(ring: &Ring, wanted: u32, budget: Nanoseconds) -> bool {
    let start = Ticks::now();
    while !signals::interrupted() && Ticks::now().since(start) < budget {
        for _ in 0..LOOKS {
            if ring.memory.ready() >= wanted {
                return true;
            }
            core::hint::spin_loop();
        }
    }
    false
}

/// Sleeps until there are enough CQEs.
fn sleep(ring: &Ring, call: &mut WaitCall) -> Result<(), Errno> {
    let word = &ring.wakers.sleep;
    loop {
        let ready = ring.memory.ready();
        if ready >= call.completions {
            return Ok(());
        }
        let span = match wait::time_left(call, ready, None) {
            Ok(span) => span,
            Err(error) => return or_what_there_is(ring, error),
        };
        let ticket = word.announce(Sleeper::Futex, call.completions);
        let slept = if ring.memory.ready() < call.completions {
            usring_sys::wait::futex(word.futex(), ticket.futex_value(), span)
        } else {
            Ok(())
        };
        // The completions for which it was woken are in the CQ.
        let _ = word.retract(ticket);
        if slept == Err(Errno::EINTR) {
            return or_what_there_is(ring, Errno::EINTR);
        }
    }
}

/// Returns the error of a wait that ends early only if nothing has arrived.
fn or_what_there_is(ring: &Ring, error: Errno) -> Result<(), Errno> {
    if ring.memory.ready() > 0 { Ok(()) } else { Err(error) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Simulates waits on a device of 14 µs, where a sleep takes 16 µs of processor time and ends
    /// that much late. Returns the share of waits that looked, and the waits' share of a processor.
    fn simulate(waits: &CqWaits, seen_after: Nanoseconds) -> (f64, f64) {
        const WAITS: u64 = 20_000;
        let (mut looks, mut used, mut passed) = (0, 0, 0);
        for _ in 0..WAITS {
            let is_looking = waits.look(0) != 0;
            let (length, account) = match is_looking {
                true => (seen_after, Account { asleep: 0, looking: seen_after, outcome: Outcome::Seen }),
                false => (30_000, Account { asleep: 16_000, looking: 0, outcome: Outcome::Slept }),
            };
            waits.account(length, 4, &account);
            looks += u64::from(is_looking);
            used += account.asleep + account.looking;
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
