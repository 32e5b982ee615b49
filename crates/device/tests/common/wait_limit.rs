//! Time limits of tests, and repeated attempts, because tests run on busy machines.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::time::{Duration, Instant};

/// Limit of every wait in a test. A test that reaches it fails.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Repeats an attempt until its result is good. On a busy machine, correct code may need several
/// attempts. Defective code fails at every attempt.
pub fn repeat_until_good<T: std::fmt::Debug>(mut attempt: impl FnMut() -> T, good: impl Fn(&T) -> bool) {
    let start = Instant::now();
    loop {
        let last = attempt();
        if good(&last) {
            return;
        }
        assert!(start.elapsed() < 2 * WAIT_LIMIT, "{last:?}");
    }
}
