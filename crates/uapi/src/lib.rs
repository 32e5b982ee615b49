//! Linux's numbers and layouts as usring uses them.
//!
//! Everything comes from `linux-raw-sys`; by hand only what that lacks or
//! hides behind bindgen's unions: the submission queue entry with its fields
//! flat ([`Sqe`]), the bits of [`sqe_flags`], and the kernel's [`aio`]. Sizes and offsets are
//! asserted at compile time. No behaviour lives here.
#![no_std]
#![forbid(unsafe_code)]

pub use linux_raw_sys::{errno, general, io_uring, ioctl};

pub mod aio;
mod entry;
pub mod opcode;
pub mod sqe_flags;
mod time;

pub use entry::{Cqe, Sqe};
pub use time::Timespec;
