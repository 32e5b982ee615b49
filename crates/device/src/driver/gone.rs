//! A stand-in for a device that can no longer be opened, because the launcher (the process of
//! `usring run`) has ended. All requests fail, so no data is lost silently.

use super::{Driver, QueueOptions, QueuePair};
use crate::geometry::Geometry;
use crate::request::DeviceRequest;
use alloc::boxed::Box;
use usring_sys::Errno;

/// A device with the geometry of a device that is gone. It fails every request with `EIO`.
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
