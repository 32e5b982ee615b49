//! Rings whose program keeps coming back to them. While a program looks at
//! what it has got, the attendant watches its ring; but to put the ring into the
//! attendant's set and to take it out again are two system calls, and what comes
//! meanwhile wakes a thread that takes the processor from the program, to do what
//! that was about to do itself.
//!
//! So a ring that has been waited in many times in a row is put on the attendant's
//! *round* instead: at intervals the attendant looks whether anybody has come by
//! since the last time, and lets the ring be as long as somebody has. If nobody
//! has, for two intervals, the program is elsewhere: the attendant drives the ring
//! once and watches it again as any other. What a program misses by that which
//! stops coming by and looks at the CQ in memory, it has after two intervals; and
//! each time that happens, twice as many waits are needed before the
//! ring goes on the round again.
//!
//! Whoever drives a ring on the round comes by all that it waits for now and
//! then, as the owner of a ring that defers does, for nobody else will.
//!
//! The hand-over: the driver that leaves finds the ring on the round and arms
//! nothing; the attendant takes it off first and then leaves a call at it
//! (`attendant`), as it does when a set has fired. So either the driver found the
//! ring taken off and has armed it, or the call comes after, and whoever takes
//! that has to leave the ring in turn.

use crate::attendant;
use crate::ring::{LockedRing, Ring};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::mutex::Mutex;

/// Between two looks, in milliseconds.
pub(super) const INTERVAL_MS: u16 = 1;
const INTERVAL: Nanoseconds = INTERVAL_MS as Nanoseconds * 1_000_000;
/// So many looks without anybody: the program is elsewhere.
const ABSENT: u32 = 2;
/// So many looks at one who only sleeps in the ring: there is little to do.
const QUIET: u32 = 20;

/// Waits, as [`Habit::came_by`] weighs them, before a ring goes on the round.
const FIRST_TRIAL: u32 = 64;
const LAST_TRIAL: u32 = 2048;

/// What is known of how a ring's program behaves. Hints all, but for `on_round`.
#[derive(Default)]
pub(crate) struct Habit {
    on_round: AtomicBool,
    /// How often the program has come to wait, and looked at all there is: the driver's. Who only
    /// submits does not look at files and timers, so that does not count.
    visits: AtomicU32,
    /// Waits lately.
    waits: AtomicU32,
    /// How many are needed above [`FIRST_TRIAL`].
    doubt: AtomicU32,
}

impl Habit {
    #[inline]
    pub fn is_on_round(&self) -> bool {
        self.on_round.load(Ordering::Relaxed)
    }

    /// The program has come by, to wait or only to submit. Who submits for each
    /// wait more than once may as well be one that looks at the CQ in memory.
    #[inline]
    pub fn came_by(&self, waits: bool) {
        let before = self.waits.load(Ordering::Relaxed);
        let now = if waits { (before + 2).min(2 * LAST_TRIAL) } else { before.saturating_sub(1) };
        self.waits.store(now, Ordering::Relaxed);
    }

    /// A driver looks at all there is.
    #[inline]
    pub fn visit(&self) {
        self.visits.store(self.visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn is_reliable(&self) -> bool {
        self.waits.load(Ordering::Relaxed) >= FIRST_TRIAL + self.doubt.load(Ordering::Relaxed)
    }

    /// It has stayed away.
    fn doubt(&self) {
        let trial = FIRST_TRIAL + self.doubt.load(Ordering::Relaxed);
        self.doubt.store((2 * trial).min(LAST_TRIAL) - FIRST_TRIAL, Ordering::Relaxed);
    }
}

/// A ring on the round.
struct Stop {
    ring: Weak<Ring>,
    /// Its visits at the last look.
    visits: u32,
    /// So many looks have found them the same.
    unchanged: u32,
}

/// The attendant's round.
#[derive(Default)]
pub(super) struct Rounds {
    stops: Mutex<Vec<Stop>>,
}

impl Rounds {
    pub fn is_empty(&self) -> bool {
        self.stops.lock().is_empty()
    }

    /// Puts a ring on the round; answers whether it is the only one.
    fn put_on(&self, ring: &Arc<Ring>) -> bool {
        let mut stops = self.stops.lock();
        // It may not have been struck off yet since the last time.
        stops.retain(|stop| stop.ring.as_ptr() != Arc::as_ptr(ring));
        let visits = ring.attendance.habit.visits.load(Ordering::Relaxed);
        stops.push(Stop { ring: Arc::downgrade(ring), visits, unchanged: 0 });
        stops.len() == 1
    }

    /// Goes by all rings if it is time to; the attendant's. `last`: when it
    /// did.
    pub fn make(&self, last: &mut Nanoseconds) {
        let now = Clock::Monotonic.now();
        if now.saturating_sub(*last) < INTERVAL {
            return;
        }
        *last = now;
        let mut left = Vec::new();
        self.stops.lock().retain_mut(|stop| {
            let Some(ring) = stop.ring.upgrade() else { return false };
            let stays = stop.look(&ring);
            if !stays {
                left.push(ring);
            }
            stays
        });
        // Without the lock: they may be driven, and put on the round again.
        for ring in left {
            attendant::call(&ring);
        }
    }
}

impl Stop {
    /// Whether the ring stays on the round.
    fn look(&mut self, ring: &Ring) -> bool {
        let habit = &ring.attendance.habit;
        if !habit.on_round.load(Ordering::SeqCst) {
            return false;
        }
        let visits = habit.visits.load(Ordering::Relaxed);
        self.unchanged = if visits == self.visits { self.unchanged + 1 } else { 0 };
        self.visits = visits;
        let sleeps_inside = ring.wakers.sleep.is_led();
        let limit = if sleeps_inside { QUIET } else { ABSENT };
        if self.unchanged < limit {
            return true;
        }
        if !sleeps_inside {
            habit.doubt();
        }
        habit.waits.store(0, Ordering::Relaxed);
        habit.on_round.store(false, Ordering::SeqCst);
        false
    }
}

/// Called by a driver that is about to leave: whether the round takes the place
/// of watching the ring. Not where the program may be waiting for a descriptor
/// to tell it, nor where devices do.
#[inline]
pub(super) fn take_care(locked: &LockedRing) -> bool {
    let (ring, habit) = (locked.ring, &locked.ring.attendance.habit);
    let on_round = habit.on_round.load(Ordering::SeqCst);
    if !on_round && !habit.is_reliable() {
        return false;
    }
    let fits = locked.devices.in_flight() == 0
        && locked.event_descriptor.is_none()
        && !ring.readiness.is_watched()
        && !ring.defers_task_work();
    // Who sleeps inside knows no timer and no turn that has come since.
    if ring.wakers.sleep.is_led() {
        return false;
    }
    if fits && on_round {
        return true;
    }
    if fits { begin(ring) } else { end(habit) }
}

#[cold]
fn begin(ring: &Arc<Ring>) -> bool {
    ring.attendance.habit.on_round.store(true, Ordering::SeqCst);
    let begun = attendant::with_rounds(|rounds| rounds.put_on(ring));
    if !begun {
        ring.attendance.habit.on_round.store(false, Ordering::SeqCst);
    }
    begun
}

#[cold]
fn end(habit: &Habit) -> bool {
    habit.waits.store(0, Ordering::Relaxed);
    habit.on_round.store(false, Ordering::SeqCst);
    false
}
