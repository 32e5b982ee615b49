//! The functions of libc that the loader finds in this library first. They are the fast path for
//! calls that would otherwise trap. They are also the only place where usring sees a *poll call*:
//! poll(2), select(2), epoll_wait(2) and their variants.
//!
//! Each function checks its arguments. If the call does not concern usring, the function jumps to
//! libc's function, with registers and stack unchanged. So no frame of usring's is on the stack
//! while a call of libc blocks, is cancelled, or returns twice (clone and vfork through `syscall`).
//!
//! Calls that other code makes without these symbols arrive by the trap. So exec, sigaction and
//! similar calls need no symbol here.

use crate::call::{CALL_SIZE, Call};
use crate::entry::{fork_symbols, limit_symbols, stack_symbol};
use crate::faults;
use crate::files::descriptors::{self, LOW_ALIASES, UNWATCHED};
use crate::files::{device_calls, devices};
use crate::filter;
use crate::process;
use crate::runtime::assembler::{begin_frame, deliver_deferred};
use crate::runtime::libc::{self, BOUND};
use crate::trace;
use core::arch::{global_asm, naked_asm};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use usring_engine::readiness::POLLED;
use usring_sys::descriptor::{self, RESERVED_BASE};
use usring_sys::signals::DEFERRED;
use usring_sys::{UserAddress, own_numbers, user_memory, width};
use usring_uapi::general as linux;

/// 1 once the constructor has prepared usring. Before that, `syscall` passes all calls to the
/// kernel.
pub static IS_PREPARED: AtomicU32 = AtomicU32::new(0);

/// Size of the reserved range of descriptor numbers, from which rings get theirs. The symbols
/// compare `number - base`, an unsigned 32-bit value, with this size. For the number −1 the value
/// is larger than the size, so −1 is not taken for a ring.
const RESERVED: u32 = (1 << 31) - RESERVED_BASE as u32;

const SLOW_FRAME: usize = CALL_SIZE + 16;

// The path from a replaced libc function to the engine. eax: number of the system call; r11:
// address of the pointer to libc's own function; arguments as in C.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_symbol_call, usring_symbol_sleep, usring_symbol_answer",
    ".hidden usring_symbol_call, usring_symbol_sleep, usring_symbol_answer",
    ".type usring_symbol_call,@function",
    ".type usring_symbol_sleep,@function",
    ".type usring_symbol_answer,@function",
    // usring_symbol_call: serves a call that may concern a ring, a device or a rule of `--inject`.
    ".p2align 4",
    "usring_symbol_call:",
    ".cfi_startproc",
    begin_frame!(),
    "sub rsp, {frame}",
    "call 8f",
    "call {has_to_answer}",
    "mov [rbp - 16], rax",
    deliver_deferred!(),
    "cmp dword ptr [rbp - 16], 0",
    "je 7f",
    "mov rdi, rsp",
    "call usring_run_call",
    "leave",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 8",
    "jmp usring_symbol_answer",
    ".cfi_restore_state",
    // The call does not concern usring, so it continues in libc's function.
    "7:",
    "mov rdi, [rsp + 8]",
    "mov rsi, [rsp + 16]",
    "mov rdx, [rsp + 24]",
    "mov rcx, [rsp + 32]",
    "mov r8, [rsp + 40]",
    "mov r9, [rsp + 48]",
    "mov r11, [rbp - 8]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "jmp [r11]",
    ".cfi_endproc",
    // usring_symbol_sleep: prepares a call that sleeps until a descriptor is ready, and continues
    // in libc's function.
    ".p2align 4",
    "usring_symbol_sleep:",
    ".cfi_startproc",
    begin_frame!(),
    "sub rsp, {frame}",
    "call 8f",
    "call {before_sleep}",
    "cmp dword ptr [rip + {deferred}], 0",
    "je 7b",
    "call usring_deliver_deferred",
    "jmp 7b",
    ".cfi_endproc",
    // Fills the `Call` above the return address.
    "8:",
    ".cfi_startproc",
    "mov [rsp + 8], rax",
    "mov [rsp + 16], rdi",
    "mov [rsp + 24], rsi",
    "mov [rsp + 32], rdx",
    "mov [rsp + 40], rcx",
    "mov [rsp + 48], r8",
    "mov [rsp + 56], r9",
    "mov qword ptr [rsp + 8 + {return_address}], 0",
    "mov qword ptr [rsp + 8 + {trapped}], 0",
    "mov [rbp - 8], r11",
    "lea rdi, [rsp + 8]",
    "ret",
    ".cfi_endproc",
    // usring_symbol_answer: converts the kernel's answer in rax to C's convention. Clears r9,
    // because PASS_MARK in r9 would let the program's next call pass the filter.
    ".p2align 4",
    "usring_symbol_answer:",
    ".cfi_startproc",
    "xor r9d, r9d",
    "cmp rax, -4095",
    "jae 2f",
    "ret",
    "2:",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov ebx, eax",
    "neg ebx",
    "mov rax, [rip + {bound}]",
    "test rax, rax",
    "jz 3f",
    "call rax",
    "mov [rax], ebx",
    "3:",
    "mov rax, -1",
    "pop rbx",
    ".cfi_def_cfa_offset 8",
    ".cfi_same_value rbx",
    "ret",
    ".cfi_endproc",
    ".popsection",
    frame = const SLOW_FRAME,
    has_to_answer = sym has_to_answer,
    before_sleep = sym before_sleep,
    deferred = sym DEFERRED,
    return_address = const offset_of!(Call, return_address),
    trapped = const offset_of!(Call, trapped),
    bound = sym BOUND,
);

