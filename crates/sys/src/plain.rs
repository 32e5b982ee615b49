//! Types for which any bytes are a valid value. So they may be copied from memory that the program
//! can write at any moment.

use crate::UserAddress;
use crate::message::MessageHeader;
use linux_raw_sys::{general, io_uring};
use usring_uapi::aio::{AioRing, IoEvent, Iocb};
use usring_uapi::{Cqe, Sqe, Timespec};

/// A type without padding, of which any bytes are a valid value.
///
/// # Safety
/// Every bit pattern of the type's size must be a valid value. The type must have no padding.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty: $size:literal),* $(,)?) => {
        $(
            // `$size` is the sum of the sizes of the type's fields. If it equals the type's size,
            // the type has no padding.
            const _: () = assert!(core::mem::size_of::<$type>() == $size);
            // SAFETY: the type is an integer, or a C structure of integers. The assertion above
            // excludes padding.
            unsafe impl Plain for $type {}
        )*
    };
}

/// `struct iovec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IoVector {
    pub base: u64,
    /// Length of the buffer in bytes.
    pub length: u64,
}

plain! {
    IoVector: 16, MessageHeader: 56, UserAddress: 8,
    u8: 1, u16: 2, u32: 4, u64: 8, i8: 1, i16: 2, i32: 4, i64: 8,
    Sqe: 64, Cqe: 16, Timespec: 16,
    AioRing: 32, IoEvent: 32, Iocb: 64,
    io_uring::io_uring_files_update: 16,
    io_uring::io_uring_rsrc_register: 32,
    io_uring::io_uring_rsrc_update: 16,
    io_uring::io_uring_rsrc_update2: 32,
    io_uring::io_uring_getevents_arg: 24,
    io_uring::io_uring_file_index_range: 16,
    io_uring::io_uring_probe_op: 8,
    io_uring::io_uring_clock_register: 16,
    io_uring::io_sqring_offsets: 40,
    io_uring::io_cqring_offsets: 40,
    io_uring::io_uring_params: 120,
    general::open_how: 24,
}

// SAFETY: any bytes are a valid `T`. Elements without padding follow each other directly, so the
// array has no padding either.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
