//! What a driver needs beside its own options and only the process that
//! started the run can give: memory that all processes of the run share, and
//! queues of a back end that one of them is connected to.

use alloc::sync::Arc;
use usring_sys::Errno;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::unix_socket::Connection;

/// One device's supplies. Every call may block: it is the control path. Each
/// is one question and one answer, so that it can be asked of another process.
pub trait Supply: Send + Sync {
    /// The memory that holds the device's blocks, `size` bytes of it, the same
    /// in every process of the run.
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno>;

    /// The memory that a back end's queues lie in
    /// ([`crate::driver::vhost_user::arena`]).
    fn arena(&self) -> Result<OwnedDescriptor, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// One of the back end's queues, for one user until it is returned.
    ///
    /// Errors: `EBUSY`, there are no more; `EIO`, the back end has died.
    fn queue(&self) -> Result<QueueGrant, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The queue's user is gone, or this was called for it. When this has
    /// returned the back end touches nothing for the queue any more. `connection`: that of
    /// the [`QueueGrant`], and of no use afterwards.
    fn return_queue(&self, index: u32, connection: Option<&Connection>) {
        let _ = (index, connection);
    }

    /// Lets the back end see a file of memory. The descriptor is only lent.
    fn share(&self, file: i32, length: u64) -> Result<SharedRegion, Errno> {
        let _ = (file, length);
        Err(Errno::EOPNOTSUPP)
    }

    /// The back end need see it no more.
    fn unshare(&self, slot: u32) {
        let _ = slot;
    }
}

/// A queue of a back end.
pub struct QueueGrant {
    pub index: u32,
    /// eventfd: the back end looks for requests.
    pub kick: OwnedDescriptor,
    /// eventfd: the back end, or the control plane, has news.
    pub call: OwnedDescriptor,
    /// eventfd: the control plane looks whether the queue's rings are in order.
    pub settled: OwnedDescriptor,
    /// To a control plane in another process: by its end that learns of the queue's user's, and the
    /// user of its.
    pub connection: Option<Connection>,
}

/// Memory that the back end sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRegion {
    /// By which it is unshared.
    pub slot: u32,
    /// Where the back end sees its start.
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

/// Supplies of a process that shares its devices with nobody.
pub struct OwnSupply;

impl Supply for OwnSupply {
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno> {
        usring_sys::mapping::memory_file(c"usring-device", size)
    }
}
