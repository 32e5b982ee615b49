//! Swap regions and faults for C (`include/usring.h`). The functions are for programs that are
//! linked to this library, or that find them by dlsym(3). Each call goes through the entry point as
//! a system call does, so signals are deferred during the call. Its number in [`Call`] is one that
//! no system call can have. `usring_swap` implements the functions.

use crate::call::Call;
use crate::faults;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use usring_inject::armed;
use usring_swap::{Access, Arena, Mechanism, Refusal, SwapRegion};
use usring_sys::mutex::Mutex;
use usring_sys::thread::{self, ThreadId};
use usring_sys::{Errno, UserAddress, user_memory, width};

/// The first of the numbers that a [`Call`] can have for these functions.
pub const FIRST: u32 = 0x7573_0100;

/// Size of `struct usring_swap_options` in words of 64 bits. The first word of the structure is its
/// size in bytes.
const OPTIONS: usize = 7;
/// Maximum number of bytes of an option's text, including its NUL.
const MOST_TEXT_BYTES: usize = 4096;

/// Passes the functions to the macro `$with`: for each function, its number, its name, and its
/// implementation.
macro_rules! for_each_function {
    ($with:ident) => {
        $with! {
            0 usring_swap_map => map;
            1 usring_swap_unmap => unmap;
            2 usring_swap_address => address;
            3 usring_swap_advise => advise;
            4 usring_swap_pin => pin;
            5 usring_swap_unpin => unpin;
            6 usring_swap_set_limit => set_limit;
            7 usring_swap_set_policy => set_policy;
            8 usring_swap_statistics => statistics;
            9 usring_arena_create => arena_create;
            10 usring_arena_destroy => arena_destroy;
            11 usring_arena_region => arena_region;
            12 usring_arena_malloc => arena_malloc;
            13 usring_arena_free => arena_free;
            14 usring_arena_usable_size => arena_usable_size;
            15 usring_inject_once => inject_once;
            16 usring_injected => injected;
            17 usring_swap_error => error;
        }
    };
}
pub(crate) use for_each_function;

macro_rules! serve_functions {
    ($($number:literal $name:ident => $serve:ident;)*) => {
        /// The last of the numbers that a [`Call`] can have for these functions.
        pub const LAST: u32 = FIRST + width::count([$($number),*].len()) - 1;

        /// Runs the function that the call's number stands for, and returns the function's answer.
        pub fn serve(call: &Call) -> Result<u64, Errno> {
            match width::low(call.number) - FIRST {
                // SAFETY: the functions need valid handles, and `usring.h` obliges the program to
                // pass only valid handles.
                $($number => unsafe { $serve(call.arguments) },)*
                _ => Err(Errno::ENOSYS),
            }
        }
    };
}

for_each_function!(serve_functions);

type Arguments = [u64; 6];

unsafe fn inject_once([rule, ..]: Arguments) -> Result<u64, Errno> {
    faults::add_once(rule)
}

#[allow(clippy::unnecessary_wraps, reason = "all functions have the same type")]
unsafe fn injected(_: Arguments) -> Result<u64, Errno> {
    Ok(armed::made())
}

fn text(address: u64) -> Result<String, Errno> {
    let mut bytes = user_memory::read_c_string(UserAddress(address), MOST_TEXT_BYTES)?;
    bytes.pop();
    String::from_utf8(bytes).map_err(|_| Errno::EINVAL)
}

/// # Safety
/// The handle must come from `usring_swap_map` or `usring_arena_region`, and must not have been
/// released.
unsafe fn region<'a>(handle: u64) -> &'a SwapRegion {
    // SAFETY: the caller guarantees that the handle is not released yet.
    unsafe { &*(handle as *const SwapRegion) }
}

/// # Safety
/// The handle must come from `usring_arena_create`, and must not have been released.
unsafe fn arena<'a>(handle: u64) -> &'a Arena {
    // SAFETY: the caller guarantees that the handle is not released yet.
    unsafe { &*(handle as *const Arena) }
}

