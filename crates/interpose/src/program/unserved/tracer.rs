//! The tracer: a process that installs the handler of SIGSYS in the next image. In assembler.
//!
//! The kernel resets every handler at an exec. So the process that is about to make an exec calls
//! `usring_unserved_attend`, which makes a tracer for it (ptrace(2)):
//!
//! 1. The process blocks all signals, so that they wait, as they do while the kernel makes an exec.
//!    It forks the tracer, and sleeps on a word in a page that the two share.
//! 2. The tracer closes its files, seizes the process, sets the word, and wakes the process. Until
//!    the exec, the tracer stops the process at each system call.
//! 3. The process makes its exec.
//!    - It fails: the tracer detaches from the process and ends. The process reaps the tracer, and
//!      restores its mask.
//!    - It succeeds: the tracer maps memory in the new image, by system calls that it makes the new
//!      image execute. It copies this section there, installs the handler, sets the mask, restores
//!      what it has changed, and ends. The new image begins in the copy, which reaps the tracer and
//!      continues at the program's first instruction.
//!
//! | failure | consequence |
//! |---|---|
//! | a sandbox, another tracer, no memory, before step 3 | `usring_unserved_attend` answers 0; nothing else has changed |
//! | the tracer is killed before the exec | the process continues untraced |
//! | the tracer is killed after the exec | the kernel kills the process (PTRACE_O_EXITKILL) |
//! | the memory of the new image cannot be written (a file that may not be read) | the image runs without a handler |
//!
//! The tracer has all signals blocked, and a session of its own, so that no signal to the program's
//! process group reaches it. It has no exit signal: the program gets no SIGCHLD, and wait(2)
//! without `__WALL` does not find it.

use super::SET_SIZE;
use crate::runtime::assembler::{load_mmap, wait_for_child};
use core::arch::global_asm;
use core::mem::offset_of;
use usring_sys::syscall::PASS_MARK;
use usring_uapi::{general as linux, prctl, ptrace};

/// Nanoseconds between two checks by the waiting process whether its tracer still lives.
const POLL_INTERVAL_NS: u32 = 20_000_000;
const PAGE_SIZE: u32 = 4096;
/// The signal of a stop at a system call, as PTRACE_O_TRACESYSGOOD reports it.
const CALL_STOP: u32 = linux::SIGTRAP | 0x80;
/// PR_SET_PTRACER_ANY.
const ANY_TRACER: i64 = -1;
/// Code segment of 64-bit code.
const CODE_SEGMENT_64: u64 = 0x33;
/// The `syscall` instruction, as the low half of a word.
const SYSCALL_INSTRUCTION: u32 = 0x050f;
/// Bytes for the handler's `struct kernel_sigaction`, which lies after the copied code.
const ACTION_SIZE: u32 = 32 + 8;
const ACTION_FLAGS: u32 = linux::SA_SIGINFO | linux::SA_ONSTACK | linux::SA_RESTORER | linux::SA_NODEFER;

/// `struct user_regs_struct`.
#[repr(C)]
struct Registers {
    r15_to_rbp: [u64; 5],
    rbx: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    orig_rax: u64,
    rip: u64,
    cs: u64,
    eflags_to_gs: [u64; 9],
}

/// The tracer's data, on its stack.
#[repr(C)]
struct Frame {
    status: u64,
    mask: u64,
    word: u64,
    /// The registers of the new image at its first instruction.
    first: Registers,
    /// The registers for a system call that the tracer makes the new image execute.
    call: Registers,
}

const _: () = assert!(size_of::<Registers>() == 27 * 8);

