//! Register calls of the `io-uring` crate that usring does not have: they are
//! passed on and refused by the engine, as a kernel that is too old refuses
//! them, so that a program finds its way without.

use super::submitter::Submitter;
use crate::types::{CloneBuffersFlags, io_uring_zcrx_ifq_reg};
use std::io;
use std::os::fd::RawFd;
use usring_uapi::io_uring::io_uring_register_op as op;

impl Submitter<'_> {
    /// Not available: `EINVAL`. Register the buffers with each ring.
    pub fn register_buffers_clone(&self, src_fd: RawFd) -> io::Result<()> {
        self.register_buffers_clone_offset(src_fd, 0, 0, 0, CloneBuffersFlags::empty())
    }

    /// Not available: `EINVAL`. Register the buffers with each ring.
    pub fn register_buffers_clone_offset(
        &self,
        src_fd: RawFd,
        src_off: u32,
        dst_off: u32,
        nr: u32,
        flags: CloneBuffersFlags,
    ) -> io::Result<()> {
        let argument: [u32; 8] = [src_fd as u32, flags.bits(), src_off, dst_off, nr, 0, 0, 0];
        self.register_with(op::IORING_REGISTER_CLONE_BUFFERS, &argument, 1).map(drop)
    }

    /// Not available: `EINVAL`. There is no network device to receive from.
    pub fn register_ifq(&self, reg: &io_uring_zcrx_ifq_reg) -> io::Result<()> {
        self.register_with(op::IORING_REGISTER_ZCRX_IFQ, reg, 1).map(drop)
    }
}
