//! How a thread acquires a ring's lock, and how it releases the lock.
//!
//! - [`LockedRing`] is the proof that the thread is the ring's driver. It dereferences to
//!   [`RingState`].
//! - Drivers release a ring by [`LockedRing::release`], with an [`Exit`](super::Exit).
//! - A driver publishes its CQEs before it releases the lock.
//! - If the previous driver was in another process, acquiring the lock updates this process's
//!   copies of the queue positions.

use super::{Ring, RingState};
use crate::request::Request;
use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicU32;
use usring_ring::Journal;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::process_mutex::{Guard, HeldBy, Since};
use usring_sys::shared::View;
use usring_sys::wait::nanosleep;

/// Maximum number of consecutive io_uring_enter calls that find enough completions ready and so do
/// not poll the ring's files and timers. A poll costs a system call.
const CALLS_WITHOUT_POLL: u32 = 8;
/// Replaces [`CALLS_WITHOUT_POLL`] while the guesses of `waiting::expected` are right. A guess is
/// right if the engine tried a file before the epoll set reported it, and the file was ready. The
/// limit is larger, because a poll then costs more: the set still has the events of the guessed
/// files, and checks each of these files again. (A call that submits nothing, or finds the CQ more
/// than half full, makes no guesses.)
const CALLS_OF_GUESSES: u32 = 32;

impl Ring {
    /// Acquires the ring's lock, and so becomes the ring's driver. Blocks while another thread is
    /// the driver.
    #[inline(always)]
    pub(crate) fn lock(self: &Arc<Self>) -> LockedRing<'_> {
        LockedRing {
            ring: self,
            state: self.state.lock(|state, since| self.catch_up(state, since)),
            release_check: ReleaseCheck(self),
        }
    }

    /// Acquires the ring's lock if it is free. The error says which kind of thread holds the lock.
    /// A driver in another process ([`HeldBy::OtherProcess`]) does not see task work of this
    /// process.
    pub(crate) fn try_lock(self: &Arc<Self>) -> Result<LockedRing<'_>, HeldBy> {
        let state = self.state.try_lock(|state, since| self.catch_up(state, since))?;
        Ok(LockedRing { ring: self, state, release_check: ReleaseCheck(self) })
    }

    /// Brings this process's copies of queue positions up to date. Called when the previous driver
    /// was in another process.
    #[cold]
    fn catch_up(&self, state: &mut RingState, since: Since) {
        state.queues.sq.catch_up();
        state.queues.cq.catch_up();
        if since == Since::HolderDied {
            self.finish_for_dead_process(state);
        }
        self.apply_shared_changes(state);
    }

    /// Acquires the ring's lock; returns `None` if that takes longer than 100 ms. For a signal
    /// handler that ends the process or executes a program: the thread that the handler has
    /// interrupted may hold the lock already.
    pub(crate) fn lock_in_time(self: &Arc<Self>) -> Option<LockedRing<'_>> {
        const LOCK_LIMIT_NS: Nanoseconds = 100_000_000;
        const PAUSE: Nanoseconds = 100_000;
        let end = Clock::Monotonic.now() + LOCK_LIMIT_NS;
        loop {
            if let Ok(locked) = self.try_lock() {
                return Some(locked);
            }
            if Clock::Monotonic.now() >= end {
                return None;
            }
            let _ = nanosleep(PAUSE);
        }
    }
}

/// A ring whose lock this thread holds: the thread is the ring's driver.
pub(crate) struct LockedRing<'a> {
    pub ring: &'a Arc<Ring>,
    state: Guard<'a, RingState, View<AtomicU32>>,
    /// Declared after `state`, because fields are dropped in the order of declaration: the lock is
    /// released before this check is made.
    release_check: ReleaseCheck<'a>,
}

/// The check for work that every driver makes again after it has released the lock. While the
/// driver held the lock, another thread may have added task work and left it to the driver.
pub(crate) struct ReleaseCheck<'a>(pub &'a Arc<Ring>);

impl<'a> LockedRing<'a> {
    /// Counts an io_uring_enter call that found enough completions. Returns whether the caller has
    /// to poll the ring's files and timers now, because too many such calls in a row have not
    /// polled them.
    #[cold]
    #[inline(never)]
    pub fn is_poll_due(&mut self) -> bool {
        if self.waiting.polls.armed() == 0 && self.waiting.timeouts.is_empty() && self.devices.queues.in_flight() == 0 {
            return false;
        }
        self.waiting.calls_without_poll += 1;
        let limit = if self.waiting.polls.expected.was_right() { CALLS_OF_GUESSES } else { CALLS_WITHOUT_POLL };
        if self.waiting.calls_without_poll < limit {
            return false;
        }
        self.note_poll();
        true
    }

