//! The `usring` command. All of it is in [`usring_cli`].
//!
//! There is no Rust `main`, because the standard library's start-up code would ignore SIGPIPE, and
//! would open each of the descriptors 0 to 2 that is closed. A program that the launcher executes
//! must inherit signals and descriptors exactly as the launcher's parent left them.
#![cfg_attr(not(test), no_main)]

use std::ffi::{c_char, c_int};

/// The C runtime's entry point. It ignores its arguments: `std::env` finds them without Rust's
/// start-up code.
#[cfg_attr(not(test), unsafe(export_name = "main"))]
#[cfg_attr(test, allow(dead_code, reason = "the test harness brings its own"))]
extern "C" fn entry(_count: c_int, _arguments: *const *const c_char) -> c_int {
    usring_cli::main().into()
}
