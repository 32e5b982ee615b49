//! The system calls of the cases, in the two forms that programs use: a call of libc's `syscall()`,
//! and a system call instruction in the program itself.
//!
//! The two forms reach usring by different entry points: libc's symbol, and a trapped instruction.
//! So every case can run in either form. `--inline` selects the instruction. Results are in the
//! kernel's form: a negative errno, instead of -1 and `errno`.

use std::arch::asm;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use usring_uapi::io_uring::io_uring_params;

const SETUP: libc::c_long = 425;
const ENTER: libc::c_long = 426;
const REGISTER: libc::c_long = 427;

static INLINE: AtomicBool = AtomicBool::new(false);

/// From now on, this module makes its calls by an instruction in this program, not by libc's
/// `syscall()`.
pub fn use_inline() {
    INLINE.store(true, Ordering::Relaxed);
}

/// Returns whether this module makes its calls by an instruction in this program, not by libc's
/// `syscall()`.
pub fn is_inline() -> bool {
    INLINE.load(Ordering::Relaxed)
}

/// Makes a system call. Returns its result or a negative errno.
///
/// # Safety
/// The arguments must be valid for the system call. If a case passes a bad pointer on purpose, it
/// relies on the kernel to check that pointer.
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    if is_inline() {
        // SAFETY: the caller fulfils the requirements of this function, and so those of
        // `instruction`.
        return unsafe { instruction(number, arguments) };
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller fulfils the requirements of this function, and so those of the system
    // call.
    let value = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if value == -1 {
        // SAFETY: errno belongs to this thread.
        return -i64::from(unsafe { *libc::__errno_location() });
    }
    value
}

unsafe fn instruction(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let value: i64;
    // SAFETY: the instruction follows Linux's convention for x86-64. It overwrites rcx and r11, and
    // may change memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => value,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    value
}

/// Calls io_uring_setup(2), and returns its result or a negative errno.
pub fn setup(entries: u32, params: *mut io_uring_params) -> i32 {
    // SAFETY: the kernel checks `params`. Afterwards it writes only to memory that the case's
    // requests name.
    unsafe { call(SETUP, [entries as usize, params as usize, 0, 0, 0, 0]) as i32 }
}

/// Calls io_uring_enter(2), and returns its result or a negative errno.
pub fn enter(fd: i32, submit: u32, complete: u32, flags: u32, argument: *const c_void, size: usize) -> i32 {
    let arguments = [fd as isize as usize, submit as usize, complete as usize, flags as usize, argument as usize, size];
    // SAFETY: the kernel checks the argument. The requests name further memory, which each case
    // keeps alive until the requests complete.
    unsafe { call(ENTER, arguments) as i32 }
}

/// Calls io_uring_register(2), and returns its result or a negative errno.
pub fn register(fd: i32, opcode: u32, argument: *const c_void, count: u32) -> i32 {
    let arguments = [fd as isize as usize, opcode as usize, argument as usize, count as usize, 0, 0];
    // SAFETY: the kernel checks the argument. Each case keeps the memory alive that it registers.
    unsafe { call(REGISTER, arguments) as i32 }
}

/// Maps a part of a ring's memory, shared and writable, at an address that the kernel chooses.
/// Returns that address, or a negative errno.
pub fn map(fd: i32, length: usize, offset: u64) -> i64 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
    map_with(fd, length, offset, protection, flags)
}

/// Calls mmap(2) with `protection` and `flags`, which do not include MAP_FIXED. Returns the
/// address, or a negative errno.
pub fn map_with(fd: i32, length: usize, offset: u64, protection: usize, flags: usize) -> i64 {
    if !is_inline() {
        // SAFETY: without MAP_FIXED the call replaces no mapping.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection as i32, flags as i32, fd, offset as i64) };
        if address == libc::MAP_FAILED {
            // SAFETY: errno belongs to this thread.
            return -i64::from(unsafe { *libc::__errno_location() });
        }
        return address as i64;
    }
    let arguments = [0, length, protection, flags, fd as isize as usize, offset as usize];
    // SAFETY: without MAP_FIXED the call replaces no mapping.
    unsafe { instruction(libc::SYS_mmap, arguments) }
}

/// Calls close(2) for a descriptor, which may be that of a ring. Returns 0 or a negative errno.
pub fn close(fd: i32) -> i32 {
    if !is_inline() {
        // SAFETY: the case owns the descriptor, or passes a bad number on purpose.
        let value = unsafe { libc::close(fd) };
        return if value == 0 { 0 } else { -errno() };
    }
    // SAFETY: the case owns the descriptor, or passes a bad number on purpose.
    unsafe { instruction(libc::SYS_close, [fd as isize as usize, 0, 0, 0, 0, 0]) as i32 }
}

/// Returns `errno` as the last failed libc call of this thread has set it.
pub fn errno() -> i32 {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() }
}

/// Converts the result of a libc call to the kernel's form: for -1, returns the negative `errno`.
pub fn answer(value: i32) -> i32 {
    if value == -1 { -errno() } else { value }
}
