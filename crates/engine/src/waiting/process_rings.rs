//! The rings of this process that other processes may use, and how processes call each other.
//!
//! | a process | wakes | by |
//! |---|---|---|
//! | begins to use a ring that a waiter leads | the process that made the ring | the wake eventfd of that process's ring watcher |
//! | has news of a ring: see [`LockedRing::call_other_processes`] | all | the eventfd of `sys::process_number` |
//!
//! The ring watcher of a process that was called looks at that process's rings.

use crate::ring::{LockedRing, Ring, RingState};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::process_number;

static RINGS: PerProcess<Mutex<Vec<Weak<Ring>>>> = PerProcess::new();

/// Adds a ring that this process has made, or begins to use.
pub(crate) fn enlist(ring: &Arc<Ring>) {
    let mut rings = RINGS.get_or_make(Mutex::default).lock();
    if rings.len() == rings.capacity() {
        rings.retain(|ring| ring.strong_count() > 0);
    }
    rings.push(Arc::downgrade(ring));
}

/// Returns the shared rings that `is_concerned` accepts.
fn shared_rings(is_concerned: impl Fn(&Ring) -> bool) -> Vec<Arc<Ring>> {
    let Some(rings) = RINGS.get() else { return Vec::new() };
    let rings = rings.lock();
    rings.iter().filter_map(Weak::upgrade).filter(|ring| ring.is_shared() && is_concerned(ring)).collect()
}

/// Wakes the leaders of rings that other processes use: they have to become ordinary sleepers.
/// Returns the rings that another process has begun to use, and that no driver has looked at since.
/// Only the ring watcher calls this.
pub(crate) fn newly_shared() -> Vec<Arc<Ring>> {
    shared_rings(Ring::has_late_leader).iter().for_each(|ring| ring.wakers.call_watcher());
    shared_rings(|ring| !ring.takes_part.load(Ordering::Relaxed) && !ring.defers_task_work())
}

/// Returns the rings of which another process has posted news that this process has not heard.
pub(crate) fn with_news() -> Vec<Arc<Ring>> {
    // On a ring that defers task work, its owner hears of the news in its next call.
    shared_rings(|ring| ring.has_news() && !ring.defers_task_work())
}

impl Ring {
    fn has_news(&self) -> bool {
        self.control.news() != self.heard_news.load(Ordering::Relaxed)
    }

    /// Takes note of what drivers in other processes have done. Called with the ring's lock held,
    /// by the first driver in this process after them. That driver looks at the whole ring after
    /// it has released the lock ([`crate::ring::ReleaseDuty`]).
    pub(crate) fn hear_of_others(&self, state: &mut RingState) {
        state.waiting.timeouts.note_ended_of_all(self.control.timeouts_ended());
        if self.has_news() {
            self.heard_news.store(self.control.news(), Ordering::Relaxed);
            self.listen_for_cqes(state);
            self.watch.called.store(true, Ordering::SeqCst);
        }
    }

    fn listen_for_cqes(&self, state: &RingState) {
        if state.waiting.timeouts.counts() {
            self.control.listen_for_cqes(self.process_number());
        }
    }
}

impl LockedRing<'_> {
    /// Has all other processes of a shared ring look at it soon. In each of them, the next thread
    /// that gets the ring's lock hears of the news first. The ring watcher comes if no other thread
    /// does ([`crate::driving::ring_watcher`]).
    ///
    /// For rare events: all processes are woken, whichever of them the news concerns.
    #[cold]
    pub fn call_other_processes(&mut self) {
        let news = self.ring.control.post_news();
        self.ring.heard_news.store(news, Ordering::Relaxed);
        process_number::wake_all();
    }

    /// Calls the processes that listen for CQEs of a shared ring. The caller has published CQEs.
    pub fn call_cqe_listeners(&mut self) {
        if self.ring.control.take_cqe_listeners(self.ring.process_number()) {
            self.call_other_processes();
            self.listen_for_cqes();
        }
    }

    /// Has this process hear of CQEs of other processes, if it needs that.
    pub fn listen_for_cqes(&mut self) {
        self.ring.listen_for_cqes(self);
    }

    /// Lets this process take part in the sharing of a shared ring, if it does not yet.
    pub fn take_part(&mut self) {
        if self.ring.takes_part.swap(true, Ordering::Relaxed) {
            return;
        }
        self.listen_for_cqes();
        if !self.ring.is_adopted() {
            self.ring.control.note_maker();
        }
    }

    /// Counts a timeout that has ended by time or count.
    pub fn count_ended_timeout(&mut self) {
        let of_all = self.ring.is_shared().then(|| self.ring.control.count_ended_timeout());
        self.waiting.timeouts.count_ended(of_all);
    }
}
