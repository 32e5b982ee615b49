//! Answers the system calls of libaio: reads their arguments, and calls the crate `aio`, which
//! implements them.
//!
//! libaio makes its system calls by libc's `syscall()` or by a `syscall` instruction of its own.
//! The library sees both, so it need not know the symbols of any version of libaio. libaio and some
//! programs also read the ring of a context directly in memory.

use crate::call::Call;
use crate::runtime::ALLOCATOR;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, width};

/// Number in a [`Call`] for io_setup2, which is a function of usring's and no system call.
pub const SETUP2: u32 = 0x7573_0001;

/// Answers io_setup(2).
pub fn setup(call: &Call) -> Result<u64, Errno> {
    let [requests, place, ..] = call.arguments;
    // SAFETY: the program requested a context by a system call. So it guarantees to usring, as to
    // the kernel, that usring may access the addresses in its iocbs.
    let trust = unsafe { AddressTrust::new() };
    ALLOCATOR.keep_reserve()?;
    usring_aio::setup(trust, width::low(requests), UserAddress(place)).map(|()| 0)
}

/// Answers io_setup2, a function of usring's own that makes a context with flags.
pub fn setup2(call: &Call) -> Result<u64, Errno> {
    let [requests, flags, submission, completion, place, _] = call.arguments;
    // SAFETY: the program requested a context by a function of usring's. So it guarantees that
    // usring may access the addresses in its iocbs.
    let trust = unsafe { AddressTrust::new() };
    ALLOCATOR.keep_reserve()?;
    let rings = [UserAddress(submission), UserAddress(completion)];
    usring_aio::setup_with_flags(trust, width::low(requests), width::low(flags), rings, UserAddress(place)).map(|()| 0)
}

/// Answers io_destroy(2).
pub fn destroy(call: &Call) -> Result<u64, Errno> {
    usring_aio::destroy(call.arguments[0]).map(|()| 0)
}

/// Answers io_submit(2).
pub fn submit(call: &Call) -> Result<u64, Errno> {
    let [context, count, list, ..] = call.arguments;
    usring_aio::submit(context, count.cast_signed(), UserAddress(list))
}

/// Answers io_getevents(2).
pub fn get_events(call: &Call) -> Result<u64, Errno> {
    let [context, minimum, most, events, timeout, _] = call.arguments;
    usring_aio::get_events(
        context,
        minimum.cast_signed(),
        most.cast_signed(),
        UserAddress(events),
        UserAddress(timeout),
    )
}

/// Answers io_pgetevents(2).
pub fn get_events_masked(call: &Call) -> Result<u64, Errno> {
    let [context, minimum, most, events, timeout, mask] = call.arguments;
    let (events, timeout, mask) = (UserAddress(events), UserAddress(timeout), UserAddress(mask));
    usring_aio::get_events_masked(context, minimum.cast_signed(), most.cast_signed(), events, timeout, mask)
}

/// Answers io_cancel(2).
pub fn cancel(call: &Call) -> Result<u64, Errno> {
    let [context, iocb, ..] = call.arguments;
    usring_aio::cancel(context, UserAddress(iocb)).map(|()| 0)
}
