//! Tests of a whole process and of its end: workers and other threads, descriptors and memory,
//! rings dropped with requests in flight, fork, exec and exit. The tests count threads and
//! descriptors, so they run one at a time.

#[path = "../api/support.rs"]
#[allow(dead_code, reason = "each suite uses its part")]
mod support;

use usring as ring;

/// Whether the tests run in this process.
const RUNS_HERE: fn() -> bool = || true;

mod endings;
mod fork;
mod resources;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test runs. Another test can start after the returned guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test while no other test runs, and with a time limit.
#[track_caller]
fn alone_and_bounded(test: impl FnOnce() + Send + 'static) {
    let _turn = alone();
    support::bounded(test);
}
