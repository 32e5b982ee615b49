//! Register calls of the `io-uring` crate that usring does not have. They are passed to the engine,
//! which refuses them as an older kernel does, so that a program can fall back.

use super::submitter::Submitter;
use crate::types::io_uring_zcrx_ifq_reg;
use std::io;
use usring_uapi::io_uring::io_uring_register_op as op;

impl Submitter<'_> {
    /// Answers `EINVAL`, always: there is no network device to receive from.
    pub fn register_ifq(&self, reg: &io_uring_zcrx_ifq_reg) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_ZCRX_IFQ, reg, 1).map(drop)
    }
}