// usring_unserved_attend(rdi: *const u64): returns the tracer's process id in eax, or 0 if there is
// no tracer. All signals must be blocked. rdi is the address of the mask for the new image. C
// calling convention.
global_asm!(
    ".pushsection usring_unserved,\"ax\",@progbits",
    ".globl usring_unserved_attend",
    ".hidden usring_unserved_attend",
    ".type usring_unserved_attend,@function",
    ".p2align 4",
    "usring_unserved_attend:",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "sub rsp, 16",
    "mov r14, rdi",
    "xor r12d, r12d",
    "mov esi, {page}",
    load_mmap!(),
    "syscall",
    "cmp rax, -4095",
    "jae 5f",
    "mov r13, rax",
    // Yama, a security module, may restrict tracing. A process can then be traced only by its
    // ancestors, and by the processes that it allows.
    "mov rsi, {any_tracer}",
    "call usring_unserved_permit",
    "mov eax, {gettid}",
    "syscall",
    "mov ebx, eax",
    // Makes the tracer by clone(2) as fork(2) would, but without an exit signal.
    "xor edi, edi",
    "xor esi, esi",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jz usring_unserved_tracer",
    "js 4f",
    "mov r12, rax",
    "2:",
    "mov qword ptr [rsp], 0",
    "mov qword ptr [rsp + 8], {poll_interval_ns}",
    "mov rdi, r13",
    "xor esi, esi", // FUTEX_WAIT
    "xor edx, edx",
    "mov r10, rsp",
    "mov eax, {futex}",
    "syscall",
    "cmp dword ptr [r13], 0",
    "jne 4f",
    "mov rdi, r12",
    wait_for_child!("{wait_all} | {no_hang}"),
    "test rax, rax",
    "jz 2b",
    "xor r12d, r12d", // it has ended
    "4:",
    "xor esi, esi",
    "call usring_unserved_permit",
    "mov rdi, r13",
    "mov esi, {page}",
    "mov eax, {munmap}",
    "syscall",
    "5:",
    "mov eax, r12d",
    "add rsp, 16",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
    ".size usring_unserved_attend, . - usring_unserved_attend",
    // Allows the process rsi to trace this one.
    "usring_unserved_permit:",
    "mov edi, {set_ptracer}",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, {prctl}",
    "syscall",
    "ret",
    "usring_unserved_end:",
    "mov edi, 1",
    "mov eax, {exit_group}",
    "syscall",
    "ud2",
    // The new image's first code: waits until the tracer, whose process id is in edi, has ended.
    // Then the program begins at rbx, with the registers that the kernel sets at an exec.
    "usring_unserved_begin:",
    wait_for_child!("{wait_all}"),
    "mov rcx, rbx",
    "xor eax, eax",
    "xor ebx, ebx",
    "xor edx, edx",
    "xor edi, edi",
    "jmp rcx",
    ".popsection",
    page = const PAGE_SIZE,
    protection = const linux::PROT_READ | linux::PROT_WRITE,
    flags = const linux::MAP_SHARED | linux::MAP_ANONYMOUS,
    poll_interval_ns = const POLL_INTERVAL_NS,
    any_tracer = const ANY_TRACER,
    wait_all = const linux::__WALL,
    no_hang = const linux::WNOHANG,
    set_ptracer = const prctl::PR_SET_PTRACER,
    gettid = const linux::__NR_gettid,
    prctl = const linux::__NR_prctl,
    clone = const linux::__NR_clone,
    futex = const linux::__NR_futex,
    mmap = const linux::__NR_mmap,
    munmap = const linux::__NR_munmap,
    wait4 = const linux::__NR_wait4,
    exit_group = const linux::__NR_exit_group,
);

