//! The work that other processes of a shared ring cause: by their death, or by a notice. A notice
//! announces a change that this process has to handle (`waiting::process_rings`).

use crate::driving::{batch, ended};
use crate::op::{poll, timeout};
use crate::ring::LockedRing;
use crate::waiting::remote_changes::Change;
use crate::waiting::{ask_processes, cancel};
use usring_sys::Errno;

/// Handles the notices of a shared ring, which announce changes by other processes:
///
/// - The first time, prepares this process for the shared ring.
/// - Makes the change that another process asks for.
/// - Issues requests that an IO_DRAIN has held back, if they have nothing left to wait for.
/// - If a request of this process waits for another process, or this process polls the ring's
///   descriptor:
///   - Completes the requests of processes that have died.
///   - Takes the answers of processes that it has asked for a change.
///   - Makes the ring's descriptor readable if this process polls it and there are CQEs.
#[cold]
pub(crate) fn check(locked: &mut LockedRing) {
    locked.take_part();
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

/// Makes the change that another process asks for, and stores the answer.
fn make_requested_change(locked: &mut LockedRing) {
    let slot = locked.ring.control.change_slot(locked.ring.process_number());
    let Some(words) = slot.requested_change() else { return };
    let answer = match Change::decode(words) {
        Some(Change::Cancel(key)) => cancel::cancel(locked, &key),
        Some(Change::Poll(update)) => poll::update(locked, update),
        Some(Change::Timeout(update)) => timeout::update(locked, update),
        None => Err(Errno::EINVAL),
    };
    slot.answer(answer.unwrap_or_else(Errno::negative));
    locked.call_other_processes();
}
