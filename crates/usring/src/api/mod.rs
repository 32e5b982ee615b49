//! The Rust API: a thin layer on the engine, which makes no decisions of its own.
//!
//! | module | content |
//! |---|---|
//! | [`aio`] | libaio's contexts; all other modules are about rings |
//! | [`builder`], [`ring`], [`parameters`] | making a ring, the ring, and what it was made with |
//! | [`squeue`], [`cqueue`] | the application's ends of the two queues |
//! | [`entry`] | converts entries between the `io-uring` crate's types and ours |
//! | [`submitter`] | io_uring_enter(2) |
//! | [`register`], [`busy_poll`], [`unavailable`] | io_uring_register(2) |
//! | [`descriptor`] | the descriptor that poll and epoll see of a ring |
//! | [`process`] | what is done once per process |

pub mod aio;
mod builder;
mod busy_poll;
pub mod cqueue;
mod descriptor;
mod entry;
mod parameters;
mod process;
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

/// Converts an errno of the engine to a [`std::io::Error`].
pub(crate) fn os_error(error: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(-error.negative())
}
