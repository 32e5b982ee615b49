//! The kernel's AIO interface (`linux/aio_abi.h`), and the ring to which the kernel writes a
//! context's completions.
//!
//! Linux's header declares no type for that ring, so [`AioRing`] does. Since Linux 2.6 a context's
//! id (`aio_context_t`) has been the address of its ring in the process.

use core::mem::{offset_of, size_of};

/// Values of [`Iocb::aio_lio_opcode`] (`IOCB_CMD_*`).
pub const IOCB_CMD_PREAD: u16 = 0;
pub const IOCB_CMD_PWRITE: u16 = 1;
pub const IOCB_CMD_FSYNC: u16 = 2;
pub const IOCB_CMD_FDSYNC: u16 = 3;
pub const IOCB_CMD_POLL: u16 = 5;
/// Declared in Linux's header, but refused by every kernel.
pub const IOCB_CMD_NOOP: u16 = 6;
pub const IOCB_CMD_PREADV: u16 = 7;
pub const IOCB_CMD_PWRITEV: u16 = 8;

/// `aio_resfd` is an eventfd that the completion signals.
pub const IOCB_FLAG_RESFD: u32 = 1 << 0;
/// `aio_reqprio` holds an I/O scheduling class and level.
pub const IOCB_FLAG_IOPRIO: u32 = 1 << 1;
/// The caller of io_getevents(2) polls the device for the completion, without interrupts. Only
/// valid in a context with [`IOCTX_FLAG_IOPOLL`]. The flag comes from the polled-AIO patches of
/// 2018, which are in no release of Linux.
pub const IOCB_FLAG_HIPRI: u32 = 1 << 2;

/// Flag of io_setup2, a system call of the polled-AIO patches: a thread in io_getevents(2) polls
/// the devices for completions.
pub const IOCTX_FLAG_IOPOLL: u32 = 1 << 0;

/// An AIO request (`struct iocb`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Iocb {
    /// Returned in [`IoEvent::data`].
    pub aio_data: u64,
    /// Written by the kernel in io_submit(2).
    pub aio_key: u32,
    /// Flags `RWF_*`, as in preadv2(2).
    pub aio_rw_flags: i32,
    /// `IOCB_CMD_*`.
    pub aio_lio_opcode: u16,
    pub aio_reqprio: i16,
    pub aio_fildes: u32,
    /// Address of the buffer. For the vectored commands: address of an array of `struct iovec`.
    pub aio_buf: u64,
    /// Length of the buffer in bytes. For the vectored commands: number of array elements.
    pub aio_nbytes: u64,
    pub aio_offset: i64,
    pub aio_reserved2: u64,
    /// `IOCB_FLAG_*`.
    pub aio_flags: u32,
    pub aio_resfd: u32,
}

/// A completion of an AIO request (`struct io_event`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IoEvent {
    pub data: u64,
    /// The address of the submitted [`Iocb`].
    pub obj: u64,
    /// Result of the operation, such as a count of bytes; or a negative error number.
    pub res: i64,
    pub res2: i64,
}

/// Header of a context's completion ring (the kernel's private `struct aio_ring`). The events
/// follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AioRing {
    pub id: u32,
    /// Number of event slots.
    pub nr: u32,
    /// Index of the next event to be read.
    pub head: u32,
    /// Index, in the ring, of the next event that the kernel writes.
    pub tail: u32,
    pub magic: u32,
    pub compat_features: u32,
    pub incompat_features: u32,
    /// Offset of the first event in bytes.
    pub header_length: u32,
}

pub const AIO_RING_MAGIC: u32 = 0xa10a_10a1;
pub const AIO_RING_COMPAT_FEATURES: u32 = 1;
pub const AIO_RING_INCOMPAT_FEATURES: u32 = 0;

const _: () = {
    assert!(size_of::<Iocb>() == 64 && offset_of!(Iocb, aio_lio_opcode) == 16 && offset_of!(Iocb, aio_buf) == 24);
    assert!(offset_of!(Iocb, aio_flags) == 56 && offset_of!(Iocb, aio_resfd) == 60);
    assert!(size_of::<IoEvent>() == 32 && offset_of!(IoEvent, res) == 16);
    assert!(size_of::<AioRing>() == 32 && offset_of!(AioRing, tail) == 12 && offset_of!(AioRing, header_length) == 28);
};
