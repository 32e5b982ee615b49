//! libc's `pthread_attr_setstack`, by which a program provides the memory of a thread's stack. This
//! library replaces the function, because swapped memory cannot hold a stack.

use crate::call::{CALL_SIZE, Call};
use crate::runtime::assembler::begin_frame;
use crate::swap::{mapping_calls, region};
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::AtomicUsize;

/// Address of libc's own `pthread_attr_setstack`; 0 until it is found.
pub static REAL: AtomicUsize = AtomicUsize::new(0);

/// Replaces libc's `pthread_attr_setstack`. If the program has chosen swapped memory for the stack,
/// this function first releases that memory to the kernel.
///
/// # Safety
/// The requirements are those of libc's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = "usring_entry")]
pub unsafe extern "C" fn pthread_attr_setstack() {
    naked_asm!(
        ".cfi_startproc",
        "cmp byte ptr [rip + {is_on}], 0",
        "je 2f",
    begin_frame!(),
        "push rdi",
        "push rsi",
        "push rdx",
        "sub rsp, {size} + 8",
        "mov qword ptr [rsp], {number}",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov qword ptr [rsp + 24], 0",
        "mov qword ptr [rsp + 32], 0",
        "mov qword ptr [rsp + 40], 0",
        "mov qword ptr [rsp + 48], 0",
        "mov qword ptr [rsp + {trapped}], 0",
        "mov rdi, rsp",
        "call usring_run_call",
        "mov rdi, [rbp - 8]",
        "mov rsi, [rbp - 16]",
        "mov rdx, [rbp - 24]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        ".cfi_same_value rbp",
        "2:",
        "cmp qword ptr [rip + {real}], 0",
        "je 3f",
        "jmp [rip + {real}]",
        "3:",
        "mov eax, {not_there}",
        "ret",
        ".cfi_endproc",
        is_on = sym region::ON,
        size = const CALL_SIZE,
        number = const mapping_calls::STACK,
        trapped = const offset_of!(Call, trapped),
        real = sym REAL,
        not_there = const 38, // ENOSYS
    )
}
