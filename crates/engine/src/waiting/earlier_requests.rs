//! Earlier requests of a ring: those that were submitted before several processes used the ring.
//! The journal (the list of all processes' requests, in the ring's memory) lacks them at first. The
//! process that made the ring enters its earlier requests in the journal when it notices that the
//! ring is shared, and before it executes another program. If that process ends, other processes
//! complete the requests that are in the journal. Neighbour: `submission::shared_drain` enters the
//! requests that an IO_DRAIN holds back.
//!
//! - Requests that a worker has are not entered, because only the worker may access them.
//! - A child that begins to use the ring waits until the requests are entered
//!   ([`Ring::await_maker`]).

use crate::request::Request;
use crate::ring::{LockedRing, Ring, RingState};
use alloc::vec::Vec;
use usring_ring::Journal;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::process_number;

/// Longest time, in nanoseconds, that a child waits until the process that made the ring has
/// entered its requests in the journal. A limit is needed, because that process may be stopped.
const LONGEST_WAIT: Nanoseconds = 100_000_000;
/// Longest single sleep, in nanoseconds, of a child that waits for the process that made the ring.
/// After each sleep, the child checks whether that process is alive.
const CHECK_INTERVAL_NS: Nanoseconds = 5_000_000;

impl Ring {
    /// Waits until the process that made the ring has entered its requests in the journal, or has
    /// ended. Returns at once if no request seems to be in flight: the ring has as many CQEs as
    /// consumed SQEs. The caller is a child that has marked the ring as shared.
    pub(crate) fn await_maker(&self) {
        if !self.memory.has_fewer_cqes_than_requests() {
            return;
        }
        let end = Clock::Monotonic.now() + LONGEST_WAIT;
        while !self.control.maker_takes_part()
            && self.control.maker().is_some_and(process_number::is_alive)
            && Clock::Monotonic.now() < end
        {
            self.control.await_maker(CHECK_INTERVAL_NS);
        }
    }
}

impl LockedRing<'_> {
    /// Enters in the journal the requests of this process that are in flight and that the journal
    /// lacks.
    ///
    /// Before that, frees the slots of requests with published CQEs. A ring of one process has such
    /// slots after an execve(2) that failed: before the execve(2), its requests were entered, and
    /// they have ended since.
    pub fn note_earlier_requests(&mut self) {
        self.journal();
        let RingState { queues, waiting, devices, .. } = &mut **self;
        let Some(journal) = &mut queues.journal else { return };
        if !queues.cq.has_unannounced() {
            journal.clear_published();
        }
        waiting.polls.requests_mut().for_each(|request| note(journal, request));
        waiting.timeouts.requests_mut().for_each(|request| note(journal, request));
        devices.queues.requests_mut().for_each(|request| note(journal, request));
        let timeouts: Vec<_> = waiting.timeouts.journaled(queues.cq.tail());
        timeouts.iter().for_each(|(timeout, count)| self.note_timer(timeout, *count));
    }
}

/// Enters a request and the later requests of its chain in the journal.
fn note(journal: &mut Journal, request: &mut Request) {
    let mut next = Some(request);
    while let Some(request) = next {
        if request.journal.is_none() {
            request.journal = journal.add_in_flight(request.sqe.user_data);
        }
        next = request.link.as_deref_mut();
    }
}