/// Converts a range of addresses to a range of the region's bytes.
fn range(region: &SwapRegion, start: u64, length: u64) -> Result<Range<usize>, Errno> {
    let first = width::size(start).checked_sub(region.as_ptr() as usize).ok_or(Errno::EINVAL)?;
    let end = first.checked_add(width::size(length)).ok_or(Errno::EINVAL)?;
    Ok(first..end)
}

/// The reasons why `usring_swap_map` failed: one for each thread, that of the thread's last
/// failure. The first element is the oldest failure.
static LAST_FAILURE: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());
/// Maximum number of threads whose failures are in `LAST_FAILURE`. If one more thread has a
/// failure, the oldest failure is dropped.
const MOST_FAILURES: usize = 64;

/// Records the reason why a call of this thread failed, for `usring_swap_error`. Returns `errno`.
fn record_failure(errno: Errno, reason: String) -> Errno {
    let thread = thread::current();
    let mut failures = LAST_FAILURE.lock();
    failures.retain(|(other, _)| *other != thread);
    if failures.len() == MOST_FAILURES {
        failures.remove(0);
    }
    failures.push((thread, reason));
    errno
}

/// Copies the reason for this thread's last failure to the program, as strerror_r(3) does. Returns
/// the reason's length.
unsafe fn error([place, room, ..]: Arguments) -> Result<u64, Errno> {
    let thread = thread::current();
    let reason = {
        let failures = LAST_FAILURE.lock();
        failures.iter().find(|(other, _)| *other == thread).map_or(String::new(), |(_, reason)| reason.clone())
    };
    let Some(most) = width::size(room).checked_sub(1) else { return Ok(reason.len() as u64) };
    let mut bytes = reason.as_bytes()[..reason.len().min(most)].to_vec();
    bytes.push(0);
    user_memory::copy_out(UserAddress(place), &bytes).map(|()| reason.len() as u64)
}

/// Reads the options of a region. A program that was built with another version of the header may
/// pass options of another size. If they are shorter, the missing options are 0. If they are
/// longer, the additional words must be 0.
fn read_options(address: u64) -> Result<[u64; OPTIONS], Errno> {
    let size = user_memory::read::<u64>(UserAddress(address))?;
    let words = width::size(size / 8);
    if !size.is_multiple_of(8) || !(LEAST_OPTIONS..=MOST_OPTIONS).contains(&words) {
        let expected = OPTIONS * 8;
        return Err(record_failure(
            Errno::EINVAL,
            format!("options_size is {size}; set it to sizeof(struct usring_swap_options), here {expected}"),
        ));
    }
    let mut options = [0; OPTIONS];
    for index in 0..words {
        let word = user_memory::read::<u64>(UserAddress(address + 8 * index as u64))?;
        match options.get_mut(index) {
            Some(option) => *option = word,
            None if word == 0 => {}
            None => return Err(record_failure(Errno::EINVAL, "an option is newer than this libusring.so".to_string())),
        }
    }
    Ok(options)
}

/// Sizes of the options in words: the smallest size of any version of the header, and the largest
/// size that is accepted.
const LEAST_OPTIONS: usize = 4;
const MOST_OPTIONS: usize = 64;

unsafe fn map([options, place, ..]: Arguments) -> Result<u64, Errno> {
    let [_, size, limit, backing, mechanism, readahead, queues] = read_options(options)?;
    let builder = SwapRegion::builder().size(width::size(size)).limit(width::size(limit));
    let backing = text(backing).map_err(|error| {
        record_failure(
            error,
            "backing does not point to a string; set it to a SPEC such as \"ram:size=1G\"".to_string(),
        )
    })?;
    let mut builder = builder.backing(&backing).map_err(|error| record_failure(Errno::EINVAL, error.to_string()))?;
    if mechanism != 0 {
        let name = text(mechanism)?;
        let unknown = || {
            record_failure(Errno::EINVAL, format!("'{name}' is not a mechanism: userfault, guard, mprotect, compat"))
        };
        builder = builder.mechanism(Mechanism::of_name(&name).ok_or_else(unknown)?);
    }
    builder = match readahead {
        0 => builder,
        u64::MAX => builder.readahead(0),
        bytes => builder.readahead(width::size(bytes)),
    };
    if queues != 0 {
        builder = builder.queues(width::size(queues));
    }
    let refused = |refusal: Refusal| record_failure(refusal.errno(), refusal.message(&backing).to_string());
    let region = Box::into_raw(Box::new(builder.build().map_err(refused)?));
    user_memory::write(UserAddress(place), region as u64).map(|()| 0).inspect_err(|_| {
        // SAFETY: the pointer comes from `Box::into_raw` above, and the program did not get it.
        drop(unsafe { Box::from_raw(region) });
    })
}

