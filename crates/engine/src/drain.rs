//! IO_DRAIN: a request that waits for all earlier ones, and those behind it.

use crate::request::RequestEntry;
use crate::ring::LockedRing;
use alloc::collections::VecDeque;
use usring_uapi::sqe_flags;

/// What is held back, and the count by which it is let go.
#[derive(Default)]
pub(crate) struct Drain {
    deferred: VecDeque<Deferred>,
    /// Requests submitted so far, chains counted by their members.
    submitted: u64,
    /// Requests completed so far.
    completed: u64,
    /// The next start waits like a drain (one stood inside a chain).
    hold_next: bool,
    /// A request with CQE_SKIP_SUCCESS was seen: the kernel refuses drains
    /// from then on, because it counts them by CQEs.
    disabled: bool,
}

struct Deferred {
    request: RequestEntry,
    /// Completions needed before it may start; 0 for one that only queues
    /// behind a drain.
    after: u64,
}

impl Drain {
    #[inline]
    pub fn admit(&mut self) {
        self.submitted += 1;
    }

    #[inline]
    pub fn retire(&mut self) {
        self.completed += 1;
    }

    #[inline]
    pub fn is_active(&self) -> bool {
        !self.deferred.is_empty() || self.hold_next
    }

    pub fn hold_next(&mut self) {
        self.hold_next = true;
    }

    pub fn disable(&mut self) {
        self.disabled = true;
    }

    pub fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// Gives up everything that is held back, for a ring that goes away.
    pub fn clear(&mut self) {
        self.deferred.clear();
    }

    fn next_free(&mut self) -> Option<RequestEntry> {
        let first = self.deferred.front()?;
        if first.after > self.completed {
            return None;
        }
        self.deferred.pop_front().map(|deferred| deferred.request)
    }
}

/// Queues a request behind what it waits for; starts it at once if that is
/// nothing.
pub(crate) fn defer(locked: &mut LockedRing, request: RequestEntry) {
    let waits = core::mem::take(&mut locked.drain.hold_next) || request.has_flag(sqe_flags::IO_DRAIN);
    let mut members = 1;
    let mut link = &request.link;
    while let Some(next) = link {
        members += 1;
        link = &next.link;
    }
    let after = if waits { locked.drain.submitted - members } else { 0 };
    locked.drain.deferred.push_back(Deferred { request, after });
    release(locked);
}

/// Lets go what no longer has to wait; the driver issues it next
/// ([`crate::issue::run_issuable`]).
pub(crate) fn release(locked: &mut LockedRing) {
    while let Some(request) = locked.drain.next_free() {
        locked.issuable.push_back(request);
    }
}
