//! Calls that close, duplicate, map or poll descriptors. If a call's number belongs to no ring, to
//! no device and not to usring itself, the kernel answers the call unchanged.
//!
//! A vfork child has descriptors of its own but shares usring's tables with its parent. So if the
//! child closes or duplicates a number, the kernel does so, and usring records nothing. The child
//! runs in its parent's memory, and pages swapped memory in as its parent does. To page memory in,
//! it needs usring's private descriptors, so it must not close these descriptors. (The child's exec
//! closes its copies of them.)

use crate::call::{Call, Outcome};
use crate::files::descriptors::{self, File, Found};
use crate::files::numbers::duplicate_reserved;
use crate::files::{device_calls, devices};
use crate::process;
use alloc::vec::Vec;
use usring_sys::descriptor::{self, RESERVED_BASE};
use usring_sys::syscall::PASS_MARK;
use usring_sys::{Errno, SystemCall, width};
use usring_uapi::general as linux;

/// Answers close(2).
pub fn close(call: &mut Call) -> Outcome {
    match close_number(width::int(call.arguments[0])) {
        Some(result) => result.map(|()| 0u64).into(),
        None => call.pass(),
    }
}

/// Closes a descriptor number of a ring or a device. Error: `EBADF` for a private number of
/// usring's. `None`: the kernel has to answer the call.
pub fn close_number(number: i32) -> Option<Result<(), Errno>> {
    devices::forget(number);
    if descriptor::is_private(number) {
        return Some(Err(Errno::EBADF));
    }
    // `is_own` makes a system call. So it is called only for a number that may belong to a ring or
    // a device.
    let known = descriptors::is_known(number);
    if !(known || may_be_device(number)) || !process::is_own() {
        return None;
    }
    if !known {
        let closed = descriptor::close(number);
        devices::forget(number);
        return Some(closed);
    }
    // A ring's number is removed from the table of rings before the number is closed. In the other
    // order, the kernel could reuse the number for another file while the table still names the
    // ring.
    let file = descriptors::remove(number);
    note_close(file.as_deref(), number);
    let closed = descriptor::close(number);
    drop(file);
    Some(closed)
}

/// Notifies a ring that one of its descriptor numbers is about to be closed.
fn note_close(file: Option<&File>, number: i32) {
    if let Some(file) = file {
        file.ring.note_close(number);
    }
}

/// Returns whether the table of devices may have an entry for this number. Does not examine the
/// number's file.
fn may_be_device(number: i32) -> bool {
    devices::exist() && number >= RESERVED_BASE
}

// CLOSE_RANGE_UNSHARE of linux/close_range.h.
const UNSHARE: u64 = 2;

/// Answers close_range(2). If the call has any flag but CLOSE_RANGE_UNSHARE, the kernel answers it.
/// (With CLOSE_RANGE_CLOEXEC, the call closes nothing before the exec.)
pub fn close_range(call: &mut Call) -> Outcome {
    let [first, last, flags, ..] = call.arguments;
    let (first, last) = (width::low(first), width::low(last));
    if flags & !UNSHARE != 0 || first > last {
        return call.pass();
    }
    devices::forget_between(first, last);
    // Closes the ranges between usring's private numbers.
    let mut start = first;
    let mut result = Ok(0u64);
    for number in descriptor::private_between(first, last) {
        if number > start && result.is_ok() {
            result = close_piece(start, number - 1, flags);
        }
        start = number + 1;
    }
    if start <= last && result.is_ok() {
        result = close_piece(start, last, flags);
    }
    devices::forget_between(first, last);
    result.into()
}

fn close_piece(first: u32, last: u32, flags: u64) -> Result<u64, Errno> {
    let mut removed = Vec::new();
    if process::is_own() {
        // The references to the rings are dropped at the end, after the kernel has closed the
        // numbers. A ring whose descriptor is still open in another process must then continue
        // there.
        removed.extend(descriptors::known_between(first, last).filter_map(|number| {
            let file = descriptors::remove(number);
            note_close(file.as_deref(), number);
            file
        }));
    }
    SystemCall::new(linux::__NR_close_range, [u64::from(first), u64::from(last), flags, 0, 0]).run_once()
}

/// Answers dup(2).
pub fn duplicate(call: &mut Call) -> Outcome {
    duplicate_from(call, width::int(call.arguments[0]), RESERVED_BASE, false)
}

/// Answers fcntl(2) with F_DUPFD or F_DUPFD_CLOEXEC. If the run has devices, also answers F_SETFL.
pub fn control(call: &mut Call) -> Outcome {
    let [number, command, lowest, ..] = call.arguments;
    if width::low(command) == linux::F_SETFL {
        return device_calls::set_flags(call);
    }
    let close_on_exec = width::low(command) == linux::F_DUPFD_CLOEXEC;
    // Linux reads this argument as an `int`, so the upper half may contain anything.
    let lowest = width::int(lowest);
    if lowest < 0 {
        return call.pass();
    }
    // As in the kernel, the limit of open files is checked before the descriptor is looked up.
    if descriptors::is_known(width::int(number)) && width::word(lowest) >= descriptor::program_limit() {
        return Err::<u64, _>(Errno::EINVAL).into();
    }
    duplicate_from(call, width::int(number), lowest, close_on_exec)
}

