//! System calls on a file that stands for a device of usring's. The program makes these calls, or a
//! worker makes them for a request. Their results are those of a Linux block device, except for
//! ftruncate and fallocate. The program takes the device for a regular file of the device's size,
//! because fstat(2) says so. So the program expects that ftruncate and fallocate succeed. They
//! succeed if they do no harm.
//!
//! The kernel keeps the file position, in the file that stands for the device. So duplicates of the
//! descriptor, child processes and the next program (execve) share that position.

use alloc::vec::Vec;
use usring_device::{OpenDevice, Operation, Transfer};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// RWF_* flags that a transfer on a device accepts. RWF_APPEND and O_APPEND have no effect: Linux
/// does not append to block devices.
const KNOWN_FLAGS: u32 = linux::RWF_HIPRI | linux::RWF_DSYNC | linux::RWF_SYNC | linux::RWF_NOWAIT | linux::RWF_APPEND;

/// Carries out a system call of the program on a device. `None`: the caller passes the call to the
/// kernel, and the kernel carries it out on the file that stands for the device.
pub fn system_call(file: &OpenDevice, number: i32, call: &SystemCall) -> Option<Result<u64, Errno>> {
    let [_, a, b, c, _, f] = call.arguments;
    let answer = match call.number {
        linux::__NR_read => at_position(file, number, Direction::Read, &[vector_of_one(a, b)], 0),
        linux::__NR_write => at_position(file, number, Direction::Write, &[vector_of_one(a, b)], 0),
        linux::__NR_pread64 => transfer(file, Direction::Read, &[vector_of_one(a, b)], c, 0),
        linux::__NR_pwrite64 => transfer(file, Direction::Write, &[vector_of_one(a, b)], c, 0),
        linux::__NR_readv => read_vector(a, b).and_then(|list| at_position(file, number, Direction::Read, &list, 0)),
        linux::__NR_writev => read_vector(a, b).and_then(|list| at_position(file, number, Direction::Write, &list, 0)),
        linux::__NR_preadv => read_vector(a, b).and_then(|list| transfer(file, Direction::Read, &list, c, 0)),
        linux::__NR_pwritev => read_vector(a, b).and_then(|list| transfer(file, Direction::Write, &list, c, 0)),
        linux::__NR_preadv2 => vectored(file, number, Direction::Read, (a, b), c, width::low(f)),
        linux::__NR_pwritev2 => vectored(file, number, Direction::Write, (a, b), c, width::low(f)),
        linux::__NR_fsync | linux::__NR_fdatasync => file.device().as_file().flush().map(|()| 0),
        linux::__NR_sync_file_range => sync_range(a, b, width::low(c)),
        linux::__NR_fallocate => allocate(file, width::low(a), b, c),
        linux::__NR_ftruncate => resize(file, a),
        linux::__NR_lseek if matches!(width::low(b), linux::SEEK_DATA | linux::SEEK_HOLE) => Err(Errno::EINVAL),
        linux::__NR_mmap => Err(Errno::ENODEV),
        // After `EINVAL`, programs copy with read(2) and write(2) instead.
        linux::__NR_sendfile | linux::__NR_splice | linux::__NR_copy_file_range => Err(Errno::EINVAL),
        _ => return None,
    };
    Some(answer)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// Makes a vector of one member. A length that no address space can hold is reduced, so that the
/// transfer fails with EFAULT, as in the kernel. (In a vector of several members, such a length
/// makes the transfer fail with EINVAL.)
fn vector_of_one(base: u64, length: u64) -> IoVector {
    IoVector { base, length: length.min(i64::MAX as u64) }
}

fn read_vector(address: u64, count: u64) -> Result<Vec<IoVector>, Errno> {
    if count > u64::from(linux::UIO_MAXIOV) {
        return Err(Errno::EINVAL);
    }
    user_memory::read_array(UserAddress(address), width::size(count))
}

fn vectored(
    file: &OpenDevice,
    number: i32,
    direction: Direction,
    (address, count): (u64, u64),
    offset: u64,
    flags: u32,
) -> Result<u64, Errno> {
    let list = read_vector(address, count)?;
    match offset {
        u64::MAX => at_position(file, number, direction, &list, flags),
        offset => transfer(file, direction, &list, offset, flags),
    }
}

fn transfer(
    file: &OpenDevice,
    direction: Direction,
    segments: &[IoVector],
    offset: u64,
    flags: u32,
) -> Result<u64, Errno> {
    let mode = file.mode();
    let (allowed, operation) = match direction {
        Direction::Read => (mode.may_read(), Operation::Read),
        Direction::Write => (mode.may_write(), Operation::Write),
    };
    if !allowed {
        return Err(Errno::EBADF);
    }
    if offset > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & linux::RWF_NOWAIT != 0 {
        // Every transfer on a device has to wait.
        return Err(Errno::EAGAIN);
    }
    let durable = mode.is_durable() || flags & (linux::RWF_DSYNC | linux::RWF_SYNC) != 0;
    let transfer = Transfer { operation, durable, registered: false, direct: mode.is_direct(), offset, segments };
    file.device().as_file().transfer(&transfer)
}

/// Transfers at the file position, and advances the position by the bytes transferred.
fn at_position(
    file: &OpenDevice,
    number: i32,
    direction: Direction,
    segments: &[IoVector],
    flags: u32,
) -> Result<u64, Errno> {
    let _one_at_a_time = file.position().lock();
    let position = seek(number, 0)?;
    let bytes = transfer(file, direction, segments, position, flags)?;
    seek(number, bytes)?;
    Ok(bytes)
}

/// Advances the file position by `by` bytes; returns the new position.
fn seek(number: i32, by: u64) -> Result<u64, Errno> {
    SystemCall::new(linux::__NR_lseek, [width::word(number), by, u64::from(linux::SEEK_CUR), 0, 0]).run()
}

/// Carries out a ring's transfer that the device's queue pairs cannot take. An `offset` of −1 means
/// the file position.
pub(crate) fn ring_transfer(
    file: &OpenDevice,
    number: i32,
    writes: bool,
    segments: &[IoVector],
    offset: u64,
    flags: u32,
) -> Result<u64, Errno> {
    let direction = if writes { Direction::Write } else { Direction::Read };
    match offset {
        u64::MAX => at_position(file, number, direction, segments, flags),
        offset => transfer(file, direction, segments, offset, flags),
    }
}

/// fallocate(2). All blocks of a device exist, so a plain allocation does nothing. The call
/// succeeds as on a regular file, although a Linux block device would refuse it.
fn allocate(file: &OpenDevice, mode: u32, offset: u64, length: u64) -> Result<u64, Errno> {
    const KEEP_SIZE: u32 = linux::FALLOC_FL_KEEP_SIZE;
    const PUNCH_HOLE: u32 = linux::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE;
    const ZERO: u32 = linux::FALLOC_FL_ZERO_RANGE;
    if offset.cast_signed() <= -1 || length.cast_signed() <= 0 {
        return Err(Errno::EINVAL);
    }
    if !matches!(mode & !KEEP_SIZE, 0 | ZERO) && mode != PUNCH_HOLE {
        return Err(Errno::EOPNOTSUPP);
    }
    if !file.mode().may_write() {
        return Err(Errno::EBADF);
    }
    let length = range_on_device(file, mode & KEEP_SIZE != 0, offset, length)?;
    let block_file = file.device().as_file();
    match mode & !KEEP_SIZE {
        0 => Ok(0),
        ZERO => block_file.write_zeroes(offset, length, true).map(|()| 0),
        _ => block_file.write_zeroes(offset, length, false).map(|()| 0),
    }
}

/// Returns how many bytes of a range lie on the device. With `keeps_size`, a range that reaches
/// beyond the device's end is shortened.
///
/// Errors: `EFBIG` if the range ends beyond the largest file offset; `EINVAL` if it begins at or
/// beyond the device's end, or ends beyond it without `keeps_size`.
fn range_on_device(file: &OpenDevice, keeps_size: bool, offset: u64, length: u64) -> Result<u64, Errno> {
    let size = file.device().geometry().size;
    if offset + length > i64::MAX as u64 {
        return Err(Errno::EFBIG);
    }
    if offset >= size || (offset + length > size && !keeps_size) {
        return Err(Errno::EINVAL);
    }
    Ok(length.min(size - offset))
}

/// sync_file_range(2). Only checks the arguments: usring caches no data of a device.
fn sync_range(offset: u64, length: u64, flags: u32) -> Result<u64, Errno> {
    const FLAGS: u32 =
        linux::SYNC_FILE_RANGE_WAIT_BEFORE | linux::SYNC_FILE_RANGE_WRITE | linux::SYNC_FILE_RANGE_WAIT_AFTER;
    let end = offset.cast_signed().checked_add(length.cast_signed());
    let valid = flags & !FLAGS == 0 && offset.cast_signed() >= 0 && end.is_some_and(|end| end >= offset.cast_signed());
    if valid { Ok(0) } else { Err(Errno::EINVAL) }
}

/// ftruncate(2). A device keeps its size. Linux refuses ftruncate on a block device. usring allows
/// a length up to the device's size, because programs truncate a file before they fill it.
///
/// Errors: `EINVAL` if the length is negative, or if the file is not open for writing; `EFBIG` if
/// the length is above the device's size.
pub fn resize(file: &OpenDevice, length: u64) -> Result<u64, Errno> {
    match length.cast_signed() {
        ..=-1 => Err(Errno::EINVAL),
        _ if !file.mode().may_write() => Err(Errno::EINVAL),
        _ if length > file.device().geometry().size => Err(Errno::EFBIG),
        _ => Ok(0),
    }
}
