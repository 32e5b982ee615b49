//! Lets a forked child close its parent's private descriptors early, so that the child keeps no
//! file of the parent open. To do so, the child must notice that it is a child, even if none of its
//! calls reaches another entry point.
//!
//! | the child is made by | usring notices the child by |
//! |---|---|
//! | `fork`, and functions that call it | a handler that is registered by pthread_atfork(3) |
//! | `_Fork` | this library's symbol `_Fork` |
//! | `clone` without CLONE_VM | this library's symbol `clone`, at the child's first instruction |
//! | a `syscall` instruction, `syscall(SYS_fork)` | its first call that reaches an entry point |
//!
//! A child that shares its parent's memory (vfork, posix_spawn) needs no handler: its copies of the
//! descriptors end with its exec.
//!
//! A debugger makes a child by vfork. The child asks to be traced (PTRACE_TRACEME), and then
//! executes the program. If a call of the child trapped, the trap's signal would stop the child
//! until its tracer continues it. But the tracer is the parent, which sleeps until the child's
//! exec, so both would wait for ever. So `vfork` first rewrites libc's execve and pthread_sigmask,
//! which such a child calls. These two functions then need no trap.

use crate::check;
use crate::entry::patch;
use crate::process::{self, ChildDescriptors};
use crate::runtime::assembler::deliver_deferred;
use crate::runtime::libc;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use usring_sys::descriptor;
use usring_sys::signals::DEFERRED;
use usring_uapi::general as linux;

static REAL_FORK: AtomicUsize = AtomicUsize::new(0);
static REAL_CLONE: AtomicUsize = AtomicUsize::new(0);
static REAL_VFORK: AtomicUsize = AtomicUsize::new(0);
/// 1 once `prepare_exec` has run.
static HAS_EXEC: AtomicU32 = AtomicU32::new(0);

/// Rewrites the system calls in those functions of libc that a debugger's child calls between vfork
/// and exec.
extern "C" fn prepare_exec() {
    if HAS_EXEC.swap(1, Ordering::Relaxed) == 0 {
        for (name, number) in [(c"execve", linux::__NR_execve), (c"pthread_sigmask", linux::__NR_rt_sigprocmask)] {
            libc::next(name).into_iter().for_each(|function| patch::rewrite_ahead(function, number));
        }
    }
}

/// Replaces libc's `vfork`. A vfork returns twice on one stack, so this function leaves no frame on
/// the stack.
///
/// # Safety
/// The requirements are those of libc's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = "usring_entry")]
pub unsafe extern "C" fn vfork() {
    naked_asm!(
        "cmp dword ptr [rip + {has_exec}], 0",
        "jne 3f",
        "push rbp",
        "mov rbp, rsp",
        "call {prepare}",
    deliver_deferred!(),
        "pop rbp",
        "3:",
        "cmp qword ptr [rip + {real}], 0",
        "je 4f",
        "jmp [rip + {real}]",
        "4:",
        "mov rax, -{not_there}",
        "jmp usring_symbol_answer",
        has_exec = sym HAS_EXEC,
        prepare = sym prepare_exec,
        real = sym REAL_VFORK,
        deferred = sym DEFERRED,
        not_there = const 38, // ENOSYS
    )
}

/// Called at the beginning of a forked child that has its own memory. If usring has private
/// descriptors, resets the state that the child has inherited. `shares_descriptors`: not 0 if the
/// child was made with CLONE_FILES.
extern "C" fn begin(shares_descriptors: u32) {
    check::begin_child();
    if descriptor::has_private() {
        process::begin_child(if shares_descriptors == 0 { ChildDescriptors::Own } else { ChildDescriptors::Shared });
    }
}

/// The handler that libc runs in each forked child.
#[unsafe(naked)]
#[unsafe(link_section = "usring_entry")]
unsafe extern "C" fn after_fork() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "xor edi, edi",
        "call {begin}",
    deliver_deferred!(),
        "pop rbp",
        "ret",
        begin = sym begin,
        deferred = sym DEFERRED,
    )
}

/// Replaces libc's `_Fork`, which does not run the handlers of pthread_atfork(3).
///
/// # Safety
/// The requirements are those of libc's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = "usring_entry")]
pub unsafe extern "C" fn _Fork() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "cmp qword ptr [rip + {real}], 0",
        "je 3f",
        "call [rip + {real}]",
        "test eax, eax",
        "jne 2f",
        "call {after_fork}",
        "xor eax, eax",
        "2:",
        "pop rbp",
        "ret",
        "3:",
        "pop rbp",
        "mov eax, {number}",
        "syscall",
        "jmp usring_symbol_answer",
        real = sym REAL_FORK,
        after_fork = sym after_fork,
        number = const linux::__NR_fork,
    )
}

/// Replaces libc's `clone`. A child with its own memory begins in [`begin_clone`]. This function
/// puts the values that `begin_clone` needs on the child's stack.
///
/// # Safety
/// The requirements are those of libc's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = "usring_entry")]
pub unsafe extern "C" fn clone() {
    naked_asm!(
        "lea r11, [rip + {real}]",
        "cmp qword ptr [r11], 0",
        "je 3f",
        "test edx, {shares_memory}",
        "jnz 2f",
        // If the program passes no function or no stack, libc's `clone` reports the error.
        "test rdi, rdi",
        "jz 2f",
        "test rsi, rsi",
        "jz 2f",
        "and rsi, -16",
        "sub rsi, 32",
        "mov [rsi], rdi",
        "mov [rsi + 8], rcx",
        "mov [rsi + 16], edx",
        "mov rcx, rsi",
        "lea rdi, [rip + {begin_clone}]",
        "2:",
        "jmp [r11]",
        "3:",
        "mov rax, -{not_there}",
        "jmp usring_symbol_answer",
        real = sym REAL_CLONE,
        shares_memory = const linux::CLONE_VM,
        begin_clone = sym begin_clone,
        not_there = const 38, // ENOSYS
    )
}

/// The first instructions of a child that `clone` makes. rdi points to the values that `clone` has
/// put on the child's stack.
#[unsafe(naked)]
#[unsafe(link_section = "usring_entry")]
unsafe extern "C" fn begin_clone() {
    naked_asm!(
        "push rbx",
        "mov rbx, rdi",
        "mov edi, [rbx + 16]",
        "and edi, {shares_descriptors}",
        "call {begin}",
    deliver_deferred!(),
        "mov rax, [rbx]",
        "mov rdi, [rbx + 8]",
        "pop rbx",
        "jmp rax",
        shares_descriptors = const linux::CLONE_FILES,
        begin = sym begin,
        deferred = sym DEFERRED,
    )
}

/// Finds libc's own `_Fork`, `clone` and `vfork`, and registers `after_fork` as a handler with
/// libc.
pub fn resolve() {
    for (name, real) in [(c"_Fork", &REAL_FORK), (c"clone", &REAL_CLONE), (c"vfork", &REAL_VFORK)] {
        real.store(libc::next(name).unwrap_or(0), Ordering::Release);
    }
    libc::run_in_children(after_fork);
}
