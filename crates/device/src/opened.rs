//! A device that a program has opened: which device, and how.

use crate::device::Device;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::mutex::Mutex;
use usring_uapi::general as linux;

/// An open file description whose file is a device of ours. Duplicated
/// descriptors share it, as they share the kernel's.
pub struct OpenDevice {
    device: Arc<Device>,
    /// `O_*`: the access mode and the status flags. fcntl(2) may change the
    /// latter at any time; a transfer looks once, so relaxed.
    flags: AtomicU32,
    /// Held while a transfer takes place where the file is, and moves it on.
    position: Mutex<()>,
}

impl OpenDevice {
    pub fn new(device: Arc<Device>, flags: u32) -> Self {
        OpenDevice { device, flags: AtomicU32::new(flags), position: Mutex::new(()) }
    }

    #[inline]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// How it is open at this moment.
    #[inline]
    pub fn manner(&self) -> OpenManner {
        OpenManner(self.flags.load(Ordering::Relaxed))
    }

    pub fn position(&self) -> &Mutex<()> {
        &self.position
    }

    /// fcntl(2) F_SETFL; the access mode stays.
    pub fn set_status_flags(&self, flags: u32) {
        let mode = self.flags.load(Ordering::Relaxed) & linux::O_ACCMODE;
        self.flags.store(flags & !linux::O_ACCMODE | mode, Ordering::Relaxed);
    }
}

/// How a device is open at a moment: looked at once for each transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenManner(u32);

impl OpenManner {
    #[inline]
    pub fn is_direct(self) -> bool {
        self.0 & linux::O_DIRECT != 0
    }

    /// Whether a write is durable when it is done (O_DSYNC, O_SYNC).
    #[inline]
    pub fn is_durable(self) -> bool {
        self.0 & linux::O_DSYNC != 0
    }

    #[inline]
    pub fn may_read(self) -> bool {
        self.0 & linux::O_ACCMODE != linux::O_WRONLY
    }

    #[inline]
    pub fn may_write(self) -> bool {
        self.0 & linux::O_ACCMODE != linux::O_RDONLY
    }
}
