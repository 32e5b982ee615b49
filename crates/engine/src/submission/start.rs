//! The first steps of a request: the checks that all opcodes share, the opcode's prepare, and the
//! start.

use crate::probes;
use crate::request::{Properties, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::issue;
use crate::submission::opcode_table::Row;
use usring_sys::Errno;
use usring_uapi::{Sqe, sqe_flags};

/// Starts a request, or the first request of a chain: issues it, unless a drain holds it back.
#[inline(always)]
pub(crate) fn start(locked: &mut LockedRing, mut request: RequestEntry, row: &Row) {
    if locked.queues.drain.may_hold_back(&request) {
        request.recorded_batch = 0;
        hold_back(locked, request);
    } else {
        issue::issue_now::<true>(locked, request, row);
    }
}

#[inline(never)]
fn hold_back(locked: &mut LockedRing, request: RequestEntry) {
    let deferral = probes::is_on(locked.ring).then(|| probes::Deferral::of(locked, &request));
    locked.hold_back(request);
    if let Some(deferral) = deferral
        && locked.queues.drain.has_deferred()
    {
        deferral.fire();
    }
}

/// Makes the checks that all opcodes share, in the kernel's order, and calls the opcode's prepare.
#[inline(always)]
pub(crate) fn prepare(locked: &mut LockedRing, request: &mut RequestEntry, row: &Row) -> Result<(), Errno> {
    let (sqe, properties) = (&request.sqe, &row.properties);
    if !properties.supported || !properties.allowed_on_polled_ring && locked.ring.is_polled() {
        return Err(Errno::EINVAL);
    }
    if sqe.flags != 0 {
        check_flags(locked, sqe, properties)?;
    }
    locked.registered.restrictions.check_submission(sqe.opcode, sqe.flags)?;
    if sqe.ioprio != 0 && !properties.takes_ioprio {
        return Err(Errno::EINVAL);
    }
    if sqe.personality != 0 {
        locked.waiting.rights.join_personality(request)?;
    }
    (row.prepare)(locked, request)
}

fn check_flags(locked: &mut LockedRing, sqe: &Sqe, properties: &Properties) -> Result<(), Errno> {
    if sqe.flags & !sqe_flags::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    if sqe.flags & sqe_flags::BUFFER_SELECT != 0 && !properties.selects_buffer {
        return Err(Errno::EOPNOTSUPP);
    }
    if sqe.flags & sqe_flags::CQE_SKIP_SUCCESS != 0 {
        locked.refuse_drains();
    }
    if sqe.flags & sqe_flags::IO_DRAIN != 0 {
        if locked.queues.drain.is_disabled() {
            return Err(Errno::EOPNOTSUPP);
        }
        // The drain begins even if the request is then refused for another reason.
        locked.activate_drain();
    }
    Ok(())
}