/// Defines a libc function that takes a descriptor in `$register`, and perhaps a second descriptor
/// in `$second`. Only the lower 32 bits of these registers are used.
macro_rules! with_descriptor {
    ($real:ident, $fallback:ident, $number:expr, $register:literal, $second:literal, $($name:ident)*) => {
        static $real: AtomicUsize = AtomicUsize::new(0);
        $(
            /// # Safety
            /// The requirements are those of libc's function.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            #[unsafe(link_section = "usring_entry")]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    concat!("lea eax, [", $register, " - {base}]"),
                    "cmp eax, {reserved}",
                    "jb 2f",
                    concat!("lea eax, [", $second, " - {base}]"),
                    "cmp eax, {reserved}",
                    "jb 2f",
                    "cmp dword ptr [rip + {low_aliases}], 0",
                    "jne 2f",
                    "cmp byte ptr [rip + {exist}], 0",
                    "jne 2f",
                    "cmp qword ptr [rip + {real}], 0",
                    "je {fallback}",
                    "jmp [rip + {real}]",
                    "2:",
                    "lea r11, [rip + {real}]",
                    "cmp qword ptr [r11], 0",
                    "je {fallback}",
                    "mov eax, {number}",
                    "jmp usring_symbol_call",
                    base = const RESERVED_BASE,
                    reserved = const RESERVED,
                    low_aliases = sym LOW_ALIASES,
                    exist = sym filter::DESCRIPTORS_CHECK,
                    real = sym $real,
                    fallback = sym $fallback,
                    number = const $number,
                )
            }
        )*

        raw!($fallback, $number, "nop");
    };
}

/// Defines a libc function whose calls concern usring only if the run has devices or rules of
/// `--inject`. In such a run, each call is checked.
macro_rules! with_devices {
    ($real:ident, $fallback:ident, $number:expr, $($name:ident)*) => {
        static $real: AtomicUsize = AtomicUsize::new(0);
        $(
            /// # Safety
            /// The requirements are those of libc's function.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            #[unsafe(link_section = "usring_entry")]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    "cmp qword ptr [rip + {real}], 0",
                    "je {fallback}",
                    "cmp byte ptr [rip + {exist}], 0",
                    "jne 2f",
                    "jmp [rip + {real}]",
                    "2:",
                    "lea r11, [rip + {real}]",
                    "mov eax, {number}",
                    "jmp usring_symbol_call",
                    exist = sym filter::SYMBOLS_CHECK,
                    real = sym $real,
                    fallback = sym $fallback,
                    number = const $number,
                )
            }
        )*

        raw!($fallback, $number, "nop");
    };
}

/// Defines a libc function that sleeps until a descriptor is ready. `$adjust` sets an argument that
/// the system call needs and the libc function does not have.
macro_rules! sleeping {
    ($real:ident, $fallback:ident, $number:expr, $adjust:literal, $($name:ident)*) => {
        static $real: AtomicUsize = AtomicUsize::new(0);
        $(
            /// # Safety
            /// The requirements are those of libc's function.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            #[unsafe(link_section = "usring_entry")]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    "cmp qword ptr [rip + {real}], 0",
                    "je {fallback}",
                    "cmp dword ptr [rip + {polled}], 0",
                    "jne 2f",
                    "cmp dword ptr [rip + {unwatched}], 0",
                    "jne 2f",
                    "jmp [rip + {real}]",
                    "2:",
                    "lea r11, [rip + {real}]",
                    "mov eax, {number}",
                    "jmp usring_symbol_sleep",
                    real = sym $real,
                    fallback = sym $fallback,
                    polled = sym POLLED,
                    unwatched = sym UNWATCHED,
                    number = const $number,
                )
            }
        )*

        raw!($fallback, $number, $adjust);
    };
}

