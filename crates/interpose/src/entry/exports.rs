//! Functions that the kernel does not have, for programs that are linked to this library
//! (`include/usring.h`). Each function reaches `dispatch` as a system call does, by a number that
//! no system call can have.
//!
//! io_setup2 is a system call of kernel patches for polled AIO. Its number in those patches now
//! belongs to another system call. So usring cannot trap it, and defines a function here.
//! [`crate::swap::functions`] has the functions for swapped memory.

use crate::files::contexts::SETUP2;
use crate::runtime::assembler::begin_frame;
use crate::swap::functions::{FIRST, for_each_function};

/// Defines a function of at most five arguments. It runs the entry point as a system call would,
/// with `$number` in place of the system call's number.
macro_rules! exported {
    ($(#[$attribute:meta])* $name:ident, $number:expr) => {
        $(#[$attribute])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "usring_entry")]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
    begin_frame!(),
                "sub rsp, {size}",
                "mov qword ptr [rsp], {number}",
                "mov [rsp + 8], rdi",
                "mov [rsp + 16], rsi",
                "mov [rsp + 24], rdx",
                "mov [rsp + 32], rcx",
                "mov [rsp + 40], r8",
                "mov qword ptr [rsp + 48], 0",
                "mov qword ptr [rsp + {return_address}], 0",
                "mov qword ptr [rsp + {trapped}], 0",
                "mov rdi, rsp",
                "call usring_run_call",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_same_value rbp",
                "ret",
                ".cfi_endproc",
                size = const $crate::call::CALL_SIZE,
                number = const $number,
                return_address = const core::mem::offset_of!($crate::call::Call, return_address),
                trapped = const core::mem::offset_of!($crate::call::Call, trapped),
            )
        }
    };
}

exported! {
    /// `int io_setup2(unsigned nr_events, unsigned flags, void *sq_ring, void *cq_ring,
    /// io_context_t *ctx)`: returns 0 or a negative errno, as libaio's functions do.
    ///
    /// # Safety
    /// The program must be allowed to read or write every address that it puts into the context's
    /// iocbs, as for io_setup(2).
    io_setup2, SETUP2
}

macro_rules! export_functions {
    ($($number:literal $name:ident => $serve:ident;)*) => {
        $(
            exported! {
                /// # Safety
                /// The requirements are those in `include/usring.h`.
                $name, FIRST + $number
            }
        )*
    };
}

for_each_function!(export_functions);
