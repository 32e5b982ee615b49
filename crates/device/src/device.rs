//! A device as its users see it: a driver, and how it is waited for.

use crate::channel::Channel;
use crate::driver::{Driver, QueueOptions};
use crate::geometry::Geometry;
use crate::policy::{PolicyWord, PollPolicy};
use alloc::boxed::Box;
use usring_sys::Errno;

/// A block device in this process.
pub struct Device {
    driver: Box<dyn Driver>,
    policy: &'static PolicyWord,
    /// A polled ring on a device that does not poll waits for interrupts
    /// instead of answering `EOPNOTSUPP` (as Linux did before 6.12).
    polls_without_polling: bool,
}

impl Device {
    /// `policy` may be in memory that other processes share.
    pub fn new(driver: Box<dyn Driver>, policy: &'static PolicyWord, polls_without_polling: bool) -> Self {
        Device { driver, policy, polls_without_polling }
    }

    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub fn geometry(&self) -> Geometry {
        self.driver.geometry()
    }

    #[inline]
    pub fn policy(&self) -> PollPolicy {
        self.policy.get()
    }

    /// What a request on a polled ring gets: `EOPNOTSUPP` where the device does not poll.
    pub fn check_polled(&self) -> Result<(), Errno> {
        let polls = self.geometry().features.polls && self.policy().polls();
        if polls || self.polls_without_polling { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    /// Opens a queue pair for one ring, context or thread.
    pub fn open_channel(&self, options: QueueOptions) -> Result<Channel, Errno> {
        Ok(Channel::new(self.driver.open_queue(options)?, self.policy, options.depth))
    }
}
