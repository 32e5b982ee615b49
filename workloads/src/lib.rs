//! Ordinary programs on usring. They know nothing of it and see only what any
//! user of the command sees; no product crate depends on this one.
//!
//! Those in `src/bin/` are for measuring: each does one thing for a while and
//! prints how long it took; `usring bench` runs them on the kernel and on usring
//! in turn. Those that the tests in `tests/` drive come from Debian or lie in
//! `programs/`; [`harness`] starts them and waits for them.

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
