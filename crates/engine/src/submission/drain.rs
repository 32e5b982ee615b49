//! IO_DRAIN: holds back a request until all earlier requests have completed, and holds back the
//! requests after it. On a ring that processes share, the requests of all processes count:
//! `submission::shared_drain` does the work there.

use crate::request::successor::Successor;
use crate::request::{Request, RequestEntry};
use alloc::collections::VecDeque;
use usring_ring::Journal;
use usring_uapi::sqe_flags;

/// The requests that are held back, and the counts that decide when they are released.
#[derive(Default)]
pub(crate) struct Drain {
    deferred: VecDeque<Deferred>,
    /// Requests that were submitted and have not completed, including those held back. Each member
    /// of a chain counts.
    outstanding: u64,
    /// Number of requests that are held back in `deferred`. Each member of a chain counts.
    held: u64,
    /// Flags [`ACTIVE`] and [`HOLD_NEXT`].
    state: u8,
    /// A request with CQE_SKIP_SUCCESS was submitted. From then on the kernel refuses IO_DRAIN,
    /// because the kernel counts completed requests by their CQEs.
    disabled: bool,
    /// Requests of the current batch that were refused while the ring drains. They count as not
    /// completed until the batch ends.
    refused_in_batch: u64,
}

/// A request with IO_DRAIN is held back or in flight. Later requests are held back until it has
/// completed.
const ACTIVE: u8 = 1;
/// The next request is held back as if it had IO_DRAIN, because the chain before it contained a
/// drain.
const HOLD_NEXT: u8 = 2;

pub(super) struct Deferred {
    pub request: RequestEntry,
    pub drains: bool,
    members: u64,
}

impl Deferred {
    /// Adds this request, and the later requests of its chain, to `journal` (a shared ring's list
    /// of requests) as held back. `position`: the chain's position in the order of held-back
    /// requests. A request for which the journal has no room gets no journal slot.
    pub fn note(&mut self, journal: &mut Journal, position: u32) {
        // The first request is added last, because other processes find the chain by the slot of
        // its first request.
        let mut next = self.request.link.as_deref_mut();
        while let Some(member) = next {
            member.journal = journal.add_held_member(member.sqe.user_data, position);
            next = member.link.as_deref_mut();
        }
        self.request.journal = journal.add_held(self.request.sqe.user_data, position, self.drains);
    }

    /// Returns the held-back request, and the later requests of its chain in order.
    pub fn members(&self) -> impl Iterator<Item = &Request> {
        core::iter::successors(Some(&*self.request), |request| request.link.as_deref())
    }
}

/// Makes the engine issue a request as if it had IOSQE_ASYNC. The kernel does so with each request
/// that is submitted while the ring drains, even with a request that is not held back.
pub(crate) fn force_async(request: &mut Request) {
    request.is_forced |= !request.has_flag(sqe_flags::ASYNC);
    request.sqe.flags |= sqe_flags::ASYNC;
}

impl Drain {
    #[inline]
    pub fn admit(&mut self) {
        self.outstanding += 1;
    }

    #[inline]
    pub fn retire(&mut self) {
        self.outstanding -= 1;
    }

    /// Returns the number of requests that were submitted and have not completed.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    #[inline]
    pub fn is_active(&self) -> bool {
        self.state != 0
    }

    /// Returns whether a request that starts now may have to wait for earlier ones.
    #[inline(always)]
    pub fn may_hold_back(&self, request: &Request) -> bool {
        self.is_active() || request.has_flag(sqe_flags::IO_DRAIN)
    }

    /// Starts to drain: from now on each request is held back until earlier ones complete. Draining
    /// ends with a request for which [`Drain::defer`] finds nothing to wait for.
    pub fn activate(&mut self) {
        self.state |= ACTIVE;
    }

    pub fn hold_next(&mut self) {
        self.state |= HOLD_NEXT;
    }

    /// While the ring drains, counts a refused request as not completed until its batch ends.
    pub fn refuse(&mut self) {
        if self.is_active() {
            self.outstanding += 1;
            self.refused_in_batch += 1;
        }
    }

    #[inline]
    pub fn has_refused(&self) -> bool {
        self.refused_in_batch != 0
    }

    pub fn disable(&mut self) {
        self.disabled = true;
    }

    pub fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// Drops all requests that are held back. Called when the ring is closed.
    pub fn clear(&mut self) {
        self.deferred.clear();
    }

    /// Queues a request behind the requests that it waits for. If it waits for no other request,
    /// releases the request at once.
    pub fn defer(&mut self, request: RequestEntry, successors: &mut VecDeque<Successor>) {
        let drains = self.hold_back(request).drains;
        self.release(successors);
        // Draining ends here if this request is no drain and no request is held back any more.
        self.set_active(drains || self.has_deferred());
    }

