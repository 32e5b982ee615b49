//! IO_DRAIN: a request that waits for all earlier ones, and those behind it.

use crate::request::RequestEntry;
use crate::rights;
use crate::ring::LockedRing;
use alloc::collections::VecDeque;
use usring_uapi::sqe_flags;

/// What is held back, and the counts by which it is let go.
#[derive(Default)]
pub(crate) struct Drain {
    deferred: VecDeque<Deferred>,
    /// Requests submitted and not completed, chains counted by their members.
    outstanding: u64,
    /// Those among them that are held back here.
    held: u64,
    /// [`ACTIVE`] and [`HOLD_NEXT`].
    state: u8,
    /// A request with CQE_SKIP_SUCCESS was seen: the kernel refuses drains
    /// from then on, because it counts them by CQEs.
    disabled: bool,
}

/// A drain is held back or may be under way: later requests wait until it is done.
const ACTIVE: u8 = 1;
/// The next start waits like a drain (one stood inside a chain).
const HOLD_NEXT: u8 = 2;

struct Deferred {
    request: RequestEntry,
    drains: bool,
    members: u64,
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

    /// Requests submitted and not completed.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    #[inline]
    pub fn is_active(&self) -> bool {
        self.state != 0
    }

    /// Lets what comes wait until a request has found nothing to wait for.
    pub fn activate(&mut self) {
        self.state |= ACTIVE;
    }

    pub fn hold_next(&mut self) {
        self.state |= HOLD_NEXT;
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
}

/// Queues a request behind what it waits for; starts it at once if that is
/// nothing.
pub(crate) fn defer(locked: &mut LockedRing, mut request: RequestEntry) {
    let drains = locked.drain.state & HOLD_NEXT != 0 || request.has_flag(sqe_flags::IO_DRAIN);
    rights::mark_for_later(&mut request);
    let mut members = 1;
    let mut link = &request.link;
    while let Some(next) = link {
        members += 1;
        link = &next.link;
    }
    locked.drain.held += members;
    locked.drain.state = ACTIVE;
    locked.drain.deferred.push_back(Deferred { request, drains, members });
    release(locked);
    // One that did not have to wait, and nobody has to wait for.
    let is_active = drains || !locked.drain.deferred.is_empty();
    locked.drain.state = if is_active { ACTIVE } else { 0 };
}

/// Releases the oldest request when no other is under way, and those behind it up to the
/// next drain. So no request overtakes a drain that has been released either.
///
/// The driver issues released requests behind their batch, as it issues the successors of
/// a chain. Requests that follow a drain in its batch wait for it. The ring drains until a
/// request has found nothing to wait for.
pub(crate) fn release(locked: &mut LockedRing) {
    let mut first = true;
    let mut drain_seen = false;
    while let Some(oldest) = locked.drain.deferred.front() {
        drain_seen |= oldest.drains;
        if (first || drain_seen) && locked.drain.outstanding != locked.drain.held {
            return;
        }
        first = false;
        let Some(Deferred { request, members, .. }) = locked.drain.deferred.pop_front() else { return };
        locked.drain.held -= members;
        locked.successors.push_back(request);
    }
}
