//! Linux's numbers and layouts as usring uses them.
//!
//! Everything comes from `linux-raw-sys`, except what that crate lacks or declares with bindgen's
//! unions. These parts are written by hand, with sizes and offsets asserted at compile time:
//!
//! - [`Sqe`]: the submission queue entry, with its fields flat.
//! - [`sqe_flags`]: the bits of its `flags` field.
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
