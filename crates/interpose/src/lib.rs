//! `libusring.so`: the entry points by which an unmodified program's calls arrive, and the tables
//! of descriptors that belong to usring.
//!
//! A call arrives at one of the entry points (`entry`), and `dispatch` decides by its number which
//! module serves it:
//!
//! | module | serves |
//! |---|---|
//! | `files` | rings, devices and AIO contexts among the program's descriptors |
//! | `swap` | the program's swapped memory |
//! | `signals` | the program's signal handlers, which are kept out of the engine |
//! | `program` | execve(2), which starts the next program |
//!
//! No code here knows how an operation works, and none calls libc: a call may arrive in a signal
//! handler, under malloc's lock, or in a vfork child.
#![no_std]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

extern crate alloc;
// Under Clippy, std supplies the panic handler: linting the whole workspace enables a dependency's
// feature `std`. A real build links only the panic handler in `runtime::message`.
#[cfg(clippy)]
extern crate std;

mod call;
mod check;
mod child;
mod dispatch;
mod entry;
mod faults;
mod files;
mod filter;
mod memcheck;
mod process;
mod program;
mod recording;
mod runtime;
mod signals;
mod start;
mod swap;
mod trace;
mod tsan;
