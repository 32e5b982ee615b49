//! timerfd(2): a point in time that poll and epoll can wait for.

use crate::clock::{Nanoseconds, timespec};
use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall};
use linux_raw_sys::general as linux;
use usring_uapi::Timespec;

/// Makes a non-blocking timer on the monotonic clock, disarmed, at a private descriptor.
pub fn create() -> Result<OwnedDescriptor, Errno> {
    let flags = u64::from(linux::TFD_CLOEXEC | linux::TFD_NONBLOCK);
    let number =
        SystemCall::new(linux::__NR_timerfd_create, [u64::from(linux::CLOCK_MONOTONIC), flags, 0, 0, 0]).run()?;
    OwnedDescriptor::from_raw(number as i32).into_private()
}

/// Arms the timer to fire once, `span` from now; it is unreadable until then.
pub fn arm(number: i32, span: Nanoseconds) -> Result<(), Errno> {
    // Zero would disarm the timer.
    set(number, 0, span.max(1))
}

/// Arms the timer to fire once at this time on the monotonic clock; at once if the time is past.
pub fn arm_at(number: i32, time: Nanoseconds) -> Result<(), Errno> {
    set(number, linux::TFD_TIMER_ABSTIME, time.max(1))
}

/// Disarms the timer; it is unreadable, even if it has fired.
pub fn disarm(number: i32) -> Result<(), Errno> {
    set(number, 0, 0)
}

fn set(number: i32, flags: u32, time: Nanoseconds) -> Result<(), Errno> {
    let value = [Timespec::default(), timespec(time)];
    let arguments = [number as u64, u64::from(flags), &raw const value as u64, 0, 0];
    SystemCall::new(linux::__NR_timerfd_settime, arguments).run().map(drop)
}
