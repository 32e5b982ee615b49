//! Finds how a program misuses its rings (`usring run --check`).
//!
//! | module | content |
//! |---|---|
//! | `requests` | the requests in flight, and the completions that the program has not consumed |
//! | `watch` | what the engine and the library report: submissions, completions, calls that free memory |
//! | `memory` | checksums of memory, and whether a buffer's stack frame still exists |
//! | `chains` | chains that a short transfer broke |
//! | `stack` | copies of a thread's stack, from which the launcher finds the callers |
//! | `shadow` | AddressSanitizer's shadow memory, in programs that have it |
//! | `stacks` | the stacks of the requests in flight, for other processes |
//! | `log`, `format` | findings in a file that the launcher reads |
//!
//! A finding must be real. Where the checker cannot tell a mistake from an intention, it stays
//! silent. A request is in flight until its CQE is posted, because from then on the program may see
//! the CQE.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

mod chains;
pub mod format;
mod log;
mod memory;
mod requests;
pub mod shadow;
mod stack;
pub mod stacks;
mod watch;

pub use log::{Mode, is_started, start};
pub use stack::Registers;
pub use watch::{
    IN_FLIGHT, OBSERVER, begin_call, closes_descriptor, end_call, ends_process, has_memory_in_flight, is_in_flight,
    publishes, releases, touched,
};
