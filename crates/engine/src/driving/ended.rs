//! Requests of processes that have ended, on a ring that processes share. A waiter of another
//! process completes them, because it may wait for their CQEs.
//!
//! The kernel ends such a request when its worker or its file is called next. Here all end at once,
//! because no other process has the file.

use crate::ring::{LockedRing, Queues};
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_sys::process_number;
use usring_uapi::Cqe;

/// Longest sleep of a waiter while other processes have requests in flight. After it the waiter
/// checks whether those processes are alive.
const BETWEEN_LOOKS: Nanoseconds = 10_000_000;

/// Completes the requests of processes that have ended, with −ECANCELED. For a waiter of a shared
/// ring that is about to sleep. Returns whether there were any.
#[cold]
pub(crate) fn complete(locked: &mut LockedRing) -> bool {
    let ended = locked.journal().take_from_dead(process_number::is_alive);
    for (slot, user_data) in &ended {
        locked.queues.cq.post(Cqe { user_data: *user_data, res: Errno::ECANCELED.negative(), flags: 0 });
        let Queues { journal, cq, .. } = &mut locked.queues;
        if let Some(journal) = journal {
            journal.end(*slot, cq);
        }
    }
    !ended.is_empty()
}

/// Returns how long a waiter of a shared ring may sleep.
pub(crate) fn bound_sleep(locked: &mut LockedRing, span: Option<Nanoseconds>) -> Option<Nanoseconds> {
    match locked.journal().has_others() {
        true => Some(span.map_or(BETWEEN_LOOKS, |span| span.min(BETWEEN_LOOKS))),
        false => span,
    }
}
