//! How a test says that it was skipped, and how `cargo xtask check` reads that. The test harness of
//! Rust knows no skipping at run time: such a test passes, and what it prints by `println!` is kept
//! from the reader. So the line goes past the harness, and is counted by those who read it.
//!
//! Tests of any crate have this file as a module (`#[path]`).

use std::io::Write;

const MARK: &str = "skipped test ";

/// Says that the test of this thread did not run, and why.
#[allow(dead_code, reason = "for tests")]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    // Not `println!`, which the harness captures. A closed standard output is no failure.
    let _ = writeln!(std::io::stdout(), "{MARK}{}: {reason}", thread.name().unwrap_or("main"));
}

/// The name and the reason, if this is such a line. The harness may have begun one of its own.
#[allow(dead_code, reason = "for who counts")]
pub fn read(line: &str) -> Option<&str> {
    line.split_once(MARK).map(|(_, what)| what)
}
