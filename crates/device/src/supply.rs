//! The resources that a driver can get only from the launcher, the process of `usring run`:
//!
//! - memory that all processes of the program share,
//! - queues of a back end, to which only the launcher is connected.

use alloc::sync::Arc;
use usring_sys::Errno;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::unix_socket::Connection;

/// The source of a device's resources. Every call may block, because none is on the path of a
/// request. A call is one question and one answer, so a process can forward it to another one.
pub trait Supply: Send + Sync {
    /// Returns the memory file that holds the device's blocks, of `size` bytes. All processes of
    /// the program get one file.
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno>;

    /// Returns the memory file that holds the queues of a back end
    /// ([`crate::driver::vhost_user::arena`]).
    fn arena(&self) -> Result<OwnedDescriptor, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Lends one of the back end's queues to the caller, until the queue is returned.
    ///
    /// Errors: `EBUSY`: all queues are lent; `EIO`: the back end has died.
    fn queue(&self) -> Result<QueueGrant, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns a lent queue to the back end. The queue's user calls this; if that user has died,
    /// the control plane calls it. After the call, the back end accesses no memory for this queue
    /// any more. `connection` is the connection in the [`QueueGrant`], which has no use afterwards.
    fn return_queue(&self, index: u32, connection: Option<&Connection>) {
        let _ = (index, connection);
    }

    /// Shares a memory file with the back end. `file` is a descriptor that the caller keeps.
    fn share(&self, file: i32, length: u64) -> Result<SharedRegion, Errno> {
        let _ = (file, length);
        Err(Errno::EOPNOTSUPP)
    }

    /// Stops sharing a memory file with the back end. `slot`: the number in the [`SharedRegion`]
    /// that [`Supply::share`] returned.
    fn unshare(&self, slot: u32) {
        let _ = slot;
    }
}

/// A queue of a back end, lent to one user.
pub struct QueueGrant {
    pub index: u32,
    /// Eventfd that the queue's user signals, so that the back end looks for requests.
    pub kick: OwnedDescriptor,
    /// Eventfd that the back end signals for completions. The control plane signals it, too, when a
    /// new back end serves the device (a new generation).
    pub call: OwnedDescriptor,
    /// Eventfd that the queue's user signals after it has laid out the queue's rings for a new back
    /// end. The control plane then starts the queue.
    pub ready: OwnedDescriptor,
    /// The connection to a control plane in another process. When one of the two processes ends,
    /// the other learns it from the end of the connection.
    pub connection: Option<Connection>,
}

/// Memory that is shared with the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRegion {
    /// The number to pass to [`Supply::unshare`].
    pub slot: u32,
    /// The address by which requests to the back end name the memory's first byte.
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
        usring_sys::mapping::sealed_memory_file(c"usring-device", size)
    }
}
