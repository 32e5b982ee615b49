//! Tells the observers of requests that a request is complete, or that a ring is closed.

use crate::observers::{self, Completed, Identity};
use crate::request::outcome::Answer;
use crate::request::{Progress, Request};
use crate::ring::LockedRing;
use alloc::sync::Arc;
use usring_record::requests;
use usring_uapi::sqe_flags;

/// Tells the recorder and the observers that a request is complete. Called before its CQE is
/// posted. `posts`: the request posts a CQE.
#[cold]
#[inline(never)]
pub(crate) fn completed(locked: &LockedRing, request: &mut Request, answer: Answer, posts: bool) {
    request.is_watched = false;
    if request.recorded != 0 {
        requests::complete(core::mem::take(&mut request.recorded));
    }
    if !observers::are_any() {
        return;
    }
    let is_hard = request.has_flag(sqe_flags::IO_HARDLINK);
    let completed = Completed {
        request: Identity { ring: Arc::as_ptr(locked.ring) as u64, number: request.id.0 },
        result: answer.result,
        position: posts.then(|| locked.queues.cq.end()),
        consumed: locked.queues.cq.consumed(),
        breaks_chain: answer.failed && answer.result > 0 && request.link.is_some() && !is_hard,
        has_not_begun: request.progress == Progress::NotStarted,
    };
    observers::for_each(|observer| (observer.completed)(&completed));
}

/// Tells the observers that a ring is being closed.
pub(crate) fn closed(locked: &LockedRing) {
    if observers::are_any() {
        let ring = Arc::as_ptr(locked.ring) as u64;
        let (consumed, tail) = (locked.queues.cq.consumed(), locked.queues.cq.tail());
        observers::for_each(|observer| (observer.closed)(ring, consumed, tail));
    }
}
