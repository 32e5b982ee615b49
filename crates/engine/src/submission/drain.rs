//! IO_DRAIN: a request that waits for all earlier ones, and the requests behind it.

use crate::request::{Request, RequestEntry};
use alloc::collections::VecDeque;
use usring_uapi::sqe_flags;

/// Requests that are held back, and the counts that release them.
#[derive(Default)]
pub(crate) struct Drain {
    deferred: VecDeque<Deferred>,
    /// Requests submitted and not completed; each member of a chain counts.
    outstanding: u64,
    /// The number of these that are held back here.
    held: u64,
    /// Flags [`ACTIVE`] and [`HOLD_NEXT`].
    state: u8,
    /// A request with CQE_SKIP_SUCCESS was seen. The kernel refuses drains from then on, because it
    /// counts them by CQEs.
    disabled: bool,
    /// Number of this batch's requests that were refused while the ring drains. They count as under
    /// way until the batch ends.
    refused_in_batch: u64,
}

/// A drain is held back or may be under way: later requests wait until it is done.
const ACTIVE: u8 = 1;
/// The next request waits like a drain, because the chain before it contained a drain.
const HOLD_NEXT: u8 = 2;

struct Deferred {
    request: RequestEntry,
    drains: bool,
    members: u64,
}

/// Has a request be issued as if it had IOSQE_ASYNC. The kernel does so with each request that is
/// submitted while the ring drains, even if the request has nothing to wait for.
pub(crate) fn force(request: &mut Request) {
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

    /// Returns the number of requests submitted and not completed.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    #[inline]
    pub fn is_active(&self) -> bool {
        self.state != 0
    }

    /// Holds requests back until one of them has found nothing to wait for.
    pub fn activate(&mut self) {
        self.state |= ACTIVE;
    }

    pub fn hold_next(&mut self) {
        self.state |= HOLD_NEXT;
    }

    /// Lets a request that is being refused count as under way until its batch ends.
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

    /// Drops everything that is held back, for a ring that goes away.
    pub fn clear(&mut self) {
        self.deferred.clear();
    }

    /// Queues a request behind those that it waits for. If there are none, releases it at once.
    pub fn defer(&mut self, mut request: RequestEntry, successors: &mut VecDeque<RequestEntry>) {
        let drains = self.state & HOLD_NEXT != 0 || request.has_flag(sqe_flags::IO_DRAIN);
        force(&mut request);
        request.mark_for_later();
        let mut members = 1;
        let mut link = &request.link;
        while let Some(next) = link {
            members += 1;
            link = &next.link;
        }
        self.held += members;
        self.state = ACTIVE;
        self.deferred.push_back(Deferred { request, drains, members });
        self.release(successors);
        // Draining ends with a request that did not have to wait and that no later request has to
        // wait for.
        let is_active = drains || !self.deferred.is_empty();
        self.state = if is_active { ACTIVE } else { 0 };
    }

    /// Ends a batch in which requests were refused while the ring drains.
    #[cold]
    pub fn end_of_batch(&mut self, successors: &mut VecDeque<RequestEntry>) {
        self.outstanding -= core::mem::take(&mut self.refused_in_batch);
        self.release(successors);
    }

    /// Releases the oldest request when no other is under way, and those behind it up to the
    /// next drain. So no request overtakes a drain that has been released either.
    ///
    /// The driver issues released requests after their batch, as it issues the successors of a
    /// chain. Requests that follow a drain in its batch wait for it. The ring drains until a
    /// request has found nothing to wait for.
    pub fn release(&mut self, successors: &mut VecDeque<RequestEntry>) {
        let mut first = true;
        let mut drain_seen = false;
        while let Some(oldest) = self.deferred.front() {
            drain_seen |= oldest.drains;
            if (first || drain_seen) && self.outstanding != self.held {
                return;
            }
            first = false;
            let Some(Deferred { request, members, .. }) = self.deferred.pop_front() else { return };
            self.held -= members;
            successors.push_back(request);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::request::pool::new_entry;
    use alloc::vec::Vec;

    fn submit(drain: &mut Drain, user_data: u64, flags: u8, successors: &mut VecDeque<RequestEntry>) {
        let mut request = new_entry();
        request.sqe.user_data = user_data;
        request.sqe.flags = flags;
        drain.admit();
        drain.defer(request, successors);
    }

    fn end_one(drain: &mut Drain, successors: &mut VecDeque<RequestEntry>) {
        drain.retire();
        drain.release(successors);
    }

    fn names(successors: &VecDeque<RequestEntry>) -> Vec<u64> {
        successors.iter().map(|request| request.sqe.user_data).collect()
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
        drain.end_of_batch(&mut successors);
        assert_eq!(names(&successors), [1]);
    }
}
