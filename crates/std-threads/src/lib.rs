//! Prepares a Rust process for rings and swap regions. It installs the fault handlers, and has
//! usring's threads started by the standard library.
//!
//! malloc, thread-local variables, debuggers and other tools know such threads. The bare threads of
//! `usring_sys` are for processes whose libc usring must not call.

use std::ffi::c_void;
use std::sync::Once;
use usring_sys::{Errno, thread, user_memory};

/// Stack of an engine's thread, in bytes. Such a thread runs nothing but the engine.
const STACK: usize = 256 * 1024;

/// Prepares the process, once.
pub fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        user_memory::install_fault_handler();
        thread::set_spawner(spawn);
    });
}

/// The argument of a new thread, which only that thread uses.
struct Argument(*mut c_void);

// SAFETY: the engine passes the argument to exactly one thread.
unsafe impl Send for Argument {}

impl Argument {
    /// Takes the wrapper by value, so that a closure captures it as a whole and not the pointer
    /// inside.
    fn into_inner(self) -> *mut c_void {
        self.0
    }
}

/// Starts a thread of the standard library.
fn spawn(entry: extern "C" fn(*mut c_void), argument: *mut c_void) -> Result<(), Errno> {
    let argument = Argument(argument);
    let started = std::thread::Builder::new().stack_size(STACK).spawn(move || entry(argument.into_inner()));
    started.map(drop).map_err(|error| error.raw_os_error().map_or(Errno::EAGAIN, |number| Errno::new(number as u32)))
}
