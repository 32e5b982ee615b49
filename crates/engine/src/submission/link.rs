//! Chains: IO_LINK and IO_HARDLINK. A chain is collected while it is submitted, starts with its
//! head, and goes on as each request completes.

use crate::completion::complete;
use crate::op::read_write;
use crate::request::{Progress, Request, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::issue::{self, Answer};
use crate::submission::{drain, submit};
use crate::waiting::{rights, timeout};
use alloc::vec::Vec;
use usring_sys::Errno;
use usring_uapi::sqe_flags;

/// The chain that is being collected by the submission under way.
#[derive(Default)]
pub(crate) struct Chain {
    members: Vec<RequestEntry>,
    /// A member other than the first drains.
    drains: bool,
}

impl Chain {
    /// Returns the opcode of the member collected last.
    pub fn last_opcode(&self) -> Option<u8> {
        self.members.last().map(|member| member.sqe.opcode)
    }
}

/// Returns whether a request belongs to a chain: it continues one or starts one.
#[inline]
pub(crate) fn takes(locked: &LockedRing, request: &Request) -> bool {
    request.is_linked() || !locked.chain.members.is_empty()
}

/// Adds a request to the chain; the first without a link flag ends it.
pub(crate) fn append(locked: &mut LockedRing, mut request: RequestEntry) {
    if locked.drain.is_active() {
        drain::force(&mut request);
    }
    let ends = !request.is_linked();
    if request.has_flag(sqe_flags::IO_DRAIN)
        && let Some(head) = locked.chain.members.first_mut()
    {
        // A drain in the middle of a chain holds back its head. Requests after the chain wait for
        // all of it.
        head.sqe.flags |= sqe_flags::IO_DRAIN;
        locked.chain.drains = true;
    }
    locked.chain.members.push(request);
    if ends {
        start_chain(locked);
    }
}

/// Starts the chain that is being collected: a chain does not reach beyond the end of a submission.
#[inline]
pub(crate) fn end_of_batch(locked: &mut LockedRing) {
    if !locked.chain.members.is_empty() {
        start_chain(locked);
    }
}

fn start_chain(locked: &mut LockedRing) {
    start_members(locked);
    if core::mem::take(&mut locked.chain.drains) {
        locked.drain.hold_next();
    }
}

fn start_members(locked: &mut LockedRing) {
    if locked.chain.members.iter().any(|member| member.progress == Progress::Refused) {
        return refuse_chain(locked);
    }
    let mut rest: Option<RequestEntry> = None;
    while let Some(mut member) = locked.chain.members.pop() {
        if !locked.chain.members.is_empty() {
            rights::mark_for_later(&mut member);
        }
        member.link = rest.take();
        rest = Some(member);
    }
    if let Some(head) = rest {
        submit::start(locked, head);
    }
}

/// Refuses a chain with a refused member: each member gets its own CQE, or only the head if the
/// head is to be silent.
fn refuse_chain(locked: &mut LockedRing) {
    let members = core::mem::take(&mut locked.chain.members);
    let mut rest = members.into_iter().peekable();
    let Some(mut head) = rest.next() else { return };
    let silent = head.has_flag(sqe_flags::CQE_SKIP_SUCCESS);
    if head.progress != Progress::Refused {
        head.progress = Progress::Refused;
        head.result = Errno::ECANCELED.negative();
    }
    locked.drain.refuse();
    issue::issue(locked, head);
    if let Some(watcher) = rest.next_if(|next| issue::is_link_timeout(next)) {
        timeout::let_go(locked, watcher);
    }
    for member in rest {
        cancel_member(locked, member, silent);
    }
}

/// Moves the chain on: starts, or cancels, the request behind a completed one.
pub(crate) fn advance(locked: &mut LockedRing, completed: &mut Request, answer: Answer) {
    let Some(mut next) = completed.link.take() else { return };
    if issue::is_link_timeout(&next) {
        match timeout::let_go(locked, next) {
            Some(behind) => next = behind,
            None => return,
        }
    }
    if answer.failed && !completed.has_flag(sqe_flags::IO_HARDLINK) {
        cancel_rest(locked, next, completed.has_flag(sqe_flags::CQE_SKIP_SUCCESS));
    } else {
        if completed.progress == Progress::Ran {
            // The kernel's worker would go on with the chain.
            read_write::raise_nothing(&mut next);
        }
        locked.successors.push_back(next);
    }
}

fn cancel_rest(locked: &mut LockedRing, first: RequestEntry, silent: bool) {
    let mut next = Some(first);
    while let Some(mut request) = next {
        next = request.link.take();
        cancel_member(locked, request, silent);
    }
}

/// Cancels one member of a broken chain. The request that broke it decides whether the member has a
/// CQE, not the member itself.
fn cancel_member(locked: &mut LockedRing, mut member: RequestEntry, silent: bool) {
    if silent {
        return complete::drop_quietly(locked, member);
    }
    if member.progress != Progress::Refused {
        member.progress = Progress::Unbegun;
    }
    locked.successors.push_back(member);
}
