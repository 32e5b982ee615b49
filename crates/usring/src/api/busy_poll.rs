//! Settings for busy polling (NAPI), which a ring keeps and tells again.

use super::submitter::Submitter;
use crate::types::Napi;
use std::io;
use usring_sys::UserAddress;
use usring_uapi::io_uring::{io_uring_napi_op, io_uring_register_op as op};

impl Submitter<'_> {
    /// Sets how waits busy-poll, and writes to `napi` what was set before. The
    /// ring keeps it, and waits as it did: a process cannot poll the queues of
    /// network devices itself.
    ///
    /// # Errors
    /// `EINVAL` on a polled ring.
    pub fn register_napi(&self, napi: &mut Napi) -> io::Result<()> {
        self.exchange_napi(op::IORING_REGISTER_NAPI, napi)
    }

    /// Forgets the settings, and writes to `napi` what they were.
    pub fn unregister_napi(&self, napi: &mut Napi) -> io::Result<()> {
        self.exchange_napi(op::IORING_UNREGISTER_NAPI, napi)
    }

    /// Names a queue to poll.
    ///
    /// # Errors
    /// `EINVAL` unless tracking is static, and for what is no queue's number; `EEXIST`.
    pub fn register_napi_add_id(&self, napi_id: u32) -> io::Result<()> {
        self.name_queue(io_uring_napi_op::IO_URING_NAPI_STATIC_ADD_ID, napi_id)
    }

    /// Takes back the name of a queue.
    ///
    /// # Errors
    /// `EINVAL` as above; `ENOENT`.
    pub fn register_napi_del_id(&self, napi_id: u32) -> io::Result<()> {
        self.name_queue(io_uring_napi_op::IO_URING_NAPI_STATIC_DEL_ID, napi_id)
    }

    /// `struct io_uring_napi`: time; preference, operation, padding; parameter;
    /// reserved. What was set before is written to it.
    fn name_queue(&self, operation: io_uring_napi_op, napi_id: u32) -> io::Result<()> {
        let mut words = [0, (operation as u32) << 8, napi_id, 0];
        self.exchange_napi(op::IORING_REGISTER_NAPI, &mut words)
    }

    fn exchange_napi<T>(&self, opcode: op, argument: &mut T) -> io::Result<()> {
        self.register_raw(opcode as u32, UserAddress((&raw mut *argument) as u64), 1).map(drop)
    }
}