// At the beginning, ebx is the thread that will make the exec, r13 the shared page, and r14 the
// address of the mask. Later, r12d is the traced process, rbp the Frame, and r14d whether the exec
// has begun. r15d is a stop signal that the tracer sends when it detaches.
global_asm!(
    ".pushsection usring_unserved,\"ax\",@progbits",
    ".p2align 4",
    "usring_unserved_tracer:",
    "sub rsp, {frame}",
    "mov rbp, rsp",
    "mov rax, [r14]",
    "mov [rbp + {mask}], rax",
    "mov eax, {setsid}",
    "syscall",
    "xor edi, edi",
    "mov esi, -1",
    "xor edx, edx",
    "mov r9, {mark}",
    "mov eax, {close_range}",
    "syscall",
    "mov r12d, ebx",
    "xor r15d, r15d",
    "mov edi, {PTRACE_SEIZE}",
    "xor edx, edx",
    "mov r10d, {trace_options}",
    "call usring_unserved_trace",
    "js usring_unserved_end",
    "mov edi, {PTRACE_INTERRUPT}",
    "call usring_unserved_trace",
    "js usring_unserved_end",
    "call usring_unserved_wait",
    "mov r14d, eax",
    "mov dword ptr [r13], 1",
    "mov rdi, r13",
    "mov esi, 1", // FUTEX_WAKE
    "mov edx, 1",
    "mov eax, {futex}",
    "syscall",
    "mov eax, r14d",
    "xor r14d, r14d",
    // Handles a stop of the traced process. eax is the status that wait4(2) returned for it.
    "2:",
    "mov ecx, eax",
    "shr ecx, 16",
    "movzx edx, ah",
    "cmp ecx, {PTRACE_EVENT_EXEC}",
    "je usring_unserved_inject",
    "cmp ecx, {PTRACE_EVENT_STOP}",
    "je 4f",
    "cmp edx, {call_stop}",
    "je 5f",
    // The process has stopped because of a signal. The tracer passes the signal on to it.
    "mov r10d, edx",
    "3:",
    "mov edi, {PTRACE_SYSCALL}",
    "xor edx, edx",
    "call usring_unserved_trace",
    "call usring_unserved_wait",
    "jmp 2b",
    // A stop signal has stopped the whole traced process, which stays stopped until SIGCONT.
    "4:",
    "xor r10d, r10d",
    "sub edx, {SIGSTOP}",
    "cmp edx, {SIGTTOU} - {SIGSTOP}",
    "ja 3b",
    "mov edi, {PTRACE_LISTEN}",
    "xor edx, edx",
    "call usring_unserved_trace",
    "call usring_unserved_wait",
    "jmp 2b",
    // A stop at the beginning or the end of a system call of the process. If the exec ends with
    // such a stop, the exec has failed.
    "5:",
    "test r14d, r14d",
    "jnz usring_unserved_detach",
    "mov edi, {PTRACE_GETREGS}",
    "lea r10, [rbp + {call}]",
    "call usring_unserved_trace",
    "xor r10d, r10d",
    "mov eax, [rbp + {call} + {orig_rax}]",
    "cmp eax, {execve}",
    "je 6f",
    "cmp eax, {execveat}",
    "jne 3b",
    "6:",
    "inc r14d",
    "jmp 3b",
    "usring_unserved_detach:",
    "mov edi, {PTRACE_DETACH}",
    "xor edx, edx",
    "mov r10d, r15d",
    "call usring_unserved_trace",
    "jmp usring_unserved_end",
    // Calls ptrace(edi, r12d, rdx, r10). The sign flag is set if the call failed.
    "usring_unserved_trace:",
    "mov esi, r12d",
    "mov eax, {ptrace}",
    "syscall",
    "test rax, rax",
    "ret",
    // Waits for the next stop of the traced process; eax is its status. Waits for a thread with any
    // id, because the thread that makes the exec may have another id afterwards.
    "usring_unserved_wait:",
    "mov rdi, -1",
    "lea rsi, [rbp + {status}]",
    "mov edx, {wait_all}",
    "xor r10d, r10d",
    "mov eax, {wait4}",
    "syscall",
    "test rax, rax",
    "js usring_unserved_end",
    "mov r12, rax",
    "mov eax, [rbp + {status}]",
    "cmp al, 0x7f", // WIFSTOPPED
    "jne usring_unserved_end",
    "ret",
    // Lets the traced process run to the next beginning or end of a system call. The process has
    // blocked all signals that can be blocked. SIGSTOP cannot be blocked, so it may arrive here.
    // The tracer holds it back, and sends it when it detaches.
    "usring_unserved_step:",
    "mov edi, {PTRACE_SYSCALL}",
    "xor edx, edx",
    "xor r10d, r10d",
    "call usring_unserved_trace",
    "call usring_unserved_wait",
    "shr eax, 8",
    "cmp eax, {call_stop}",
    "je 7f",
    "cmp eax, {SIGSTOP}",
    "jne usring_unserved_step",
    "mov r15d, eax",
    "jmp usring_unserved_step",
    "7:",
    "ret",
    ".popsection",
    mark = const PASS_MARK,
    frame = const size_of::<Frame>(),
    mask = const offset_of!(Frame, mask),
    status = const offset_of!(Frame, status),
    call = const offset_of!(Frame, call),
    orig_rax = const offset_of!(Registers, orig_rax),
    call_stop = const CALL_STOP,
    trace_options = const ptrace::PTRACE_O_TRACESYSGOOD | ptrace::PTRACE_O_TRACEEXEC,
    wait_all = const linux::__WALL,
    PTRACE_SEIZE = const ptrace::PTRACE_SEIZE,
    PTRACE_INTERRUPT = const ptrace::PTRACE_INTERRUPT,
    PTRACE_SYSCALL = const ptrace::PTRACE_SYSCALL,
    PTRACE_LISTEN = const ptrace::PTRACE_LISTEN,
    PTRACE_DETACH = const ptrace::PTRACE_DETACH,
    PTRACE_GETREGS = const ptrace::PTRACE_GETREGS,
    PTRACE_EVENT_EXEC = const ptrace::PTRACE_EVENT_EXEC,
    PTRACE_EVENT_STOP = const ptrace::PTRACE_EVENT_STOP,
    SIGSTOP = const linux::SIGSTOP,
    SIGTTOU = const linux::SIGTTOU,
    execve = const linux::__NR_execve,
    execveat = const linux::__NR_execveat,
    close_range = const linux::__NR_close_range,
    ptrace = const linux::__NR_ptrace,
    wait4 = const linux::__NR_wait4,
    futex = const linux::__NR_futex,
    setsid = const linux::__NR_setsid,
);

