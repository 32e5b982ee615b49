//! The functions of libc that read or set how many files the program may open. usring may raise the
//! kernel's limit to make room for its own descriptors ([`own_numbers`]). These functions still
//! show the program its own limit.
//!
//! If a program makes these system calls by its own instructions, it reads and sets the kernel's
//! limit.

use crate::runtime::libc;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::own_numbers::{PROGRAM_LIMIT, RAISED};
use usring_uapi::general as linux;

/// The resource: number of open files.
const FILES: u32 = linux::RLIMIT_NOFILE;

/// Defines a libc function that only makes one system call, on a resource limit. `$register`: the
/// register of the argument that names the resource.
macro_rules! limit_call {
    ($real:ident, $number:expr, $register:literal, $($name:ident)*) => {
        static $real: AtomicUsize = AtomicUsize::new(0);
        $(
            /// # Safety
            /// The requirements are those of libc's function.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            #[unsafe(link_section = "usring_entry")]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    "lea r11, [rip + {real}]",
                    "cmp qword ptr [r11], 0",
                    "je 3f",
                    concat!("cmp ", $register, ", {files}"),
                    "jne 2f",
                    "cmp qword ptr [rip + {raised}], 0",
                    "je 2f",
                    "mov eax, {number}",
                    "jmp usring_symbol_call",
                    "2:",
                    "jmp [r11]",
                    // The constructor has not found libc's function yet, so the system call is made
                    // here.
                    "3:",
                    "mov r10, rcx",
                    "mov eax, {number}",
                    "syscall",
                    "jmp usring_symbol_answer",
                    real = sym $real,
                    files = const FILES,
                    raised = sym RAISED,
                    number = const $number,
                )
            }
        )*
    };
}

limit_call!(REAL_GETRLIMIT, linux::__NR_getrlimit, "edi", getrlimit getrlimit64);
limit_call!(REAL_SETRLIMIT, linux::__NR_setrlimit, "edi", setrlimit setrlimit64);
limit_call!(REAL_PRLIMIT, linux::__NR_prlimit64, "esi", prlimit prlimit64);

/// Defines a libc function that returns how many files the program may open. `$condition` is an
/// instruction that sets the zero flag if the program asks for this number. If usring has raised
/// the kernel's limit and the program asks for this number, the function returns the program's own
/// limit. In all other cases it jumps to libc's function.
macro_rules! limit_question {
    ($real:ident, $name:ident, $condition:literal) => {
        static $real: AtomicUsize = AtomicUsize::new(0);

        /// # Safety
        /// The requirements are those of libc's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "usring_entry")]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                $condition,
                "jne 2f",
                "cmp qword ptr [rip + {raised}], 0",
                "je 2f",
                "mov rax, [rip + {limit}]",
                "ret",
                "2:",
                "cmp qword ptr [rip + {real}], 0",
                "je 3f",
                "jmp [rip + {real}]",
                "3:",
                "mov rax, -1",
                "ret",
                real = sym $real,
                raised = sym RAISED,
                limit = sym PROGRAM_LIMIT,
            )
        }
    };
}

// _SC_OPEN_MAX, in glibc and in musl.
limit_question!(REAL_SYSCONF, sysconf, "cmp edi, 4");
limit_question!(REAL_GETDTABLESIZE, getdtablesize, "cmp eax, eax");

/// Finds the functions of libc that these symbols override.
pub fn resolve() {
    let functions = [
        (c"getrlimit", &REAL_GETRLIMIT),
        (c"setrlimit", &REAL_SETRLIMIT),
        (c"prlimit", &REAL_PRLIMIT),
        (c"sysconf", &REAL_SYSCONF),
        (c"getdtablesize", &REAL_GETDTABLESIZE),
    ];
    for (name, real) in functions {
        real.store(libc::next(name).unwrap_or(0), Ordering::Release);
    }
}
