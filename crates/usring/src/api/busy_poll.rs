//! The register calls for busy polling of network devices (NAPI). The ring stores the settings and
//! returns them. The settings do not change how the ring waits.

use super::submitter::Submitter;
use crate::types::Napi;
use std::io;
use usring_sys::UserAddress;
use usring_uapi::io_uring::{io_uring_napi_op, io_uring_register_op as op};

impl Submitter<'_> {
    /// Sets how waits busy-poll, and writes the previous settings to `napi`. The setting has no
    /// effect on waits, because a process cannot poll the queues of network devices itself.
    ///
    /// # Errors
    /// `EINVAL`: the ring was made with `setup_iopoll`.
    pub fn register_napi(&self, napi: &mut Napi) -> io::Result<()> {
        self.exchange_napi(op::IORING_REGISTER_NAPI, napi)
    }

    /// Resets the settings to their defaults, and writes the previous ones to `napi`.
    pub fn unregister_napi(&self, napi: &mut Napi) -> io::Result<()> {
        self.exchange_napi(op::IORING_UNREGISTER_NAPI, napi)
    }

    /// Adds the network queue with the number `napi_id` to the list of queues to poll.
    ///
    /// # Errors
    /// - `EINVAL`: the settings do not have static tracking, or `napi_id` is no valid queue number.
    /// - `EEXIST`: the queue is in the list already.
    pub fn register_napi_add_id(&self, napi_id: u32) -> io::Result<()> {
        self.name_queue(io_uring_napi_op::IO_URING_NAPI_STATIC_ADD_ID, napi_id)
    }

    /// Removes the network queue with the number `napi_id` from the list of queues to poll.
    ///
    /// # Errors
    /// - `EINVAL`: the settings do not have static tracking, or `napi_id` is no valid queue number.
    /// - `ENOENT`: the queue is not in the list.
    pub fn register_napi_del_id(&self, napi_id: u32) -> io::Result<()> {
        self.name_queue(io_uring_napi_op::IO_URING_NAPI_STATIC_DEL_ID, napi_id)
    }

    /// Passes a `struct io_uring_napi` to the engine as four words: the time; preference, operation
    /// and padding; the operation's parameter; reserved. The engine overwrites the words with the
    /// previous settings.
    fn name_queue(&self, operation: io_uring_napi_op, napi_id: u32) -> io::Result<()> {
        let mut words = [0, (operation as u32) << 8, napi_id, 0];
        self.exchange_napi(op::IORING_REGISTER_NAPI, &mut words)
    }

    fn exchange_napi<T>(&self, opcode: op, argument: &mut T) -> io::Result<()> {
        self.register_raw(opcode as u32, UserAddress((&raw mut *argument) as u64), 1).map(drop)
    }
}
