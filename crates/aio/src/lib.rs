//! libaio's contexts: io_setup(2) to io_cancel(2), as another face of the
//! engine. A context is a ring of the engine with iocbs in front and events
//! behind; its address is where the program reads the events.
//!
//! `table` knows which addresses are contexts, `context` is one of them,
//! `manner` by which rules it was made, `iocb` says what an iocb asks of the engine,
//! and what the kernel refuses it for.
//!
//! # Who owns what
//! The table is the process's; a forked child starts with an
//! empty one, so that what it inherited is unknown to it (`EINVAL`, as in the
//! kernel, where a child has no contexts either). A call finds its context without
//! a lock, and keeps it alive, whatever another thread destroys meanwhile.
//!
//! The tail of the events is the engine's, the head the program's; io_getevents
//! moves the head for it, one caller at a time (`Context::taking`), and counts
//! nothing of its own: what is there is what lies between the two. How many
//! requests are under way the engine alone knows, under the ring's lock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod context;
mod iocb;
mod manner;
mod table;

use context::{Context, Wait};
use core::sync::atomic::{AtomicBool, Ordering};
use manner::Manner;
use usring_engine::Attention;
use usring_sys::clock::Clock;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, user_memory};
use usring_uapi::Timespec;
use usring_uapi::aio::{IOCTX_FLAG_IOPOLL, Iocb};

/// Bytes of a signal set.
const SIGNAL_SET_SIZE: u64 = 8;

/// io_setup(2): writes the address of a new context to `place`. Who calls
/// vouches, by `trust`, for every address that its iocbs will name.
///
/// Errors: `EFAULT`; `EINVAL` where something stands there already, or for no
/// requests or too many; `ENOMEM`.
pub fn setup(trust: AddressTrust, requests: u32, place: UserAddress) -> Result<(), Errno> {
    make(trust, requests, place, Manner::Kernel)
}

/// io_setup2, polled AIO's: the same with `IOCTX_FLAG_*`. The rings that later
/// patches gave it are not there.
///
/// Errors: those of [`setup`]; `EINVAL` for a flag that is unknown, and for rings.
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
    make(trust, requests, place, if flags & IOCTX_FLAG_IOPOLL != 0 { Manner::Polled } else { Manner::Plain })
}

/// Whether whoever asks for events of an ordinary context looks at the devices.
static LOOKS: AtomicBool = AtomicBool::new(false);

/// From now on it does.
pub fn have_events_looked_for() {
    LOOKS.store(true, Ordering::Relaxed);
}

fn make(trust: AddressTrust, requests: u32, place: UserAddress, manner: Manner) -> Result<(), Errno> {
    let occupant: u64 = user_memory::read(place)?;
    if occupant != 0 || requests == 0 {
        return Err(Errno::EINVAL);
    }
    let attention = if LOOKS.load(Ordering::Relaxed) { Attention::Preferred } else { Attention::Told };
    let address = table::insert(|id| Context::new(trust, requests, id, manner, attention))?;
    user_memory::write(place, address).inspect_err(|_| {
        let _ = destroy(address);
    })
}

/// io_destroy(2): comes back when nothing of the context is under way. Whoever
/// waits for its events is woken and gets `EINVAL`.
pub fn destroy(context: u64) -> Result<(), Errno> {
    table::remove(context)?.end();
    Ok(())
}

/// io_submit(2): answers how many iocbs were taken.
///
/// Errors: of the first iocb; `EINVAL` if there is no such context, or for a
/// negative count.
pub fn submit(context: u64, count: i64, list: UserAddress) -> Result<u64, Errno> {
    if count < 0 {
        return Err(Errno::EINVAL);
    }
    table::find(context)?.submit(count as u64, list)
}

/// io_getevents(2): answers how many events were taken.
///
/// Errors: `EINVAL` (no such context, counts, destroyed meanwhile), `EFAULT`,
/// `EINTR`.
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

/// io_pgetevents(2): the same under a signal mask, in force while it waits.
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

/// io_cancel(2). Only a poll can be cancelled, and its event comes all the
/// same: `EINPROGRESS` says so.
///
/// Errors: `EFAULT`; `EINVAL` if there is no such context, or nothing of this
/// iocb to cancel.
pub fn cancel(context: u64, iocb: UserAddress) -> Result<(), Errno> {
    const KEY: u64 = core::mem::offset_of!(Iocb, aio_key) as u64;
    let key: u32 = user_memory::read(iocb.offset(KEY))?;
    if key != iocb::KEY {
        return Err(Errno::EINVAL);
    }
    Err(if table::find(context)?.cancel(iocb.0) { Errno::EINPROGRESS } else { Errno::EINVAL })
}

/// A point of the monotonic clock; 0 for one that is over already. A negative
/// time limit is none, as in the kernel, which adds it to the time and finds
/// that it has come out before now.
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

/// `struct __aio_sigset`: address and size of a mask.
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
