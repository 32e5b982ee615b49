//! The work that other processes of a shared ring cause. They die, or post news: they announce a
//! change that this process has to handle (`waiting::process_rings`).

use crate::driving::{batch, ended};
use crate::op::{poll, timeout};
use crate::ring::LockedRing;
use crate::waiting::asks::Change;
use crate::waiting::{asked_changes, cancel};
use usring_sys::Errno;

/// Handles the news of a shared ring, which are changes by other processes:
///
/// - The first time, prepares this process for the shared ring.
/// - Makes the change that another process asks for.
/// - Releases requests that an IO_DRAIN has held back and that no longer wait, and issues them.
/// - If this process depends on the others: completes the requests of processes that have died, and
///   takes the answers of processes that it has asked for a change. Also signals its own pollers of
///   the ring's descriptor.
#[cold]
pub(crate) fn look(locked: &mut LockedRing) {
    locked.take_part();
    make_asked_change(locked);
    if ended::between_looks(locked).is_some() {
        ended::complete(locked);
        asked_changes::proceed(locked);
        locked.signal_own_pollers();
    } else if locked.queues.drain.is_active() {
        locked.release_held();
    }
    batch::run_issuable(locked);
}

/// Makes the change that another process asks for, and answers.
fn make_asked_change(locked: &mut LockedRing) {
    let slot = locked.ring.control.change_slot(locked.ring.process_number());
    let Some(words) = slot.asked() else { return };
    let answer = match Change::decode(words) {
        Some(Change::Cancel(key)) => cancel::cancel(locked, &key),
        Some(Change::Poll(update)) => poll::update(locked, update),
        Some(Change::Timeout(update)) => timeout::update(locked, update),
        None => Err(Errno::EINVAL),
    };
    slot.answer(answer.unwrap_or_else(Errno::negative));
    locked.call_other_processes();
}
