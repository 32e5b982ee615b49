//! Opens, measures, reads and writes the files that hold the blocks of usring's block devices. Also
//! has functions for a file of the program, which they get as a descriptor.

use crate::descriptor::{HeldDescriptor, OwnedDescriptor, duplicate_private};
use crate::plain::IoVector;
use crate::syscall::PASS_MARK_ABOVE_FLAGS;
use crate::{Errno, SystemCall, width};
use core::ffi::CStr;
use core::mem::MaybeUninit;
use linux_raw_sys::{general as linux, ioctl};

/// Kind, size and O_DIRECT alignment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    pub kind: FileKind,
    /// Size of the file or block device, in bytes.
    pub size: u64,
    pub direct: Direct,
}

/// Whether transfers may bypass the page cache (O_DIRECT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Direct transfers are refused, even if the file can be opened with O_DIRECT.
    Refused,
    /// Direct transfers work if addresses are multiples of `memory` bytes, and offsets and lengths
    /// are multiples of `offset` bytes.
    Aligned { memory: u32, offset: u32 },
    /// The kernel does not report an alignment (Linux before 6.1, or tmpfs). Only an attempt shows
    /// whether direct transfers work.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Regular,
    BlockDevice,
    Other,
}

/// Returns whether a regular file of the program supports RWF_NOWAIT. To test this, starts a
/// transfer whose memory has an invalid address. So no byte is read or written.
pub fn knows_nowait(number: i32, writes: bool) -> bool {
    let nowhere = IoVector { base: 8, length: 1 };
    let call = if writes { linux::__NR_pwritev2 } else { linux::__NR_preadv2 };
    let flags = PASS_MARK_ABOVE_FLAGS | u64::from(linux::RWF_NOWAIT);
    let arguments = [width::word(number), &raw const nowhere as u64, 1, 0, 0, flags];
    SystemCall::with_six(call, arguments).run() != Err(Errno::EOPNOTSUPP)
}

/// Returns the position (file offset) of an open file, in bytes.
pub fn position(number: i32) -> Result<u64, Errno> {
    SystemCall::new(linux::__NR_lseek, [width::word(number), 0, u64::from(linux::SEEK_CUR), 0, 0]).run()
}

/// Sets the position (file offset) of an open file, in bytes.
pub fn set_position(number: i32, position: u64) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_lseek, [width::word(number), position, u64::from(linux::SEEK_SET), 0, 0])
        .run()
        .map(drop)
}

/// Returns whether a file is on tmpfs. There, the thread that submits even a direct transfer copies
/// the data itself.
pub fn is_in_memory(number: i32) -> bool {
    // The first word is `f_type`.
    let mut statfs = [0u64; size_of::<linux::statfs>() / size_of::<u64>()];
    let call = SystemCall::new(linux::__NR_fstatfs, [width::word(number), statfs.as_mut_ptr() as u64, 0, 0, 0]);
    call.run().is_ok() && statfs[0] == u64::from(linux::TMPFS_MAGIC)
}

/// Opens a file at a descriptor number that is private to usring, closed on exec. Does not wait for
/// another process, even if the file is a FIFO.
pub fn open(path: &CStr, flags: u32) -> Result<HeldDescriptor, Errno> {
    let flags = u64::from(flags | linux::O_CLOEXEC | linux::O_NONBLOCK | linux::O_NOCTTY);
    // The mode is for a new file (O_CREAT in `flags`): only its user can read it.
    let arguments = [width::word(linux::AT_FDCWD), path.as_ptr() as u64, flags, 0o600, 0];
    let number = SystemCall::new(linux::__NR_openat, arguments).run()?;
    // The program may have record locks on this file. They would be lost if the first descriptor
    // were simply closed. A `HeldDescriptor` keeps them.
    let first = HeldDescriptor::new(OwnedDescriptor::from_raw(width::int(number)));
    let file = duplicate_private(first.number())?;
    crate::descriptor::clear_nonblocking(file.number())?;
    Ok(HeldDescriptor::new(file))
}

