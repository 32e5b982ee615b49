//! What stands in for a device that cannot be opened any more: the process that
//! started the run has ended. Everything fails, so nothing is lost in silence.

use super::{Driver, QueueOptions, QueuePair};
use crate::geometry::Geometry;
use crate::request::DeviceRequest;
use alloc::boxed::Box;
use usring_sys::Errno;

/// A device of this shape, to which every request is answered with `EIO`.
pub struct Gone(pub Geometry);

impl Driver for Gone {
    fn geometry(&self) -> Geometry {
        self.0
    }

    fn open_queue(&self, _: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        Err(Errno::EIO)
    }

    fn execute(&self, _: &DeviceRequest) -> Result<u32, Errno> {
        Err(Errno::EIO)
    }
}
