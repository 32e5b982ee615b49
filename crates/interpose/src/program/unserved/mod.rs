//! Lets a program run without usring if libusring.so cannot be loaded into it, because the program
//! is static.
//!
//! The program inherits the filter, which traps some of its calls. So the program needs a handler
//! of SIGSYS. The handler makes these calls again, and answers io_uring calls as a kernel without
//! io_uring does:
//!
//! - [`handler`]: the handler of SIGSYS.
//! - [`tracer`]: installs the handler in an image that an exec has just made.
//! - [`named`]: remembers which programs a message has named.
//!
//! Handler and tracer are in one section of assembler (`usring_unserved`), which is copied to the
//! image unchanged. The section has no relocations, uses no thread pointer, and refers to nothing
//! outside it. The copy installs itself in the next image, so descendants of an unserved program
//! run, too. If one of them is a dynamic program, its loader loads the library, whose handler
//! replaces this one.

mod handler;
pub mod named;
mod tracer;

use usring_sys::SystemCall;
use usring_sys::signals::SignalSet;
use usring_uapi::general as linux;

/// Bytes of the kernel's signal set, which system calls on masks and handlers require.
const SET_SIZE: u32 = 8;

unsafe extern "C" {
    fn usring_unserved_attend(mask: &SignalSet) -> u32;
}

/// Makes `exec` with a tracer. The tracer installs the handler in the new image, and sets the
/// image's signal mask to `mask`. All signals must be blocked. `None`: no process can trace the
/// caller, and `exec` was not made. Otherwise returns the result of `exec`, which returns only if
/// it fails.
pub fn attended<T>(mask: SignalSet, exec: impl FnOnce() -> T) -> Option<T> {
    // SAFETY: 1. The function keeps the C ABI. 2. The process that the function makes has a copy of
    // this memory, runs only the code of the section, and ends there.
    let tracer = unsafe { usring_unserved_attend(&mask) };
    if tracer == 0 {
        return None;
    }
    let result = exec();
    let _ = SystemCall::new(linux::__NR_wait4, [tracer.into(), 0, linux::__WALL.into(), 0, 0]).run();
    Some(result)
}