/// Returns a file's kind, size and alignment for O_DIRECT, by statx(2). If the file is a block
/// device, uses ioctl(2), too.
pub fn measure(number: i32) -> Result<Measure, Errno> {
    let mut buffer = MaybeUninit::<linux::statx>::zeroed();
    let mask = u64::from(linux::STATX_BASIC_STATS | linux::STATX_DIOALIGN);
    let flags = u64::from(linux::AT_EMPTY_PATH);
    let arguments = [width::word(number), c"".as_ptr() as u64, flags, mask, buffer.as_mut_ptr() as u64];
    SystemCall::new(linux::__NR_statx, arguments).run()?;
    // SAFETY: `statx` is plain numbers, zeroed above and filled by the kernel.
    let statx = unsafe { buffer.assume_init() };
    let kind = match u32::from(statx.stx_mode) & linux::S_IFMT {
        linux::S_IFREG => FileKind::Regular,
        linux::S_IFBLK => FileKind::BlockDevice,
        _ => FileKind::Other,
    };
    let mut direct = match (statx.stx_mask & linux::STATX_DIOALIGN, statx.stx_dio_offset_align) {
        (0, _) => Direct::Unknown,
        (_, 0) => Direct::Refused,
        (_, offset) => Direct::Aligned { memory: statx.stx_dio_mem_align, offset },
    };
    let mut size = statx.stx_size;
    if kind == FileKind::BlockDevice {
        let (mut bytes, mut block) = (0u64, 0u32);
        control(number, ioctl::BLKGETSIZE64, &raw mut bytes as u64)?;
        control(number, ioctl::BLKSSZGET, &raw mut block as u64)?;
        size = bytes;
        if direct == Direct::Unknown {
            direct = Direct::Aligned { memory: block, offset: block };
        }
    }
    Ok(Measure { kind, size, direct })
}

fn control(number: i32, request: u32, argument: u64) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_ioctl, [width::word(number), u64::from(request), argument, 0, 0]).run().map(drop)
}

/// Sets a file's size by ftruncate(2).
pub fn resize(number: i32, size: u64) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_ftruncate, [width::word(number), size, 0, 0, 0]).run().map(drop)
}

/// Returns the offset of the first data at or after `offset` (SEEK_DATA). `None` if only a hole
/// follows. Errors: `EINVAL` for a block device, which has no holes.
pub fn next_data(number: i32, offset: u64) -> Result<Option<u64>, Errno> {
    let arguments = [width::word(number), offset, u64::from(linux::SEEK_DATA), 0, 0];
    match SystemCall::new(linux::__NR_lseek, arguments).run() {
        Err(Errno::ENXIO) => Ok(None),
        other => other.map(Some),
    }
}

/// Reads into the program's memory by preadv2(2); `flags` are `RWF_*`.
pub fn read_at(number: i32, offset: u64, segments: &[IoVector], flags: u32) -> Result<u32, Errno> {
    transfer([linux::__NR_preadv, linux::__NR_preadv2], number, offset, segments, flags)
}

/// Writes from the program's memory by pwritev2(2); `flags` are `RWF_*`.
pub fn write_at(number: i32, offset: u64, segments: &[IoVector], flags: u32) -> Result<u32, Errno> {
    transfer([linux::__NR_pwritev, linux::__NR_pwritev2], number, offset, segments, flags)
}

fn transfer(calls: [u32; 2], number: i32, offset: u64, segments: &[IoVector], flags: u32) -> Result<u32, Errno> {
    let [vector, count] = [segments.as_ptr() as u64, segments.len() as u64];
    let call = match flags {
        0 => SystemCall::new(calls[0], [width::word(number), vector, count, offset, 0]),
        // The kernel reads the lower 32 bits of the flags. The upper bits carry the mark that lets
        // the call pass usring's seccomp filter.
        _ => SystemCall::with_six(
            calls[1],
            [width::word(number), vector, count, offset, 0, u64::from(flags) | PASS_MARK_ABOVE_FLAGS],
        ),
    };
    // Linux transfers less than 2³¹ bytes in one call, so the number fits into 32 bits.
    call.run().map(width::low)
}

/// Flushes a file's data by fdatasync(2).
pub fn synchronise(number: i32) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_fdatasync, [width::word(number), 0, 0, 0, 0]).run().map(drop)
}

/// Returns whether [`discard`] works on this file. The test itself frees no block.
pub fn can_discard(number: i32, measure: &Measure) -> bool {
    match measure.kind {
        // Linux checks whether the device can discard before it checks the range, and answers
        // EINVAL for an empty range. So `EINVAL` means that the device can discard.
        FileKind::BlockDevice => discard(number, measure.kind, 0, 0) == Err(Errno::EINVAL),
        // The range lies beyond the end of the file, where there are no blocks.
        _ => discard(number, measure.kind, measure.size.next_multiple_of(BEYOND), BEYOND).is_ok(),
    }
}

/// A multiple of every file system's block size, in bytes.
const BEYOND: u64 = 1 << 16;

