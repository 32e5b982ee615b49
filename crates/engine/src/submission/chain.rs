//! The chain of linked requests that a submission has collected so far. `link` fills and starts it.

use crate::request::{Progress, RequestEntry};
use alloc::vec::Vec;
use usring_uapi::sqe_flags;

/// The linked requests that the current submission has collected for one chain.
#[derive(Default)]
pub(crate) struct Chain {
    pub members: Vec<RequestEntry>,
    /// Whether a request of the chain after the first has IOSQE_IO_DRAIN.
    pub drains: bool,
}

impl Chain {
    /// Returns the opcode of the request that was collected last.
    pub fn last_opcode(&self) -> Option<u8> {
        self.members.last().map(|member| member.sqe.opcode)
    }

    /// Adds a request at the end of the chain. Returns whether this request is the last one: it has
    /// no link flag.
    pub fn add(&mut self, request: RequestEntry) -> bool {
        let ends = !request.is_linked();
        if request.has_flag(sqe_flags::IO_DRAIN)
            && let Some(head) = self.members.first_mut()
        {
            // IO_DRAIN on a later request of a chain holds back the whole chain. Requests after the
            // chain wait until the whole chain has completed.
            head.sqe.flags |= sqe_flags::IO_DRAIN;
            self.drains = true;
        }
        self.members.push(request);
        ends
    }

    /// Returns whether the prepare of one of the chain's requests failed.
    pub fn has_refused(&self) -> bool {
        self.members.iter().any(|member| member.progress == Progress::Refused)
    }

    /// Takes all requests out of the chain, each linked to the next, and returns the first. Marks
    /// all but the first, because their first attempt may come after the submission.
    pub fn take_joined(&mut self) -> Option<RequestEntry> {
        let mut rest: Option<RequestEntry> = None;
        while let Some(mut member) = self.members.pop() {
            if !self.members.is_empty() {
                member.mark_for_later();
            }
            member.link = rest.take();
            rest = Some(member);
        }
        rest
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::request::pool::new_entry;

    fn request(user_data: u64, flags: u8) -> RequestEntry {
        let mut request = new_entry();
        request.sqe.user_data = user_data;
        request.sqe.flags = flags;
        request
    }

    #[test]
    fn a_chain_ends_with_the_first_request_without_a_link_flag() {
        let mut chain = Chain::default();
        assert!(!chain.add(request(1, sqe_flags::IO_LINK)));
        assert!(!chain.add(request(2, sqe_flags::IO_HARDLINK)));
        assert!(chain.add(request(3, 0)));
        assert!(!chain.drains);
    }

    #[test]
    fn the_requests_are_linked_in_the_order_of_their_submission() {
        let mut chain = Chain::default();
        for user_data in 1..=3 {
            chain.add(request(user_data, sqe_flags::IO_LINK));
        }
        let mut next = chain.take_joined();
        let mut order = Vec::new();
        while let Some(mut member) = next {
            order.push((member.sqe.user_data, member.sqe.flags != sqe_flags::IO_LINK));
            next = member.link.take();
        }
        // The second value of each pair: whether the request may be tried only after the
        // submission.
        assert_eq!(order, [(1, false), (2, true), (3, true)]);
        assert!(chain.take_joined().is_none());
    }

    #[test]
    fn a_drain_within_a_chain_holds_back_the_whole_chain() {
        let mut chain = Chain::default();
        chain.add(request(1, sqe_flags::IO_LINK));
        chain.add(request(2, sqe_flags::IO_DRAIN));
        assert!(chain.drains);
        assert!(chain.members[0].has_flag(sqe_flags::IO_DRAIN));
    }

    #[test]
    fn a_drain_at_the_head_of_a_chain_is_a_drain_like_any_other() {
        let mut chain = Chain::default();
        chain.add(request(1, sqe_flags::IO_LINK | sqe_flags::IO_DRAIN));
        chain.add(request(2, 0));
        assert!(!chain.drains);
    }

    #[test]
    fn one_refused_request_refuses_the_chain() {
        let mut chain = Chain::default();
        chain.add(request(1, sqe_flags::IO_LINK));
        assert!(!chain.has_refused());
        let mut refused = request(2, 0);
        refused.progress = Progress::Refused;
        chain.add(refused);
        assert!(chain.has_refused());
    }
}
