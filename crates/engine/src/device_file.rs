//! System calls on a file that stands for a device: those of the program, and those that a ring
//! leaves to a worker. The answers are those of a Linux block device. But fstat(2) shows the
//! program a regular file of the device's size. So the calls that programs make on regular files
//! (ftruncate, fallocate) succeed if that does no harm.
//!
//! The position is the kernel's own, that of the file which stands for the device. So duplicates,
//! children and the next program share it.

use alloc::vec::Vec;
use usring_device::{OpenDevice, Operation, Transfer};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory};
use usring_uapi::general as linux;

/// Most members of a vector (UIO_MAXIOV).
const VECTOR_LIMIT: u64 = 1024;
/// RWF_* that a block device takes. A write to the file's end goes to its normal place (O_APPEND,
/// too): Linux does not append to block devices.
const KNOWN_FLAGS: u32 = linux::RWF_HIPRI | linux::RWF_DSYNC | linux::RWF_SYNC | linux::RWF_NOWAIT | linux::RWF_APPEND;

/// Carries out a system call of the program on a device. `None`: the kernel may answer the call,
/// for the file that stands for the device.
pub fn system_call(file: &OpenDevice, number: i32, call: &SystemCall) -> Option<Result<u64, Errno>> {
    let [_, a, b, c, _, f] = call.arguments;
    let answer = match call.number {
        linux::__NR_read => at_position(file, number, Direction::Read, &[one(a, b)], 0),
        linux::__NR_write => at_position(file, number, Direction::Write, &[one(a, b)], 0),
        linux::__NR_pread64 => transfer(file, Direction::Read, &[one(a, b)], c, 0),
        linux::__NR_pwrite64 => transfer(file, Direction::Write, &[one(a, b)], c, 0),
        linux::__NR_readv => vector(a, b).and_then(|list| at_position(file, number, Direction::Read, &list, 0)),
        linux::__NR_writev => vector(a, b).and_then(|list| at_position(file, number, Direction::Write, &list, 0)),
        linux::__NR_preadv => vector(a, b).and_then(|list| transfer(file, Direction::Read, &list, c, 0)),
        linux::__NR_pwritev => vector(a, b).and_then(|list| transfer(file, Direction::Write, &list, c, 0)),
        linux::__NR_preadv2 => vectored(file, number, Direction::Read, (a, b), c, f as u32),
        linux::__NR_pwritev2 => vectored(file, number, Direction::Write, (a, b), c, f as u32),
        linux::__NR_fsync | linux::__NR_fdatasync => file.device().as_file().flush().map(|()| 0),
        linux::__NR_sync_file_range => sync_range(a, b, c as u32),
        linux::__NR_fallocate => allocate(file, a as u32, b, c),
        linux::__NR_ftruncate => resize(file, a),
        linux::__NR_lseek if matches!(b as u32, linux::SEEK_DATA | linux::SEEK_HOLE) => Err(Errno::EINVAL),
        linux::__NR_mmap => Err(Errno::ENODEV),
        // Programs then fall back on reading and writing.
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

/// Makes a vector of one member. As for access_ok(), a length that no address space can hold is a
/// bad address. (In a vector it is EINVAL.)
fn one(base: u64, length: u64) -> IoVector {
    IoVector { base, length: length.min(i64::MAX as u64) }
}

fn vector(address: u64, count: u64) -> Result<Vec<IoVector>, Errno> {
    if count > VECTOR_LIMIT {
        return Err(Errno::EINVAL);
    }
    user_memory::read_array(UserAddress(address), count as usize)
}

fn vectored(
    file: &OpenDevice,
    number: i32,
    direction: Direction,
    (address, count): (u64, u64),
    offset: u64,
    flags: u32,
) -> Result<u64, Errno> {
    let list = vector(address, count)?;
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

/// Transfers at the file's position, which moves on by what was transferred.
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

/// Moves the position on; returns where it is.
fn seek(number: i32, by: u64) -> Result<u64, Errno> {
    SystemCall::new(linux::__NR_lseek, [number as u64, by, u64::from(linux::SEEK_CUR), 0, 0]).run()
}

/// Makes a ring's transfer that no queue pair can take. `offset` −1: the file's position.
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

/// fallocate(2). All blocks exist from the start, so a plain allocation has
/// nothing to do; a block device of Linux refuses it, a regular file does not.
fn allocate(file: &OpenDevice, mode: u32, offset: u64, length: u64) -> Result<u64, Errno> {
    const KEEP_SIZE: u32 = linux::FALLOC_FL_KEEP_SIZE;
    const PUNCH: u32 = linux::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE;
    const ZERO: u32 = linux::FALLOC_FL_ZERO_RANGE;
    if offset as i64 <= -1 || length as i64 <= 0 {
        return Err(Errno::EINVAL);
    }
    if !matches!(mode & !KEEP_SIZE, 0 | ZERO) && mode != PUNCH {
        return Err(Errno::EOPNOTSUPP);
    }
    if !file.mode().may_write() {
        return Err(Errno::EBADF);
    }
    let length = within(file, mode & KEEP_SIZE != 0, offset, length)?;
    let block_file = file.device().as_file();
    match mode & !KEEP_SIZE {
        0 => Ok(0),
        ZERO => block_file.write_zeroes(offset, length, true).map(|()| 0),
        _ => block_file.write_zeroes(offset, length, false).map(|()| 0),
    }
}

/// Returns how much of a range lies on the device: all of it, or the part before the device's end
/// where the size is to be kept.
fn within(file: &OpenDevice, keeps_size: bool, offset: u64, length: u64) -> Result<u64, Errno> {
    let size = file.device().geometry().size;
    if offset + length > i64::MAX as u64 {
        return Err(Errno::EFBIG);
    }
    if offset >= size || (offset + length > size && !keeps_size) {
        return Err(Errno::EINVAL);
    }
    Ok(length.min(size - offset))
}

/// sync_file_range(2). Nothing is cached here that could be written out.
fn sync_range(offset: u64, length: u64, flags: u32) -> Result<u64, Errno> {
    const FLAGS: u32 =
        linux::SYNC_FILE_RANGE_WAIT_BEFORE | linux::SYNC_FILE_RANGE_WRITE | linux::SYNC_FILE_RANGE_WAIT_AFTER;
    let end = (offset as i64).checked_add(length as i64);
    let valid = flags & !FLAGS == 0 && offset as i64 >= 0 && end.is_some_and(|end| end >= offset as i64);
    if valid { Ok(0) } else { Err(Errno::EINVAL) }
}

/// ftruncate(2). A device keeps its size. Linux refuses the call altogether; here a program may
/// make it on a file that it is about to fill.
pub fn resize(file: &OpenDevice, length: u64) -> Result<u64, Errno> {
    match length as i64 {
        ..=-1 => Err(Errno::EINVAL),
        _ if !file.mode().may_write() => Err(Errno::EINVAL),
        _ if length > file.device().geometry().size => Err(Errno::EFBIG),
        _ => Ok(0),
    }
}
