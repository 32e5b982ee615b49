//! Translates an iocb into the engine's SQE. Refuses each iocb that the kernel refuses, with the
//! checks in the kernel's order (`fs/aio.c`).

use crate::context_kind::ContextKind;
use usring_engine::FileUses;
use usring_sys::{Errno, capability, descriptor, file, user_memory, width};
use usring_uapi::aio::{
    IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV,
    IOCB_FLAG_HIPRI, IOCB_FLAG_IOPRIO, Iocb,
};
use usring_uapi::io_uring::IORING_FSYNC_DATASYNC;
use usring_uapi::{Sqe, general as linux, opcode};

/// Value that io_submit(2) writes to `aio_key`, and that io_cancel(2) expects there.
pub const KEY: u32 = 0;

/// Maximum number of bytes of one transfer (the kernel's MAX_RW_COUNT).
const TRANSFER_LIMIT: u64 = 0x7fff_f000;

/// All RWF_* flags of Linux 6.18.
const KNOWN_FLAGS: u32 = 0x1ff;
const RWF_NOAPPEND: u32 = 0x20;
const RWF_APPEND_EITHER_WAY: u32 = linux::RWF_APPEND | RWF_NOAPPEND;

/// poll(2) events for which a file without a poll operation is always ready (the kernel's
/// `DEFAULT_POLLMASK`).
const ALWAYS_READY: u32 = 0x1 | 0x4 | 0x40 | 0x100;

// An I/O priority has its class in the upper bits. The lower bits hold the level and a hint.
const CLASS_SHIFT: u16 = 13;
const LEVEL_MASK: u16 = 7;
const CLASS_NONE: u16 = 0;
const CLASS_REALTIME: u16 = 1;
const CLASS_IDLE: u16 = 3;

