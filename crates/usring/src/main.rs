//! The `usring` command: everything lies in [`cli`].
//!
//! There is no Rust `main`: the standard library's start-up would ignore
//! SIGPIPE and open closed descriptors 0 to 2 before we could look, and a
//! program that the launcher executes must inherit these exactly as it would
//! have from whoever started the launcher.
#![cfg_attr(not(test), no_main)]

mod cli;

use std::ffi::{c_char, c_int};

/// The C runtime's entry; the standard library finds the arguments by itself.
#[cfg_attr(not(test), unsafe(export_name = "main"))]
#[cfg_attr(test, allow(dead_code, reason = "the test harness brings its own"))]
extern "C" fn entry(_count: c_int, _arguments: *const *const c_char) -> c_int {
    cli::main().into()
}
