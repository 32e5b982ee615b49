//! How long tests wait, and what they try again: machines are shared.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::time::{Duration, Instant};

/// Nothing takes longer; a test that comes here has failed.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Tries until what came of it is good. What a quiet machine does at once, a busy
/// one does sooner or later; what is broken, never.
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
