//! Keeps a ring's descriptor readable for poll and epoll while the CQ is not empty. The descriptor
//! is an eventfd. Each change of the eventfd's state is a system call. So usring leaves the eventfd
//! alone until the program first polls the descriptor.
//!
//! The program takes CQEs without a call, so the descriptor may stay readable too long. Before a
//! poll call of the program sleeps, the entry points therefore read the eventfd of each ring whose
//! CQ is empty ([`clear_emptied_readiness`]).
//!
//! Processes that share the ring share the eventfd. A process that polls the descriptor sets a mark
//! in the ring's memory. From then on, the drivers of all processes make the descriptor readable. A
//! driver sees the mark when it gets the ring's lock after another process had it. A process does
//! not know whether another process has made the shared eventfd readable. So on a shared ring, a
//! process that polls the descriptor always reads the eventfd of an empty CQ.

pub use super::signal::POLLED;
use crate::host;
use crate::ring::{Exit, LockedRing, Ring};
use crate::waiting::tasks::tasks;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use usring_ring::flags;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::epoll::{self, Epoll};
use usring_sys::membarrier;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::process_mutex::HeldBy;

/// The rings of this process whose descriptors the program polls.
static WATCHED: PerProcess<Mutex<Vec<Weak<Ring>>>> = PerProcess::new();

impl Ring {
    /// Sets the eventfd that stands for the ring's descriptor. The eventfd is readable while the CQ
    /// is not empty.
    pub fn attach_descriptor(&self, event: Arc<OwnedDescriptor>) {
        *self.readiness.descriptor.lock() = Some(event);
    }

    /// Records the descriptor number by which the program polls the ring, or by which the program
    /// has added the ring to an epoll set.
    pub fn is_polled_as(&self, number: i32) {
        self.readiness.polled_as.store(number, Ordering::Relaxed);
    }

    /// From now on, keeps the ring's descriptor readable while the CQ is not empty. Never waits for
    /// a ring's lock, so a request may poll the descriptor of its own ring or of another one.
    pub fn watch_readiness(self: &Arc<Self>) {
        if self.readiness.begin_polling() {
            return;
        }
        WATCHED.get_or_make(|| Mutex::new(Vec::new())).lock().push(Arc::downgrade(self));
        self.control.note_poller();
        // A publisher stores the CQ's tail and then checks whether the ring is watched, without a
        // barrier in between. membarrier(2) makes a barrier in every thread. So either the
        // publisher sees that the ring is watched, or this thread sees the publisher's CQEs.
        membarrier::everywhere();
        let backlog = self.memory.flags() & flags::CQ_OVERFLOW != 0;
        if self.memory.ready() > 0 || backlog || !self.task_work.is_empty() {
            self.readiness.signal();
        }
        if self.is_shared() {
            // A driver of another process may have published CQEs before it could see the mark that
            // `note_poller` has set. So the next driver of this process has to check the CQ once
            // more. Every later driver sees the mark.
            self.watch.must_be_driven.store(true, Ordering::SeqCst);
        }
        // On a ring that defers task work, no thread has watched the files of waiting requests so
        // far. The release below makes the ring watcher watch these files.
        match self.try_lock() {
            Ok(locked) => locked.release(Exit::Leave),
            Err(HeldBy::OtherProcess) => {
                let ring = self.clone();
                tasks().run(Box::new(move || ring.lock().release(Exit::Leave)));
            }
            // The thread that holds the lock makes the ring watcher watch the files when it leaves.
            // But that thread may be leaving already, and may not have seen that the ring is
            // watched. So the descriptor is made readable. The program's next poll call then calls
            // `clear_emptied_readiness`, whose release makes the ring watcher watch the files.
            Err(HeldBy::ThisProcess) if self.defers_task_work() => self.readiness.signal(),
            Err(HeldBy::ThisProcess) => {}
        }
    }

    /// Returns whether the ring's descriptor may be readable. On a shared ring that this process
    /// polls, the answer is always `true`, because any process can make the descriptor readable.
    fn may_be_readable(&self) -> bool {
        self.readiness.signalled.load(Ordering::SeqCst) || self.is_shared() && self.readiness.is_polled()
    }
}

