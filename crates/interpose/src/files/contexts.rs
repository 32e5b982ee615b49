//! The calls of libaio: what is the doors' part of them (where their arguments
//! stand), and the way to `aio` for the rest.
//!
//! libaio makes them by libc's `syscall()` or by an instruction of its own, so
//! that none of its symbols, in whichever of their versions, has to be known
//! here. It looks into a context's ring by itself, and so do programs.

use crate::ALLOCATOR;
use crate::doors::door::Call;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress};

/// io_setup(2).
pub fn setup(call: &Call) -> Result<u64, Errno> {
    let [requests, place, ..] = call.arguments;
    // SAFETY: the program asked for a context by a system call, by which it
    // vouches for what it puts into its iocbs, as it does in the kernel.
    let trust = unsafe { AddressTrust::new() };
    ALLOCATOR.keep_reserve()?;
    usring_aio::setup(trust, requests as u32, UserAddress(place)).map(|()| 0)
}

/// io_setup2.
pub fn setup2(call: &Call) -> Result<u64, Errno> {
    let [requests, flags, submission, completion, place, _] = call.arguments;
    // SAFETY: as above, by a function that exists for nothing else.
    let trust = unsafe { AddressTrust::new() };
    ALLOCATOR.keep_reserve()?;
    let rings = [UserAddress(submission), UserAddress(completion)];
    usring_aio::setup_with_flags(trust, requests as u32, flags as u32, rings, UserAddress(place)).map(|()| 0)
}

/// io_destroy(2).
pub fn destroy(call: &Call) -> Result<u64, Errno> {
    usring_aio::destroy(call.arguments[0]).map(|()| 0)
}

/// io_submit(2).
pub fn submit(call: &Call) -> Result<u64, Errno> {
    let [context, count, list, ..] = call.arguments;
    usring_aio::submit(context, count as i64, UserAddress(list))
}

/// io_getevents(2).
pub fn get_events(call: &Call) -> Result<u64, Errno> {
    let [context, minimum, most, events, timeout, _] = call.arguments;
    usring_aio::get_events(context, minimum as i64, most as i64, UserAddress(events), UserAddress(timeout))
}

/// io_pgetevents(2).
pub fn get_events_masked(call: &Call) -> Result<u64, Errno> {
    let [context, minimum, most, events, timeout, mask] = call.arguments;
    let (events, timeout, mask) = (UserAddress(events), UserAddress(timeout), UserAddress(mask));
    usring_aio::get_events_masked(context, minimum as i64, most as i64, events, timeout, mask)
}

/// io_cancel(2).
pub fn cancel(call: &Call) -> Result<u64, Errno> {
    let [context, iocb, ..] = call.arguments;
    usring_aio::cancel(context, UserAddress(iocb)).map(|()| 0)
}
