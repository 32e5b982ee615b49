//! Resources that a driver can get only from the process that started the run:
//!
//! - memory that all processes of the run share,
//! - queues of a back end, to which only that process is connected.

use alloc::sync::Arc;
use usring_sys::Errno;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::unix_socket::Connection;

/// The resources of a device. Every call is on the control path and may block. A call is one
/// question and one answer, so it can be forwarded to another process.
pub trait Supply: Send + Sync {
    /// Returns the memory that holds the device's blocks, `size` bytes; every process of the run
    /// gets the same memory.
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno>;

    /// Returns the memory that holds the queues of a back end
    /// ([`crate::driver::vhost_user::arena`]).
    fn arena(&self) -> Result<OwnedDescriptor, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Lends one of the back end's queues to one user, until it is returned.
    ///
    /// Errors: `EBUSY`: all queues are lent; `EIO`: the back end has died.
    fn queue(&self) -> Result<QueueGrant, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns a queue. The queue's user calls it, or the control plane after that user has died.
    /// When the call has returned, the back end no longer touches anything for the queue.
    /// `connection` is that of the [`QueueGrant`]; it has no use afterwards.
    fn return_queue(&self, index: u32, connection: Option<&Connection>) {
        let _ = (index, connection);
    }

    /// Shares a file of memory with the back end. The call only borrows the descriptor.
    fn share(&self, file: i32, length: u64) -> Result<SharedRegion, Errno> {
        let _ = (file, length);
        Err(Errno::EOPNOTSUPP)
    }

    /// Ends the sharing of a file of memory.
    fn unshare(&self, slot: u32) {
        let _ = slot;
    }
}

/// A queue of a back end, lent to one user.
pub struct QueueGrant {
    pub index: u32,
    /// Eventfd: makes the back end look for requests.
    pub kick: OwnedDescriptor,
    /// Eventfd: the back end or the control plane signals a change.
    pub call: OwnedDescriptor,
    /// Eventfd: makes the control plane check whether the queue's rings are laid out for the new
    /// back end.
    pub settled: OwnedDescriptor,
    /// The connection to a control plane in another process. Each side learns from the end of the
    /// connection that the other process has ended.
    pub connection: Option<Connection>,
}

/// Memory that is shared with the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRegion {
    /// The number to pass to [`Supply::unshare`].
    pub slot: u32,
    /// The address of its first byte in the back end.
    pub address: u64,
}

impl<T: Supply + ?Sized> Supply for Arc<T> {
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno> {
        (**self).memory(size)
    }

    fn arena(&self) -> Result<OwnedDescriptor, Errno> {
        (**self).arena()
    }

    fn queue(&self) -> Result<QueueGrant, Errno> {
        (**self).queue()
    }

    fn return_queue(&self, index: u32, connection: Option<&Connection>) {
        (**self).return_queue(index, connection);
    }

    fn share(&self, file: i32, length: u64) -> Result<SharedRegion, Errno> {
        (**self).share(file, length)
    }

    fn unshare(&self, slot: u32) {
        (**self).unshare(slot);
    }
}

/// The resources of a process that shares its devices with no other process.
pub struct OwnSupply;

impl Supply for OwnSupply {
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno> {
        usring_sys::mapping::memory_file(c"usring-device", size)
    }
}
