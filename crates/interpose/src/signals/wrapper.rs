//! The wrapper, which the kernel runs in place of every handler of the program. It defers a signal
//! that interrupts its thread in the engine.

use crate::process;
use crate::runtime::assembler::change_mask;
use crate::runtime::text;
use crate::signals::table::{
    DEFAULT_ACTION, EVERY, IGNORE, KEPT_OPEN, OPEN, RESET_HANDLER, StoredAction, TABLE, mask_in_handler,
};
use crate::signals::{context, frames};
use core::arch::global_asm;
use core::mem::offset_of;
use usring_sys::SystemCall;
use usring_sys::signals::{self, ALL_BLOCKED, ALWAYS_OPEN, Deferral, SignalSet, set_of};
use usring_sys::syscall::PASS_MARK;
use usring_sys::thread::CHANGE_USER;
use usring_sys::wait::{self, SignalInformation};
use usring_sys::width;
use usring_uapi::general as linux;

// The wrapper. On entry: rdi signal, rsi siginfo_t, rdx ucontext_t. rsp is the kernel's frame, and
// the ucontext_t begins eight bytes above it.
//
// A second signal may interrupt this wrapper before `usring_signal_decided`. Until then, the
// wrapper pushes nothing, so the interrupted rsp still points at the first signal's frame. The
// second wrapper reads the first wrapper's ucontext_t there (rsp + 8). It decides by the code that
// the first signal interrupted.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_signal_entry, usring_signal_decided",
    ".hidden usring_signal_entry, usring_signal_decided",
    ".type usring_signal_entry,@function",
    ".p2align 4",
    "usring_signal_entry:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 8",
    "endbr64",
    // By this signal, libc asks every thread to change its credentials, and waits for each of them.
    // libc also sends it to usring's threads, which never leave the engine. So the handler of this
    // signal runs even if the signal interrupts the engine.
    "cmp edi, [rip + {change_user}]",
    "je 5f",
    "mov r8, rdx",
    "2:",
    "mov rax, [r8 + {rip}]",
    "lea rcx, [rip + usring_signal_entry]",
    "cmp rax, rcx",
    "jb 3f",
    "lea rcx, [rip + usring_signal_decided]",
    "cmp rax, rcx",
    "jae 3f",
    "mov r8, [r8 + {rsp}]",
    "add r8, 8",
    "jmp 2b",
    "3:",
    "mov rcx, rax",
    "sub rax, [rip + {library}]",
    "cmp rax, [rip + {library} + 8]",
    "jae 5f",
    "sub rcx, [rip + {entry_points}]",
    "cmp rcx, [rip + {entry_points} + 8]",
    "jb 5f",
    // The signal has interrupted the engine. From here on no signal may arrive, not even the
    // signals that usring otherwise keeps unblocked in the engine.
    "lea rsi, [rip + {every}]",
    "xor edx, edx",
    change_mask!("{set_mask}"),
    // The wrapper has decided what to do. From here on it may push to the stack, because a second
    // wrapper no longer reads the first wrapper's stack.
    "usring_signal_decided:",
    "lea rsi, [rsp + {information}]",
    "lea rdx, [rsp + 8]",
    "mov rdi, r8",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "call {defer}",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "test rax, rax",
    "jnz 6f",
    "ret",
    // The signal cannot be deferred: all slots for deferred signals are in use, or an instruction
    // of the engine raised the signal. So the handler runs now, under the mask that `defer` left in
    // rdx.
    "6:",
    "push rdx",
    ".cfi_def_cfa_offset 16",
    "mov rsi, rsp",
    "xor edx, edx",
    change_mask!("{set_mask}"),
    "pop rax",
    ".cfi_def_cfa_offset 8",
    // Runs the program's handler. First unblocks usring's own signals: a sigsuspend(2) or ppoll(2)
    // that usring has not seen may have blocked them.
    "5:",
    "lea rsi, [rip + {kept_open}]",
    "xor edx, edx",
    change_mask!("{unblock}"),
    "mov r8d, [rsp + {information}]",
    "mov ecx, r8d",
    "shl ecx, 5",
    "lea rax, [rip + {table}]",
    "add rax, rcx",
    "mov rcx, [rax + {handler}]",
    "test dword ptr [rax + {flags}], {reset_handler}",
    "jz 7f",
    // SA_RESETHAND: the kernel's action becomes the default.
    "push rcx",
    ".cfi_def_cfa_offset 16",
    "mov edi, r8d",
    "lea rsi, [rip + {default_action}]",
    "xor edx, edx",
    "mov eax, {rt_sigaction}",
    "syscall",
    "pop rcx",
    ".cfi_def_cfa_offset 8",
    "7:",
    "mov edi, r8d",
    "lea rsi, [rsp + {information}]",
    "lea rdx, [rsp + 8]",
    "xor r9d, r9d", // PASS_MARK must not reach the handler
    "xor eax, eax",
    "cmp rcx, {ignore}",
    "ja usring_run_handler",
    "ret",
    ".cfi_endproc",
    ".size usring_signal_entry, . - usring_signal_entry",
    ".popsection",
    change_user = sym CHANGE_USER,
    rsp = const context::STACK_POINTER,
    rip = const wait::CONTEXT_INSTRUCTION_POINTER,
    information = const 8 + context::SIZE,
    library = sym text::LIBRARY,
    entry_points = sym text::ENTRY_POINTS,
    defer = sym defer,
    every = sym EVERY,
    kept_open = sym OPEN,
    default_action = sym DEFAULT_ACTION,
    table = sym TABLE,
    flags = const offset_of!(StoredAction, flags),
    handler = const offset_of!(StoredAction, handler),
    reset_handler = const RESET_HANDLER,
    ignore = const IGNORE,
    mark = const PASS_MARK,
    set_mask = const linux::SIG_SETMASK,
    unblock = const linux::SIG_UNBLOCK,
    rt_sigprocmask = const linux::__NR_rt_sigprocmask,
    rt_sigaction = const linux::__NR_rt_sigaction,
);

