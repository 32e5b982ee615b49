//! Prepares a Rust process for rings and swap regions. Installs the SIGSEGV and SIGBUS handlers,
//! and makes the standard library start usring's threads.
//!
//! libc knows threads of the standard library, so malloc, thread-local variables, debuggers and
//! other tools work with them. The bare threads of `usring_sys` are for processes in which usring
//! must not call libc.

#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

use std::ffi::c_void;
use std::sync::Once;
use usring_sys::{Errno, thread, user_memory};

/// Size of the stack of a thread of usring, in bytes. Such a thread runs only usring's code.
const STACK: usize = 256 * 1024;

/// Prepares the process. Later calls do nothing.
pub fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        user_memory::install_fault_handler();
        thread::set_spawner(spawn);
    });
}

/// The argument for a new thread, which only that thread uses.
struct Argument(*mut c_void);

// SAFETY: `usring_sys` passes the argument to exactly one thread.
unsafe impl Send for Argument {}

impl Argument {
    /// Returns the pointer. Consumes the wrapper, so that a closure captures the wrapper (`Send`)
    /// and not the pointer inside.
    fn into_inner(self) -> *mut c_void {
        self.0
    }
}

/// Starts a thread by the standard library. Error: the kernel's error number; `EAGAIN` if the
/// standard library reports none.
fn spawn(entry: extern "C" fn(*mut c_void), argument: *mut c_void) -> Result<(), Errno> {
    let argument = Argument(argument);
    let started = std::thread::Builder::new().stack_size(STACK).spawn(move || entry(argument.into_inner()));
    started
        .map(drop)
        .map_err(|error| error.raw_os_error().map_or(Errno::EAGAIN, |number| Errno::new(number.cast_unsigned())))
}
