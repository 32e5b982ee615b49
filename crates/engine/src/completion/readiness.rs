//! The ring's descriptor as poll and epoll see it: readable while the CQ is not empty. The
//! descriptor is an eventfd. It is kept up to date only after the program has polled it once,
//! because each change is a system call.
//!
//! The program takes CQEs without a call, so the descriptor may stay readable too long. The entry
//! points drain it before a poll call sleeps.

pub use super::signal::SIGNALLED;
use crate::ring::{Exit, LockedRing, Ring};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use usring_ring::flags;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::epoll::{self, Epoll};
use usring_sys::membarrier;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;

/// The rings whose descriptors the program polls.
static WATCHED: PerProcess<Mutex<Vec<Weak<Ring>>>> = PerProcess::new();

impl Ring {
    /// Sets the eventfd that stands for the ring's descriptor. Its readability follows the CQ.
    pub fn attach_descriptor(&self, event: Arc<OwnedDescriptor>) {
        *self.readiness.descriptor.lock() = Some(event);
    }

    /// Notes the number by which the program polls the ring's descriptor, or under which it is in
    /// an epoll set.
    pub fn is_polled_as(&self, number: i32) {
        self.readiness.polled_as.store(number, Ordering::Relaxed);
    }

    /// From now on, keeps the descriptor readable exactly while the CQ is not empty. Takes no lock,
    /// so a ring may watch another one, or itself.
    pub fn watch_readiness(self: &Arc<Self>) {
        if self.readiness.watched.swap(true, Ordering::SeqCst) {
            return;
        }
        WATCHED.get_or_make(|| Mutex::new(Vec::new())).lock().push(Arc::downgrade(self));
        // A publisher stores the tail and then checks whether the ring is watched, without a
        // barrier in between. This call makes a barrier in every thread: either the publisher sees
        // that the ring is watched, or this thread sees its CQEs.
        membarrier::everywhere();
        if self.is_shared() {
            self.readiness.share();
        }
        let backlog = self.memory.flags() & flags::CQ_OVERFLOW != 0;
        if self.memory.ready() > 0 || backlog || !self.task_work.is_empty() {
            self.readiness.signal();
        }
        // On a ring that defers task work, no thread has watched the files of waiting requests
        // until now. The release below has the ring watcher watch them.
        match self.try_lock() {
            Ok(locked) => locked.release(Exit::Leave),
            // The holder of the lock has the files watched when it leaves, unless it is leaving
            // already. So the descriptor is made readable: the program's next poll call then calls
            // `drain`, whose release has the files watched.
            Err(_) if self.defers_task_work() => self.readiness.signal(),
            Err(_) => {}
        }
    }
}

/// Makes the descriptors of rings unreadable whose CQs the program has emptied. Called before a
/// poll call sleeps.
pub fn drain_readiness() {
    for ring in signalled() {
        // Under the lock, so that no completion is posted between check and drain.
        let locked = ring.lock();
        drain(&locked);
        locked.release(Exit::Leave);
    }
}

/// Does what [`drain_readiness`] does, for a driver whose request is about to poll a descriptor. It
/// only tries the locks of other rings, because their drivers may want the lock of this one.
pub(crate) fn drain_from(inside: &LockedRing) {
    for ring in signalled() {
        if Arc::ptr_eq(&ring, inside.ring) {
            drain(inside);
        } else if let Ok(locked) = ring.try_lock() {
            drain(&locked);
            locked.release(Exit::Leave);
        }
    }
}

fn signalled() -> Vec<Arc<Ring>> {
    let mut rings = Vec::new();
    if SIGNALLED.load(Ordering::SeqCst) == 0 {
        return rings;
    }
    if let Some(watched) = WATCHED.get() {
        let mut watched = watched.lock();
        watched.retain(|ring| ring.strong_count() > 0);
        let alive = watched.iter().filter_map(Weak::upgrade);
        rings.extend(alive.filter(|ring| ring.readiness.may_be_readable()));
    }
    rings
}

/// Returns whether an epoll set of the program contains the descriptor of a ring that is readable
/// now.
pub(crate) fn is_signalled_in(set: i32) -> bool {
    let is_signalled = |ring: &&Arc<Ring>| ring.readiness.signalled.load(Ordering::SeqCst);
    let in_set = |ring: &Arc<Ring>| epoll::holds(set, ring.readiness.polled_as.load(Ordering::Relaxed));
    signalled().iter().filter(is_signalled).any(in_set)
}

fn drain(locked: &LockedRing) {
    let ring = locked.ring;
    let readiness = &ring.readiness;
    let announced = || readiness.announced.load(Ordering::SeqCst) && has_announced_work(locked);
    if locked.queues.cq.ready() == 0 && !locked.queues.cq.has_overflow() && ring.task_work.is_empty() && !announced() {
        readiness.unsignal();
        // Threads announce work without the ring's lock. An announcement may have come between the
        // check and `unsignal`.
        if announced() || !ring.task_work.is_empty() {
            readiness.signal();
        }
    }
}

/// Returns whether announced work is still there. The announcing thread checked without the lock.
/// Before its announcement, the owner may have done all the work and left.
fn has_announced_work(locked: &LockedRing) -> bool {
    let is_ready = |set: &Epoll| epoll::poll_now(set.number(), epoll::IN) != Ok(0);
    locked.devices.queues.in_flight() != 0
        || locked.waiting.polls.has_runnable()
        || locked.waiting.polls.set().is_some_and(is_ready)
}
