//! The SIGSYS handler of an unserved program (a program that runs without usring), in assembler.
//!
//! | trapped call | answer |
//! |---|---|
//! | io_uring_setup, io_uring_enter, io_uring_register | EPERM where the kernel's io_uring_setup answers that, else ENOSYS |
//! | rt_sigaction for SIGSYS | nothing changes; the previous action is reported as the default one |
//! | rt_sigaction for any other signal | made again, with SIGSYS taken out of `sa_mask` |
//! | rt_sigprocmask | made again, with SIGSYS taken out of the set |
//! | execve, execveat | made again, while a tracer waits for the new program ([`super::tracer`]) |
//! | io_pgetevents | io_getevents where there is no mask, else ENOSYS |
//! | any other | made again, with the mark by which the filter lets it pass |
//!
//! Invariants:
//! - The kernel runs the handler under the interrupted mask (SA_NODEFER, empty `sa_mask`). So
//!   execve(2) passes the program's own mask on, and other signals arrive as they would without the
//!   trap.
//! - SIGSYS is unblocked at each instruction. If a handler of the program's interrupts this
//!   handler, its calls may trap.
//! - The program's memory is copied only after the kernel has read it (`usring_unserved_probe`).

use super::SET_SIZE;
use crate::filter::TAG;
use crate::runtime::assembler::{change_mask, wait_for_child};
use crate::signals::context;
use core::arch::global_asm;
use usring_sys::syscall::PASS_MARK;
use usring_uapi::{errno, general as linux};

/// Index of SIGSYS's bit in a signal set.
const SIGSYS_BIT: u32 = linux::SIGSYS - 1;
/// An invalid operation of rt_sigprocmask(2). The kernel refuses it after it has read the set.
const NO_OPERATION: u32 = 99;

