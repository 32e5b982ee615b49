//! Makes execve(2), which replaces the program, by code in the section of the entry points.
//!
//! After a successful exec, the next program has the signal mask of the caller. So the exec must be
//! made under the program's own mask. While the kernel prepares an exec, it holds signals back. The
//! engine prepares an exec, too, and holds signals back by deferring them:
//! 1. A signal that arrives during the engine's preparation is deferred, and blocks all others.
//! 2. When the preparation is done, [`call`] enters the section of the entry points, and delivers
//!    the deferred signal.
//! 3. A signal that arrives later runs its handler, which returns to the next instruction.
//!
//! So no preparation is repeated. A program that executes another one makes progress even if
//! signals arrive at a high rate.
//!
//! If an exec takes more than one call, it is made with all signals blocked
//! ([`with_signals_blocked`]).
//!
//! A handler may leave by `siglongjmp`, so the caller of [`call`] must hold no lock.

use crate::runtime::assembler::{change_mask, deliver_deferred};
use core::arch::global_asm;
use core::mem::offset_of;
use usring_sys::signals::{ALL_BLOCKED, DEFERRED, SignalSet, set_mask};
use usring_sys::syscall::PASS_MARK;
use usring_sys::{Errno, SystemCall, syscall};
use usring_uapi::general as linux;

// usring_make_exec(rdi: *const SystemCall): returns the kernel's answer in rax. C calling
// convention.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_make_exec",
    ".hidden usring_make_exec",
    ".type usring_make_exec,@function",
    ".p2align 4",
    "usring_make_exec:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov rbx, rdi",
    deliver_deferred!(),
    "mov eax, [rbx + {number}]",
    "mov rdi, [rbx + {arguments}]",
    "mov rsi, [rbx + {arguments} + 8]",
    "mov rdx, [rbx + {arguments} + 16]",
    "mov r10, [rbx + {arguments} + 24]",
    "mov r8, [rbx + {arguments} + 32]",
    "mov r9, [rbx + {arguments} + 40]",
    "syscall",
    "xor r9d, r9d", // no other call may carry PASS_MARK
    "pop rbx",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size usring_make_exec, . - usring_make_exec",
    // usring_block(rdi: *const SignalSet): returns the previous mask in rax. C calling convention.
    ".globl usring_block",
    ".hidden usring_block",
    ".type usring_block,@function",
    ".p2align 4",
    "usring_block:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_def_cfa_offset 16",
    deliver_deferred!(),
    "mov rsi, [rsp]",
    "mov rdx, rsp",
    change_mask!("{set_mask}"),
    "xor r9d, r9d",
    "pop rax",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size usring_block, . - usring_block",
    ".popsection",
    set_mask = const linux::SIG_SETMASK,
    rt_sigprocmask = const linux::__NR_rt_sigprocmask,
    mark = const PASS_MARK,
    deferred = sym DEFERRED,
    number = const offset_of!(SystemCall, number),
    arguments = const offset_of!(SystemCall, arguments),
);

unsafe extern "C" {
    fn usring_make_exec(call: *const SystemCall) -> u64;
    fn usring_block(all: &SignalSet) -> SignalSet;
}

/// Runs the handlers of deferred signals. Then runs `work` with all signals blocked, and passes it
/// the program's own signal mask.
pub fn with_signals_blocked<T>(work: impl FnOnce(SignalSet) -> T) -> T {
    // SAFETY: 1. `usring_block` keeps the C ABI, and the set outlives the call. 2. Handlers that
    // run during the call find no lock held and no work half done.
    let mask = unsafe { usring_block(&ALL_BLOCKED) };
    let result = work(mask);
    set_mask(mask);
    result
}

/// Delivers deferred signals, and then makes an exec. Returns only if the exec fails.
pub fn call(call: &SystemCall) -> Result<u64, Errno> {
    // SAFETY: 1. `usring_make_exec` keeps the C ABI, and `call` outlives it. 2. The kernel checks
    // the arguments. 3. Handlers that run during the call find no lock held and no work half done.
    syscall::check(unsafe { usring_make_exec(call) })
}