    /// Returns whether waiters poll the devices, so that the devices' completion interrupts stay
    /// off.
    pub fn waiters_poll_devices(&self) -> bool {
        self.ring.is_polled() || self.ring.waiters_poll && !self.notify.request_events.is_awaited()
    }

    /// Notes that the ring's files and timers have been polled.
    #[inline]
    pub fn note_poll(&mut self) {
        self.waiting.calls_without_poll = 0;
        self.waiting.polls.expected.clear_was_right();
    }

    /// Takes a request from the SQ: moves the SQ's head past the request's entry. If the ring is
    /// shared, first adds the request to the journal, so that another process can complete it if
    /// this process dies.
    #[inline(never)]
    pub fn take_by_journal(&mut self, request: &mut Request) {
        if !self.ring.is_shared() {
            return self.queues.sq.commit();
        }
        let index = self.queues.sq.last_index();
        request.journal = self.journal().begin(request.sqe.user_data, index);
        self.queues.sq.commit();
        match request.journal {
            Some(slot) => self.journal().confirm(slot),
            None if self.ring.is_adopted() => {}
            None => self.ring.control.expect_unjournaled(),
        }
    }

    /// Returns the journal of a shared ring: the requests without a published CQE.
    pub fn journal(&mut self) -> &mut Journal {
        self.ring.journal(&mut self.state)
    }

    /// Wakes sleepers for the CQEs that were published, and keeps the lock.
    pub fn wake_others(&mut self) {
        if let Some(count) = self.take_published() {
            self.ring.wakers.wake_all(count);
        }
    }

    /// If CQEs were published since the last call, returns how many CQEs count for the sleepers;
    /// else `None`. A sleeper has to be woken if it waits for at most this number of CQEs.
    /// `u32::MAX` wakes all sleepers, in these cases:
    ///
    /// - A timeout has expired, by time or by count, which ends every wait.
    /// - There is a backlog, which only a woken waiter moves into the CQ.
    /// - The ring has DEFER_TASKRUN: its owner waits for a number of further CQEs, not for a total.
    /// - The ring is shared: each waiter counts from the CQEs that were consumed when its wait
    ///   began.
    #[inline(always)]
    fn take_published(&mut self) -> Option<u32> {
        if !core::mem::take(&mut self.notify.published) {
            return None;
        }
        let ended = core::mem::take(&mut self.waiting.timeouts.just_ended);
        if self.ring.is_shared() {
            return Some(self.published_for_all());
        }
        let wakes_all = ended || self.queues.cq.has_overflow() || self.ring.defers_task_work();
        Some(if wakes_all { u32::MAX } else { self.count_for_sleepers() })
    }

    /// Returns how many published CQEs count for the sleepers: those after the CQ's head at the
    /// start of their waits. For an AIO context, counts the events that the program can take now.
    pub fn count_for_sleepers(&self) -> u32 {
        let cq = &self.queues.cq;
        if self.ring.memory.layout().has_events() {
            cq.ready()
        } else {
            self.ring.wakers.count_for_sleepers(cq.published())
        }
    }

    /// In the journal (the shared ring's list of requests), frees the slots of requests whose CQEs
    /// are published. Wakes other processes if their timeouts count these CQEs. Returns `u32::MAX`:
    /// all waiters are woken.
    #[cold]
    #[inline(never)]
    fn published_for_all(&mut self) -> u32 {
        if let Some(journal) = &mut self.queues.journal {
            journal.clear_published();
        }
        if self.ring.control.has_unjournaled() {
            self.count_unjournaled();
        }
        self.call_cqe_listeners();
        u32::MAX
    }

    /// Releases the lock, which is a full barrier. Wakes sleepers for the CQEs that were published.
    /// Returns the check for new work that every driver then has to make. Drivers call
    /// [`LockedRing::release`] instead, which makes that check.
    #[inline(always)]
    pub fn unlock(mut self) -> ReleaseCheck<'a> {
        debug_assert!(!self.queues.cq.has_unannounced(), "a driver publishes its CQEs before it releases the lock");
        let published = self.take_published();
        let ring = self.ring;
        drop(self.state);
        if let Some(count) = published {
            ring.wakers.wake_all(count);
        }
        self.release_check
    }
}

impl Deref for LockedRing<'_> {
    type Target = RingState;

    #[inline]
    fn deref(&self) -> &RingState {
        &self.state
    }
}

impl DerefMut for LockedRing<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut RingState {
        &mut self.state
    }
}