/// Duplicates a descriptor. If the descriptor is a ring's or a device's, the duplicate gets a
/// number in the reserved range.
fn duplicate_from(call: &mut Call, number: i32, lowest: i32, close_on_exec: bool) -> Outcome {
    if descriptor::is_private(number) {
        return Err::<u64, _>(Errno::EBADF).into();
    }
    if devices::exist() && devices::is_device(number) {
        let duplicate = duplicate_reserved(number, lowest, close_on_exec);
        return duplicate.map(|duplicate| width::word(devices::give_to_program(duplicate))).into();
    }
    let Some(file) = descriptors::get(number) else { return call.pass() };
    if !process::is_own() {
        return call.pass();
    }
    let duplicate = duplicate_reserved(number, lowest, close_on_exec).and_then(|duplicate| {
        descriptors::insert(duplicate.number(), file)?;
        Ok(width::word(duplicate.into_raw()))
    });
    duplicate.into()
}

/// Answers dup2(2) and dup3(2).
pub fn duplicate_onto(call: &mut Call) -> Outcome {
    let [old, new, ..] = call.arguments;
    let (old, new) = (width::int(old), width::int(new));
    devices::forget(new);
    if descriptor::is_private(old) || descriptor::is_private(new) {
        // Linux answers EBUSY while another thread opens a file that gets the number `new`. If
        // `new` is a private number of usring's, usring answers EBUSY as well.
        return Err::<u64, _>(if descriptor::is_private(old) { Errno::EBADF } else { Errno::EBUSY }).into();
    }
    let file = descriptors::get(old);
    let concerned = file.is_some() || descriptors::is_known(new) || may_be_device(new);
    if old == new || !concerned || !process::is_own() {
        return call.pass();
    }
    note_close(descriptors::get(new).as_deref(), new);
    let mut arguments = call.arguments;
    arguments[5] = PASS_MARK;
    let done = SystemCall::with_six(width::low(call.number), arguments).run_once();
    devices::forget(new);
    if done.is_ok() {
        let replaced = descriptors::remove(new);
        if let Some(file) = file {
            // If `new` is beyond the table of rings, the table cannot record it as a ring's. The
            // duplicate is then a plain eventfd, and io_uring calls on it fail.
            let _ = descriptors::insert(new, file);
        }
        drop(replaced);
    }
    done.into()
}

/// Answers mmap(2) of a ring's descriptor.
pub fn map(call: &mut Call) -> Outcome {
    let [address, length, protection, flags, number, offset] = call.arguments;
    let flags = width::low(flags);
    if flags & linux::MAP_ANONYMOUS != 0 {
        return call.pass();
    }
    if devices::is_device(width::int(number)) {
        return Err::<u64, _>(Errno::ENODEV).into();
    }
    let mapped = descriptors::with(width::int(number), |file| {
        if length == 0 || flags & (linux::MAP_SHARED | linux::MAP_PRIVATE) == 0 {
            return Err(Errno::EINVAL);
        }
        // As in the kernel, the program cannot choose the address of a ring's mapping.
        if address != 0 || flags & (linux::MAP_FIXED | linux::MAP_FIXED_NOREPLACE) != 0 {
            return Err(Errno::EINVAL);
        }
        let mapped = file.map(offset, width::size(length))?;
        protect(mapped, length, width::low(protection))?;
        Ok(mapped as u64)
    });
    match mapped {
        Found::Ring(result) => result.into(),
        Found::Inherited(error) => Err::<u64, _>(error).into(),
        Found::Other => call.pass(),
    }
}

/// Restricts a ring's mapping to the protection that the program asked for. At first the mapping is
/// readable and writable.
fn protect(address: usize, length: u64, protection: u32) -> Result<(), Errno> {
    if protection == linux::PROT_READ | linux::PROT_WRITE {
        return Ok(());
    }
    let arguments = [address as u64, length, u64::from(protection), 0, 0];
    SystemCall::new(linux::__NR_mprotect, arguments).run().map(drop)
}

/// Answers epoll_ctl(2). When the program adds a ring to an epoll set, the ring's descriptor must
/// begin to show the ring's readiness.
pub fn control_epoll(call: &mut Call) -> Outcome {
    let [_, operation, number, ..] = call.arguments;
    if width::low(operation) != linux::EPOLL_CTL_DEL {
        descriptors::with(width::int(number), |file| file.watch(width::int(number)));
    }
    call.pass()
}
