//! A device as its users see it: a driver, and the policy by which threads wait for completions.

use crate::block_file::{BlockFile, Callers};
use crate::channel::Channel;
use crate::driver::{Driver, QueueOptions};
use crate::geometry::Geometry;
use crate::policy::{PolicyWord, PollPolicy};
use crate::tracker::WaiterKind;
use alloc::boxed::Box;
use usring_sys::per_process::OwnedPerProcess;
use usring_sys::{Errno, ticks};

/// A block device in this process.
pub struct Device {
    driver: Box<dyn Driver>,
    geometry: Geometry,
    policy: PolicyWord,
    /// Whether a polled ring may use the device even if the device cannot be polled. The ring then
    /// waits for interrupts instead of getting `EOPNOTSUPP` (as in Linux before 6.12).
    polls_without_polling: bool,
    /// Queue pairs of blocking calls. Each process has its own, because a forked child must not use
    /// its parent's queue pairs.
    callers: OwnedPerProcess<Callers>,
}

impl Device {
    /// Makes a device. `policy` may lie in memory that other processes share.
    /// `polls_without_polling`: a polled ring may use the device even if the device cannot be
    /// polled.
    pub fn new(driver: Box<dyn Driver>, policy: PolicyWord, polls_without_polling: bool) -> Self {
        let geometry = driver.geometry();
        assert!(i32::try_from(geometry.transfer).is_ok() && geometry.transfer >= geometry.block, "{geometry:?}");
        Device { geometry, driver, policy, polls_without_polling, callers: OwnedPerProcess::new() }
    }

    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the device as a file, for calls that block until their transfer is done.
    pub fn as_file(&self) -> BlockFile<'_> {
        BlockFile::new(self)
    }

    pub(crate) fn callers(&self) -> &Callers {
        self.callers.get_or_make(Callers::default)
    }

    #[inline]
    pub fn policy(&self) -> PollPolicy {
        self.policy.get()
    }

    /// Checks whether a polled ring may use the device. Error: `EOPNOTSUPP` if the device cannot be
    /// polled, unless the user allows polled rings to wait for its interrupts instead.
    #[inline]
    pub fn check_polled(&self) -> Result<(), Errno> {
        let polls = self.geometry().features.polls && self.policy().polls();
        if polls || self.polls_without_polling { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    /// Returns whether a polled ring on this device may have to sleep on the device's interrupts.
    pub fn waits_when_polled(&self) -> bool {
        self.polls_without_polling
    }

    /// Opens a queue pair for a ring or an AIO context.
    pub fn open_channel(&self, options: QueueOptions) -> Result<Channel, Errno> {
        self.open_channel_for(WaiterKind::Ring, options)
    }

    /// Opens a queue pair for a user of the kind `waiter`.
    pub fn open_channel_for(&self, waiter: WaiterKind, options: QueueOptions) -> Result<Channel, Errno> {
        // Calibrates the clock even without a hybrid policy: the policy may become hybrid later,
        // and the channel then reads this clock.
        ticks::calibrate();
        Ok(Channel::new(self.driver.open_queue(options)?, self.policy, options, waiter))
    }
}