    /// Queues a request behind the requests that it waits for.
    pub(super) fn hold_back(&mut self, mut request: RequestEntry) -> &Deferred {
        let drains = self.state & HOLD_NEXT != 0 || request.has_flag(sqe_flags::IO_DRAIN);
        force_async(&mut request);
        request.mark_for_later();
        let mut deferred = Deferred { request, drains, members: 0 };
        deferred.members = deferred.members().count() as u64;
        self.held += deferred.members;
        self.state = ACTIVE;
        self.deferred.push_back(deferred);
        &self.deferred[self.deferred.len() - 1]
    }

    pub(super) fn set_active(&mut self, is_active: bool) {
        self.state = if is_active { ACTIVE } else { 0 };
    }

    /// Adopts the state of the drains of a shared ring. `is_draining`: the ring drains because of a
    /// request of any process. `refuses`: a process has made the ring refuse IO_DRAIN.
    pub fn follow(&mut self, is_draining: bool, refuses: bool) {
        let is_active = is_draining || self.has_deferred() || self.has_refused();
        self.state = self.state & HOLD_NEXT | if is_active { ACTIVE } else { 0 };
        self.disabled |= refuses;
    }

    /// Returns whether requests are held back.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns the number of requests and chains that are held back.
    pub(super) fn deferred(&self) -> u32 {
        u32::try_from(self.deferred.len()).unwrap_or(u32::MAX)
    }

    /// Returns the requests and chains that are held back, oldest first.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Deferred> {
        self.deferred.iter_mut()
    }

    /// Returns whether every request that has not completed is held back.
    pub(super) fn has_only_held(&self) -> bool {
        self.outstanding == self.held
    }

    pub(super) fn first(&self) -> Option<&Deferred> {
        self.deferred.front()
    }

    /// Returns the requests that are held back, with the members of their chains.
    pub(super) fn held_requests(&self) -> impl Iterator<Item = &Request> {
        self.deferred.iter().flat_map(Deferred::members)
    }

    /// Moves the oldest held-back request, with its chain, to `successors`.
    pub(super) fn release_first(&mut self, successors: &mut VecDeque<Successor>) {
        if let Some(Deferred { request, members, .. }) = self.deferred.pop_front() {
            self.held -= members;
            successors.push_back(request.into());
        }
    }

    /// Subtracts the requests that were refused in the current batch from the number of outstanding
    /// requests.
    pub(super) fn forget_refused(&mut self) {
        self.outstanding -= core::mem::take(&mut self.refused_in_batch);
    }

    /// Moves held-back requests to `successors`, oldest first. The driver issues them after the
    /// current batch, as it issues the next requests of chains.
    ///
    /// - The oldest request is released once all requests that are not held back have completed.
    /// - The requests after it follow, up to the next drain.
    /// - If the oldest request is itself a drain, no request follows it.
    pub fn release(&mut self, successors: &mut VecDeque<Successor>) {
        let mut first = true;
        let mut drain_seen = false;
        while let Some(oldest) = self.deferred.front() {
            drain_seen |= oldest.drains;
            if (first || drain_seen) && !self.has_only_held() {
                return;
            }
            first = false;
            self.release_first(successors);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::request::pool::new_entry;
    use alloc::vec::Vec;

    fn submit(drain: &mut Drain, user_data: u64, flags: u8, successors: &mut VecDeque<Successor>) {
        let mut request = new_entry();
        request.sqe.user_data = user_data;
        request.sqe.flags = flags;
        drain.admit();
        drain.defer(request, successors);
    }

    fn end_one(drain: &mut Drain, successors: &mut VecDeque<Successor>) {
        drain.retire();
        drain.release(successors);
    }

    fn names(successors: &VecDeque<Successor>) -> Vec<u64> {
        successors.iter().map(|successor| successor.request.sqe.user_data).collect()
    }

    #[test]
    fn a_drain_waits_for_earlier_requests_and_later_requests_wait_for_the_drain() {
        let (mut drain, mut successors) = (Drain::default(), VecDeque::new());
        drain.admit();
        drain.activate();
        submit(&mut drain, 1, sqe_flags::IO_DRAIN, &mut successors);
        submit(&mut drain, 2, 0, &mut successors);
        assert!(successors.is_empty());
        end_one(&mut drain, &mut successors);
        assert_eq!(names(&successors), [1]);
        end_one(&mut drain, &mut successors);
        assert_eq!(names(&successors), [1, 2]);
    }

    #[test]
    fn draining_ends_with_a_request_that_has_nothing_to_wait_for() {
        let (mut drain, mut successors) = (Drain::default(), VecDeque::new());
        drain.activate();
        submit(&mut drain, 1, 0, &mut successors);
        assert_eq!(names(&successors), [1]);
        assert!(!drain.is_active());
    }

    #[test]
    fn a_refused_request_counts_as_under_way_until_its_batch_ends() {
        let (mut drain, mut successors) = (Drain::default(), VecDeque::new());
        drain.activate();
        drain.refuse();
        submit(&mut drain, 1, sqe_flags::IO_DRAIN, &mut successors);
        assert!(successors.is_empty());
        drain.forget_refused();
        drain.release(&mut successors);
        assert_eq!(names(&successors), [1]);
    }
}
