//! Records each request of a program's rings and libaio contexts (`usring run --trace`).
//!
//! | module | content |
//! |---|---|
//! | `format` | the records, as words; the header of a trace |
//! | `page` | the memory that the run's processes share, and how an event is written to it |
//! | `names` | the names of files, by descriptor |
//! | `recorder` | turns the reports of the engine into events |
//!
//! # Invariants
//! - An event is one record of 64 bytes. To record it takes one atomic addition. Three cases take
//!   more:
//!   - a request that opens a file by its name: a lock;
//!   - a request on a descriptor whose name the process has not looked up for a millisecond: a lock
//!     and readlink(2);
//!   - a thread that records for the first time, or is not libc's: gettid(2).
//! - A record proves itself by a checksum, so no order between its words is needed. A reader
//!   ignores a record that a process left half written.
//! - The memory is bounded. Events for which there is no room are only counted.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

pub mod format;
mod names;
pub mod page;
mod recorder;

pub use recorder::{OBSERVER, forget_descriptor, start};
