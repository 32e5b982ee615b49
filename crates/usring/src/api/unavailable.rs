//! The `io-uring` crate's register calls for features that usring lacks. The engine refuses them
//! with the errno of a kernel too old to know them, so that a program can fall back.

use super::submitter::Submitter;
use crate::types::io_uring_zcrx_ifq_reg;
use std::io;
use usring_uapi::io_uring::io_uring_register_op as op;

impl Submitter<'_> {
    /// Always returns `EINVAL`: usring has no access to a network device's receive queues.
    pub fn register_ifq(&self, reg: &io_uring_zcrx_ifq_reg) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_ZCRX_IFQ, reg, 1).map(drop)
    }
}
