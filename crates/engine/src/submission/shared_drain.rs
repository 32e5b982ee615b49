//! IO_DRAIN on a ring that processes share: a drain waits for requests of all processes, and holds
//! back later requests of all processes. On a ring of one process these functions leave all to
//! `submission::drain`.
//!
//! - A word in the ring's memory says whether the ring drains (holds requests back). The word is
//!   also kept up to date before the ring is shared.
//! - The journal in the ring's memory lists the requests in flight, and the order of the requests
//!   that are held back. The requests themselves are in the memory of their process.
//! - The driver that ends the last request in flight releases the first held-back requests. If
//!   these belong to another process, the driver wakes that process, whose next driver issues them.
//! - A held-back request of a process that has died ends with -EFAULT when its turn comes. The
//!   requests after it in its chain end with -ECANCELED, as on the kernel.
//! - A request that was in flight before the ring was shared is not in the journal. The process
//!   that made the ring keeps the number of such requests in the ring's memory, and all drains wait
//!   for them.
//! - If the journal is full, a further request is not in the journal, either. Drains of other
//!   processes do not wait for such a request. If it is held back, it waits only for requests of
//!   its own process, so that processes cannot wait for each other in a circle.

use crate::request::{Request, RequestEntry};
use crate::ring::{LockedRing, Queues};
use usring_ring::HeldRequest;
use usring_sys::{Errno, process_number};
use usring_uapi::io_uring as abi;

