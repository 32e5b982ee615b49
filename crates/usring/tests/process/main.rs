//! What belongs to the whole process, and its end: workers and other threads,
//! descriptors and memory, rings that go with requests in flight, fork, exec
//! and exit. One test at a time, because they count.

#[path = "../api/support.rs"]
#[allow(dead_code, reason = "each suite uses its part")]
mod support;

use usring as ring;

/// Whether the tests are to run in this process.
const RUNS_HERE: fn() -> bool = || true;

mod endings;
mod fork;
mod resources;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by each test for as long as it runs.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test alone and with a bound.
#[track_caller]
fn alone_and_bounded(test: impl FnOnce() + Send + 'static) {
    let _turn = alone();
    support::bounded(test);
}
