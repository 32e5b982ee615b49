//! The entry points in assembler: they lead a call from the program's registers to
//! [`crate::dispatch`] and back.
//!
//! A system call changes only rax, rcx and r11, so the entry points must preserve everything else.
//! They skip the red zone, and save the flags, the general registers and the 16 xmm registers.
//! (Nothing touches the upper parts of vector registers: the whole library is compiled for baseline
//! x86-64.)
//!
//! # The two kinds of code in this library
//!
//! The section `usring_entry` holds the entry points; all other code is the engine. A signal that
//! interrupts a thread in the engine is deferred. A signal that interrupts an entry point runs the
//! program's handler: no lock is held there. The handler may leave the frames by `siglongjmp`, or
//! unwind them (hence the CFI). So a handler must never find a half-finished call of engine code on
//! the stack: an entry point calls engine code only to run it to its end.
//!
//! # The exit
//!
//! Every call leaves through `usring_run_call`, which reads the counter of deferred signals. If a
//! signal was deferred for this thread, it is delivered here (`deliver_deferred`). To the program,
//! the signal's handler runs during the call, before the call returns.

use crate::call::{CALL_SIZE, Call, Outcome};
use crate::dispatch;
use crate::entry::patch;
use crate::process::stacks;
use crate::runtime::assembler::load_mmap;
use core::arch::global_asm;
use core::mem::offset_of;
use usring_sys::signals::DEFERRED;
use usring_sys::spread;
use usring_uapi::general as linux;

/// Serves one call of the program.
extern "C" fn serve(call: &mut Call) -> Outcome {
    match dispatch::serve_frequent(call) {
        Some(outcome) => outcome,
        None => serve_other(call),
    }
}

#[inline(never)]
fn serve_other(call: &mut Call) -> Outcome {
    if call.trapped != 0 {
        patch::rewrite_if_possible(call);
    }
    dispatch::dispatch(call)
}

const XMM_SIZE: usize = 16 * 16;
const FRAME: usize = CALL_SIZE + XMM_SIZE;

/// Makes the system call in `Call::forward`; rbx points to the [`Call`]. Clears r9 afterwards,
/// because r9 may hold PASS_MARK. With the mark in r9, a later call of libc that does not set r9
/// would pass usring's filter.
macro_rules! make_forwarded_call {
    () => {
        concat!(
            "mov rax, [rbx + {forward}]\n",
            "mov rdi, [rbx + {forward} + 8]\n",
            "mov rsi, [rbx + {forward} + 16]\n",
            "mov rdx, [rbx + {forward} + 24]\n",
            "mov r10, [rbx + {forward} + 32]\n",
            "mov r8, [rbx + {forward} + 40]\n",
            "mov r9, [rbx + {forward} + 48]\n",
            "syscall\n",
            "xor r9d, r9d\n",
        )
    };
}

// usring_run_call(rdi: *mut Call): returns the answer in rax. C calling convention.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_run_call",
    ".hidden usring_run_call",
    ".type usring_run_call,@function",
    ".p2align 4",
    "usring_run_call:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov rbx, rdi",
    "mov [rbx + {frame}], rbp",
    "2:",
    "mov rdi, rbx",
    "call {serve}",
    // From here on, the thread is outside the engine, so a signal runs the program's handler at
    // once.
    "6:",
    "cmp dword ptr [rip + {deferred}], 0",
    "jne 5f",
    "3:",
    "test edx, edx",
    "jnz 4f",
    "pop rbx",
    ".cfi_remember_state",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_restore_state",
    "4:",
    "cmp edx, {again}",
    "je 2b",
    "cmp edx, {pinned}",
    "je 7f",
    make_forwarded_call!(),
    "pop rbx",
    ".cfi_remember_state",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_restore_state",
    // Makes the call in `Call::forward`. Afterwards, `dispatch::after` handles the kernel's answer.
    "7:",
    make_forwarded_call!(),
    "mov rdi, rbx",
    "mov rsi, rax",
    "call {after}",
    "jmp 6b",
    "5:",
    "mov [rbx + {answer}], rax",
    "mov [rbx + {answer} + 8], rdx",
    "call usring_deliver_deferred",
    "mov rax, [rbx + {answer}]",
    "mov rdx, [rbx + {answer} + 8]",
    "jmp 3b",
    ".cfi_endproc",
    ".size usring_run_call, . - usring_run_call",
    ".popsection",
    serve = sym serve,
    deferred = sym DEFERRED,
    again = const Outcome::AGAIN,
    pinned = const Outcome::PINNED,
    after = sym dispatch::after,
    forward = const offset_of!(Call, forward),
    answer = const offset_of!(Call, outcome),
    frame = const offset_of!(Call, frame),
);

