//! Functions of libc that the checker has to see: they free or unmap memory, close files, or end
//! the process.
//!
//! The library exports no symbols with these names, so a program that is not checked calls libc
//! directly. For a program that is checked, the constructor writes the addresses of the functions
//! below to the global offset tables. By these tables the program and its libraries call libc's
//! functions. The checker does not see calls of libraries that the program loads later, or calls
//! within one library.

use crate::runtime::assembler::{begin_frame, deliver_deferred};
use crate::runtime::imports;
use core::arch::naked_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_check::format::Kind;
use usring_check::{IN_FLIGHT, Registers};
use usring_sys::signals::DEFERRED;
use usring_sys::width;
use usring_uapi::general as linux;

// The functions of `hook`, by their index.
const FREE: u64 = 0;
const MUNMAP: u64 = 1;
const MREMAP: u64 = 2;
const MADVISE: u64 = 3;
const CLOSE: u64 = 4;
const EXIT: u64 = 5;

static REAL_FREE: AtomicUsize = AtomicUsize::new(0);
static REAL_REALLOC: AtomicUsize = AtomicUsize::new(0);
static REAL_MUNMAP: AtomicUsize = AtomicUsize::new(0);
static REAL_MREMAP: AtomicUsize = AtomicUsize::new(0);
static REAL_MADVISE: AtomicUsize = AtomicUsize::new(0);
static REAL_CLOSE: AtomicUsize = AtomicUsize::new(0);
static REAL_EXIT: AtomicUsize = AtomicUsize::new(0);
/// Address of malloc_usable_size(3), or 0.
static USABLE_SIZE: AtomicUsize = AtomicUsize::new(0);

/// Defines a function that calls [`before`] and then jumps to libc's function. `$skip` is an
/// instruction that jumps to label 3 if no request is in flight, so that `before` is not called. In
/// a function that always calls `before`, `$skip` is `nop`.
macro_rules! hook {
    ($name:ident, $real:ident, $number:expr, $skip:literal) => {
        #[unsafe(naked)]
        #[unsafe(link_section = "usring_entry")]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "cmp dword ptr [rip + {in_flight}], 0",
                $skip,
                begin_frame!(),
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push rax",
                "mov edi, {number}",
                "mov rsi, [rbp - 8]",
                "mov rdx, [rbp - 16]",
                "mov rcx, [rbp - 24]",
                "mov r8, rbp",
                "call {before}",
                deliver_deferred!(),
                "mov rdi, [rbp - 8]",
                "mov rsi, [rbp - 16]",
                "mov rdx, [rbp - 24]",
                "mov rcx, [rbp - 32]",
                "mov r8, [rbp - 40]",
                "mov rax, [rbp - 48]",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_same_value rbp",
                "3:",
                "jmp [rip + {real}]",
                ".cfi_endproc",
                in_flight = sym IN_FLIGHT,
                before = sym before,
                deferred = sym DEFERRED,
                number = const $number,
                real = sym $real,
            )
        }
    };
}

hook!(free, REAL_FREE, FREE, "je 3f");
hook!(munmap, REAL_MUNMAP, MUNMAP, "je 3f");
hook!(mremap, REAL_MREMAP, MREMAP, "je 3f");
hook!(madvise, REAL_MADVISE, MADVISE, "je 3f");
hook!(close, REAL_CLOSE, CLOSE, "je 3f");
// The checker must see the end of the process even if no request is in flight: the program may have
// left completions in a CQ.
hook!(exit_now, REAL_EXIT, EXIT, "nop");

/// Replaces realloc(3). Calls the real realloc first, because only its result shows whether the old
/// block was freed: it is freed only if the block moves.
#[unsafe(naked)]
#[unsafe(link_section = "usring_entry")]
unsafe extern "C" fn realloc() {
    naked_asm!(
        ".cfi_startproc",
        "cmp dword ptr [rip + {in_flight}], 0",
        "je 3f",
        begin_frame!(),
        "push rdi",
        "push rsi",
        "call {usable}",
        "push rax",
        "push rax",
        "mov rdi, [rbp - 8]",
        "mov rsi, [rbp - 16]",
        "call [rip + {real}]",
        "mov [rbp - 16], rax",
        "mov rdi, rax",
        "mov rsi, [rbp - 8]",
        "mov rdx, [rbp - 24]",
        "mov rcx, rbp",
        "call {moved}",
        deliver_deferred!(),
        "mov rax, [rbp - 16]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        ".cfi_same_value rbp",
        "ret",
        "3:",
        ".cfi_restore rbp",
        ".cfi_def_cfa rsp, 8",
        "jmp [rip + {real}]",
        ".cfi_endproc",
        in_flight = sym IN_FLIGHT,
        usable = sym usable_size,
        moved = sym reallocated,
        deferred = sym DEFERRED,
        real = sym REAL_REALLOC,
    )
}

