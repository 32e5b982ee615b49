//! A program's plain system calls, in a run with devices. Decides which of these calls concern a
//! device. The kernel answers all other calls unchanged.

use crate::call::{Call, Outcome};
use crate::files::{devices, numbers};
use crate::filter;
use usring_engine::device_file;
use usring_sys::descriptor::{OwnedDescriptor, RESERVED_BASE};
use usring_sys::syscall::PASS_MARK;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// Answers a call on a file whose descriptor is the first argument.
pub fn on_file(call: &mut Call) -> Outcome {
    let number = width::int(call.arguments[0]);
    let system_call = SystemCall::with_six(width::low(call.number), call.arguments);
    match devices::with(number, |file| device_file::system_call(file, number, &system_call)) {
        Some(Some(answer)) => answer.into(),
        _ => call.pass(),
    }
}

/// Refuses sendfile(2), splice(2) and copy_file_range(2) on a device: the kernel would transfer the
/// data without usring.
pub fn between_files(call: &mut Call) -> Outcome {
    let other = match width::low(call.number) {
        linux::__NR_sendfile => 1,
        _ => 2,
    };
    let concerned =
        devices::is_device(width::int(call.arguments[0])) || devices::is_device(width::int(call.arguments[other]));
    if concerned { Err::<u64, _>(Errno::EINVAL).into() } else { call.pass() }
}

/// Refuses ioctl(2) requests by which the kernel would read the file that stands for a device. That
/// file is empty. cp(1) makes such requests, and would copy nothing.
pub fn control(call: &mut Call) -> Outcome {
    let [number, command, argument, ..] = call.arguments;
    let is_device = |number: u64| devices::is_device(width::int(number));
    let concerned = match width::low(command) {
        filter::FICLONE => is_device(number) || is_device(argument),
        // `struct file_clone_range` begins with the descriptor.
        filter::FICLONERANGE => {
            is_device(number) || user_memory::read::<u64>(UserAddress(argument)).is_ok_and(is_device)
        }
        filter::FIEMAP => is_device(number),
        _ => false,
    };
    if concerned { Err::<u64, _>(Errno::EOPNOTSUPP).into() } else { call.pass() }
}

/// Answers truncate(2) like ftruncate(2) on a writable descriptor.
pub fn truncate(call: &mut Call) -> Outcome {
    let [path, length, ..] = call.arguments;
    match usring_engine::devices::of_path(linux::AT_FDCWD, UserAddress(path)) {
        Some(device) => device_file::resize(&device, length).into(),
        None => call.pass(),
    }
}

/// Answers open(2), openat(2), openat2(2) and creat(2). The descriptor of a device gets a number in
/// the reserved range. O_TRUNC does not change a device's size.
pub fn open(call: &mut Call) -> Outcome {
    if is_path_of_device(call) { open_device(call).into() } else { call.pass() }
}

/// Returns whether an open call names a device.
pub fn is_path_of_device(call: &Call) -> bool {
    let [first, second, ..] = call.arguments;
    let (directory, path) = match width::low(call.number) {
        linux::__NR_openat | linux::__NR_openat2 => (first, second),
        _ => (width::word(linux::AT_FDCWD), first),
    };
    usring_engine::devices::of_path(width::int(directory), UserAddress(path)).is_some()
}

/// Words of 64 bits in `struct open_how`.
const HOW: usize = 3;

fn open_device(call: &Call) -> Result<u64, Errno> {
    let [first, second, third, fourth, ..] = call.arguments;
    let here = width::word(linux::AT_FDCWD);
    let (directory, path, how, number) = match width::low(call.number) {
        linux::__NR_openat2 if fourth < 8 * HOW as u64 => return Err(Errno::EINVAL),
        linux::__NR_openat2 => {
            (first, second, user_memory::read::<[u64; HOW]>(UserAddress(third))?, linux::__NR_openat2)
        }
        linux::__NR_openat => (first, second, [third, fourth, 0], linux::__NR_openat),
        linux::__NR_open => (here, first, [second, third, 0], linux::__NR_openat),
        // creat(2)
        _ => (here, first, [u64::from(linux::O_CREAT | linux::O_WRONLY), second, 0], linux::__NR_openat),
    };
    let [flags, mode, resolve] = how;
    let flags = flags & !u64::from(linux::O_TRUNC);
    let how = [flags, mode, resolve];
    let arguments = match number {
        linux::__NR_openat2 => [directory, path, &raw const how as u64, size_of_val(&how) as u64, 0],
        _ => [directory, path, flags, mode, 0],
    };
    let opened = OwnedDescriptor::from_raw(width::int(SystemCall::new(number, arguments).run_once()?));
    let close_on_exec = width::low(flags) & linux::O_CLOEXEC != 0;
    let reserved = numbers::duplicate_reserved(opened.number(), RESERVED_BASE, close_on_exec);
    // If the limit of open files leaves no number in the reserved range, fcntl(2) answers EINVAL.
    // open(2) has to answer EMFILE.
    let reserved = reserved.map_err(|error| if error == Errno::EINVAL { Errno::EMFILE } else { error })?;
    Ok(width::word(devices::give_to_program(reserved)))
}

/// Answers fcntl(2) with F_SETFL: makes the kernel's call, and then updates the flags that usring
/// keeps for the device.
pub fn set_flags(call: &mut Call) -> Outcome {
    let mut arguments = call.arguments;
    arguments[5] = PASS_MARK;
    let set = SystemCall::with_six(width::low(call.number), arguments).run_once();
    devices::flags_changed(width::int(call.arguments[0]));
    set.into()
}
