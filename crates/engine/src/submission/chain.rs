//! The chain that a submission is collecting. `link` fills and starts it.

use crate::request::RequestEntry;
use alloc::vec::Vec;

/// The chain that is being collected by the submission under way.
#[derive(Default)]
pub(crate) struct Chain {
    pub members: Vec<RequestEntry>,
    /// A member other than the first drains.
    pub drains: bool,
}

impl Chain {
    /// Returns the opcode of the member collected last.
    pub fn last_opcode(&self) -> Option<u8> {
        self.members.last().map(|member| member.sqe.opcode)
    }
}