unsafe fn unmap([handle, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the handle comes from `Box::into_raw` in `map`, and the program does not use the
    // handle again.
    drop(unsafe { Box::from_raw(handle as *mut SwapRegion) });
    Ok(0)
}

unsafe fn address([handle, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    Ok(unsafe { region(handle) }.as_ptr() as u64)
}

/// `USRING_SWAP_DONTNEED`.
const DONTNEED: u64 = 4;

unsafe fn advise([handle, start, length, advice, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    let region = unsafe { region(handle) };
    if width::low(advice) as u64 != DONTNEED {
        return Err(Errno::EINVAL);
    }
    region.discard_shared(range(region, start, length)?).map(|()| 0)
}

unsafe fn pin([handle, start, length, writes, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    let region = unsafe { region(handle) };
    let access = if width::low(writes) == 0 { Access::Read } else { Access::Write };
    region.pin(range(region, start, length)?, access).map(|pin| {
        core::mem::forget(pin);
        0
    })
}

unsafe fn unpin([handle, start, length, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    let region = unsafe { region(handle) };
    region.unpin(range(region, start, length)?).map(|()| 0)
}

unsafe fn set_limit([handle, bytes, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    unsafe { region(handle) }.set_limit(width::size(bytes)).map(|()| 0)
}

unsafe fn set_policy([handle, policy, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    if unsafe { region(handle) }.set_policy(&text(policy)?) { Ok(0) } else { Err(Errno::EINVAL) }
}

unsafe fn statistics([handle, place, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    let found = unsafe { region(handle) }.statistics();
    let words = [
        found.pages,
        found.page_size,
        found.limit,
        found.resident,
        found.pinned,
        found.slots,
        found.slots_taken,
        found.first_touches,
        found.swap_ins,
        found.write_faults,
        found.late_faults,
        found.read_ahead,
        found.evicted,
        found.written,
        found.write_requests,
        found.direct_evictions,
        found.read_errors,
        found.write_errors,
        found.over_limit,
    ];
    user_memory::write(UserAddress(place), words).map(|()| 0)
}

unsafe fn arena_create([handle, place, ..]: Arguments) -> Result<u64, Errno> {
    user_memory::write(UserAddress(place), 0u64)?;
    // SAFETY: the handle comes from `Box::into_raw` in `map`, and the program does not use the
    // handle again.
    let region = unsafe { Box::from_raw(handle as *mut SwapRegion) };
    let arena = Box::into_raw(Box::new(Arena::new(*region)?));
    user_memory::write(UserAddress(place), arena as u64).map(|()| 0)
}

unsafe fn arena_destroy([handle, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the handle comes from `arena_create`, and the program does not use the handle again.
    drop(unsafe { Box::from_raw(handle as *mut Arena) });
    Ok(0)
}

unsafe fn arena_region([handle, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    Ok(core::ptr::from_ref(unsafe { arena(handle) }.region()) as u64)
}

/// Alignment of malloc(3) in bytes.
const ALIGNED: usize = 16;

unsafe fn arena_malloc([handle, size, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    Ok(unsafe { arena(handle) }.allocate(width::size(size), ALIGNED).map_or(0, |(address, _)| address as u64))
}

unsafe fn arena_free([handle, block, ..]: Arguments) -> Result<u64, Errno> {
    if block != 0 {
        // SAFETY: the caller guarantees that the handle is not released yet.
        unsafe { arena(handle) }.free(width::size(block));
    }
    Ok(0)
}

unsafe fn arena_usable_size([handle, block, ..]: Arguments) -> Result<u64, Errno> {
    // SAFETY: the caller guarantees that the handle is not released yet.
    Ok(if block == 0 { 0 } else { unsafe { arena(handle) }.size_of(width::size(block)) as u64 })
}
