//! Reports tests that were skipped. Rust's test harness does not know skipping at run time: such a
//! test passes, and the harness hides what it prints by `println!`. So the test writes a line
//! directly to standard output, and `cargo xtask check` counts these lines.
//!
//! Test files of several crates include this file as a module (`#[path]`).

use std::io::Write;

const MARK: &str = "skipped test ";

/// Reports that the calling thread's test was skipped, and why.
#[allow(dead_code, reason = "for tests")]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    // The harness would capture the output of `println!`. The error is ignored: standard output may
    // be closed.
    let _ = writeln!(std::io::stdout(), "{MARK}{}: {reason}", thread.name().unwrap_or("main"));
}

/// Returns the test's name and the reason, if `line` reports a skipped test. The line may begin
/// with text of the harness.
#[allow(dead_code, reason = "for who counts")]
pub fn read(line: &str) -> Option<&str> {
    line.split_once(MARK).map(|(_, what)| what)
}