/// Returns the registers that the program had when it called a hook. `frame`: the hook's frame.
///
/// # Safety
/// `frame` must point to a hook's frame: the saved rbp, and after it the return address.
unsafe fn registers(frame: *const [u64; 2]) -> Registers {
    // SAFETY: the caller guarantees the frame.
    let [saved, instruction] = unsafe { *frame };
    Registers { instruction, stack: frame as u64 + 16, frame: saved }
}

// Advice of madvise(2) that discards the memory's content.
const DISCARDING: [u32; 3] = [linux::MADV_DONTNEED, linux::MADV_FREE, linux::MADV_REMOVE];

/// Runs before the real function of libc. `function`: the number of that function in this file,
/// such as `FREE`. `first` to `third`: the arguments of the function.
unsafe extern "C" fn before(function: u64, first: u64, second: u64, third: u64, frame: *const [u64; 2]) {
    // SAFETY: the hooks pass their frame.
    let registers = unsafe { registers(frame) };
    let unmaps = |start: u64, length: u64| usring_check::releases(start, length, Kind::Unmapped, registers);
    match function {
        FREE => usring_check::releases(first, usable_size(first), Kind::Freed, registers),
        MUNMAP => unmaps(first, second),
        MREMAP if third < second => unmaps(first + third, second - third),
        MADVISE if DISCARDING.contains(&width::low(third)) => unmaps(first, second),
        CLOSE => usring_check::closes_descriptor(width::int(first), registers),
        EXIT => super::end(),
        _ => {}
    }
}

/// Returns the size of a block that malloc made, if a request in flight may use memory in the
/// block. The size is 1 if malloc cannot report it. Returns 0 if no request in flight uses the
/// block.
extern "C" fn usable_size(block: u64) -> u64 {
    if block == 0 || !usring_check::has_memory_in_flight(block) {
        return 0;
    }
    match USABLE_SIZE.load(Ordering::Relaxed) {
        0 => 1,
        address => {
            // SAFETY: the address is that of malloc_usable_size(3). The block is one of malloc's,
            // because the program passes it to free(3) or realloc(3).
            let function = unsafe { core::mem::transmute::<usize, extern "C" fn(u64) -> usize>(address) };
            function(block) as u64
        }
    }
}

/// Runs after the real realloc(3). `length`: the size of the old block, as [`usable_size`] returned
/// it before.
unsafe extern "C" fn reallocated(new: u64, old: u64, length: u64, frame: *const [u64; 2]) {
    if length != 0 && new != 0 && new != old {
        // SAFETY: `realloc` passes its frame.
        usring_check::releases(old, length, Kind::Freed, unsafe { registers(frame) });
    }
}

type Function = unsafe extern "C" fn();

/// Makes the program and its libraries call the hooks of this file in place of libc's functions.
pub fn install() {
    let functions: [(&CStr, &AtomicUsize, Function); 8] = [
        (c"free", &REAL_FREE, free),
        (c"realloc", &REAL_REALLOC, realloc),
        (c"munmap", &REAL_MUNMAP, munmap),
        (c"mremap", &REAL_MREMAP, mremap),
        (c"madvise", &REAL_MADVISE, madvise),
        (c"close", &REAL_CLOSE, close),
        (c"_exit", &REAL_EXIT, exit_now),
        (c"_Exit", &REAL_EXIT, exit_now),
    ];
    USABLE_SIZE.store(imports::function(c"malloc_usable_size").unwrap_or(0), Ordering::Relaxed);
    for (name, real, function) in functions {
        if let Some(address) = imports::function(name) {
            real.store(address, Ordering::Release);
            imports::redirect(name, function as *const () as usize);
        }
    }
}
