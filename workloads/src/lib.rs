//! Test and benchmark programs, which run on usring unchanged, as any user's programs do. No
//! product crate depends on this crate.
//!
//! - The programs in `src/bin/` are benchmarks. Each repeats one operation and prints how long it
//!   takes. `usring bench` runs them on the kernel and on usring in turn.
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
