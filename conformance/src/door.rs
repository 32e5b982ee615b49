//! The system calls of the suite, in the two shapes in which programs make
//! them: through libc's `syscall()` and as an instruction of the program's own.
//!
//! An interceptor sees the two by different doors (a symbol and a trapped
//! instruction), so every case can be run through either; `--inline` chooses.
//! Answers are the kernel's own: a negative errno instead of -1 and `errno`.

use std::arch::asm;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use usring_uapi::io_uring::io_uring_params;

const SETUP: libc::c_long = 425;
const ENTER: libc::c_long = 426;
const REGISTER: libc::c_long = 427;

static INLINE: AtomicBool = AtomicBool::new(false);

/// From now on calls are made by an instruction in this program's text.
pub fn use_inline() {
    INLINE.store(true, Ordering::Relaxed);
}

/// Whether calls are made by an instruction of our own.
pub fn is_inline() -> bool {
    INLINE.load(Ordering::Relaxed)
}

/// One system call; a negative errno on failure.
///
/// # Safety
/// The arguments must be what the call expects; a case that passes a bad
/// pointer on purpose relies on the kernel's check of it.
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    if is_inline() {
        // SAFETY: passed on from the caller.
        return unsafe { instruction(number, arguments) };
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: passed on from the caller.
    let value = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if value == -1 {
        // SAFETY: errno is this thread's own.
        return -i64::from(unsafe { *libc::__errno_location() });
    }
    value
}

unsafe fn instruction(number: libc::c_long, arguments: [usize; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let value: i64;
    // SAFETY: the x86-64 convention of Linux; rcx and r11 are given up, memory
    // may change.
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

/// io_uring_setup(2).
pub fn setup(entries: u32, params: *mut io_uring_params) -> i32 {
    // SAFETY: the kernel checks `params`; what a ring writes to later are
    // addresses that the case names in its requests.
    unsafe { call(SETUP, [entries as usize, params as usize, 0, 0, 0, 0]) as i32 }
}

/// io_uring_enter(2).
pub fn enter(fd: i32, submit: u32, complete: u32, flags: u32, argument: *const c_void, size: usize) -> i32 {
    let arguments = [fd as isize as usize, submit as usize, complete as usize, flags as usize, argument as usize, size];
    // SAFETY: the kernel checks the argument; requests name memory that their
    // case keeps alive until they complete.
    unsafe { call(ENTER, arguments) as i32 }
}

/// io_uring_register(2).
pub fn register(fd: i32, opcode: u32, argument: *const c_void, count: u32) -> i32 {
    let arguments = [fd as isize as usize, opcode as usize, argument as usize, count as usize, 0, 0];
    // SAFETY: the kernel checks the argument; registered memory is kept by its case.
    unsafe { call(REGISTER, arguments) as i32 }
}

/// mmap(2) of a ring's memory, shared and writable, at an address of the
/// kernel's choice; the address or a negative errno.
pub fn map(fd: i32, length: usize, offset: u64) -> i64 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
    map_with(fd, length, offset, protection, flags)
}

/// mmap(2) with the program's own protection and flags, no fixed address.
pub fn map_with(fd: i32, length: usize, offset: u64, protection: usize, flags: usize) -> i64 {
    if !is_inline() {
        // SAFETY: without MAP_FIXED nothing of ours is replaced.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection as i32, flags as i32, fd, offset as i64) };
        if address == libc::MAP_FAILED {
            // SAFETY: errno is this thread's own.
            return -i64::from(unsafe { *libc::__errno_location() });
        }
        return address as i64;
    }
    let arguments = [0, length, protection, flags, fd as isize as usize, offset as usize];
    // SAFETY: without MAP_FIXED nothing of ours is replaced.
    unsafe { instruction(libc::SYS_mmap, arguments) }
}

/// close(2) of a descriptor that may be a ring's.
pub fn close(fd: i32) -> i32 {
    if !is_inline() {
        // SAFETY: closing a number of our own (or a bad one, on purpose).
        let value = unsafe { libc::close(fd) };
        return if value == 0 { 0 } else { -errno() };
    }
    // SAFETY: as above.
    unsafe { instruction(libc::SYS_close, [fd as isize as usize, 0, 0, 0, 0, 0]) as i32 }
}

/// The `errno` of the libc call just made.
pub fn errno() -> i32 {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// A libc answer (-1 and `errno`) as the kernel gave it.
pub fn answer(value: i32) -> i32 {
    if value == -1 { -errno() } else { value }
}
