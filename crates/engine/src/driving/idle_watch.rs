//! Idle watching: a cheaper watch for rings that the program enters again and again.
//!
//! The ring watcher watches a ring while no thread of the program is inside. Putting the ring into
//! the ring watcher's set and taking it out are two system calls. An event that arrives while the
//! ring is in the set wakes the ring watcher. The ring watcher then takes the processor from the
//! program, only to do the work that the program was about to do itself.
//!
//! So the ring watcher watches a ring differently if the program has waited on it many times in a
//! row:
//!
//! - At intervals, the ring watcher checks whether a thread has visited the ring since the last
//!   check. (A visit: a thread that waits on the ring checks it for work.) As long as threads visit
//!   the ring, the ring watcher does nothing.
//! - After two intervals without a visit, idle watching ends: the ring watcher drives the ring once
//!   and then watches it like any other ring. So a program that stops entering, and only reads the
//!   CQ in memory, sees its completions at most two intervals late.
//! - Each time idle watching ends in this way, the number of waits after which it begins again is
//!   doubled.
//! - During idle watching, threads that wait on the ring poll the ring's files and timers now and
//!   then, as the owner of a ring that defers task work does. No other thread polls them.
//!
//! The end of idle watching races with a driver that is just leaving the ring. *Arming* a ring puts
//! it into the ring watcher's set. If the leaving driver still sees idle watching, it does not arm
//! the ring. The ring watcher first ends idle watching. The ring watcher then sets the ring's mark
//! `must_be_driven`, and drives the ring if the lock is free. So there are two cases. Either the
//! driver sees the end and arms the ring, or it finds the mark after it has released the lock. In
//! the second case the driver drives the ring once more, and arms the ring when it leaves.

use crate::driving::ring_watcher;
use crate::ring::{LockedRing, Ring};
use crate::waiting::watcher_entry::Activity;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::mutex::Mutex;

/// Milliseconds between two checks of the rings under idle watching.
pub(super) const INTERVAL_MS: u16 = 1;
const INTERVAL: Nanoseconds = INTERVAL_MS as Nanoseconds * 1_000_000;
/// The program counts as gone after this many consecutive checks that find no new visit. A visit: a
/// waiting thread checks the ring for work.
const CHECKS_UNTIL_ABSENT: u32 = 2;
/// Idle watching ends after this many consecutive checks that find no new visit, even if the
/// program sleeps inside the ring. A program that sleeps so long has little to do, so idle watching
/// would save little.
const CHECKS_UNTIL_END: u32 = 20;

/// A ring under idle watching.
struct Watched {
    ring: Weak<Ring>,
    /// The ring's count of visits (`Activity::visits`) at the last check.
    visits: u32,
    /// Number of consecutive checks that found `visits` unchanged.
    unchanged: u32,
}

/// The rings under idle watching.
#[derive(Default)]
pub(super) struct IdleWatch {
    rings: Mutex<Vec<Watched>>,
}

impl IdleWatch {
    pub fn is_empty(&self) -> bool {
        self.rings.lock().is_empty()
    }

    /// Begins idle watching of a ring. Returns whether this ring is now the only one under idle
    /// watching. The caller then has to wake the ring watcher, so that the ring watcher begins to
    /// check at intervals.
    fn begin(&self, ring: &Arc<Ring>) -> bool {
        let mut rings = self.rings.lock();
        // An earlier period of idle watching may have left an entry for this ring on the list. That
        // entry is removed.
        rings.retain(|watched| watched.ring.as_ptr() != Arc::as_ptr(ring));
        let visits = ring.watch.activity.visits.load(Ordering::Relaxed);
        rings.push(Watched { ring: Arc::downgrade(ring), visits, unchanged: 0 });
        rings.len() == 1
    }

    /// Checks all rings if an interval has passed since `last`, the time of the last check. Only
    /// the ring watcher calls this function.
    pub fn check(&self, last: &mut Nanoseconds) {
        let now = Clock::Monotonic.now();
        if now.saturating_sub(*last) < INTERVAL {
            return;
        }
        *last = now;
        let mut left = Vec::new();
        self.rings.lock().retain_mut(|watched| {
            let Some(ring) = watched.ring.upgrade() else { return false };
            let stays = watched.poll(&ring);
            if !stays {
                left.push(ring);
            }
            stays
        });
        // The list of rings is unlocked here, because driving a ring may put the ring on the list
        // again.
        for ring in left {
            ring_watcher::mark_and_drive(&ring);
        }
    }
}

impl Watched {
    /// Checks one ring. Returns whether its idle watching goes on.
    fn poll(&mut self, ring: &Ring) -> bool {
        let activity = &ring.watch.activity;
        if !activity.idle_watched.load(Ordering::SeqCst) {
            return false;
        }
        let visits = activity.visits.load(Ordering::Relaxed);
        self.unchanged = if visits == self.visits { self.unchanged + 1 } else { 0 };
        self.visits = visits;
        let sleeps_inside = ring.is_led();
        let limit = if sleeps_inside { CHECKS_UNTIL_END } else { CHECKS_UNTIL_ABSENT };
        if self.unchanged < limit {
            return true;
        }
        if !sleeps_inside {
            activity.require_more_waits();
        }
        activity.waits.store(0, Ordering::Relaxed);
        activity.idle_watched.store(false, Ordering::SeqCst);
        false
    }
}

/// Returns whether the ring is under idle watching (the ring watcher only checks it at intervals).
/// A thread that leaves such a ring does not put the ring into the ring watcher's set. Begins idle
/// watching if the program has waited on the ring often enough. Ends idle watching in four cases,
/// for which checks at intervals are not enough:
///
/// - The program may wait for a signal of the ring's descriptor or of a registered eventfd.
/// - Requests are in flight on devices.
/// - Other processes use the ring.
/// - The ring defers task work.
///
/// While a waiter sleeps on the ring's epoll set, returns `false` and changes nothing.
#[inline]
pub(super) fn adjust(locked: &LockedRing) -> bool {
    let (ring, activity) = (locked.ring, &locked.ring.watch.activity);
    let idle_watched = activity.idle_watched.load(Ordering::SeqCst);
    if !idle_watched && !activity.is_reliable() {
        return false;
    }
    let fits = !ring.is_shared()
        && locked.devices.queues.in_flight() == 0
        && locked.notify.event_descriptor.is_none()
        && !ring.readiness.is_watched()
        && !ring.defers_task_work();
    // A leader (a waiter that already sleeps on the ring's epoll set) learns of a newer timer or
    // runnable request only by an event of that set. The caller causes the event if this function
    // returns `false`.
    if ring.is_led() {
        return false;
    }
    if fits && idle_watched {
        return true;
    }
    if fits { begin(ring) } else { end(activity) }
}

#[cold]
fn begin(ring: &Arc<Ring>) -> bool {
    ring.watch.activity.idle_watched.store(true, Ordering::SeqCst);
    let begun = ring_watcher::with_idle_watch(|idle| idle.begin(ring));
    if !begun {
        ring.watch.activity.idle_watched.store(false, Ordering::SeqCst);
    }
    begun
}

#[cold]
fn end(activity: &Activity) -> bool {
    activity.waits.store(0, Ordering::Relaxed);
    activity.idle_watched.store(false, Ordering::SeqCst);
    false
}
