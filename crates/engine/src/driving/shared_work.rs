//! The work that other processes of a shared ring cause: by their death, or by a notice. A notice
//! announces a change that this process has to handle (`waiting::process_rings`).

use crate::driving::{batch, ended};
use crate::op::{poll, timeout};
use crate::request::conditions::CancelKey;
use crate::ring::LockedRing;
use crate::waiting::remote_changes::Change;
use crate::waiting::workers::{self, Cancelled};
use crate::waiting::{ask_processes, cancel};
use usring_sys::{Errno, process_number};
use usring_uapi::io_uring as abi;

/// Handles the notices of a shared ring, which announce changes by other processes:
///
/// - At the first notice, prepares this process for the shared ring.
/// - Cancels the requests that another process has cancelled while this process was stopped.
/// - Makes the change that another process asks for.
/// - Issues requests that an IO_DRAIN has held back, if they have nothing left to wait for.
/// - If a request of this process waits for another process, or this process polls the ring's
///   descriptor:
///   - Completes the requests of processes that have died.
///   - Takes the answers of other processes to the changes that this process has asked for.
///   - Makes the ring's descriptor readable if this process polls it and there are CQEs.
#[cold]
pub(crate) fn check(locked: &mut LockedRing) {
    locked.take_part();
    cancel_marked_of_workers(locked);
    make_requested_change(locked);
    if ended::check_interval(locked).is_some() {
        ended::complete(locked);
        ask_processes::proceed(locked);
        locked.signal_own_pollers();
    } else if locked.queues.drain.is_active() {
        locked.release_held();
    }
    batch::run_issuable(locked);
}

/// Another process may have cancelled requests of this process while this process was stopped: the
/// other process has marked their slots of the journal. Cancels those marked requests that run on
/// workers; `waiting::process_rings` has cancelled the others. Finds each request by its slot,
/// because a request without a mark may have an equal `user_data`.
fn cancel_marked_of_workers(locked: &mut LockedRing) {
    for slot in locked.journal().own_cancelled() {
        if let Cancelled::Waiting(request) = workers::cancel(locked.ring, |view| view.journal == Some(slot)) {
            locked.queue_cancelled(request);
        }
    }
}

/// Makes the change that another process asks for, and stores the answer.
fn make_requested_change(locked: &mut LockedRing) {
    let slot = locked.ring.control.change_slot(locked.ring.process_number());
    let Some(words) = slot.requested_change() else { return };
    let answer = match Change::decode(words) {
        Some(Change::Cancel(key)) => cancel_for(locked, key, slot.asker()),
        Some(Change::Poll(update)) => poll::update(locked, update),
        Some(Change::Timeout(update)) => timeout::update(locked, update),
        None => Err(Errno::EINVAL),
    };
    slot.answer(answer.unwrap_or_else(Errno::negative));
    locked.call_other_processes();
}

/// Makes the cancellation that the process with the number `asker` asks for.
fn cancel_for(locked: &mut LockedRing, mut key: CancelKey, asker: u32) -> Result<i32, Errno> {
    if key.has(abi::IORING_ASYNC_CANCEL_FD) {
        key.process = Some(process_number::process_id(asker).ok_or(Errno::ENOENT)?);
    }
    cancel::cancel(locked, &key)
}