/// Saves the program's registers to a [`Call`] and calls `usring_run_call`. On entry, rbp points to
/// the entry point's frame, and rsp to the stack on which the call runs. May change rax.
macro_rules! run {
    () => {
        concat!(
            "sub rsp, {frame}\n",
            "and rsp, -16\n",
            "movaps [rsp + {xmm}], xmm0\n",
            "movaps [rsp + {xmm} + 16], xmm1\n",
            "movaps [rsp + {xmm} + 32], xmm2\n",
            "movaps [rsp + {xmm} + 48], xmm3\n",
            "movaps [rsp + {xmm} + 64], xmm4\n",
            "movaps [rsp + {xmm} + 80], xmm5\n",
            "movaps [rsp + {xmm} + 96], xmm6\n",
            "movaps [rsp + {xmm} + 112], xmm7\n",
            "movaps [rsp + {xmm} + 128], xmm8\n",
            "movaps [rsp + {xmm} + 144], xmm9\n",
            "movaps [rsp + {xmm} + 160], xmm10\n",
            "movaps [rsp + {xmm} + 176], xmm11\n",
            "movaps [rsp + {xmm} + 192], xmm12\n",
            "movaps [rsp + {xmm} + 208], xmm13\n",
            "movaps [rsp + {xmm} + 224], xmm14\n",
            "movaps [rsp + {xmm} + 240], xmm15\n",
            "mov rax, [rbp - 8]\n",
            "mov [rsp], rax\n",
            "mov [rsp + 8], rdi\n",
            "mov [rsp + 16], rsi\n",
            "mov [rsp + 24], rdx\n",
            "mov [rsp + 32], r10\n",
            "mov [rsp + 40], r8\n",
            "mov [rsp + 48], r9\n",
            "mov [rsp + {return_address}], rcx\n",
            "mov [rsp + {trapped}], r11\n",
            "mov rdi, rsp\n",
            "call usring_run_call\n",
            "mov [rbp - 8], rax\n",
            "movaps xmm0, [rsp + {xmm}]\n",
            "movaps xmm1, [rsp + {xmm} + 16]\n",
            "movaps xmm2, [rsp + {xmm} + 32]\n",
            "movaps xmm3, [rsp + {xmm} + 48]\n",
            "movaps xmm4, [rsp + {xmm} + 64]\n",
            "movaps xmm5, [rsp + {xmm} + 80]\n",
            "movaps xmm6, [rsp + {xmm} + 96]\n",
            "movaps xmm7, [rsp + {xmm} + 112]\n",
            "movaps xmm8, [rsp + {xmm} + 128]\n",
            "movaps xmm9, [rsp + {xmm} + 144]\n",
            "movaps xmm10, [rsp + {xmm} + 160]\n",
            "movaps xmm11, [rsp + {xmm} + 176]\n",
            "movaps xmm12, [rsp + {xmm} + 192]\n",
            "movaps xmm13, [rsp + {xmm} + 208]\n",
            "movaps xmm14, [rsp + {xmm} + 224]\n",
            "movaps xmm15, [rsp + {xmm} + 240]\n",
            "mov rdi, [rsp + 8]\n",
            "mov rsi, [rsp + 16]\n",
            "mov rdx, [rsp + 24]\n",
            "mov r10, [rsp + 32]\n",
            "mov r8, [rsp + 40]\n",
            "mov r9, [rsp + 48]\n",
        )
    };
}