/// Frees the blocks of a range. Errors: `EOPNOTSUPP` if the file does not support it.
pub fn discard(number: i32, kind: FileKind, offset: u64, length: u64) -> Result<(), Errno> {
    match kind {
        FileKind::BlockDevice => control_range(number, ioctl::BLKDISCARD, offset, length),
        _ => allocate(number, linux::FALLOC_FL_PUNCH_HOLE, offset, length),
    }
}

/// Makes a range read as zeroes, without a buffer. Errors: `EOPNOTSUPP` if the file does not
/// support it.
pub fn zero(number: i32, kind: FileKind, offset: u64, length: u64) -> Result<(), Errno> {
    if kind == FileKind::BlockDevice {
        return control_range(number, ioctl::BLKZEROOUT, offset, length);
    }
    match allocate(number, linux::FALLOC_FL_ZERO_RANGE, offset, length) {
        Err(Errno::EOPNOTSUPP) => allocate(number, linux::FALLOC_FL_PUNCH_HOLE, offset, length),
        other => other,
    }
}

fn control_range(number: i32, request: u32, offset: u64, length: u64) -> Result<(), Errno> {
    let range = [offset, length];
    control(number, request, &raw const range as u64)
}

fn allocate(number: i32, mode: u32, offset: u64, length: u64) -> Result<(), Errno> {
    let mode = u64::from(mode | linux::FALLOC_FL_KEEP_SIZE);
    SystemCall::new(linux::__NR_fallocate, [width::word(number), mode, offset, length, 0]).run().map(drop)
}

/// Opens a file for reading and writing. Several processes share the file's content.
pub fn open_shared(path: &CStr) -> Result<OwnedDescriptor, Errno> {
    let flags = u64::from(linux::O_RDWR | linux::O_CLOEXEC);
    let arguments = [width::word(linux::AT_FDCWD), path.as_ptr() as u64, flags, 0, 0];
    SystemCall::new(linux::__NR_openat, arguments).run().map(|number| OwnedDescriptor::from_raw(width::int(number)))
}

/// `struct flock`.
#[repr(C)]
struct Lock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    process: i32,
}

/// Claims a file by a write lock on the whole file (F_OFD_SETLK). The lock ends when the open file
/// description is closed. Errors: `EAGAIN` if another open file description or process has locked
/// the file.
pub fn claim(number: i32) -> Result<(), Errno> {
    lock(number, linux::F_OFD_SETLK, 0, 0).map(drop).map_err(|error| match error {
        Errno::EACCES => Errno::EAGAIN,
        other => other,
    })
}

/// Claims one byte of a file by a write lock (F_OFD_SETLK). The lock ends when the open file
/// description is closed. Errors: `EAGAIN` if another open file description has claimed the byte.
pub fn claim_byte(number: i32, byte: usize) -> Result<(), Errno> {
    lock(number, linux::F_OFD_SETLK, byte.cast_signed() as i64, 1).map(drop)
}

/// Returns whether another open file description has claimed a byte by [`claim_byte`].
pub fn is_byte_claimed(number: i32, byte: usize) -> Result<bool, Errno> {
    lock(number, linux::F_OFD_GETLK, byte.cast_signed() as i64, 1)
        .map(|found| u32::from(found.kind.cast_unsigned()) != linux::F_UNLCK)
}

/// Waits for the lock on a file's first byte, and acquires it. The lock belongs to the open file
/// description, and ends when the description is closed.
pub fn lock_first_byte(number: i32) -> Result<(), Errno> {
    lock(number, linux::F_OFD_SETLKW, 0, 1).map(drop)
}

/// Releases the lock on a file's first byte.
pub fn unlock_first_byte(number: i32) -> Result<(), Errno> {
    lock_as(linux::F_UNLCK, number, linux::F_OFD_SETLK, 0, 1).map(drop)
}

fn lock(number: i32, command: u32, start: i64, length: i64) -> Result<Lock, Errno> {
    lock_as(linux::F_WRLCK, number, command, start, length)
}

fn lock_as(kind: u32, number: i32, command: u32, start: i64, length: i64) -> Result<Lock, Errno> {
    let mut lock = Lock { kind: width::short(u64::from(kind)).cast_signed(), whence: 0, start, length, process: 0 };
    let arguments = [width::word(number), u64::from(command), &raw mut lock as u64, 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run().map(|_| lock)
}

/// Makes a second open file description of a memfd, at a descriptor number that is private to
/// usring. Errors: `ENOENT` without /proc.
pub fn reopen(number: i32) -> Result<OwnedDescriptor, Errno> {
    let path = alloc::ffi::CString::new(alloc::format!("/proc/self/fd/{number}")).map_err(|_| Errno::EINVAL)?;
    open_shared(&path)?.into_private()
}
