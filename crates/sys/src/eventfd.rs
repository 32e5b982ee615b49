//! eventfd(2): a counter for which poll(2) and epoll(7) can wait.

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, width};
use linux_raw_sys::general as linux;

/// Makes a non-blocking eventfd, closed on exec, at the lowest free number.
pub fn create() -> Result<OwnedDescriptor, Errno> {
    create_at(0)
}

/// Makes a non-blocking eventfd, closed on exec, that is readable from the start.
pub fn create_readable() -> Result<OwnedDescriptor, Errno> {
    create_at(1)
}

fn create_at(count: u64) -> Result<OwnedDescriptor, Errno> {
    let flags = u64::from(linux::EFD_CLOEXEC | linux::EFD_NONBLOCK);
    let number = SystemCall::new(linux::__NR_eventfd2, [count, flags, 0, 0, 0]).run()?;
    Ok(OwnedDescriptor::from_raw(width::int(number)))
}

/// Makes the eventfd readable. Ignores the error of write(2) for a counter at its maximum: the
/// eventfd is readable then, too.
pub fn signal(number: i32) {
    let _ = add(number, 1);
}

/// Adds `count` events to the counter.
///
/// Errors: `EAGAIN` if the counter has no room for `count`; nothing is added then.
pub fn add(number: i32, count: u64) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_write, [width::word(number), &raw const count as u64, 8, 0, 0]).run().map(drop)
}

/// Resets the counter to 0, so that the eventfd is not readable.
pub fn drain(number: i32) {
    let mut count = 0u64;
    let _ = SystemCall::new(linux::__NR_read, [width::word(number), &raw mut count as u64, 8, 0, 0]).run();
}
