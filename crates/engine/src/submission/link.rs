//! Chains of requests (IOSQE_IO_LINK, IOSQE_IO_HARDLINK). A submission collects a chain and starts
//! its first request. Each request starts the next one when it completes.

use crate::completion::complete;
use crate::probes;
use crate::request::{Progress, Request, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::{drain, issue, start};
use usring_sys::Errno;
use usring_uapi::sqe_flags;

/// Returns whether a request continues the chain that is being collected, or starts a chain.
#[inline]
pub(crate) fn takes(locked: &LockedRing, request: &Request) -> bool {
    request.is_linked() || !locked.queues.chain.members.is_empty()
}

/// Adds a request to the chain. A request without a link flag ends the chain, which then starts.
pub(crate) fn append(locked: &mut LockedRing, mut request: RequestEntry) {
    if locked.queues.drain.is_active() {
        drain::force_async(&mut request);
    }
    if locked.queues.chain.add(request) {
        start_chain(locked);
    }
}

/// Starts the chain that is being collected, because the submission ends. The next submission
/// cannot continue this chain.
#[inline]
pub(crate) fn end_of_batch(locked: &mut LockedRing) {
    if !locked.queues.chain.members.is_empty() {
        start_chain(locked);
    }
}

fn start_chain(locked: &mut LockedRing) {
    start_members(locked);
    if core::mem::take(&mut locked.queues.chain.drains) {
        locked.queues.drain.hold_next();
    }
}

fn start_members(locked: &mut LockedRing) {
    if locked.queues.chain.has_refused() {
        return refuse_chain(locked);
    }
    if let Some(head) = locked.queues.chain.take_joined() {
        let row = issue::row_of(&head);
        if probes::is_on(locked.ring) && !locked.queues.drain.may_hold_back(&head) {
            probes::file_get(locked, &head);
        }
        start::start(locked, head, row);
    }
}

/// Refuses a chain because the prepare of one of its requests failed. Each request of the chain
/// gets its own CQE. Exception: if the first request has CQE_SKIP_SUCCESS, only the first and a
/// LINK_TIMEOUT directly after it get CQEs.
fn refuse_chain(locked: &mut LockedRing) {
    let members = core::mem::take(&mut locked.queues.chain.members);
    if probes::is_on(locked.ring) {
        probes::refused(locked, &members);
    }
    let mut rest = members.into_iter().peekable();
    let Some(mut head) = rest.next() else { return };
    let silent = head.has_flag(sqe_flags::CQE_SKIP_SUCCESS);
    if head.progress != Progress::Refused {
        head.progress = Progress::Refused;
        head.result = Errno::ECANCELED.negative();
    }
    locked.queues.drain.refuse();
    issue::issue(locked, head);
    if let Some(watcher) = rest.next_if(|next| next.is_link_timeout()) {
        complete::detach_link_timeout(locked, watcher);
    }
    for member in rest {
        complete::cancel_member(locked, member, silent);
    }
}