/// Skips the red zone and makes the frame. The saved rbp is directly below the return address,
/// where debuggers and profilers that walk frame pointers expect it. rax and the flags are saved
/// below that.
macro_rules! enter {
    () => {
        concat!(
            "lea rsp, [rsp - 128]\n",
            ".cfi_def_cfa_offset 128\n",
            "push rcx\n",
            ".cfi_def_cfa_offset 136\n",
            ".cfi_offset rip, -136\n",
            "push rbp\n",
            ".cfi_def_cfa_offset 144\n",
            ".cfi_offset rbp, -144\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa rbp, 144\n",
            "push rax\n",
            // Saves the arithmetic flags. The direction flag is not saved, because it is clear by
            // the ABI.
            "lahf\n",
            "seto al\n",
            "push rax\n",
            "cld\n",
        )
    };
}

/// Begins an entry point, and makes its frame. A trapped call enters at `$trap`, and a rewritten
/// call site jumps to `$patch`.
macro_rules! entrance {
    ($trap:literal, $patch:literal) => {
        concat!(
            ".pushsection usring_entry,\"ax\",@progbits\n",
            ".globl ",
            $trap,
            ", ",
            $patch,
            "\n",
            ".hidden ",
            $trap,
            ", ",
            $patch,
            "\n",
            ".type ",
            $trap,
            ",@function\n",
            ".type ",
            $patch,
            ",@function\n",
            ".p2align 4\n",
            $trap,
            ":\n",
            ".cfi_startproc\n",
            ".cfi_def_cfa rsp, 0\n",
            ".cfi_register rip, rcx\n",
            "mov r11d, 1\n",
            "jmp 2f\n",
            ".cfi_endproc\n",
            ".p2align 4\n",
            $patch,
            ":\n",
            ".cfi_startproc\n",
            ".cfi_def_cfa rsp, 0\n",
            ".cfi_register rip, rcx\n",
            "endbr64\n",
            "mov r11d, 0\n",
            "2:\n",
            enter!(),
        )
    };
}

/// Removes the entry point's frame and returns to the program. `$last`: the last instructions
/// before the return, which may change only r11.
macro_rules! leave {
    ($last:literal) => {
        concat!(
            "mov rax, [rbp - 16]\n",
            // Restores the overflow flag. al is 1 if the flag was set: 1 + 127 overflows a signed
            // byte, and 0 + 127 does not.
            "add al, 127\n",
            "sahf\n",
            "mov rax, [rbp - 8]\n",
            "mov rcx, [rsp + {return_address}]\n",
            "mov rsp, rbp\n",
            "pop rbp\n",
            ".cfi_def_cfa rsp, 136\n",
            ".cfi_same_value rbp\n",
            "lea rsp, [rsp + 136]\n",
            ".cfi_def_cfa_offset 0\n",
            ".cfi_register rip, rcx\n",
            $last,
            "jmp rcx\n",
        )
    };
}

// The program reaches these entry points by a jump. All registers are as at its `syscall`
// instruction, except the two that a system call destroys. The register rcx holds the return
// address, and r11 distinguishes the trap from a rewritten call site.
global_asm!(
    entrance!("usring_trap_entry", "usring_patched_entry"),
    run!(),
    leave!(""),
    ".cfi_endproc",
    ".size usring_patched_entry, . - usring_patched_entry",
    ".popsection",
    frame = const FRAME,
    xmm = const CALL_SIZE,
    return_address = const offset_of!(Call, return_address),
    trapped = const offset_of!(Call, trapped),
);

