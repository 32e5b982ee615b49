//! A device that the program has opened: which device, and with which flags.

use crate::device::Device;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::mutex::Mutex;
use usring_uapi::general as linux;

/// An open file description of a device. Duplicated descriptors share it, as in the kernel.
pub struct OpenDevice {
    device: Arc<Device>,
    /// `O_*`: the access mode and the status flags. fcntl(2) may change the status flags at any
    /// time. A transfer loads this word once, and no other data depends on the word, so relaxed
    /// ordering suffices.
    flags: AtomicU32,
    /// Locked while a transfer reads and advances the file position.
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

    /// Returns the flags as they are now.
    #[inline]
    pub fn mode(&self) -> OpenMode {
        OpenMode(self.flags.load(Ordering::Relaxed))
    }

    pub fn position(&self) -> &Mutex<()> {
        &self.position
    }

    /// Sets the status flags (fcntl(2) F_SETFL). The access mode stays as it is.
    pub fn set_status_flags(&self, flags: u32) {
        let mode = self.flags.load(Ordering::Relaxed) & linux::O_ACCMODE;
        self.flags.store(flags & !linux::O_ACCMODE | mode, Ordering::Relaxed);
    }
}

/// The flags of an open device at one moment. A transfer loads them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode(u32);

impl OpenMode {
    #[inline]
    pub fn is_direct(self) -> bool {
        self.0 & linux::O_DIRECT != 0
    }

    /// Returns whether a write must be durable when it completes (O_DSYNC, O_SYNC).
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