// The kernel enters here with rdi signal, rsi siginfo_t, rdx ucontext_t. From here on, rbx points
// to the ucontext_t, and the 32 bytes at rsp are scratch memory.
global_asm!(
    ".pushsection usring_unserved,\"ax\",@progbits",
    ".globl usring_unserved_handler, usring_unserved_restorer",
    ".hidden usring_unserved_handler, usring_unserved_restorer",
    ".type usring_unserved_handler,@function",
    ".p2align 4",
    "usring_unserved_handler:",
    "endbr64",
    "push rbx",
    "sub rsp, 32",
    "mov rbx, rdx",
    "cmp dword ptr [rsi + 8], {seccomp}", // si_code
    "jne usring_unserved_die",
    "cmp dword ptr [rsi + 4], {tag}", // si_errno
    "jne usring_unserved_die",
    "mov eax, [rbx + {rax}]",
    "cmp eax, {io_uring_setup}",
    "je usring_unserved_absent",
    "cmp eax, {io_uring_enter}",
    "je usring_unserved_absent",
    "cmp eax, {io_uring_register}",
    "je usring_unserved_absent",
    "cmp eax, {rt_sigprocmask}",
    "je usring_unserved_mask",
    "cmp eax, {rt_sigaction}",
    "je usring_unserved_action",
    "cmp eax, {execve}",
    "je 2f",
    "cmp eax, {execveat}",
    "je 2f",
    "cmp eax, {mmap}",
    "je 3f",
    "cmp eax, {io_pgetevents}",
    "je 4f",
    "usring_unserved_again:",
    "call usring_unserved_load",
    "syscall",
    "usring_unserved_answer:",
    "mov [rbx + {rax}], rax",
    "usring_unserved_return:",
    "add rsp, 32",
    "pop rbx",
    "ret",
    // Makes an exec, with a tracer that installs the handler in the new image. If no tracer can be
    // made, makes the exec without one. A dynamic program does not need the tracer: its loader
    // loads the library, which has its own handler. [rsp]: the program's mask. [rsp + 8]: the set
    // of all signals. [rsp + 16]: the tracer's process id; 0 if there is no tracer.
    "2:",
    "mov qword ptr [rsp + 8], -1",
    "lea rsi, [rsp + 8]",
    "mov rdx, rsp",
    "call usring_unserved_set_mask",
    "mov rdi, rsp",
    "call usring_unserved_attend",
    "mov [rsp + 16], rax",
    "test eax, eax",
    "jnz 5f",
    "mov rsi, rsp",
    "xor edx, edx",
    "call usring_unserved_set_mask",
    "jmp usring_unserved_again",
    "5:",
    "call usring_unserved_load",
    "syscall",
    "mov [rbx + {rax}], rax",
    "mov edi, [rsp + 16]",
    wait_for_child!("{wait_all}"),
    "mov rsi, rsp",
    "xor edx, edx",
    "call usring_unserved_set_mask",
    "jmp usring_unserved_return",
    // mmap(2) uses its sixth argument, so it cannot carry PASS_MARK. Instead it carries
    // MAP_DENYWRITE, the flag by which the filter lets an mmap pass.
    "3:",
    "call usring_unserved_load",
    "or r10d, {map_mark}",
    "mov r9, [rbx + {r9}]",
    "syscall",
    "jmp usring_unserved_answer",
    // io_pgetevents(2) uses its sixth argument for the signal mask, so it cannot carry PASS_MARK.
    // If the program passes no signal mask, io_getevents(2) does what the program wants.
    "4:",
    "mov rax, -{ENOSYS}",
    "cmp qword ptr [rbx + {r9}], 0",
    "jne usring_unserved_answer",
    "call usring_unserved_load",
    "mov eax, {io_getevents}",
    "syscall",
    "jmp usring_unserved_answer",
    ".size usring_unserved_handler, . - usring_unserved_handler",
    // Loads the trapped call's number and arguments. Replaces the sixth argument by PASS_MARK,
    // which lets the call pass the filter.
    "usring_unserved_load:",
    "mov rdi, [rbx + {rdi}]",
    "mov rsi, [rbx + {rsi}]",
    "mov rdx, [rbx + {rdx}]",
    "mov r10, [rbx + {r10}]",
    "mov r8, [rbx + {r8}]",
    "mov r9, {mark}",
    "mov eax, [rbx + {rax}]",
    "ret",
    // Sets the signal mask to the mask at rsi. Stores the previous mask at rdx.
    "usring_unserved_set_mask:",
    change_mask!("{set_mask}"),
    "ret",
    // Tests whether the kernel can read 8 bytes at rsi. Afterwards the zero flag is clear if the
    // kernel can read them.
    "usring_unserved_probe:",
    "xor edx, edx",
    change_mask!("{no_operation}"),
    "cmp rax, -{EFAULT}",
    "ret",
    // Answers as if the kernel had no io_uring. io_uring_setup(0, NULL) makes no ring, but shows
    // whether a filter denies io_uring_setup(2).
    "usring_unserved_absent:",
    "xor edi, edi",
    "xor esi, esi",
    "mov r9, {mark}",
    "mov eax, {io_uring_setup}",
    "syscall",
    "cmp rax, -{EPERM}",
    "je usring_unserved_answer",
    "mov rax, -{ENOSYS}",
    "jmp usring_unserved_answer",
    // rt_sigprocmask: sets the program's mask, without SIGSYS. Also writes the new mask to the
    // signal frame, because the return from this handler restores the mask from there.
    "usring_unserved_mask:",
    "mov rsi, [rbx + {rsi}]",
    "call usring_unserved_probe",
    "je usring_unserved_again",
    "mov rax, [rsi]",
    "btr rax, {sigsys_bit}",
    "mov [rsp], rax",
    "call usring_unserved_load",
    "mov rsi, rsp",
    "syscall",
    "test rax, rax",
    "js usring_unserved_answer",
    "mov [rbx + {rax}], rax",
    "xor edi, edi",
    "xor esi, esi",
    "lea rdx, [rbx + {mask}]",
    "mov r10d, {set_size}",
    "mov eax, {rt_sigprocmask}",
    "syscall",
    "jmp usring_unserved_return",
    "usring_unserved_action:",
    "cmp dword ptr [rbx + {rdi}], {sigsys}",
    "je 5f",
    "mov rsi, [rbx + {rsi}]",
    "test rsi, rsi",
    "jz usring_unserved_again",
    "call usring_unserved_probe",
    "je usring_unserved_again",
    "add rsi, 24",
    "call usring_unserved_probe",
    "je usring_unserved_again",
    "mov rax, [rsi - 24]",
    "mov [rsp], rax",
    "mov rax, [rsi - 16]",
    "mov [rsp + 8], rax",
    "mov rax, [rsi - 8]",
    "mov [rsp + 16], rax",
    "mov rax, [rsi]",
    "btr rax, {sigsys_bit}",
    "mov [rsp + 24], rax",
    "call usring_unserved_load",
    "mov rsi, rsp",
    "syscall",
    "jmp usring_unserved_answer",
    // rt_sigaction for SIGSYS: changes nothing. The previous action must be reported as the default
    // one. So the handler reads the action of SIGKILL, which is always the default.
    "5:",
    "call usring_unserved_load",
    "mov edi, {sigkill}",
    "xor esi, esi",
    "syscall",
    "jmp usring_unserved_answer",
    // Another filter has trapped the call, or a process has sent the signal. Removes this handler
    // and takes the default action.
    "usring_unserved_die:",
    "xor eax, eax",
    "mov [rsp], rax",
    "mov [rsp + 8], rax",
    "mov [rsp + 16], rax",
    "mov [rsp + 24], rax",
    "mov edi, {sigsys}",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, {set_size}",
    "mov r9, {mark}",
    "mov eax, {rt_sigaction}",
    "syscall",
    "mov eax, {getpid}",
    "syscall",
    "mov ebx, eax",
    "mov eax, {gettid}",
    "syscall",
    "mov edi, ebx",
    "mov esi, eax",
    "mov edx, {sigsys}",
    "mov eax, {tgkill}",
    "syscall",
    "jmp usring_unserved_return",
    ".p2align 4",
    "nop",
    "usring_unserved_restorer:",
    "mov rax, {rt_sigreturn}",
    "syscall",
    ".popsection",
    seccomp = const context::TRAPPED,
    tag = const TAG,
    mark = const PASS_MARK,
    map_mark = const linux::MAP_DENYWRITE,
    rax = const context::RAX,
    rdi = const context::RDI,
    rsi = const context::RSI,
    rdx = const context::RDX,
    r10 = const context::R10,
    r8 = const context::R8,
    r9 = const context::R9,
    mask = const context::MASK,
    sigsys = const linux::SIGSYS,
    sigsys_bit = const SIGSYS_BIT,
    set_mask = const linux::SIG_SETMASK,
    set_size = const SET_SIZE,
    sigkill = const linux::SIGKILL,
    no_operation = const NO_OPERATION,
    EPERM = const errno::EPERM,
    EFAULT = const errno::EFAULT,
    ENOSYS = const errno::ENOSYS,
    io_uring_setup = const linux::__NR_io_uring_setup,
    io_uring_enter = const linux::__NR_io_uring_enter,
    io_uring_register = const linux::__NR_io_uring_register,
    rt_sigprocmask = const linux::__NR_rt_sigprocmask,
    rt_sigaction = const linux::__NR_rt_sigaction,
    rt_sigreturn = const linux::__NR_rt_sigreturn,
    execve = const linux::__NR_execve,
    execveat = const linux::__NR_execveat,
    mmap = const linux::__NR_mmap,
    io_pgetevents = const linux::__NR_io_pgetevents,
    io_getevents = const linux::__NR_io_getevents,
    wait_all = const linux::__WALL,
    wait4 = const linux::__NR_wait4,
    getpid = const linux::__NR_getpid,
    gettid = const linux::__NR_gettid,
    tgkill = const linux::__NR_tgkill,
);
