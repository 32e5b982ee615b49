//! The Rust API: a thin face of the engine, which decides nothing itself.
//!
//! [`aio`] has libaio's contexts; all else is rings:
//! [`builder`] makes a ring and [`ring`] holds it; [`squeue`] and [`cqueue`] are
//! the application's ends of its queues, [`submitter`] and [`register`] the two
//! system calls, [`busy_poll`] a register call of its own, [`descriptor`] what poll and epoll may see of it. [`entry`] is
//! where entries change their type, [`process`] what happens once per process.

pub mod aio;
mod builder;
mod busy_poll;
pub mod cqueue;
mod descriptor;
mod entry;
mod parameters;
pub(crate) mod process;
pub mod register;
mod ring;
pub mod squeue;
mod submitter;
mod unavailable;

pub use builder::Builder;
pub use cqueue::{CompletionQueue, CompletionStatus};
pub use io_uring::EnterFlags;
pub use parameters::Parameters;
pub use register::Probe;
pub use ring::IoUring;
pub use squeue::SubmissionQueue;
pub use submitter::Submitter;

use usring_sys::Errno;

/// The engine's error as the standard library's.
pub(crate) fn os_error(error: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(-error.negative())
}