/// Defines a function that makes a system call without libc. It serves calls until the constructor
/// has found libc's function. If libc has no such function, it serves all calls.
macro_rules! raw {
    ($name:ident, $number:expr, $adjust:literal) => {
        #[unsafe(naked)]
        #[unsafe(link_section = "usring_entry")]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "mov r10, rcx",
                $adjust,
                "mov eax, {number}",
                "syscall",
                "jmp usring_symbol_answer",
                number = const $number,
            )
        }
    };
}

with_descriptor!(REAL_CLOSE, raw_close, linux::__NR_close, "rdi", "rdi", close);
with_descriptor!(REAL_DUP, raw_dup, linux::__NR_dup, "rdi", "rdi", dup);
with_descriptor!(REAL_DUP2, raw_dup2, linux::__NR_dup2, "rdi", "rsi", dup2);
with_descriptor!(REAL_DUP3, raw_dup3, linux::__NR_dup3, "rdi", "rsi", dup3);
with_descriptor!(REAL_FCNTL, raw_fcntl, linux::__NR_fcntl, "rdi", "rdi", fcntl fcntl64);
with_descriptor!(REAL_MMAP, raw_mmap, linux::__NR_mmap, "r8", "r8", mmap mmap64);

with_devices!(REAL_READ, raw_read, linux::__NR_read, read);
with_devices!(REAL_WRITE, raw_write, linux::__NR_write, write);
with_devices!(REAL_PREAD, raw_pread, linux::__NR_pread64, pread pread64);
with_devices!(REAL_PREAD_CHK, raw_pread_chk, linux::__NR_pread64, __pread_chk __pread64_chk);
with_devices!(REAL_READ_CHK, raw_read_chk, linux::__NR_read, __read_chk);
with_devices!(REAL_PWRITE, raw_pwrite, linux::__NR_pwrite64, pwrite pwrite64);
with_devices!(REAL_READV, raw_readv, linux::__NR_readv, readv);
with_devices!(REAL_WRITEV, raw_writev, linux::__NR_writev, writev);
with_devices!(REAL_PREADV, raw_preadv, linux::__NR_preadv, preadv preadv64);
with_devices!(REAL_PWRITEV, raw_pwritev, linux::__NR_pwritev, pwritev pwritev64);
with_devices!(REAL_FSYNC, raw_fsync, linux::__NR_fsync, fsync);
with_devices!(REAL_FDATASYNC, raw_fdatasync, linux::__NR_fdatasync, fdatasync);
with_devices!(REAL_FTRUNCATE, raw_ftruncate, linux::__NR_ftruncate, ftruncate ftruncate64);
with_devices!(REAL_FALLOCATE, raw_fallocate, linux::__NR_fallocate, fallocate fallocate64);
with_devices!(REAL_OPEN, raw_open, linux::__NR_open, open open64);
with_devices!(REAL_OPENAT, raw_openat, linux::__NR_openat, openat openat64);

// Some of these system calls have an argument that the C function lacks: the size of the signal
// set.
sleeping!(REAL_POLL, raw_poll, linux::__NR_poll, "nop", poll __poll_chk);
sleeping!(REAL_PPOLL, raw_ppoll, linux::__NR_ppoll, "mov r8d, 8", ppoll __ppoll_chk);
sleeping!(REAL_SELECT, raw_select, linux::__NR_select, "nop", select);
// pselect6(2) takes the signal mask in a structure, together with the mask's size. This fallback
// runs only before the constructor has found libc's function. It passes no mask, because no caller
// has one at that time.
sleeping!(REAL_PSELECT, raw_pselect, linux::__NR_pselect6, "xor r9d, r9d", pselect);
sleeping!(REAL_EPOLL_WAIT, raw_epoll_wait, linux::__NR_epoll_wait, "nop", epoll_wait);
sleeping!(REAL_EPOLL_PWAIT, raw_epoll_pwait, linux::__NR_epoll_pwait, "mov r9d, 8", epoll_pwait);
sleeping!(REAL_EPOLL_PWAIT2, raw_epoll_pwait2, linux::__NR_epoll_pwait2, "mov r9d, 8", epoll_pwait2);

static REAL_SYSCALL: AtomicUsize = AtomicUsize::new(0);

