//! io_uring_enter(2) on an IOPOLL ring with an SQ thread: the SQ thread alone polls the devices,
//! and the caller waits for CQEs in memory.
//!
//! Only completions that the SQ thread posts can end such a wait: completions of the devices, and
//! of workers. (Requests of a polled ring wait for no file and no timer.) So the waiter needs only
//! the CQ and the sleep word. The waiter never takes the ring's lock, which the SQ thread takes and
//! releases all the time.
//!
//! A sleep costs processor time, and the wake-up comes late: 3 µs on one machine, 12 µs on another.
//! Polling the CQ is never late, but takes a whole processor. So a wait combines sleep and polling.
//! Measurements of earlier waits on the ring decide how:
//!
//! 1. If the device is slow enough for a timer, the waiter sleeps by a timer until shortly before
//!    the expected completion.
//! 2. The waiter polls the CQ for at most [`MOST_POLL`]. `CqWaits::poll` decides for how long.
//! 3. The waiter sleeps until the SQ thread wakes it.
//!
//! Three rules bound the polling:
//! - No wait polls while all waits together have used more than a share of a processor's time,
//!   `CqWaits::share`.
//! - Polling must shorten the waits. If processors are scarce, it does not: the polling waiter then
//!   keeps the SQ thread or the device's back end off the processor.
//! - After a poll that found nothing, the next waits only sleep. Each further poll without a
//!   completion doubles the number of these waits, up to a limit.

use crate::driving::wait::{self, WaitCall};
use crate::probes;
use crate::ring::Ring;
use crate::waiting::cq_estimate::{MOST_POLL, Outcome, WaitRecord, get, set};
use usring_sys::clock::Nanoseconds;
use usring_sys::sleep::Sleeper;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, signals, timer_slack};

/// Polls of the CQ between two readings of the clock.
const POLLS: u32 = 16;

/// Longest single sleep, in nanoseconds. If the ring becomes shared, another process may choose
/// this sleeper as the one to wake, and die before it wakes the sleeper. A limit is also needed if
/// two threads begin to sleep at once (`Wakers::wait_start`).
const LONGEST_SLEEP: Nanoseconds = 100_000_000;

/// How a wait on the CQ has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CqWait {
    /// Enough CQEs have come. Or the wait ended early, because the call's time is up or a signal
    /// came, and the CQ held at least one CQE.
    Over,
    /// Another process has begun to use the ring. The caller continues by `wait::wait`, which also
    /// counts the CQEs that other processes have consumed.
    IsShared,
}

/// Waits for `call.completions` CQEs on a ring that no other process uses. Returns `EINTR` and
/// `ETIME` only if the CQ is empty.
pub(crate) fn wait(ring: &Ring, call: &mut WaitCall) -> Result<CqWait, Errno> {
    call.consumed.get_or_insert(ring.memory.consumed());
    if call.arrived(ring) >= call.completions {
        return Ok(CqWait::Over);
    }
    if probes::is_on(ring) {
        probes::waits(ring, call.completions);
    }
    let start = Ticks::now();
    let mut record = WaitRecord::default();
    let waited = wait_in_steps(ring, call, start, &mut record);
    ring.cq_waits.learn(Ticks::now().since(start), ring.memory.ready(), &record);
    waited
}

/// Waits in three steps: sleeps by a timer, polls the CQ, and sleeps until the SQ thread wakes it.
/// Skips the timer or the polling if the estimates say that this step saves no time.
fn wait_in_steps(ring: &Ring, call: &mut WaitCall, start: Ticks, record: &mut WaitRecord) -> Result<CqWait, Errno> {
    let waits = &ring.cq_waits;
    let sleep_span = waits.timer_sleep();
    if sleep_span != 0 {
        record.asleep += sleep_by_timer(ring, call, sleep_span)?;
        let late = lateness(Ticks::now().since(start), sleep_span);
        set(&waits.late, (7 * get(&waits.late) + late) / 8);
        if call.arrived(ring) >= call.completions {
            record.outcome = Outcome::Overslept;
            return Ok(CqWait::Over);
        }
    }
    let elapsed = Ticks::now().since(start);
    let budget = waits.poll(elapsed);
    if budget != 0 {
        let found = poll(ring, call, budget);
        record.polling = Ticks::now().since(start) - elapsed;
        record.outcome = if found { Outcome::Seen } else { Outcome::Missed };
        if found {
            return Ok(CqWait::Over);
        }
    }
    let (slept, cost) = waits.measure_sometimes(|| sleep(ring, call));
    record.asleep += cost;
    slept
}

