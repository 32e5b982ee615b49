//! libaio's contexts: the calls from io_setup(2) to io_cancel(2) on top of the engine.
//!
//! A context is a ring of the engine. It accepts iocbs instead of SQEs, and delivers events instead
//! of CQEs. The program reads the events at the context's address.
//!
//! - `table`: finds contexts by their addresses.
//! - `context`: one context.
//! - `context_kind`: the rules that a context follows.
//! - `iocb`: translates an iocb into an SQE, or returns the kernel's error for it.
//!
//! # Ownership
//! - The table belongs to the process. A forked child starts with an empty table, so a call on an
//!   inherited context returns `EINVAL`. In the kernel a child has no contexts either.
//! - A call finds its context without a lock. The call keeps the context alive even if another
//!   thread destroys the context meanwhile.
//! - In the ring of events, the engine moves the tail, and the program moves the head. In
//!   io_getevents(2) usring moves the head for the program, one caller at a time
//!   (`Context::taking`). The number of events is always computed from head and tail.
//! - Only the engine counts the requests in flight, under the ring's lock.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

mod context;
mod context_kind;
mod iocb;
mod table;

use context::{Context, Wait};
use context_kind::ContextKind;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_engine::CompletionMode;
use usring_sys::clock::Clock;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, user_memory};
use usring_uapi::Timespec;
use usring_uapi::aio::{IOCTX_FLAG_IOPOLL, Iocb};

/// Bytes of a signal set (`sigset_t` of the kernel).
const SIGNAL_SET_SIZE: u64 = 8;

/// io_setup(2): makes a context and writes its address to `place`. `trust`: whether the caller
/// vouches for every address that the context's iocbs will name.
///
/// Errors: `EFAULT`; `EINVAL` if the word at `place` is not zero, or if `requests` is zero or too
/// large; `ENOMEM`.
pub fn setup(trust: AddressTrust, requests: u32, place: UserAddress) -> Result<(), Errno> {
    make(trust, requests, place, ContextKind::Kernel)
}

/// io_setup2 of the kernel patches for polled AIO: makes a context with the flags `IOCTX_FLAG_*`.
/// Later versions of these patches also map rings into the program, which usring does not support.
///
/// Errors: those of [`setup`]; `EINVAL` for an unknown flag, and if `rings` holds an address.
pub fn setup_with_flags(
    trust: AddressTrust,
    requests: u32,
    flags: u32,
    rings: [UserAddress; 2],
    place: UserAddress,
) -> Result<(), Errno> {
    if flags & !IOCTX_FLAG_IOPOLL != 0 || rings.iter().any(|ring| !ring.is_null()) {
        return Err(Errno::EINVAL);
    }
    make(trust, requests, place, if flags & IOCTX_FLAG_IOPOLL != 0 { ContextKind::Polled } else { ContextKind::Plain })
}

/// Whether threads that ask for events poll the devices before they sleep. Applies only to contexts
/// made without `IOCTX_FLAG_IOPOLL`.
static POLLS_BEFORE_SLEEP: AtomicBool = AtomicBool::new(false);

/// Makes threads poll the devices when they ask a context for events. Affects only contexts that
/// are made after this call.
pub fn poll_devices_before_sleep() {
    POLLS_BEFORE_SLEEP.store(true, Ordering::Relaxed);
}

fn make(trust: AddressTrust, requests: u32, place: UserAddress, kind: ContextKind) -> Result<(), Errno> {
    let occupant: u64 = user_memory::read(place)?;
    if occupant != 0 || requests == 0 {
        return Err(Errno::EINVAL);
    }
    let completion_mode =
        if POLLS_BEFORE_SLEEP.load(Ordering::Relaxed) { CompletionMode::Preferred } else { CompletionMode::Signalled };
    let address = table::insert(|id| Context::new(trust, requests, id, kind, completion_mode))?;
    user_memory::write(place, address).inspect_err(|_| {
        let _ = destroy(address);
    })
}

/// io_destroy(2): removes a context, and returns when none of its requests is in flight. Threads
/// that wait for the context's events wake with `EINVAL`.
pub fn destroy(context: u64) -> Result<(), Errno> {
    table::remove(context)?.end();
    Ok(())
}

/// io_submit(2): submits iocbs and returns the number of accepted iocbs.
///
/// Errors: that of the first iocb, if it is refused. `EINVAL` if there is no such context, or for a
/// negative count.
pub fn submit(context: u64, count: i64, list: UserAddress) -> Result<u64, Errno> {
    if count < 0 {
        return Err(Errno::EINVAL);
    }
    table::find(context)?.submit(count.cast_unsigned(), list)
}

/// io_getevents(2): copies events to the program and returns their number.
///
/// Errors: `EINVAL` (no such context, invalid counts, or a context destroyed during the wait),
/// `EFAULT`, `EINTR`.
pub fn get_events(
    context: u64,
    minimum: i64,
    most: i64,
    events: UserAddress,
    timeout: UserAddress,
) -> Result<u64, Errno> {
    let deadline = read_deadline(timeout)?;
    table::find(context)?.get_events(minimum, most, events, &Wait { deadline, mask: None })
}

/// io_pgetevents(2): copies events to the program and returns their number. During the wait, the
/// signal mask that the program has passed is in force.
///
/// Errors: those of [`get_events`].
pub fn get_events_masked(
    context: u64,
    minimum: i64,
    most: i64,
    events: UserAddress,
    timeout: UserAddress,
    mask: UserAddress,
) -> Result<u64, Errno> {
    let deadline = read_deadline(timeout)?;
    let mask = read_mask(mask)?;
    table::find(context)?.get_events(minimum, most, events, &Wait { deadline, mask })
}

/// io_cancel(2): cancels a poll, the only request that can be cancelled. Its event still arrives,
/// so a successful call returns `EINPROGRESS`.
///
/// Errors: `EFAULT`; `EINVAL` if there is no such context, or if no poll of this iocb is waiting.
pub fn cancel(context: u64, iocb: UserAddress) -> Result<(), Errno> {
    const KEY: u64 = core::mem::offset_of!(Iocb, aio_key) as u64;
    let key: u32 = user_memory::read(iocb.offset(KEY))?;
    if key != iocb::KEY {
        return Err(Errno::EINVAL);
    }
    Err(if table::find(context)?.cancel(iocb.0) { Errno::EINPROGRESS } else { Errno::EINVAL })
}

/// Reads a time limit and returns the deadline on the monotonic clock, in nanoseconds; 0 for a
/// limit of zero. Returns `None` (no limit) for a null pointer or a negative limit. The kernel,
/// too, treats a negative limit as no limit: `ktime_add_safe` takes the sum of such a limit and
/// the current time for an overflow.
fn read_deadline(timeout: UserAddress) -> Result<Option<u64>, Errno> {
    if timeout.is_null() {
        return Ok(None);
    }
    let time = user_memory::read::<Timespec>(timeout)?;
    let span = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    Ok(match u64::try_from(span) {
        Ok(0) => Some(0),
        Ok(span) => Some(Clock::Monotonic.now().saturating_add(span)),
        Err(_) => None,
    })
}

/// Reads the signal mask to which a `struct __aio_sigset` points. `None`: the program has passed no
/// mask.
fn read_mask(argument: UserAddress) -> Result<Option<u64>, Errno> {
    if argument.is_null() {
        return Ok(None);
    }
    let [address, size]: [u64; 2] = user_memory::read(argument)?;
    match (address, size) {
        (0, _) => Ok(None),
        (_, SIGNAL_SET_SIZE) => user_memory::read(UserAddress(address)).map(Some),
        _ => Err(Errno::EINVAL),
    }
}
