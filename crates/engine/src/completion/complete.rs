//! The end of a request: posts its CQE, moves its chain on, and releases what it held.

use crate::op::send_receive;
use crate::request::RequestEntry;
use crate::ring::{LockedRing, RingState};
use crate::submission::issue::Answer;
use crate::submission::{drain, link};
use crate::waiting::{rights, timeout};
use usring_sys::Errno;
use usring_uapi::io_uring::{IORING_CQE_F_MORE, IORING_CQE_F_NOTIF};
use usring_uapi::{Cqe, sqe_flags};

/// Completes a request: posts exactly one CQE without F_MORE, or none where the program asked for
/// silence on success.
#[inline(always)]
pub(crate) fn complete(locked: &mut LockedRing, mut request: RequestEntry, answer: Answer) {
    locked.statistics.count_completed(request.sqe.opcode, answer.result);
    if answer.failed || !request.has_flag(sqe_flags::CQE_SKIP_SUCCESS) {
        let mut flags = request.cqe_flags;
        if request.buffer.is_some() {
            flags |= locked.groups.flags_of(&mut request.buffer);
        }
        let cqe = Cqe { user_data: request.sqe.user_data, res: answer.result, flags };
        let ring = locked.ring;
        let RingState { cq, told, .. } = &mut **locked;
        cq.post_wide(cqe, || request.extension(ring, told));
        if cqe.flags & IORING_CQE_F_MORE != 0 {
            notify(locked, request.sqe.user_data, send_receive::usage(&request, answer.result));
        }
    }
    settle(locked, request, answer);
}

/// Posts the notification of a request whose own CQE announced it: the memory that was sent is the
/// program's again.
#[cold]
fn notify(locked: &mut LockedRing, user_data: u64, usage: i32) {
    locked.cq.post(Cqe { user_data, res: usage, flags: IORING_CQE_F_NOTIF });
}

/// Cancels a request of a broken chain that has not begun. Its CQE does not announce a
/// notification, but one follows.
pub(crate) fn cancel_unbegun(locked: &mut LockedRing, mut request: RequestEntry) {
    let notifies = core::mem::take(&mut request.cqe_flags) & IORING_CQE_F_MORE != 0;
    let user_data = request.sqe.user_data;
    complete(locked, request, Errno::ECANCELED.negative().into());
    if notifies {
        notify(locked, user_data, 0);
    }
}

/// Ends a request of a broken chain that asked for no CQE.
pub(crate) fn drop_quietly(locked: &mut LockedRing, request: RequestEntry) {
    settle(locked, request, Answer { result: 0, failed: true });
}

#[inline(always)]
fn settle(locked: &mut LockedRing, mut request: RequestEntry, answer: Answer) {
    locked.drain.retire();
    if locked.rights.count_requests() {
        rights::leave(locked, &request);
    }
    // A buffer that no CQE has named (silent success) counts as used up, as on the kernel. Giving
    // it back could hand out a buffer that a later read has.
    request.buffer = None;
    if request.link_timeout.is_some() {
        timeout::disarm_link_timeout(locked, &mut request);
    }
    if request.link.is_some() {
        link::advance(locked, &mut request, answer);
    }
    locked.pool.give_back(request);
    if locked.drain.is_active() {
        drain::release(locked);
    }
}

/// Posts one of many CQEs of a multishot request. `false`: it would go to the backlog, and
/// the request must end; its last CQE is then posted without F_MORE.
pub(crate) fn post_more(locked: &mut LockedRing, user_data: u64, result: i32, flags: u32) -> bool {
    if locked.cq.is_full() {
        return false;
    }
    locked.cq.post(Cqe { user_data, res: result, flags: flags | IORING_CQE_F_MORE });
    true
}

/// Posts a CQE that belongs to no request (tags of retired resources).
pub(crate) fn post_tag(locked: &mut LockedRing, user_data: u64) {
    locked.cq.post(Cqe { user_data, res: 0, flags: 0 });
}
