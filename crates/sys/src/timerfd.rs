//! timerfd(2): a timer for which poll(2) and epoll(7) can wait.

use crate::clock::{Nanoseconds, timespec};
use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, width};
use linux_raw_sys::general as linux;
use usring_uapi::Timespec;

/// Makes a non-blocking timerfd on the monotonic clock, disarmed, at a number that is private to
/// usring.
pub fn create() -> Result<OwnedDescriptor, Errno> {
    let flags = u64::from(linux::TFD_CLOEXEC | linux::TFD_NONBLOCK);
    let number =
        SystemCall::new(linux::__NR_timerfd_create, [u64::from(linux::CLOCK_MONOTONIC), flags, 0, 0, 0]).run()?;
    OwnedDescriptor::from_raw(width::int(number)).into_private()
}

/// Arms the timer to fire once, `span` from now. The timerfd is not readable until then.
pub fn arm(number: i32, span: Nanoseconds) -> Result<(), Errno> {
    // A time of 0 would disarm the timer.
    set(number, 0, span.max(1))
}

/// Arms the timer to fire once, at `time` on the monotonic clock. If `time` is past, the timer
/// fires at once.
pub fn arm_at(number: i32, time: Nanoseconds) -> Result<(), Errno> {
    set(number, linux::TFD_TIMER_ABSTIME, time.max(1))
}

/// Disarms the timer. The timerfd is then not readable, even if the timer had fired.
pub fn disarm(number: i32) -> Result<(), Errno> {
    set(number, 0, 0)
}

fn set(number: i32, flags: u32, time: Nanoseconds) -> Result<(), Errno> {
    let value = [Timespec::default(), timespec(time)];
    let arguments = [width::word(number), u64::from(flags), &raw const value as u64, 0, 0];
    SystemCall::new(linux::__NR_timerfd_settime, arguments).run().map(drop)
}
