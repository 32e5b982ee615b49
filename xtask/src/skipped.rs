//! Reports tests that were skipped. Rust's test harness has no skipping at run time: such a test
//! passes, and the harness hides what it prints by `println!`. So the test writes a line to
//! standard output directly, and `cargo xtask check` counts these lines.
//!
//! Tests of any crate have this file as a module (`#[path]`).

use std::io::Write;

const MARK: &str = "skipped test ";

/// Reports that the test of this thread did not run, and why.
#[allow(dead_code, reason = "for tests")]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    // `println!` would be captured by the harness. A closed standard output is no failure.
    let _ = writeln!(std::io::stdout(), "{MARK}{}: {reason}", thread.name().unwrap_or("main"));
}

/// Returns the test's name and the reason, if this is such a line. The harness may have begun a
/// line of its own before it.
#[allow(dead_code, reason = "for who counts")]
pub fn read(line: &str) -> Option<&str> {
    line.split_once(MARK).map(|(_, what)| what)
}
