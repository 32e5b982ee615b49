//! Test and benchmark programs that run on usring unchanged. They see only what any user of the
//! command sees. No product crate depends on this crate.
//!
//! - The programs in `src/bin/` are benchmarks. Each does one thing for a while and prints how long
//!   it took. `usring bench` runs them on the kernel and on usring in turn.
//! - The tests in `tests/` drive programs of Debian and those in `programs/`. [`harness`] starts
//!   them and waits for them.

pub mod control_group;
pub mod dialogue;
pub mod harness;
pub mod latencies;
pub mod options;
pub mod random;
pub mod readiness;
pub mod site;
pub mod sockets;
pub mod stopwatch;