/// Replaces libc's `syscall`. The calls of io_uring and libaio go straight to `dispatch`. So does
/// prlimit64 if usring has raised the limit of open files. Any other call may poll descriptors
/// (poll(2), epoll_wait(2) and the like), so it goes through `before_call` first.
///
/// # Safety
/// The requirements are those of libc's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = "usring_entry")]
pub unsafe extern "C" fn syscall() {
    naked_asm!(
        ".cfi_startproc",
        "lea eax, [rdi - {first}]",
        "cmp eax, 2",
        "jbe 3f",
        "lea eax, [rdi - {first_aio}]",
        "cmp eax, 4",
        "jbe 3f",
        "cmp edi, {masked_aio}",
        "je 3f",
        "cmp edi, {limits}",
        "jne 2f",
        "cmp qword ptr [rip + {raised}], 0",
        "je 2f",
        "3:",
        "cmp dword ptr [rip + {open}], 0",
        "je 2f",
    begin_frame!(),
        "sub rsp, {size}",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "mov rax, [rbp + 16]",
        "mov [rsp + 48], rax",
        "mov qword ptr [rsp + {trapped}], 0",
        "mov qword ptr [rsp + {return_address}], 0",
        "mov rdi, rsp",
        "call usring_run_call",
        "leave",
        ".cfi_def_cfa rsp, 8",
        ".cfi_same_value rbp",
        "jmp usring_symbol_answer",
        "2:",
        ".cfi_restore rbp",
        ".cfi_def_cfa rsp, 8",
        "mov eax, [rip + {polled}]",
        "or eax, [rip + {unwatched}]",
        "jnz usring_symbol_number",
        "jmp usring_symbol_libc",
        ".cfi_endproc",
        first = const linux::__NR_io_uring_setup,
        first_aio = const linux::__NR_io_setup,
        masked_aio = const linux::__NR_io_pgetevents,
        limits = const linux::__NR_prlimit64,
        raised = sym own_numbers::RAISED,
        open = sym IS_PREPARED,
        size = const CALL_SIZE,
        trapped = const offset_of!(Call, trapped),
        return_address = const offset_of!(Call, return_address),
        polled = sym POLLED,
        unwatched = sym UNWATCHED,
    )
}

// usring_symbol_number prepares a call through `syscall` that may poll a ring. usring_symbol_libc
// jumps to libc's function. If the constructor has not found that function, usring_symbol_libc
// makes the system call itself.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_symbol_number, usring_symbol_libc",
    ".hidden usring_symbol_number, usring_symbol_libc",
    ".type usring_symbol_number,@function",
    ".type usring_symbol_libc,@function",
    ".p2align 4",
    "usring_symbol_number:",
    ".cfi_startproc",
    begin_frame!(),
    "sub rsp, {size}",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rcx",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "mov rdi, rsp",
    "call {before_call}",
    deliver_deferred!(),
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    ".cfi_same_value rbp",
    "usring_symbol_libc:",
    "cmp qword ptr [rip + {real}], 0",
    "je 3f",
    "jmp [rip + {real}]",
    "3:",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "mov r9, [rsp + 8]",
    "syscall",
    "jmp usring_symbol_answer",
    ".cfi_endproc",
    ".popsection",
    size = const CALL_SIZE,
    before_call = sym before_call,
    deferred = sym DEFERRED,
    real = sym REAL_SYSCALL,
);

/// Finds the functions of libc that these symbols override.
pub fn resolve() {
    let functions = [
        (c"syscall", &REAL_SYSCALL),
        (c"pthread_attr_setstack", &stack_symbol::REAL),
        (c"close", &REAL_CLOSE),
        (c"dup", &REAL_DUP),
        (c"dup2", &REAL_DUP2),
        (c"dup3", &REAL_DUP3),
        (c"fcntl", &REAL_FCNTL),
        (c"mmap", &REAL_MMAP),
        (c"read", &REAL_READ),
        (c"write", &REAL_WRITE),
        (c"pread64", &REAL_PREAD),
        (c"__pread64_chk", &REAL_PREAD_CHK),
        (c"__read_chk", &REAL_READ_CHK),
        (c"pwrite64", &REAL_PWRITE),
        (c"readv", &REAL_READV),
        (c"writev", &REAL_WRITEV),
        (c"preadv", &REAL_PREADV),
        (c"pwritev", &REAL_PWRITEV),
        (c"fsync", &REAL_FSYNC),
        (c"fdatasync", &REAL_FDATASYNC),
        (c"ftruncate", &REAL_FTRUNCATE),
        (c"fallocate", &REAL_FALLOCATE),
        (c"open", &REAL_OPEN),
        (c"openat", &REAL_OPENAT),
        (c"poll", &REAL_POLL),
        (c"ppoll", &REAL_PPOLL),
        (c"select", &REAL_SELECT),
        (c"pselect", &REAL_PSELECT),
        (c"epoll_wait", &REAL_EPOLL_WAIT),
        (c"epoll_pwait", &REAL_EPOLL_PWAIT),
        (c"epoll_pwait2", &REAL_EPOLL_PWAIT2),
    ];
    for (name, real) in functions {
        real.store(libc::next(name).unwrap_or(0), Ordering::Release);
    }
    limit_symbols::resolve();
    fork_symbols::resolve();
}

