//! Records the changes of files below one folder, for `usring crash`.
//!
//! Every system call that usring makes for the program passes through [`calls::HOOK`], also for
//! requests of rings and libaio. The program's own calls come here if the seccomp filter traps
//! them.
//!
//! | file | content |
//! |---|---|
//! | `format` | the records in the log, for its writers and its reader |
//! | `log` | the log, its order, and the lock around each change |
//! | `paths` | whether a descriptor or a path lies below the folder |
//! | `calls` | calls on open files |
//! | `names` | calls that change names |
//! | `requests` | when a request was submitted and completed |
//!
//! # Invariants
//! - The log is one file that all processes append to. The order of its records is the order of the
//!   events.
//! - A change and its record happen under one lock of all processes. So records stand in the order
//!   in which the changes took effect.
//! - If a record cannot be written, the log says so ([`format::Page`]), and its reader then trusts
//!   no record.
//! - No open file is tracked. The recorder identifies a file by its inode, and reads the file's
//!   path from /proc. So duplicates, fork, exec, and descriptors from other processes need no
//!   special treatment.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;

pub mod calls;
pub mod format;
mod log;
mod names;
mod paths;
pub mod requests;

pub use log::{is_on, note_unknown, start};
