//! The chain that a submission is collecting. `link` fills and starts it.

use crate::request::RequestEntry;
use alloc::vec::Vec;

/// The chain that the submission under way is collecting.
#[derive(Default)]
pub(crate) struct Chain {
    pub members: Vec<RequestEntry>,
    /// Whether a member other than the head has IOSQE_IO_DRAIN.
    pub drains: bool,
}

impl Chain {
    /// Returns the opcode of the member collected last.
    pub fn last_opcode(&self) -> Option<u8> {
        self.members.last().map(|member| member.sqe.opcode)
    }
}
