//! OPENAT, OPENAT2, CLOSE and STATX, on ordinary and on direct descriptors.

use super::path::PATH_LIMIT;
use crate::registered::registered_files::FileSlot;
use crate::request::operation::{Call, Open, Operation};
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use crate::{devices, host};
use alloc::boxed::Box;
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;
use usring_uapi::sqe_flags;

/// Bytes of `struct open_how` in the version that usring knows.
const HOW_SIZE: u64 = 24;
/// Maximum number of bytes after the known fields of `struct open_how` that are checked at a time.
const HOW_STEP: u64 = 4096;

impl Open {
    /// Returns the openat2(2) call on usring's copies of the path and of `struct open_how`.
    pub fn call(&self) -> SystemCall {
        let how = (&raw const *self.how) as u64;
        let path = self.path.as_ptr() as u64;
        SystemCall::new(linux::__NR_openat2, [width::word(self.directory), path, how, HOW_SIZE, 0])
    }

    /// Converts the result of openat2(2) to the result of the CQE. A file for a slot of the
    /// registered files gets a private descriptor number at once, so that the program cannot close
    /// the file.
    fn accept(&mut self, answer: Result<u64, Errno>) -> Result<i32, Errno> {
        let number = width::int(answer?);
        if self.slot == FileSlot::Ordinary {
            return Ok(number);
        }
        self.opened = Some(OwnedDescriptor::from_raw(number).into_private()?);
        Ok(0)
    }

    /// Returns whether the open may wait for a disk. An open that can create or truncate a file may
    /// wait.
    fn may_block(&self) -> bool {
        let blocking = linux::O_TRUNC | linux::O_CREAT | (linux::O_TMPFILE & !linux::O_DIRECTORY);
        self.how[0] & u64::from(blocking) != 0
    }
}

pub(crate) fn prepare_openat(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    let flags = u64::from(sqe.op_flags);
    // open(2) ignores unknown flags, but openat2(2) refuses them.
    let known = u64::from(
        linux::O_ACCMODE
            | linux::O_CREAT
            | linux::O_EXCL
            | linux::O_NOCTTY
            | linux::O_TRUNC
            | linux::O_APPEND
            | linux::O_NONBLOCK
            | linux::O_SYNC
            | linux::O_DSYNC
            | linux::FASYNC
            | linux::O_DIRECT
            | linux::O_LARGEFILE
            | linux::O_DIRECTORY
            | linux::O_NOFOLLOW
            | linux::O_NOATIME
            | linux::O_CLOEXEC
            | linux::O_PATH
            | linux::O_TMPFILE,
    );
    let creates = flags & u64::from(linux::O_CREAT | (linux::O_TMPFILE & !linux::O_DIRECTORY)) != 0;
    let mode = if creates { u64::from(sqe.len) & 0o7777 } else { 0 };
    prepare_open(request, [flags & known, mode, 0])
}

pub(crate) fn prepare_openat2(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let (address, size) = (UserAddress(request.sqe.off), u64::from(request.sqe.len));
    if size < HOW_SIZE {
        return Err(Errno::EINVAL);
    }
    check_zero(address.offset(HOW_SIZE), size - HOW_SIZE)?;
    let how: [u64; 3] = user_memory::read(address)?;
    prepare_open(request, how)
}

/// Checks that the program's `struct open_how` has only zeros after the fields that usring knows.
/// Error: `E2BIG`.
fn check_zero(mut address: UserAddress, mut length: u64) -> Result<(), Errno> {
    while length != 0 {
        // A step never crosses into the next page, because that page is perhaps not mapped.
        let step = (HOW_STEP - address.0 % HOW_STEP).min(length);
        if user_memory::read_array::<u8>(address, width::size(step))?.iter().any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
        (address, length) = (address.offset(step), length - step);
    }
    Ok(())
}

