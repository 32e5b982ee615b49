//! enter(2) on a polled ring with an SQ thread: that thread alone polls, and the
//! caller waits on the CQ.
//!
//! Nothing but the SQ thread's completions (and a worker's, which it posts, too)
//! can end such a wait: no file or timer of a polled ring is ever waited for. So
//! it needs the CQ and the sleep word, and not the ring's lock, which the SQ
//! thread takes and gives back all the time.
//!
//! Sleeping until one is woken is dear where devices are fast: it takes
//! microseconds, and of the SQ thread a system call. Looking at the CQ until it
//! changes is cheap in time, but takes a whole processor, and then the program
//! might as well poll itself. So a wait is slept through until shortly before
//! its expected end by a timer, which needs nobody; then looked for, as
//! long as the program has slept before in proportion; and what still has not come
//! by then is slept for until it comes.

use crate::ring::Ring;
use crate::wait::{self, WaitCall};
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::sleep::Sleeper;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, processor, signals, timer_slack};

/// What a ring's waits have been like. (Of several waiters' accounts one may get
/// lost: these are hints.)
#[derive(Default)]
pub(crate) struct CqWaits {
    /// Mean length and mean deviation, the latest eight or so weighing most; 0:
    /// there has been none.
    mean: AtomicU64,
    spread: AtomicU64,
    /// Time that may be spent looking.
    credit: AtomicU64,
    /// So many waits go without a look, because one was in vain: whoever was
    /// looked for may have needed this processor.
    without: AtomicU64,
}

/// Looks between two readings of the clock.
const LOOKS: u32 = 16;
/// The most that is saved up to be spent looking.
const MOST_CREDIT: Nanoseconds = 50_000;
/// Waits without a look after one in vain.
const DISCOURAGED: u64 = 64;
/// Longer waits than this say nothing about the device.
const LONGEST: Nanoseconds = 10_000_000;

impl CqWaits {
    /// How long to sleep without being woken; 0: not at all.
    fn nap(&self) -> Nanoseconds {
        let (mean, spread) = (self.mean.load(Ordering::Relaxed), self.spread.load(Ordering::Relaxed));
        let overshoot = timer_slack::overshoot();
        let earliest = mean.saturating_sub(2 * spread).max(mean / 2);
        let nap = earliest.saturating_sub(overshoot);
        // A sleep costs about as much as it oversleeps.
        if nap > overshoot { nap } else { 0 }
    }

    /// How long to look, so long after the start; 0: not at all. Who would have
    /// to give up just before the end would pay for both.
    fn look(&self, elapsed: Nanoseconds) -> Nanoseconds {
        let credit = self.credit.load(Ordering::Relaxed);
        let mean = self.mean.load(Ordering::Relaxed);
        let expected = mean.saturating_sub(elapsed) + self.spread.load(Ordering::Relaxed);
        let without = self.without.load(Ordering::Relaxed);
        if without != 0 {
            self.without.store(without - 1, Ordering::Relaxed);
            return 0;
        }
        if credit < expected || mean == 0 || processor::is_only() { 0 } else { credit.min(2 * mean) }
    }

    /// A wait has passed, so much of it asleep and so much looking.
    fn account(&self, length: Nanoseconds, asleep: Nanoseconds, looking: Nanoseconds) {
        let credit = self.credit.load(Ordering::Relaxed).saturating_sub(looking) + asleep.min(MOST_CREDIT);
        self.credit.store(credit.min(MOST_CREDIT), Ordering::Relaxed);
        let (mean, spread) = (self.mean.load(Ordering::Relaxed), self.spread.load(Ordering::Relaxed));
        let (mean, spread) = if mean == 0 {
            (length, length / 2)
        } else {
            // One that the whole machine was busy during says little.
            let length = length.min(4 * mean);
            ((7 * mean + length).div_ceil(8), (3 * spread + length.abs_diff(mean)).div_ceil(4))
        };
        self.mean.store(mean.min(LONGEST), Ordering::Relaxed);
        self.spread.store(spread.min(LONGEST), Ordering::Relaxed);
    }
}

/// Waits. `EINTR` and `ETIME` only if no CQE is there at all.
pub(crate) fn wait(ring: &Ring, call: &mut WaitCall) -> Result<(), Errno> {
    let wanted = call.completions;
    if ring.memory.ready() >= wanted {
        return Ok(());
    }
    let waits = &ring.cq_waits;
    let start = Ticks::now();
    let nap = waits.nap();
    let mut asleep = 0;
    if nap != 0 {
        let left = match wait::time_left(call, ring.memory.ready(), None) {
            Ok(left) => left.unwrap_or(nap),
            Err(error) => return or_what_there_is(ring, error),
        };
        if timer_slack::sleep_precisely(nap.min(left)) == Err(Errno::EINTR) && ring.memory.ready() < wanted {
            return or_what_there_is(ring, Errno::EINTR);
        }
        asleep = Ticks::now().since(start);
        if ring.memory.ready() >= wanted {
            // It came at some time during the sleep: half is taken off, or a sleep
            // that was too long would prove itself right.
            waits.account(asleep / 2, asleep, 0);
            return Ok(());
        }
    }
    let budget = waits.look(asleep);
    let found = look(ring, wanted, budget);
    let looked = Ticks::now().since(start);
    if !found && budget != 0 {
        waits.without.store(DISCOURAGED, Ordering::Relaxed);
    }
    let waited = if found { Ok(()) } else { sleep(ring, call) };
    let length = Ticks::now().since(start);
    waits.account(length, asleep + (length - looked), looked - asleep);
    waited
}

/// Looks for a while; whether there is enough.
fn look(ring: &Ring, wanted: u32, budget: Nanoseconds) -> bool {
    if budget == 0 {
        return false;
    }
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

/// Sleeps until there is enough.
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
        // What it was woken for is in the CQ.
        let _ = word.retract(ticket);
        if slept == Err(Errno::EINTR) {
            return or_what_there_is(ring, Errno::EINTR);
        }
    }
}

/// A wait that ends early is an error only if nothing has arrived.
fn or_what_there_is(ring: &Ring, error: Errno) -> Result<(), Errno> {
    if ring.memory.ready() > 0 { Ok(()) } else { Err(error) }
}