// Entry points for programs with small stacks (see `stacks`). The call runs on a stack of usring's.
// But the thread may be on this stack already, if a signal handler has interrupted the exit of an
// earlier call and makes a call itself. The call then runs on the current stack.
global_asm!(
    entrance!("usring_trap_entry_aside", "usring_patched_entry_aside"),
    "push rdi",
    "push rsi",
    "push rdx",
    "push r11",
    // Finds this thread's row in the table of stacks (`stacks::TABLE`). rsi becomes the row's
    // address.
    "mov rax, fs:[0]",
    "mov rdx, {golden}",
    "imul rdx, rax",
    "shr rdx, {shift}",
    "mov ecx, {rows}",
    "lea rdi, [rip + {table}]",
    "3:",
    "mov rsi, rdx",
    "shl rsi, 4",
    "add rsi, rdi",
    "cmp [rsi], rax",
    "je 5f",
    "cmp qword ptr [rsi], 0",
    "je 4f",
    "inc edx",
    "and edx, {rows} - 1",
    "dec ecx",
    "jnz 3b",
    // The table of stacks is full: the call runs on the program's stack.
    "jmp 7f",
    "4:",
    "mov rdx, rax",
    "xor eax, eax",
    "lock cmpxchg [rsi], rdx",
    "mov rax, rdx",
    "jne 3b",
    // Maps a stack, if the row has none yet.
    "5:",
    "mov rax, [rsi + 8]",
    "test rax, rax",
    "jnz 6f",
    "push rsi",
    "push r10",
    "push r8",
    "push r9",
    "mov esi, {stack}",
    load_mmap!(),
    "syscall",
    "pop r9",
    "pop r8",
    "pop r10",
    "pop rsi",
    "cmp rax, -4095",
    "jae 7f",
    "add rax, {stack} - 64",
    "mov [rsi + 8], rax",
    // The word at the top of the stack is not 0 while the stack is in use.
    "6:",
    "cmp dword ptr [rax], 0",
    "jne 7f",
    "mov dword ptr [rax], 1",
    "pop r11",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "mov rcx, [rbp + 8]",
    "mov rsp, rax",
    "push rax",
    "push rax",
    run!(),
    // The frame lies directly below the two pushed words, because the frame's size and the address
    // of the stack's top are multiples of 16. So this load sets r11 to the address of the word that
    // is not 0 while the stack is in use.
    "mov r11, [rsp + {frame}]",
    leave!("mov dword ptr [r11], 0\n"),
    ".cfi_endproc",
    "7:",
    ".cfi_startproc",
    ".cfi_def_cfa rbp, 144",
    ".cfi_offset rip, -136",
    ".cfi_offset rbp, -144",
    "pop r11",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "mov rcx, [rbp + 8]",
    run!(),
    leave!(""),
    ".cfi_endproc",
    ".size usring_patched_entry_aside, . - usring_patched_entry_aside",
    ".popsection",
    frame = const FRAME,
    xmm = const CALL_SIZE,
    return_address = const offset_of!(Call, return_address),
    trapped = const offset_of!(Call, trapped),
    table = sym stacks::TABLE,
    rows = const stacks::ROWS,
    shift = const 64 - stacks::ROWS.trailing_zeros(),
    golden = const spread::GOLDEN,
    stack = const stacks::SIZE,
    protection = const linux::PROT_READ | linux::PROT_WRITE,
    flags = const linux::MAP_PRIVATE | linux::MAP_ANONYMOUS,
    mmap = const linux::__NR_mmap,
);

unsafe extern "C" {
    fn usring_trap_entry();
    fn usring_patched_entry();
    fn usring_trap_entry_aside();
    fn usring_patched_entry_aside();
}

/// Returns the address at which a trapped call continues. The trap's handler sets the instruction
/// pointer to it.
pub fn trap_entry() -> u64 {
    let entry = if stacks::are_small() { usring_trap_entry_aside } else { usring_trap_entry };
    entry as *const () as u64
}

/// Returns the address to which a rewritten call site jumps, by way of its stub.
pub fn patched_entry() -> u64 {
    let entry = if stacks::are_small() { usring_patched_entry_aside } else { usring_patched_entry };
    entry as *const () as u64
}
