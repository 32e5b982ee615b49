//! Prepares a process for its first ring or swap region. It needs fault handlers, a function that
//! starts threads known to libc, and the table of the rings' descriptors.

use super::descriptor;
use std::ffi::c_void;
use std::sync::Once;
use usring_sys::{Errno, thread, user_memory, wait};

/// Stack of a thread that the engine starts, in bytes. Such a thread runs no code of the program's.
const STACK: usize = 256 * 1024;

/// Installs, once per process, what both rings and swap regions need.
pub(crate) fn prepare_threads() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        user_memory::install_fault_handler();
        thread::set_spawner(spawn);
    });
}

/// Installs, once per process, everything that rings need.
pub(super) fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        prepare_threads();
        // Installing the SIGSYS handler fails if the program has one of its own. A cancel then
        // cannot interrupt a worker's system call, and waits until that call has ended.
        let _ = wait::catch_worker_interrupts();
        descriptor::become_host();
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

/// Starts a thread by the standard library, so that libc's malloc, debuggers and tools know it.
fn spawn(entry: extern "C" fn(*mut c_void), argument: *mut c_void) -> Result<(), Errno> {
    let argument = Argument(argument);
    let started = std::thread::Builder::new().stack_size(STACK).spawn(move || entry(argument.into_inner()));
    started.map(drop).map_err(|error| error.raw_os_error().map_or(Errno::EAGAIN, |number| Errno::new(number as u32)))
}
