//! Turns entries of the submission queue into requests: copies each entry once, makes the checks
//! that all opcodes share, and calls the opcode's prepare. Then passes the request to its chain, to
//! the drain, or straight to issue.

use crate::driving::{batch, order};
use crate::request::{Progress, RequestEntry};
use crate::ring::{LockedRing, Ring};
use crate::submission::opcode_table::{self, Row};
use crate::submission::{faults, issue, link, observation, recording, start};
use usring_sys::unusual::{self, Unusual};
use usring_sys::{credentials, memory_reserve};
use usring_uapi::io_uring::IORING_SETUP_SUBMIT_ALL;

/// Submits up to `wanted` entries and returns how many it has taken from the SQ. A refused entry
/// gets its CQE and, without SUBMIT_ALL, ends the batch. If memory is low, entries stay in the SQ.
pub(crate) fn submit(locked: &mut LockedRing, wanted: u32) -> u32 {
    if is_unusual(locked.ring) { submit_unusual(locked, wanted) } else { submit_usual(locked, wanted) }
}

/// Returns whether a submission has to take the path for unusual states, such as threads with
/// different credentials, low memory, or other processes that share the ring.
#[inline(always)]
pub(crate) fn is_unusual(ring: &Ring) -> bool {
    unusual::any() || ring.is_shared()
}

/// Submits as [`submit`] does, if [`is_unusual`] returned `false`.
pub(crate) fn submit_usual(locked: &mut LockedRing, wanted: u32) -> u32 {
    submit_batch::<false, false>(locked, wanted)
}

/// Submits as [`submit`] does, if [`is_unusual`] returned `true`.
#[cold]
#[inline(never)]
pub(crate) fn submit_unusual(locked: &mut LockedRing, wanted: u32) -> u32 {
    if memory_reserve::check().is_err() {
        return 0;
    }
    if locked.ring.is_shared() {
        locked.take_part();
    }
    let is_ordered = unusual::has(Unusual::Order);
    if is_ordered {
        order::await_chosen(locked);
    }
    if !credentials::may_differ() {
        let taken = submit_batch::<false, true>(locked, wanted);
        if is_ordered && taken != 0 {
            order::choose_some(locked);
        }
        return taken;
    }
    // Threads have different credentials. So a request that needs a worker goes to a worker with
    // the calling thread's credentials.
    let outstanding = locked.queues.drain.outstanding();
    locked.waiting.rights.begin_submission(outstanding);
    let taken = submit_batch::<true, true>(locked, wanted);
    locked.waiting.rights.end_submission();
    taken
}

/// Submits a batch. `BY_GROUP`: only workers with the calling thread's credentials may run the
/// requests. `COMMITS_EACH`: the SQ's head moves past each entry before the request is issued. If
/// the process then dies, no other process submits the entry again.
#[inline(always)]
fn submit_batch<const BY_GROUP: bool, const COMMITS_EACH: bool>(locked: &mut LockedRing, wanted: u32) -> u32 {
    let available = locked.queues.sq.pending().min(wanted);
    locked.devices.named.begin_submission();
    let submit_all = locked.ring.has(IORING_SETUP_SUBMIT_ALL);
    let tail = locked.queues.cq.tail();
    locked.waiting.timeouts.begin_batch(tail);
    let mut taken = 0;
    let recorded_batch = if BY_GROUP || COMMITS_EACH { recording::begin_batch() } else { 0 };
    for _ in 0..available {
        let Some(mut request) = locked.queues.pool.take() else { break };
        // `next_into` skips an SQ array index that is out of range, and counts the entry as
        // dropped. As in the kernel, the batch ends at such an index.
        let Some(Ok(())) = locked.queues.sq.next_into(&mut request.sqe) else {
            locked.queues.pool.give_back(request);
            break;
        };
        let row = match (BY_GROUP || COMMITS_EACH) && faults::have_rows() {
            true => faults::row(request.sqe.opcode),
            false => opcode_table::row(request.sqe.opcode),
        };
        request.begin(&row.properties);
        if BY_GROUP || COMMITS_EACH {
            (request.was_asked, request.is_watched, request.is_only_probed) = (false, false, false);
            request.rule_count = 0;
            (request.recorded, request.recorded_batch) = (0, recorded_batch);
        }
        if COMMITS_EACH {
            locked.take_by_journal(&mut request);
        }
        taken += 1;
        if !submit_one::<BY_GROUP, COMMITS_EACH>(locked, request, row) && !submit_all {
            break;
        }
    }
    link::end_of_batch(locked);
    if locked.queues.drain.has_refused() {
        locked.end_batch_with_refused();
    }
    batch::run_issuable(locked);
    locked.devices.named.end_submission();
    locked.queues.sq.commit();
    taken
}

/// Prepares a request, and passes it to its chain, to the drain or to issue. Returns whether the
/// batch continues after this entry.
#[inline(always)]
fn submit_one<const BY_GROUP: bool, const COMMITS_EACH: bool>(
    locked: &mut LockedRing,
    mut request: RequestEntry,
    row: &Row,
) -> bool {
    locked.queues.statistics.count_submitted(request.sqe.opcode);
    let mut ends_batch = false;
    let accepted = match start::prepare(locked, &mut request, row) {
        Ok(()) => true,
        Err(error) => {
            request.progress = Progress::Refused;
            request.result = error.negative();
            // A chain is refused as a whole, so this loop goes on to the end of the chain.
            ends_batch = !request.is_linked();
            false
        }
    };
    if BY_GROUP {
        locked.waiting.rights.join_submitters_group(&mut request);
    }
    if BY_GROUP || COMMITS_EACH {
        observation::submitted(locked, &mut request);
    }
    locked.queues.drain.admit();
    if link::takes(locked, &request) {
        link::append(locked, request);
    } else if accepted {
        start::start(locked, request, row);
    } else {
        // A request that was refused gets its CQE at once, even while an IO_DRAIN holds other
        // requests back.
        locked.queues.drain.refuse();
        issue::issue(locked, request);
    }
    batch::run_issuable_of_batch(locked);
    !ends_batch
}