// The new image is stopped before its first instruction, still inside execve(2).
global_asm!(
    ".pushsection usring_unserved,\"ax\",@progbits",
    ".p2align 4",
    "usring_unserved_inject:",
    "mov edi, {PTRACE_GETREGS}",
    "lea r10, [rbp + {first}]",
    "call usring_unserved_trace",
    "js 4f",
    // The filter traps no call of a 32-bit image.
    "cmp qword ptr [rbp + {first} + {cs}], {code_segment_64}",
    "jne 4f",
    "mov edi, {PTRACE_SETOPTIONS}",
    "xor edx, edx",
    "mov r10d, {trace_options}",
    "call usring_unserved_trace",
    "mov qword ptr [rbp + {word}], -1",
    "mov edi, {PTRACE_SETSIGMASK}",
    "mov edx, {set_size}",
    "lea r10, [rbp + {word}]",
    "call usring_unserved_trace",
    "call usring_unserved_step",
    // To make the new image execute system calls, the tracer replaces the image's first instruction
    // by `syscall` for a time.
    "mov edi, {PTRACE_PEEKTEXT}",
    "mov rdx, [rbp + {first} + {rip}]",
    "lea r10, [rbp + {word}]",
    "call usring_unserved_trace",
    "js 4f",
    "mov edi, {PTRACE_POKETEXT}",
    "mov r10, [rbp + {word}]",
    "mov r10w, {syscall_instruction}",
    "call usring_unserved_trace",
    "js 4f",
    "lea rsi, [rbp + {first}]",
    "lea rdi, [rbp + {call}]",
    "mov ecx, {registers} / 8",
    "cld",
    "rep movsq",
    "lea rax, [rip + __start_usring_unserved]",
    "lea rsi, [rip + __stop_usring_unserved + {action_size}]",
    "sub rsi, rax",
    load_mmap!(),
    "call usring_unserved_call",
    "cmp rax, -4095",
    "jae 3f",
    "mov r13, rax",
    // Copies this section of code to the new image, word by word. r14 is the offset of the current
    // word in the section.
    "xor r14d, r14d",
    "2:",
    "lea rax, [rip + __start_usring_unserved]",
    "mov r10, [rax + r14]",
    "call usring_unserved_poke",
    "js 3f",
    "add r14, 8",
    "lea rax, [rip + __start_usring_unserved]",
    "lea rdx, [rip + __stop_usring_unserved]",
    "sub rdx, rax",
    "cmp r14, rdx",
    "jb 2b",
    // The handler's action comes after the copy of the section: handler, flags, restorer, mask. The
    // mask stays empty, because fresh memory is zero.
    "lea r10, [rip + usring_unserved_handler]",
    "call usring_unserved_relocate",
    "mov r10d, {action_flags}",
    "add r14, 8",
    "call usring_unserved_poke",
    "lea r10, [rip + usring_unserved_restorer]",
    "add r14, 8",
    "call usring_unserved_relocate",
    "mov edi, {SIGSYS}",
    "lea rsi, [r13 + r14 - 16]",
    "xor edx, edx",
    "mov r10d, {set_size}",
    "xor r8d, r8d",
    "mov r9, {mark}",
    "mov eax, {rt_sigaction}",
    "call usring_unserved_call",
    // The new image begins in its copy of this section, and waits there until the tracer has ended.
    "mov rax, [rbp + {first} + {rip}]",
    "mov [rbp + {first} + {rbx}], rax",
    "mov eax, {getpid}",
    "syscall",
    "mov [rbp + {first} + {rdi}], rax",
    "lea rcx, [rip + usring_unserved_begin]",
    "lea rax, [rip + __start_usring_unserved]",
    "sub rcx, rax",
    "add rcx, r13",
    "mov rdx, [rbp + {first} + {rip}]",
    "mov [rbp + {first} + {rip}], rcx",
    "jmp 5f",
    "3:",
    "mov rdx, [rbp + {first} + {rip}]",
    // Restores the image's first instruction, and sets the registers with which the image begins.
    "5:",
    "mov edi, {PTRACE_POKETEXT}",
    "mov r10, [rbp + {word}]",
    "call usring_unserved_trace",
    "mov edi, {PTRACE_SETREGS}",
    "lea r10, [rbp + {first}]",
    "call usring_unserved_trace",
    "4:",
    "btr qword ptr [rbp + {mask}], {SIGSYS} - 1",
    "mov edi, {PTRACE_SETSIGMASK}",
    "mov edx, {set_size}",
    "lea r10, [rbp + {mask}]",
    "call usring_unserved_trace",
    "jmp usring_unserved_detach",
    // Makes the traced process execute one system call. The tracer's own registers hold the number
    // and the arguments; rax returns the result.
    "usring_unserved_call:",
    "mov [rbp + {call} + {rax}], rax",
    "mov [rbp + {call} + {rdi}], rdi",
    "mov [rbp + {call} + {rsi}], rsi",
    "mov [rbp + {call} + {rdx}], rdx",
    "mov [rbp + {call} + {r10}], r10",
    "mov [rbp + {call} + {r8}], r8",
    "mov [rbp + {call} + {r9}], r9",
    "mov rax, [rbp + {first} + {rip}]",
    "mov [rbp + {call} + {rip}], rax",
    "mov qword ptr [rbp + {call} + {orig_rax}], -1", // no call to be restarted
    "mov edi, {PTRACE_SETREGS}",
    "lea r10, [rbp + {call}]",
    "call usring_unserved_trace",
    "call usring_unserved_step",
    "call usring_unserved_step",
    "mov edi, {PTRACE_GETREGS}",
    "lea r10, [rbp + {call}]",
    "call usring_unserved_trace",
    "mov rax, [rbp + {call} + {rax}]",
    "ret",
    // Converts r10, an address in this section, to the corresponding address in the new image's
    // copy, which begins at r13. Continues with usring_unserved_poke, which writes r10.
    "usring_unserved_relocate:",
    "lea rax, [rip + __start_usring_unserved]",
    "sub r10, rax",
    "add r10, r13",
    // Writes r10 to the traced process's copy of this section, at the offset r14.
    "usring_unserved_poke:",
    "mov edi, {PTRACE_POKEDATA}",
    "lea rdx, [r13 + r14]",
    "jmp usring_unserved_trace",
    ".popsection",
    mark = const PASS_MARK,
    first = const offset_of!(Frame, first),
    call = const offset_of!(Frame, call),
    mask = const offset_of!(Frame, mask),
    word = const offset_of!(Frame, word),
    registers = const size_of::<Registers>(),
    cs = const offset_of!(Registers, cs),
    rip = const offset_of!(Registers, rip),
    rax = const offset_of!(Registers, rax),
    orig_rax = const offset_of!(Registers, orig_rax),
    rdi = const offset_of!(Registers, rdi),
    rsi = const offset_of!(Registers, rsi),
    rdx = const offset_of!(Registers, rdx),
    r10 = const offset_of!(Registers, r10),
    r8 = const offset_of!(Registers, r8),
    r9 = const offset_of!(Registers, r9),
    code_segment_64 = const CODE_SEGMENT_64,
    syscall_instruction = const SYSCALL_INSTRUCTION,
    action_size = const ACTION_SIZE,
    action_flags = const ACTION_FLAGS,
    set_size = const SET_SIZE,
    protection = const linux::PROT_READ | linux::PROT_EXEC,
    flags = const linux::MAP_PRIVATE | linux::MAP_ANONYMOUS,
    trace_options = const ptrace::PTRACE_O_TRACESYSGOOD | ptrace::PTRACE_O_EXITKILL,
    PTRACE_GETREGS = const ptrace::PTRACE_GETREGS,
    PTRACE_SETREGS = const ptrace::PTRACE_SETREGS,
    PTRACE_SETSIGMASK = const ptrace::PTRACE_SETSIGMASK,
    PTRACE_SETOPTIONS = const ptrace::PTRACE_SETOPTIONS,
    PTRACE_PEEKTEXT = const ptrace::PTRACE_PEEKTEXT,
    PTRACE_POKETEXT = const ptrace::PTRACE_POKETEXT,
    PTRACE_POKEDATA = const ptrace::PTRACE_POKEDATA,
    SIGSYS = const linux::SIGSYS,
    mmap = const linux::__NR_mmap,
    rbx = const offset_of!(Registers, rbx),
    rt_sigaction = const linux::__NR_rt_sigaction,
    getpid = const linux::__NR_getpid,
);
