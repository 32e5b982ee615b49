//! eventfd(2): a counter that poll and epoll see.

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall};
use linux_raw_sys::general as linux;

/// A non-blocking eventfd, closed on exec, at the lowest free number.
pub fn create() -> Result<OwnedDescriptor, Errno> {
    create_at(0)
}

/// The same, readable from the start.
pub fn create_readable() -> Result<OwnedDescriptor, Errno> {
    create_at(1)
}

fn create_at(count: u64) -> Result<OwnedDescriptor, Errno> {
    let flags = u64::from(linux::EFD_CLOEXEC | linux::EFD_NONBLOCK);
    let number = SystemCall::new(linux::__NR_eventfd2, [count, flags, 0, 0, 0]).run()?;
    Ok(OwnedDescriptor::from_raw(number as i32))
}

/// Makes it readable. A counter already at its maximum stays readable, so the
/// error that write(2) would give means nothing here.
pub fn signal(number: i32) {
    let _ = add(number, 1);
}

/// The same for so many events at once.
///
/// `EAGAIN`: they do not all fit, and none was added.
pub fn add(number: i32, count: u64) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_write, [number as u64, &raw const count as u64, 8, 0, 0]).run().map(drop)
}

/// Makes it unreadable.
pub fn drain(number: i32) {
    let mut count = 0u64;
    let _ = SystemCall::new(linux::__NR_read, [number as u64, &raw mut count as u64, 8, 0, 0]).run();
}