impl LockedRing<'_> {
    /// Makes the ring's descriptor readable. Called if a process polls the descriptor and there are
    /// new CQEs.
    #[cold]
    #[inline(never)]
    pub fn signal_pollers(&mut self) {
        let ring = self.ring;
        if ring.readiness.signal_watched() {
            return;
        }
        // The descriptor could not be signalled: the poller is in another process, and this process
        // has not used the ring's eventfd yet. So the host attaches the eventfd.
        host::attach(ring);
        if !ring.readiness.signal_watched() && ring.is_shared() {
            // This process has closed the ring's descriptor, so it cannot make the descriptor
            // readable. It wakes the other processes, and those that poll the descriptor make it
            // readable.
            self.call_other_processes();
        }
    }

    /// Makes the ring's descriptor readable if this process polls it and there are CQEs. The
    /// process that published the CQEs may not have done so, because it died or had closed the
    /// descriptor.
    pub fn signal_own_pollers(&mut self) {
        let has_cqes = self.queues.cq.ready() != 0 || self.queues.cq.has_overflow();
        if self.ring.readiness.is_polled() && has_cqes {
            self.ring.readiness.signal();
        }
    }
}

/// For each ring whose CQ the program has emptied, makes the ring's descriptor unreadable. Called
/// before a poll call of the program sleeps.
pub fn clear_emptied_readiness() {
    for ring in readable_rings() {
        // The lock is held so that no completion is posted between the check and the drain.
        let locked = ring.lock();
        clear_if_emptied(&locked);
        locked.release(Exit::Leave);
    }
}

/// For each ring whose CQ the program has emptied, makes the ring's descriptor unreadable. Called
/// by the driver of the ring `inside`, for a request that is about to poll a descriptor. Skips a
/// ring whose lock another driver holds, because that driver may wait for the lock of `inside`.
pub(crate) fn clear_emptied_from(inside: &LockedRing) {
    for ring in readable_rings() {
        if Arc::ptr_eq(&ring, inside.ring) {
            clear_if_emptied(inside);
        } else if let Ok(locked) = ring.try_lock() {
            clear_if_emptied(&locked);
            locked.release(Exit::Leave);
        }
    }
}

fn readable_rings() -> Vec<Arc<Ring>> {
    let mut rings = Vec::new();
    if POLLED.load(Ordering::SeqCst) == 0 {
        return rings;
    }
    if let Some(watched) = WATCHED.get() {
        let mut watched = watched.lock();
        watched.retain(|ring| ring.strong_count() > 0);
        let alive = watched.iter().filter_map(Weak::upgrade);
        rings.extend(alive.filter(|ring| ring.may_be_readable()));
    }
    rings
}

/// Returns whether the epoll set `set` contains a ring's descriptor that is readable now.
pub(crate) fn is_signalled_in(set: i32) -> bool {
    let is_signalled = |ring: &&Arc<Ring>| {
        ring.readiness.signalled.load(Ordering::SeqCst) || ring.is_shared() && ring.memory.ready() > 0
    };
    let in_set = |ring: &Arc<Ring>| epoll::holds(set, ring.readiness.polled_as.load(Ordering::Relaxed));
    readable_rings().iter().filter(is_signalled).any(in_set)
}

fn clear_if_emptied(locked: &LockedRing) {
    let ring = locked.ring;
    let readiness = &ring.readiness;
    let announced = || readiness.announced.load(Ordering::SeqCst) && has_announced_work(locked);
    if locked.queues.cq.ready() == 0 && !locked.queues.cq.has_overflow() && ring.task_work.is_empty() && !announced() {
        readiness.unsignal(ring.is_shared());
        // Threads announce work without the ring's lock. So a thread may have announced work
        // between the check above and `unsignal`.
        if announced() || !ring.task_work.is_empty() {
            readiness.signal();
        }
    }
}

/// Returns whether announced work is still to be done. An announcement may be outdated: the owner
/// may have done the work and left just before another thread set `announced`.
fn has_announced_work(locked: &LockedRing) -> bool {
    let is_ready = |set: &Epoll| epoll::poll_now(set.number(), epoll::IN) != Ok(0);
    locked.devices.queues.in_flight() != 0
        || locked.waiting.polls.has_runnable()
        || locked.waiting.polls.set().is_some_and(is_ready)
}
