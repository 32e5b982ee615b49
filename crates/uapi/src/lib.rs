//! Linux's numbers and layouts as usring uses them.
//!
//! Most items come from `linux-raw-sys`. Items that it lacks, or declares with bindgen's unions,
//! are written by hand, with sizes and offsets asserted at compile time:
//!
//! - [`Sqe`] and [`Cqe`]: the entries of a ring, without unions.
//! - [`sqe_flags`]: the bits of [`Sqe::flags`].
//! - [`aio`]: the kernel's AIO interface.
//!
//! The crate has no behaviour.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

pub use linux_raw_sys::{errno, general, io_uring, ioctl, prctl, ptrace};

pub mod aio;
mod entry;
pub mod opcode;
pub mod sqe_flags;
mod time;

pub use entry::{Cqe, Sqe};
pub use time::Timespec;