fn prepare_open(request: &mut Request, mut how: [u64; 3]) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 {
        return Err(Errno::EINVAL);
    }
    if request.has_flag(sqe_flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    let slot = FileSlot::from_sqe(sqe.file_index);
    if slot != FileSlot::Ordinary && how[0] & u64::from(linux::O_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    if how[0] & u64::from(linux::O_PATH) == 0 {
        how[0] |= u64::from(linux::O_LARGEFILE);
    }
    if slot != FileSlot::Ordinary {
        // The file of a direct descriptor has an ordinary number for a moment. With O_CLOEXEC, no
        // program that is executed in that moment inherits the number.
        how[0] |= u64::from(linux::O_CLOEXEC);
    }
    let path = user_memory::read_c_string(UserAddress(sqe.addr), PATH_LIMIT)?;
    // A device of usring's keeps its size, so O_TRUNC is left out for it.
    let truncates = how[0] & u64::from(linux::O_TRUNC) != 0;
    if truncates && devices::are_any() && devices::of_path(sqe.fd, UserAddress(path.as_ptr() as u64)).is_some() {
        how[0] &= !u64::from(linux::O_TRUNC);
    }
    let open = Open { directory: sqe.fd, path, how: Box::new(how), slot, attempted: false, opened: None };
    request.operation = Operation::Open(open);
    Ok(())
}

/// Tries to open the file from what the kernel has cached. If that is not possible, a worker opens
/// it.
pub(crate) fn issue_open(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::Open(open) = &mut request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    if open.may_block() || open.attempted {
        return IssueOutcome::NeedsWorker;
    }
    open.attempted = true;
    let asked_nonblocking = open.how[0] & u64::from(linux::O_NONBLOCK) != 0;
    let saved = *open.how;
    open.how[0] |= u64::from(linux::O_NONBLOCK);
    open.how[2] |= u64::from(linux::RESOLVE_CACHED);
    let answer = open.call().run();
    *open.how = saved;
    match answer {
        // openat2(2) refuses O_PATH with O_NONBLOCK (EINVAL). A worker opens such a file.
        Err(Errno::EAGAIN | Errno::EINVAL) => return IssueOutcome::NeedsWorker,
        Ok(number) if !asked_nonblocking => {
            let _ = descriptor::clear_nonblocking(width::int(number));
        }
        _ => {}
    }
    let result = open.accept(answer).unwrap_or_else(Errno::negative);
    IssueOutcome::done(finish_open(locked, request, result))
}

/// Opens the file in a worker. May block.
pub(crate) fn work_open(request: &mut Request, blocking: &Blocking) -> i32 {
    let Operation::Open(open) = &mut request.operation else { return Errno::EINVAL.negative() };
    let answer = blocking.run(&open.call());
    open.accept(answer).unwrap_or_else(Errno::negative)
}

/// If the request names a slot of the registered files, puts the opened file into that slot.
/// Returns the CQE's result.
pub(crate) fn finish_open(locked: &mut LockedRing, request: &mut Request, result: i32) -> i32 {
    let Operation::Open(open) = &mut request.operation else { return result };
    match open.opened.take() {
        Some(file) => locked.registered.files.install(open.slot, file).unwrap_or_else(Errno::negative),
        None => result,
    }
}

pub(crate) fn prepare_close(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.off != 0 || sqe.addr != 0 || sqe.len != 0 || sqe.op_flags != 0 || sqe.buf_index != 0 {
        return Err(Errno::EINVAL);
    }
    if request.has_flag(sqe_flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    if sqe.file_index != 0 && sqe.fd != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Closes a descriptor, before the CQE is posted.
pub(crate) fn issue_close(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let sqe = request.sqe;
    if sqe.file_index != 0 {
        return IssueOutcome::of(locked.registered.files.remove(sqe.file_index - 1).map(|()| 0));
    }
    // The program may soon open another file under this number. So everything that is remembered
    // about the number is dropped.
    locked.devices.named.forget();
    let closed = host::close(sqe.fd).unwrap_or_else(|| descriptor::close(sqe.fd));
    IssueOutcome::of(closed.map(|()| 0))
}

pub(crate) fn prepare_statx(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    if request.has_flag(sqe_flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    let path = user_memory::read_c_string(UserAddress(sqe.addr), PATH_LIMIT)?;
    let (directory, flags, mask) = (width::word(sqe.fd), u64::from(sqe.op_flags), u64::from(sqe.len));
    let arguments = [directory, path.as_ptr() as u64, flags, mask, sqe.off];
    request.operation = Call::with_memory(linux::__NR_statx, arguments, path);
    Ok(())
}
