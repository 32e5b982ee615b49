//! Notifies the observers and the tracers when a request posts a CQE or completes. Also notifies
//! the observers when a ring is made or closed.

use crate::observers::{self, Closed, Completed, Identity, Opened, Step, Stepped};
use crate::probes;
use crate::registered::buffer_group::SelectedBuffer;
use crate::request::outcome::Answer;
use crate::request::{Progress, Request};
use crate::ring::{LockedRing, Ring};
use alloc::sync::Arc;
use usring_record::requests;
use usring_uapi::{Cqe, sqe_flags};

/// Notifies the recorder of `usring crash`, the observers and the tracers that a request is
/// complete. Called before the request's CQE is posted. `posts`: the request posts a CQE.
#[cold]
#[inline(never)]
pub(crate) fn completed(locked: &mut LockedRing, request: &mut Request, answer: Answer, posts: bool) {
    let flags = request.cqe_flags | request.buffer.as_ref().map_or(0, SelectedBuffer::cqe_flags);
    if posts && probes::is_on(locked.ring) {
        let cqe = Cqe { user_data: request.sqe.user_data, res: answer.result, flags };
        probes::posts(locked, Some(request), cqe);
    }
    request.is_watched = false;
    if core::mem::take(&mut request.is_only_probed) {
        return;
    }
    if request.recorded != 0 {
        requests::complete(core::mem::take(&mut request.recorded));
    }
    if !observers::are_any() {
        return;
    }
    let is_hard = request.has_flag(sqe_flags::IO_HARDLINK);
    let (_, user_data, _) = locked.ring.rule_words(&request.sqe);
    let completed = Completed {
        request: Identity { ring: Arc::as_ptr(locked.ring) as u64, number: request.id.0 },
        ring_number: locked.ring.observed_number(),
        sqe: &request.sqe,
        user_data,
        flags,
        result: answer.result,
        position: posts.then(|| locked.queues.cq.end()),
        consumed: locked.queues.cq.consumed(),
        breaks_chain: answer.failed && answer.result > 0 && request.link.is_some() && !is_hard,
        has_not_begun: request.progress == Progress::NotStarted,
    };
    observers::for_each(|observer| (observer.completed)(&completed));
}

/// Notifies the observers and the tracers that a request posts a CQE and is not complete yet.
#[cold]
#[inline(never)]
pub(super) fn posted(locked: &mut LockedRing, request: &Request, result: i32, flags: u32) {
    if probes::is_on(locked.ring) {
        // As in the kernel, only the last CQE of a multishot names its request, and this CQE is not
        // the last.
        probes::posts(locked, None, Cqe { user_data: request.sqe.user_data, res: result, flags });
    }
    if !request.is_watched || request.is_only_probed {
        return;
    }
    let (_, user_data, _) = locked.ring.rule_words(&request.sqe);
    let (position, consumed) = (locked.queues.cq.end(), locked.queues.cq.consumed());
    let stepped = Stepped {
        number: request.id.0,
        ring_number: locked.ring.observed_number(),
        sqe: &request.sqe,
        user_data,
        step: Step::Posted { result, flags, position, consumed },
    };
    observers::for_each(|observer| observer.stepped.into_iter().for_each(|notify| notify(&stepped)));
}

/// Notifies the observers that the process has made a ring.
pub(crate) fn opened(ring: &Ring) {
    if observers::are_any() {
        let layout = ring.memory.layout();
        let opened = Opened {
            ring_number: ring.number,
            flags: ring.flags,
            sq_entries: layout.sq_entries,
            cq_entries: layout.cq_entries,
        };
        observers::for_each(|observer| (observer.opened)(&opened));
    }
}

/// Notifies the observers that a ring is being closed.
pub(crate) fn closed(locked: &LockedRing) {
    if observers::are_any() {
        let closed = Closed {
            ring: Arc::as_ptr(locked.ring) as u64,
            ring_number: locked.ring.observed_number(),
            consumed: locked.queues.cq.consumed(),
            tail: locked.queues.cq.tail(),
        };
        observers::for_each(|observer| (observer.closed)(&closed));
    }
}
