//! The rings of this process that other processes may use, and how processes wake each other
//! because of a shared ring.
//!
//! | a process that | wakes | by |
//! |---|---|---|
//! | begins to use a ring that has a leader (a waiter asleep on its epoll set) | the process that made the ring | the wake eventfd of that process's ring watcher |
//! | posts a notice: see [`LockedRing::call_other_processes`] | all others | the eventfd of `sys::process_number` |
//!
//! A notice announces a change of a shared ring that other processes have to handle, such as a
//! registration or a remote change. Each notice raises a count in the ring's memory. The ring
//! watcher of a woken process compares this count with the last one that the process has seen.

use crate::request::Request;
use crate::ring::{LockedRing, Queues, Ring, RingState, Waiting};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::process_number;

static RINGS: PerProcess<Mutex<Vec<Weak<Ring>>>> = PerProcess::new();

/// Adds a ring that this process has made, or is beginning to use, to the process's list of rings.
pub(crate) fn enlist(ring: &Arc<Ring>) {
    let mut rings = RINGS.get_or_make(Mutex::default).lock();
    if rings.len() == rings.capacity() {
        rings.retain(|ring| ring.strong_count() > 0);
    }
    rings.push(Arc::downgrade(ring));
}

/// Returns the shared rings for which `is_concerned` returns true.
fn shared_rings(is_concerned: impl Fn(&Ring) -> bool) -> Vec<Arc<Ring>> {
    let Some(rings) = RINGS.get() else { return Vec::new() };
    let rings = rings.lock();
    rings.iter().filter_map(Weak::upgrade).filter(|ring| ring.is_shared() && is_concerned(ring)).collect()
}

/// Wakes the leaders of rings that have become shared. A leader is a waiter that sleeps on the
/// ring's epoll set. A shared ring has no leader: all its waiters sleep on the sleep word.
///
/// Returns the shared rings for which this process has not called [`LockedRing::take_part`] yet,
/// except for rings that defer task work. Only the ring watcher calls this function.
pub(crate) fn newly_shared() -> Vec<Arc<Ring>> {
    shared_rings(Ring::has_late_leader).iter().for_each(|ring| ring.wakers.wake_watcher());
    shared_rings(|ring| !ring.takes_part.load(Ordering::Relaxed) && !ring.defers_task_work())
}

/// Returns the rings with a notice that this process has not seen: another process announces a
/// change that this process has to handle.
pub(crate) fn with_unseen_notices() -> Vec<Arc<Ring>> {
    // The owner of a ring that defers task work handles the ring's notices in its next enter(2).
    shared_rings(|ring| ring.has_unseen_notices() && !ring.defers_task_work())
}

impl Ring {
    fn has_unseen_notices(&self) -> bool {
        self.control.notices() != self.seen_notices.load(Ordering::Relaxed)
    }

    /// Finishes the work of a process that died while it held the ring's lock. The dead process may
    /// have published CQEs or changed the ring without waking other processes. So this function
    /// repairs the journal (the list of all processes' requests), and wakes the other processes.
    pub(crate) fn finish_for_dead_process(&self, state: &mut RingState) {
        self.journal(state);
        let Queues { journal, cq, sq, .. } = &mut state.queues;
        // The dead process may have posted CQEs that it did not publish. The next CQEs overwrite
        // them.
        journal.iter_mut().for_each(|journal| journal.mend(cq, sq.head()));
        cq.show_overflow();
        state.notify.published = true;
        self.control.post_notice();
        process_number::wake_all();
    }

    /// Brings this process's state up to date with the changes that other processes have made to
    /// the ring. Called when a driver of this process gets the ring's lock and another process had
    /// the lock last. If there is an unseen notice, the driver runs all due work of the ring after
    /// it has released the lock ([`crate::ring::ReleaseCheck`]).
    pub(crate) fn apply_shared_changes(&self, state: &mut RingState) {
        state.waiting.timeouts.note_ended_of_all(self.control.timeouts_ended());
        state.queues.drain.follow(self.control.is_draining(), self.control.refuses_drains());
        if self.control.is_polled() {
            self.readiness.watch_for_others();
        }
        self.follow_registrations(state);
        if self.has_unseen_notices() {
            self.seen_notices.store(self.control.notices(), Ordering::Relaxed);
            self.listen_for_cqes(state);
            cancel_marked(state);
            self.watch.must_be_driven.store(true, Ordering::SeqCst);
        }
    }

    fn listen_for_cqes(&self, state: &RingState) {
        if state.waiting.timeouts.counts() {
            self.control.listen_for_cqes(self.process_number());
        }
    }
}

/// Cancels the requests that another process has cancelled while this process was stopped. Leaves
/// the requests of workers to `driving::shared_work`.
fn cancel_marked(state: &mut RingState) {
    let Some(journal) = &state.queues.journal else { return };
    for slot in journal.own_cancelled() {
        let is_it = |request: &Request| request.journal == Some(slot);
        let Waiting { polls, timeouts, .. } = &mut state.waiting;
        let found = polls.extract(is_it).or_else(|| timeouts.extract(is_it));
        let found = found.or_else(|| state.devices.queues.extract_waiting(|request| is_it(request)));
        found.into_iter().for_each(|request| state.queue_cancelled(request));
    }
}

impl LockedRing<'_> {
    /// Posts a notice of a shared ring, and wakes all processes, so that each of them soon drives
    /// the ring once. In each process, the next thread that gets the ring's lock sees the notice.
    /// If no thread of the program takes the lock, the ring watcher takes it
    /// ([`crate::driving::ring_watcher`]).
    ///
    /// Only for rare events: every process is woken, whether or not the notice concerns it.
    #[cold]
    pub fn call_other_processes(&mut self) {
        let notices = self.ring.control.post_notice();
        self.ring.seen_notices.store(notices, Ordering::Relaxed);
        process_number::wake_all();
    }

    /// Wakes the other processes if one of them has a timeout that counts the CQEs of this shared
    /// ring. Called after CQEs were published.
    pub fn call_cqe_listeners(&mut self) {
        if self.ring.control.take_cqe_listeners(self.ring.process_number()) {
            self.call_other_processes();
            self.listen_for_cqes();
        }
    }

    /// If a timeout of this process counts completions, asks the other processes to wake this
    /// process when they publish CQEs.
    pub fn listen_for_cqes(&mut self) {
        self.ring.listen_for_cqes(self);
    }

    /// Prepares this process's state of a ring that several processes use. Only the first call for
    /// a ring has an effect.
    pub fn take_part(&mut self) {
        if self.ring.takes_part.swap(true, Ordering::Relaxed) {
            return;
        }
        self.listen_for_cqes();
        self.ring.publish_registrations(self);
        if !self.ring.is_adopted() {
            self.note_earlier_requests();
            self.begin_shared_drains();
            self.ring.control.note_maker();
        }
    }

    /// Counts a TIMEOUT that has expired or reached its number of completions. On a shared ring,
    /// all processes see the count.
    pub fn count_ended_timeout(&mut self) {
        let of_all = self.ring.is_shared().then(|| self.ring.control.count_ended_timeout());
        self.waiting.timeouts.count_ended(of_all);
    }
}
