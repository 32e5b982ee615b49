//! System calls for cases, in the two forms that programs use: by libc's `syscall()`, and by an
//! instruction in the program itself.
//!
//! usring catches the two forms at different entry points: libc's symbol, and a trapped
//! instruction. So every case can run in either form; `--inline` selects the second. Results are as
//! the kernel returns them: a negative errno instead of -1 and `errno`.

use std::arch::asm;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use usring_uapi::io_uring::io_uring_params;

const SETUP: libc::c_long = 425;
const ENTER: libc::c_long = 426;
const REGISTER: libc::c_long = 427;

static INLINE: AtomicBool = AtomicBool::new(false);

/// Makes all later calls of this module by an instruction in this program, in place of libc's
/// `syscall()`.
pub fn use_inline() {
    INLINE.store(true, Ordering::Relaxed);
}

/// Returns whether this module makes calls by an instruction in this program, in place of libc's
/// `syscall()`.
pub fn is_inline() -> bool {
    INLINE.load(Ordering::Relaxed)
}

/// Makes a system call, and returns its result or a negative errno.
///
/// # Safety
/// The arguments must be what the call expects. If a case passes a bad pointer on purpose, it
/// relies on the kernel to check the pointer.
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    if is_inline() {
        // SAFETY: the caller keeps the promises of this function.
        return unsafe { instruction(number, arguments) };
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller keeps the promises of this function.
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
    // SAFETY: the call follows Linux's x86-64 convention: it clobbers rcx and r11, and may change
    // memory.
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
    // SAFETY: the kernel checks `params`. Later it writes only to addresses that the case's
    // requests name.
    unsafe { call(SETUP, [entries as usize, params as usize, 0, 0, 0, 0]) as i32 }
}

/// Calls io_uring_enter(2), and returns its result or a negative errno.
pub fn enter(fd: i32, submit: u32, complete: u32, flags: u32, argument: *const c_void, size: usize) -> i32 {
    let arguments = [fd as isize as usize, submit as usize, complete as usize, flags as usize, argument as usize, size];
    // SAFETY: the kernel checks the argument. Each case keeps the memory that its requests name
    // alive until they complete.
    unsafe { call(ENTER, arguments) as i32 }
}

/// Calls io_uring_register(2), and returns its result or a negative errno.
pub fn register(fd: i32, opcode: u32, argument: *const c_void, count: u32) -> i32 {
    let arguments = [fd as isize as usize, opcode as usize, argument as usize, count as usize, 0, 0];
    // SAFETY: the kernel checks the argument. Each case keeps alive the memory that it registers.
    unsafe { call(REGISTER, arguments) as i32 }
}

/// Maps a ring's memory, shared and writable, at an address that the kernel chooses. Returns the
/// address or a negative errno.
pub fn map(fd: i32, length: usize, offset: u64) -> i64 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
    map_with(fd, length, offset, protection, flags)
}

/// Calls mmap(2) with this protection and these flags, but without MAP_FIXED. Returns the address
/// or a negative errno.
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

/// Calls close(2) for any descriptor, also a ring's. Returns 0 or a negative errno.
pub fn close(fd: i32) -> i32 {
    if !is_inline() {
        // SAFETY: the case owns the number, or passes a bad one on purpose.
        let value = unsafe { libc::close(fd) };
        return if value == 0 { 0 } else { -errno() };
    }
    // SAFETY: the case owns the number, or passes a bad one on purpose.
    unsafe { instruction(libc::SYS_close, [fd as isize as usize, 0, 0, 0, 0, 0]) as i32 }
}

/// Returns `errno`, which the last libc call of this thread has set.
pub fn errno() -> i32 {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() }
}

/// Converts the result of a libc call (-1 and `errno`) to the kernel's form, a negative errno.
pub fn answer(value: i32) -> i32 {
    if value == -1 { -errno() } else { value }
}
