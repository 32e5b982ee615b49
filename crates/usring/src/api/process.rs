//! What the engine needs of a process before its first ring: fault handlers,
//! threads that libc knows, and somebody who knows whose a descriptor is.

use super::descriptor;
use std::ffi::c_void;
use std::sync::Once;
use usring_sys::{Errno, thread, user_memory, wait};

/// Stack of a thread of the engine, in bytes: it runs the engine alone.
const STACK: usize = 256 * 1024;

/// What every part of the library needs: done once.
pub(crate) fn prepare_threads() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        user_memory::install_fault_handler();
        thread::set_spawner(spawn);
    });
}

/// Does it once.
pub(super) fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        prepare_threads();
        // Where the program handles SIGSYS itself, a worker may not be broken
        // off by a cancel before its system call has ended.
        let _ = wait::catch_worker_interrupts();
        descriptor::become_host();
    });
}

/// What a new thread is given, and nobody else uses.
struct Argument(*mut c_void);

// SAFETY: the engine hands it to exactly one thread, which is what it is for.
unsafe impl Send for Argument {}

impl Argument {
    /// By value, so that a closure captures the whole and not the pointer.
    fn into_inner(self) -> *mut c_void {
        self.0
    }
}

/// Threads of the standard library: tools, debuggers and malloc know them.
fn spawn(entry: extern "C" fn(*mut c_void), argument: *mut c_void) -> Result<(), Errno> {
    let argument = Argument(argument);
    let started = std::thread::Builder::new().stack_size(STACK).spawn(move || entry(argument.into_inner()));
    started.map(drop).map_err(|error| error.raw_os_error().map_or(Errno::EAGAIN, |number| Errno::new(number as u32)))
}
