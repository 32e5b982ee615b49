//! Time limits and repeated attempts of tests, for shared machines.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::time::{Duration, Instant};

/// Limit of every wait. A test that reaches it has failed.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Repeats an attempt until its result is good. On a busy machine a correct product succeeds at
/// some attempt, and a defective one never does.
pub fn sooner_or_later<T: std::fmt::Debug>(mut attempt: impl FnMut() -> T, good: impl Fn(&T) -> bool) {
    let start = Instant::now();
    loop {
        let last = attempt();
        if good(&last) {
            return;
        }
        assert!(start.elapsed() < 2 * LONGEST, "{last:?}");
    }
}
