//! Functions that the kernel never had, for programs that are linked to this
//! library: polled AIO's io_setup2 (`include/usring.h`). Its system call's number
//! went to another call later, so none is trapped; the function comes to
//! `dispatch` by a number of our own, which no system call can have.

use crate::door::{CALL_SIZE, Call};
use core::arch::naked_asm;
use core::mem::offset_of;

/// Stands for io_setup2 in a [`Call`].
pub const SETUP2: u32 = 0x7573_0001;

/// `int io_setup2(unsigned nr_events, unsigned flags, void *sq_ring, void *cq_ring,
/// io_context_t *ctx)`: answers as libaio's functions do, 0 or a negative errno.
///
/// # Safety
/// What the program puts into the context's iocbs is its own to have read or
/// written, as it is with io_setup(2).
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = "usring_door")]
pub unsafe extern "C" fn io_setup2() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
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
        size = const CALL_SIZE,
        number = const SETUP2,
        return_address = const offset_of!(Call, return_address),
        trapped = const offset_of!(Call, trapped),
    )
}
