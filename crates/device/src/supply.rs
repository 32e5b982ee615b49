//! What a driver needs beside its own options and only the process that
//! started the run can give: memory that all processes of the run share, and
//! queues of a back end that one of them is connected to.

use usring_sys::Errno;
use usring_sys::descriptor::OwnedDescriptor;

/// One device's supplies. Every call may block: it is the control path.
pub trait Supply: Send + Sync {
    /// The memory that holds the device's blocks, `size` bytes of it, the same
    /// in every process of the run.
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno>;
}

/// Supplies of a process that shares its devices with nobody.
pub struct OwnSupply;

impl Supply for OwnSupply {
    fn memory(&self, size: u64) -> Result<OwnedDescriptor, Errno> {
        usring_sys::mapping::memory_file(c"usring-device", size)
    }
}