// usring_run_handler(rcx: the program's handler; rdi, rsi, rdx: its arguments; rsp: the kernel's
// frame): runs the handler and returns to the restorer. The handler may change the mask in its
// ucontext_t, and rt_sigreturn(2) sets that mask. So usring's own signals are removed from it.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_run_handler",
    ".hidden usring_run_handler",
    ".type usring_run_handler,@function",
    ".p2align 4",
    "usring_run_handler:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "call rcx",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "and dword ptr [rsp + 8 + {mask}], {not_kept_open}",
    "ret",
    ".cfi_endproc",
    ".size usring_run_handler, . - usring_run_handler",
    ".popsection",
    mask = const context::MASK,
    not_kept_open = const !width::int(KEPT_OPEN),
);

unsafe extern "C" {
    fn usring_signal_entry();
    fn usring_signal_decided();
}

/// Returns the ucontext_t of the code that the first signal interrupted. If a later signal has
/// interrupted a wrapper before `usring_signal_decided`, `found` is the ucontext_t of that wrapper.
/// This function follows such wrappers to the code that the first of them interrupted.
///
/// # Safety
/// `found` must be the ucontext_t of a signal frame of the kernel's.
pub unsafe fn interrupted_by(mut found: *mut u8) -> *mut u8 {
    let undecided = usring_signal_entry as *const () as u64..usring_signal_decided as *const () as u64;
    // SAFETY: the offsets are those of the kernel's ucontext_t. A wrapper that has not decided has
    // pushed nothing. So its own frame is on top of its stack, eight bytes below its ucontext_t.
    unsafe {
        while undecided.contains(&*found.add(wait::CONTEXT_INSTRUCTION_POINTER).cast::<u64>()) {
            found = (*found.add(context::STACK_POINTER).cast::<*mut u8>()).add(8);
        }
    }
    found
}

/// Returns the address of the wrapper.
pub fn address() -> u64 {
    usring_signal_entry as *const () as u64
}

/// Whether the program's handler has to run now, and under which mask.
#[repr(C)]
struct Decision {
    runs: u64,
    mask: SignalSet,
}

/// Defers a signal that has interrupted its thread in the engine. `first`: the ucontext_t of the
/// engine's code that was interrupted. `own`: the ucontext_t of this signal's frame. Every signal
/// must be blocked.
extern "C" fn defer(first: *mut u8, information: *mut SignalInformation, own: *mut u8) -> Decision {
    // SAFETY: these are the kernel's frames on this stack. Only this thread accesses them until the
    // handlers return.
    let (information, original_mask, own_mask, instruction_pointer) = unsafe {
        (
            &*information,
            *first.add(context::MASK).cast::<SignalSet>(),
            &mut *own.add(context::MASK).cast::<SignalSet>(),
            &mut *first.add(wait::CONTEXT_INSTRUCTION_POINTER).cast::<u64>(),
        )
    };
    let runs = |own_mask| Decision { runs: 1, mask: mask_in_handler(information.signal.cast_unsigned(), own_mask) };
    // An instruction of the engine has raised the signal. If the signal were deferred, the
    // instruction would run again and raise it again. So the handler runs now.
    if information.code > 0 && matches!(information.signal.cast_unsigned(), linux::SIGILL | linux::SIGFPE) {
        return runs(*own_mask);
    }
    // SAFETY: the frame begins eight bytes below its ucontext_t.
    let saved = unsafe { frames::save(own.sub(8)) };
    let saved_frame = saved.unwrap_or(0);
    match signals::defer(original_mask, 0, saved_frame) {
        Deferral::First if saved_frame != 0 => {}
        Deferral::First | Deferral::AlreadyDeferred => {
            frames::give_back(saved_frame);
            let itself = set_of(information.signal.cast_unsigned());
            if itself & ALWAYS_OPEN != 0 {
                // usring keeps this signal unblocked. If this wrapper queued the signal, the kernel
                // would deliver it at once, and the wrapper would queue it again, for ever. So
                // usring sends the signal again when the call leaves the engine.
                signals::send_again(itself);
            } else {
                // The signal goes to the end of the kernel's queue. Among pending signals with one
                // number, this may change the order. The order of different numbers stays.
                queue_again(information);
            }
        }
        Deferral::Full => {
            frames::give_back(saved_frame);
            return runs(*own_mask);
        }
    }
    if let Some(exit_address) = wait::exit_address(width::size(*instruction_pointer)) {
        *instruction_pointer = exit_address as u64;
    }
    *own_mask = ALL_BLOCKED;
    Decision { runs: 0, mask: 0 }
}

/// Queues a signal for this thread, with the siginfo_t of its arrival.
pub fn queue_again(information: &SignalInformation) {
    let process = process::id();
    let (thread, signal) = (u64::from(signals::thread_id()), width::word(information.signal));
    let arguments = [u64::from(process), thread, signal, &raw const *information as u64, 0];
    if SystemCall::new(linux::__NR_rt_tgsigqueueinfo, arguments).run_once().is_err() {
        // The queue is full (RLIMIT_SIGPENDING), so the signal is sent without its siginfo_t.
        let _ = signals::send_to_thread(width::low(thread), width::low(signal));
    }
}