/// Returns the address of libc's writev. `None`: the constructor has not found it.
pub fn libc_writev() -> Option<usize> {
    Some(REAL_WRITEV.load(Ordering::Acquire)).filter(|address| *address != 0)
}

/// Returns whether usring has to answer a call that arrived by a libc symbol. Otherwise libc's
/// function answers the call.
extern "C" fn has_to_answer(call: &Call) -> u64 {
    // In a forked child, `current` resets what the child has inherited, before the child makes
    // objects of its own.
    process::current();
    let is_ours = |number: u64| {
        let number = width::int(number);
        descriptors::is_known(number) || devices::is_remembered(number) || descriptor::is_private(number)
    };
    let [first, second, .., fifth, _] = call.arguments;
    if trace::is_on() {
        trace::note(call);
    }
    let ours = match width::low(call.number) {
        linux::__NR_mmap => is_ours(fifth) || devices::is_device(width::int(fifth)),
        linux::__NR_fcntl => matches!(width::low(second), linux::F_DUPFD | linux::F_DUPFD_CLOEXEC) && is_ours(first),
        linux::__NR_dup2 | linux::__NR_dup3 => is_ours(first) || is_ours(second),
        linux::__NR_close | linux::__NR_dup => is_ours(first),
        linux::__NR_open | linux::__NR_openat => device_calls::is_path_of_device(call),
        linux::__NR_getrlimit | linux::__NR_setrlimit | linux::__NR_prlimit64 => true,
        _ => devices::is_device(width::int(first)),
    };
    u64::from(ours || faults::is_for_symbols(width::low(call.number)))
}

/// Prepares a system call that the program makes through libc's `syscall`, if the call is poll(2),
/// select(2), epoll_wait(2) or a variant of them.
extern "C" fn before_call(call: &Call) {
    match width::low(call.number) {
        linux::__NR_poll
        | linux::__NR_ppoll
        | linux::__NR_select
        | linux::__NR_pselect6
        | linux::__NR_epoll_wait
        | linux::__NR_epoll_pwait
        | linux::__NR_epoll_pwait2 => before_sleep(call),
        _ => {}
    }
}

/// Prepares a call of poll(2), select(2), epoll_wait(2) or a variant. From now on, the descriptors
/// of the rings that the call polls show the rings' readiness. If the program has emptied the CQ of
/// a polled ring, the ring's descriptor becomes unreadable now, before the call sleeps.
extern "C" fn before_sleep(call: &Call) {
    process::current();
    if UNWATCHED.load(Ordering::Relaxed) != 0 {
        let [first, second, third, fourth, ..] = call.arguments;
        match width::low(call.number) {
            linux::__NR_poll | linux::__NR_ppoll => watch_polled(UserAddress(first), second),
            linux::__NR_select | linux::__NR_pselect6 => watch_selected(width::int(first), [second, third, fourth]),
            // A ring in an epoll set is watched already, since the program added it by
            // epoll_ctl(2).
            _ => {}
        }
    }
    usring_engine::clear_emptied_readiness();
}

fn watch(number: i32) {
    descriptors::with(number, |file| file.watch(number));
}

fn watch_polled(array: UserAddress, count: u64) {
    const ENTRY: u64 = 8;
    for index in 0..count {
        let Ok(number) = user_memory::read::<i32>(array.offset(index * ENTRY)) else { return };
        if number >= 0 && descriptors::is_known(number) {
            watch(number);
        }
    }
}

fn watch_selected(count: i32, sets: [u64; 3]) {
    if count <= 0 {
        return;
    }
    for number in descriptors::known_between(0, count.cast_unsigned() - 1) {
        let is_in = |set: &u64| {
            let word = UserAddress(*set).offset(width::word(number) / 64 * 8);
            *set != 0 && user_memory::read::<u64>(word).is_ok_and(|bits| bits & 1 << (number % 64) != 0)
        };
        if sets.iter().any(is_in) {
            watch(number);
        }
    }
}