/// Returns the lateness of a wake-up by a timer, in nanoseconds: the sleep's length `slept`, less
/// its planned length `sleep_span`, less the machine's usual overshoot (`timer_slack::overshoot`).
/// The result is at most [`MOST_POLL`].
fn lateness(slept: Nanoseconds, sleep_span: Nanoseconds) -> Nanoseconds {
    slept.saturating_sub(sleep_span).saturating_sub(timer_slack::overshoot()).min(MOST_POLL)
}

/// Sleeps by a timer, at most until the call's deadline. Returns the processor time that the sleep
/// took, in nanoseconds. Errors: `EINTR` for a signal and `ETIME` after the deadline, if the CQ is
/// empty.
fn sleep_by_timer(ring: &Ring, call: &mut WaitCall, span: Nanoseconds) -> Result<Nanoseconds, Errno> {
    let left = match wait::time_left(call, call.arrived(ring), None) {
        Ok(left) => left.unwrap_or(span),
        Err(error) => return over_or_error(ring, error).map(|_| 0),
    };
    let (slept, cost) = ring.cq_waits.measure_sometimes(|| timer_slack::sleep_precisely(span.min(left)));
    match slept {
        Err(Errno::EINTR) => over_or_error(ring, Errno::EINTR).map(|_| cost),
        _ => Ok(cost),
    }
}

/// Polls the CQ for at most `budget` nanoseconds. Returns whether enough CQEs have come.
fn poll(ring: &Ring, call: &WaitCall, budget: Nanoseconds) -> bool {
    let start = Ticks::now();
    while !signals::interrupted() && Ticks::now().since(start) < budget {
        for _ in 0..POLLS {
            if call.arrived(ring) >= call.completions {
                return true;
            }
            core::hint::spin_loop();
        }
    }
    false
}

/// Sleeps until there are enough CQEs, or until another process uses the ring. Errors: `EINTR` for
/// a signal and `ETIME` after the deadline, if the CQ is empty.
fn sleep(ring: &Ring, call: &mut WaitCall) -> Result<CqWait, Errno> {
    let word = &ring.wakers.sleep;
    loop {
        let arrived = call.arrived(ring);
        if arrived >= call.completions {
            return Ok(CqWait::Over);
        }
        if ring.is_shared() {
            return Ok(CqWait::IsShared);
        }
        let span = match wait::time_left(call, arrived, None) {
            Ok(span) => span,
            Err(error) => return over_or_error(ring, error),
        };
        let ticket = ring.wakers.announce(Sleeper::Futex, call.completions, call.head_at_start(&ring.memory));
        let slept = if call.arrived(ring) < call.completions {
            let span = span.map_or(LONGEST_SLEEP, |span| span.min(LONGEST_SLEEP));
            usring_sys::wait::futex(word.futex(), ticket.futex_value(), Some(span))
        } else {
            Ok(())
        };
        // `retract` returns whether a waker has chosen this sleeper. The result is not needed here,
        // because the loop checks the CQ again in any case.
        let _ = word.retract(ticket);
        if slept == Err(Errno::EINTR) {
            return over_or_error(ring, Errno::EINTR);
        }
    }
}

/// Ends a wait early: returns `Ok` if the CQ holds a CQE, else `error`.
fn over_or_error(ring: &Ring, error: Errno) -> Result<CqWait, Errno> {
    if ring.memory.ready() > 0 { Ok(CqWait::Over) } else { Err(error) }
}
