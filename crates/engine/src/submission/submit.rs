//! From the submission queue to a request: copies each entry once, checks what all opcodes share,
//! and has the opcode's family prepare it. Then passes the request on to its chain, the drain or
//! straight to issue.

use crate::request::{Progress, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::{drain, issue, link, opcode_table};
use crate::waiting::{rights, timeout};
use usring_sys::{Errno, credentials, memory_reserve, unusual};
use usring_uapi::io_uring::IORING_SETUP_SUBMIT_ALL;
use usring_uapi::{Sqe, sqe_flags};

/// Submits up to `wanted` entries and returns how many were taken. An entry that is refused gets
/// its CQE and, without SUBMIT_ALL, ends the batch. Where memory is low, entries stay in the SQ.
pub(crate) fn submit(locked: &mut LockedRing, wanted: u32) -> u32 {
    if unusual::any() { submit_unusual(locked, wanted) } else { submit_batch::<false>(locked, wanted) }
}

#[cold]
#[inline(never)]
fn submit_unusual(locked: &mut LockedRing, wanted: u32) -> u32 {
    if memory_reserve::check().is_err() {
        return 0;
    }
    if !credentials::differ() {
        return submit_batch::<false>(locked, wanted);
    }
    // The calling thread differs from other threads, so the requests get its own group.
    rights::begin_submission(locked);
    let taken = submit_batch::<true>(locked, wanted);
    rights::end_submission(locked);
    taken
}

#[inline(always)]
fn submit_batch<const BY_GROUP: bool>(locked: &mut LockedRing, wanted: u32) -> u32 {
    let available = locked.sq.pending().min(wanted);
    locked.named.begin_submission();
    let submit_all = locked.ring.has(IORING_SETUP_SUBMIT_ALL);
    timeout::begin_batch(locked);
    let mut taken = 0;
    for _ in 0..available {
        let Some(mut request) = locked.pool.take() else { break };
        // The queue drops and counts an index beyond its end; the kernel ends the batch there.
        let Some(Ok(())) = locked.sq.next_into(&mut request.sqe) else {
            locked.pool.give_back(request);
            break;
        };
        request.begin();
        taken += 1;
        if !submit_one::<BY_GROUP>(locked, request) && !submit_all {
            break;
        }
    }
    link::end_of_batch(locked);
    if locked.drain.has_refused() {
        drain::end_of_batch(locked);
    }
    issue::run_issuable(locked);
    locked.named.end_submission();
    locked.sq.commit();
    taken
}

/// Returns whether the batch goes on after the entry.
#[inline(always)]
fn submit_one<const BY_GROUP: bool>(locked: &mut LockedRing, mut request: RequestEntry) -> bool {
    locked.statistics.count_submitted(request.sqe.opcode);
    let mut ends_batch = false;
    let accepted = match prepare(locked, &mut request) {
        Ok(()) => true,
        Err(error) => {
            request.progress = Progress::Refused;
            request.result = error.negative();
            // A chain is collected to its end, to be refused as a whole.
            ends_batch = !request.is_linked();
            false
        }
    };
    if BY_GROUP {
        rights::mark(locked, &mut request);
    }
    locked.drain.admit();
    if link::takes(locked, &request) {
        link::append(locked, request);
    } else if accepted {
        start(locked, request);
    } else {
        // Refused at once, even behind a drain.
        locked.drain.refuse();
        issue::issue(locked, request);
    }
    issue::run_issuable_of_batch(locked);
    !ends_batch
}

/// Issues a request, or the head of a chain, unless a drain holds it back.
#[inline(always)]
pub(crate) fn start(locked: &mut LockedRing, request: RequestEntry) {
    if locked.drain.is_active() || request.has_flag(sqe_flags::IO_DRAIN) {
        drain::defer(locked, request);
    } else {
        issue::issue_now(locked, request);
    }
}

/// Checks what all opcodes share, in the kernel's order, and prepares the request.
#[inline(always)]
pub(crate) fn prepare(locked: &mut LockedRing, request: &mut RequestEntry) -> Result<(), Errno> {
    let (sqe, row) = (&request.sqe, request.row);
    if !row.supported || !row.allowed_on_polled_ring && locked.ring.is_polled() {
        return Err(Errno::EINVAL);
    }
    if sqe.flags != 0 {
        check_flags(locked, sqe, row)?;
    }
    locked.restrictions.check_submission(sqe.opcode, sqe.flags)?;
    if sqe.ioprio != 0 && !row.takes_ioprio {
        return Err(Errno::EINVAL);
    }
    if sqe.personality != 0 {
        rights::adopt(locked, request)?;
    }
    (row.prepare)(locked, request)
}

fn check_flags(locked: &mut LockedRing, sqe: &Sqe, row: &opcode_table::Row) -> Result<(), Errno> {
    if sqe.flags & !sqe_flags::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    if sqe.flags & sqe_flags::BUFFER_SELECT != 0 && !row.selects_buffer {
        return Err(Errno::EOPNOTSUPP);
    }
    if sqe.flags & sqe_flags::CQE_SKIP_SUCCESS != 0 {
        locked.drain.disable();
    }
    if sqe.flags & sqe_flags::IO_DRAIN != 0 {
        if locked.drain.is_disabled() {
            return Err(Errno::EOPNOTSUPP);
        }
        // This includes requests that are refused for another reason.
        locked.drain.activate();
    }
    Ok(())
}
