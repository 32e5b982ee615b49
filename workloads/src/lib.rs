//! Test and benchmark programs, which run on usring without changes. They use usring as any user of
//! the command does. No product crate depends on this crate.
//!
//! - The programs in `src/bin/` are benchmarks. Each repeats one operation for a while and prints
//!   how long it took. `usring bench` runs them on the kernel and on usring in turn.
//! - The tests in `tests/` run programs of Debian and those in `programs/`. [`harness`] starts
//!   these programs and waits for them.

pub mod control_group;
pub mod dialogue;
pub mod harness;
pub mod latencies;
pub mod options;
pub mod postgres;
pub mod readiness;
pub mod site;
pub mod sockets;
pub mod stopwatch;
