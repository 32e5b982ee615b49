//! Register calls of the `io-uring` crate that usring does not have: they are
//! passed on and refused by the engine, as a kernel that is too old refuses
//! them, so that a program finds its way without.

use super::submitter::Submitter;
use crate::types::io_uring_zcrx_ifq_reg;
use std::io;
use usring_uapi::io_uring::io_uring_register_op as op;

impl Submitter<'_> {
    /// Not available: `EINVAL`. There is no network device to receive from.
    pub fn register_ifq(&self, reg: &io_uring_zcrx_ifq_reg) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_ZCRX_IFQ, reg, 1).map(drop)
    }
}
