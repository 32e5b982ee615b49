//! Settings for busy polling (NAPI): a ring stores them and returns them when they are changed.

use super::submitter::Submitter;
use crate::types::Napi;
use std::io;
use usring_sys::UserAddress;
use usring_uapi::io_uring::{io_uring_napi_op, io_uring_register_op as op};

impl Submitter<'_> {
    /// Sets how waits busy-poll, and writes the previous settings to `napi`. The ring only stores
    /// them and waits as before: a process cannot poll the queues of network devices itself.
    ///
    /// # Errors
    /// `EINVAL` on a polled ring.
    pub fn register_napi(&self, napi: &mut Napi) -> io::Result<()> {
        self.exchange_napi(op::IORING_REGISTER_NAPI, napi)
    }

    /// Removes the settings, and writes what they were to `napi`.
    pub fn unregister_napi(&self, napi: &mut Napi) -> io::Result<()> {
        self.exchange_napi(op::IORING_UNREGISTER_NAPI, napi)
    }

    /// Adds a queue to the queues to be polled.
    ///
    /// # Errors
    /// `EINVAL`: tracking is not static, or `napi_id` is no queue's number. `EEXIST`: the queue was
    /// added before.
    pub fn register_napi_add_id(&self, napi_id: u32) -> io::Result<()> {
        self.name_queue(io_uring_napi_op::IO_URING_NAPI_STATIC_ADD_ID, napi_id)
    }

    /// Removes a queue from the queues to be polled.
    ///
    /// # Errors
    /// `EINVAL`: tracking is not static, or `napi_id` is no queue's number. `ENOENT`: the queue was
    /// not added.
    pub fn register_napi_del_id(&self, napi_id: u32) -> io::Result<()> {
        self.name_queue(io_uring_napi_op::IO_URING_NAPI_STATIC_DEL_ID, napi_id)
    }

    /// Passes a `struct io_uring_napi` in words: time; preference, operation and padding;
    /// parameter; reserved. The engine writes the previous settings to it.
    fn name_queue(&self, operation: io_uring_napi_op, napi_id: u32) -> io::Result<()> {
        let mut words = [0, (operation as u32) << 8, napi_id, 0];
        self.exchange_napi(op::IORING_REGISTER_NAPI, &mut words)
    }

    fn exchange_napi<T>(&self, opcode: op, argument: &mut T) -> io::Result<()> {
        self.register_raw(opcode as u32, UserAddress((&raw mut *argument) as u64), 1).map(drop)
    }
}