impl LockedRing<'_> {
    /// Queues a request behind the requests that it waits for. If it waits for no other request,
    /// releases the request at once.
    pub fn hold_back(&mut self, request: RequestEntry) {
        if self.ring.is_shared() {
            return self.hold_back_for_all(request);
        }
        let Queues { drain, successors, .. } = &mut self.queues;
        drain.defer(request, successors);
        let is_active = drain.is_active();
        self.ring.control.set_draining(is_active);
    }

    /// Releases the held-back requests that have nothing left to wait for.
    pub fn release_held(&mut self) {
        if self.ring.is_shared() {
            return self.release_held_of_all();
        }
        let Queues { drain, successors, .. } = &mut self.queues;
        drain.release(successors);
    }

    /// Ends a batch in which requests were refused while the ring drains. From now on, these
    /// requests count as completed.
    #[cold]
    pub fn end_batch_with_refused(&mut self) {
        self.queues.drain.forget_refused();
        self.release_held();
    }

    /// Starts to drain: from now on, requests are held back behind earlier ones. Draining ends with
    /// a request that has no earlier one to wait for.
    pub fn activate_drain(&mut self) {
        self.queues.drain.activate();
        self.ring.control.set_draining(true);
    }

    /// Makes the ring refuse drains from now on, because a request with CQE_SKIP_SUCCESS was
    /// submitted.
    pub fn refuse_drains(&mut self) {
        if !self.queues.drain.is_disabled() {
            self.queues.drain.disable();
            self.ring.control.refuse_drains();
        }
    }

    /// Publishes this process's requests, so that drains of other processes wait for them. Called
    /// when this process notices that the ring is shared.
    pub fn begin_shared_drains(&mut self) {
        self.note_held();
        self.count_unjournaled();
        if self.queues.drain.is_active() {
            self.release_held_of_all();
        }
    }

    /// Adds this process's held-back requests to the journal, when the ring becomes shared. These
    /// requests were held back first, so they go before the held-back requests of other processes.
    fn note_held(&mut self) {
        let count = self.queues.drain.deferred();
        let places = self.journal().first_positions(count);
        let Queues { drain, journal, .. } = &mut self.queues;
        let Some(journal) = journal else { return };
        for (deferred, position) in drain.all_mut().zip(places) {
            deferred.note(journal, position);
        }
    }

    #[cold]
    fn hold_back_for_all(&mut self, request: RequestEntry) {
        let was_held = self.journal().first_held().is_some();
        let position = self.journal().last_position();
        let Queues { drain, journal, .. } = &mut self.queues;
        let deferred = drain.hold_back(request);
        let drains = deferred.drains;
        if let Some(journal) = journal {
            let members = deferred.members().skip(1).filter_map(|member| member.journal);
            members.for_each(|slot| journal.hold_member(slot, position));
            deferred.request.journal.inspect(|slot| journal.hold(*slot, position, drains));
        }
        self.ring.control.set_draining(true);
        self.release_held_of_all();
        let is_held = self.journal().first_held().is_some();
        let is_active = drains || is_held || self.queues.drain.has_deferred();
        self.ring.control.set_draining(is_active);
        self.queues.drain.set_active(is_active);
        if is_held && !was_held && self.waits_for_maker() {
            // Wakes the process that made the ring. That process then counts again how many of its
            // requests are not in the journal.
            self.call_other_processes();
        }
    }

    fn release_held_of_all(&mut self) {
        // Requests of this process that another process has released are in flight. So they leave
        // the queue of held-back requests before any request is counted.
        self.take_released();
        self.count_unjournaled();
        let (mut is_first, mut has_drain, mut has_others) = (true, false, false);
        while let Some(held) = self.journal().first_held() {
            has_drain |= held.drains;
            if (is_first || has_drain) && !self.is_idle() {
                break;
            }
            is_first = false;
            if held.owner == self.ring.process_number() {
                self.journal().release(&held);
            } else if process_number::is_alive(held.owner) {
                self.journal().release(&held);
                has_others = true;
            } else {
                self.end_held(&held);
            }
        }
        self.take_released();
        if has_others {
            self.call_other_processes();
        }
    }

    /// Takes this process's requests that a driver of any process has released, and queues them for
    /// issue.
    fn take_released(&mut self) {
        while let Some(first) = self.queues.drain.first() {
            let is_released = match first.request.journal {
                Some(slot) => !self.journal().is_held(slot),
                None => self.queues.drain.has_only_held(),
            };
            if !is_released {
                return;
            }
            let Queues { drain, successors, journal, .. } = &mut self.queues;
            if let (Some(first), Some(journal)) = (drain.first(), journal) {
                // If the chain's first request has no slot in the journal, no other process can
                // release the chain. So this process marks the chain's other requests as in flight
                // here.
                first.members().filter_map(|member| member.journal).for_each(|slot| journal.confirm(slot));
            }
            drain.release_first(successors);
        }
    }

    /// Completes a held-back request of a process that has died, and the other requests of its
    /// chain, with errors.
    fn end_held(&mut self, held: &HeldRequest) {
        // On a ring with SQPOLL, the SQ thread would have issued the held-back request. The kernel
        // cancels such requests when the process of the SQ thread ends.
        let is_sq_threads = self.ring.has(abi::IORING_SETUP_SQPOLL);
        let mut error = if is_sq_threads { Errno::ECANCELED } else { Errno::EFAULT };
        for (slot, user_data) in self.journal().take_held(held) {
            self.complete_orphan(slot, user_data, error);
            error = Errno::ECANCELED;
        }
    }

    /// Returns whether no request of any process is in flight, not counting held-back requests.
    fn is_idle(&mut self) -> bool {
        let is_noted = |request: &&Request| request.journal.is_some();
        let held = self.queues.drain.held_requests().filter(|request| !is_noted(request)).count();
        !self.journal().is_any_in_flight() && self.unjournaled() <= held as u64 && !self.waits_for_maker()
    }

    /// Returns the number of this process's requests that are not in the journal.
    fn unjournaled(&mut self) -> u64 {
        let outstanding = self.queues.drain.outstanding();
        outstanding.saturating_sub(self.journal().journaled())
    }

    /// Publishes the number of requests that are not in the journal, if this process made the ring.
    pub fn count_unjournaled(&mut self) {
        if !self.ring.is_adopted() {
            let unjournaled = self.unjournaled();
            self.ring.control.count_unjournaled(unjournaled);
        }
    }

    /// Returns whether another process made the ring and may still have requests in flight that are
    /// not in the journal.
    fn waits_for_maker(&self) -> bool {
        let control = &self.ring.control;
        self.ring.is_adopted() && control.has_unjournaled() && control.maker().is_some_and(process_number::is_alive)
    }
}
