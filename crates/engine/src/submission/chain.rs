//! The chain of linked requests that a submission has collected so far. `link` fills and starts it.

use crate::request::RequestEntry;
use alloc::vec::Vec;

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
}
