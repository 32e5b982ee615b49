//! Tests of the engine through its Rust API, in one process, on real files, pipes, eventfds and
//! timers. Each file tests one area. A test's name says which behaviour it checks. Each wait has a
//! time limit ([`support`]).
//!
//! The API has the names of the `io-uring` crate. So all tests except [`only_usring`] also run on
//! the kernel's own io_uring, which is how the expectations were checked:
//!
//! ```text
//! RUSTFLAGS="--cfg on_kernel" cargo test -p usring --test api
//! ```
//!
//! They also run through the entry points of `usring run` (`tests/entry_points`).
#![allow(unexpected_cfgs, reason = "`on_kernel` is given by hand")]

#[cfg(on_kernel)]
use io_uring as ring;
#[cfg(not(on_kernel))]
use usring as ring;

/// Whether the tests run in this process. (In `tests/entry_points` this depends on the
/// environment.)
const RUNS_HERE: fn() -> bool = || true;

mod bad_input;
mod basics;
mod cancel;
#[cfg(not(on_kernel))]
mod contexts;
mod descriptor;
mod files;
mod habits;
#[cfg(not(on_kernel))]
mod injected;
mod links;
mod messages;
#[cfg(not(on_kernel))]
mod only_usring;
mod overflow;
mod poll;
mod provided_buffers;
mod read_write;
mod registered;
mod shared_listener;
mod sq_thread;
#[allow(dead_code, reason = "each suite uses its part")]
mod support;
mod task_run;
mod threads;
mod timeouts;
mod waiting;