/// Checks the fields that the kernel checks before it allocates a request.
#[inline]
pub fn check(iocb: &Iocb) -> Result<(), Errno> {
    if iocb.aio_reserved2 != 0 || iocb.aio_nbytes.cast_signed() <= -1 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Returns the SQE for the iocb at `address`. The SQE's `user_data` and `pad2` become the `obj` and
/// `data` of the iocb's event.
#[inline]
pub fn translate(iocb: &Iocb, address: u64, file: &FileUses, kind: ContextKind) -> Result<Sqe, Errno> {
    check_kind(iocb, kind)?;
    let mut sqe = Sqe { fd: iocb.aio_fildes.cast_signed(), user_data: address, pad2: iocb.aio_data, ..Sqe::default() };
    match iocb.aio_lio_opcode {
        IOCB_CMD_PREAD => transfer(iocb, (file, kind), opcode::READ, &mut sqe)?,
        IOCB_CMD_PWRITE => transfer(iocb, (file, kind), opcode::WRITE, &mut sqe)?,
        IOCB_CMD_PREADV => transfer(iocb, (file, kind), opcode::READV, &mut sqe)?,
        IOCB_CMD_PWRITEV => transfer(iocb, (file, kind), opcode::WRITEV, &mut sqe)?,
        IOCB_CMD_FSYNC => sync(iocb, 0, &mut sqe)?,
        IOCB_CMD_FDSYNC => sync(iocb, IORING_FSYNC_DATASYNC, &mut sqe)?,
        IOCB_CMD_POLL => poll(iocb, &mut sqe)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(sqe)
}

/// Checks that the context accepts this kind of iocb. A polled context accepts only polled
/// transfers, and a plain context accepts no polled request. A context of io_setup(2) ignores
/// `IOCB_FLAG_HIPRI` (the flag of a polled request). Error: `EINVAL`.
#[inline]
fn check_kind(iocb: &Iocb, kind: ContextKind) -> Result<(), Errno> {
    let polled = iocb.aio_flags & IOCB_FLAG_HIPRI != 0;
    let transfers =
        || matches!(iocb.aio_lio_opcode, IOCB_CMD_PREAD | IOCB_CMD_PWRITE | IOCB_CMD_PREADV | IOCB_CMD_PWRITEV);
    match kind {
        ContextKind::Kernel => Ok(()),
        ContextKind::Plain if polled => Err(Errno::EINVAL),
        ContextKind::Polled if !polled || !transfers() => Err(Errno::EINVAL),
        ContextKind::Plain | ContextKind::Polled => Ok(()),
    }
}

#[inline]
fn transfer(iocb: &Iocb, (file, kind): (&FileUses, ContextKind), opcode: u8, sqe: &mut Sqe) -> Result<(), Errno> {
    if iocb.aio_flags & IOCB_FLAG_IOPRIO != 0 {
        check_priority(iocb.aio_reqprio.cast_unsigned())?;
        sqe.ioprio = iocb.aio_reqprio.cast_unsigned();
    }
    let writes = matches!(opcode, opcode::WRITE | opcode::WRITEV);
    let flags = iocb.aio_rw_flags.cast_unsigned();
    if flags != 0 {
        sqe.op_flags = check_flags(flags, sqe.fd, writes)?;
    }
    if kind == ContextKind::Polled {
        file.polls?;
    }
    if !(if writes { file.may_write } else { file.may_read }) {
        return Err(Errno::EBADF);
    }
    if file.is_directory {
        return Err(Errno::EINVAL);
    }
    let mut length = iocb.aio_nbytes;
    if matches!(opcode, opcode::READ | opcode::WRITE) {
        length = length.min(TRANSFER_LIMIT);
        if iocb.aio_buf.checked_add(length).is_none_or(|end| end > user_memory::END) {
            return Err(Errno::EFAULT);
        }
        if iocb.aio_offset.checked_add(length.cast_signed()).is_none() {
            return Err(Errno::EINVAL);
        }
    }
    if iocb.aio_offset < 0 {
        return Err(Errno::EINVAL);
    }
    // The file is open with O_NONBLOCK, so the transfer must not block.
    if file.never_waits {
        sqe.op_flags |= nowait_where_it_would_wait(sqe.fd);
    }
    sqe.opcode = opcode;
    sqe.off = iocb.aio_offset.cast_unsigned();
    sqe.addr = iocb.aio_buf;
    // Like the kernel, uses only the lower 32 bits of the number of segments.
    sqe.len = width::low(length);
    Ok(())
}

/// Returns RWF_NOWAIT if O_NONBLOCK has an effect on the file, otherwise 0. O_NONBLOCK has no
/// effect on regular files, directories and block devices.
#[cold]
fn nowait_where_it_would_wait(number: i32) -> u32 {
    let waits = descriptor::identity(number).is_ok_and(|file| file.can_wait());
    if waits { linux::RWF_NOWAIT } else { 0 }
}

/// Checks `RWF_*` flags as the kernel's `kiocb_set_rw_flags` does, as far as usring can determine
/// which flags the file supports. Returns the flags without RWF_HIPRI, because no thread polls the
/// device for the transfer.
#[cold]
fn check_flags(flags: u32, number: i32, writes: bool) -> Result<u32, Errno> {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & RWF_APPEND_EITHER_WAY == RWF_APPEND_EITHER_WAY {
        return Err(Errno::EINVAL);
    }
    let regular = || descriptor::identity(number).is_ok_and(|file| file.is_regular());
    if flags & linux::RWF_NOWAIT != 0 && regular() && !file::knows_nowait(number, writes) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(flags & !linux::RWF_HIPRI)
}

/// Checks an I/O priority as the kernel's `ioprio_check_cap` does.
#[cold]
fn check_priority(priority: u16) -> Result<(), Errno> {
    let (class, level) = (priority >> CLASS_SHIFT, priority & LEVEL_MASK);
    match class {
        CLASS_NONE if level != 0 => Err(Errno::EINVAL),
        CLASS_REALTIME if !capability::may_be_realtime() => Err(Errno::EPERM),
        CLASS_NONE..=CLASS_IDLE => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

#[cold]
fn sync(iocb: &Iocb, flags: u32, sqe: &mut Sqe) -> Result<(), Errno> {
    if iocb.aio_buf != 0 || iocb.aio_offset != 0 || iocb.aio_nbytes != 0 || iocb.aio_rw_flags != 0 {
        return Err(Errno::EINVAL);
    }
    // Pipes, sockets and similar files cannot be synced.
    if descriptor::identity(sqe.fd)?.can_wait() {
        return Err(Errno::EINVAL);
    }
    sqe.opcode = opcode::FSYNC;
    sqe.op_flags = flags;
    Ok(())
}

#[cold]
fn poll(iocb: &Iocb, sqe: &mut Sqe) -> Result<(), Errno> {
    let events = u16::try_from(iocb.aio_buf).map_err(|_| Errno::EINVAL)?;
    if iocb.aio_offset != 0 || iocb.aio_nbytes != 0 || iocb.aio_rw_flags != 0 {
        return Err(Errno::EINVAL);
    }
    // Regular files, directories and block devices never block, so they are always ready for
    // reading and writing. If the iocb asks for neither, the kernel refuses to poll such a file.
    if u32::from(events) & ALWAYS_READY == 0 && !descriptor::identity(sqe.fd)?.can_wait() {
        return Err(Errno::EINVAL);
    }
    sqe.opcode = opcode::POLL_ADD;
    sqe.op_flags = u32::from(events);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use usring_uapi::aio::IOCB_FLAG_IOPRIO;

    extern crate std;

    const FILE: FileUses = FileUses {
        may_read: true,
        may_write: true,
        is_directory: false,
        polls: Err(Errno::EOPNOTSUPP),
        never_waits: false,
    };

    fn translated(iocb: &Iocb) -> Sqe {
        translate(iocb, 64, &FILE, ContextKind::Kernel).expect("the iocb is valid")
    }

    #[test]
    fn only_fdsync_leaves_out_metadata() {
        use std::os::fd::AsRawFd;
        let program = std::fs::File::open("/proc/self/exe").expect("this program");
        let sync = |command| {
            let number = program.as_raw_fd().cast_unsigned();
            translated(&Iocb { aio_lio_opcode: command, aio_fildes: number, ..Iocb::default() })
        };
        assert_eq!((sync(IOCB_CMD_FSYNC).opcode, sync(IOCB_CMD_FSYNC).op_flags), (opcode::FSYNC, 0));
        let data = sync(IOCB_CMD_FDSYNC);
        assert_eq!((data.opcode, data.op_flags), (opcode::FSYNC, IORING_FSYNC_DATASYNC));
    }

    #[test]
    fn a_priority_reaches_the_request_only_with_its_flag() {
        let read = Iocb { aio_lio_opcode: IOCB_CMD_PREAD, aio_reqprio: 2 << CLASS_SHIFT, ..Iocb::default() };
        assert_eq!(translated(&read).ioprio, 0);
        let flagged = Iocb { aio_flags: IOCB_FLAG_IOPRIO, ..read };
        assert_eq!(translated(&flagged).ioprio, 2 << CLASS_SHIFT);
    }
}
