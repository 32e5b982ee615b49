//! Copies to and from addresses that the program named. An address may be any number. If it cannot
//! be read or written, the result is `EFAULT`, never a crash.
//!
//! # How
//! A few assembler routines, placed next to each other, make all copies. They use no stack and no
//! register that the compiler needs preserved. So one fix-up serves a fault in any of them. The
//! SIGSEGV or SIGBUS handler ([`handle_fault`]) finds the instruction pointer inside a routine, and
//! moves it to the fix-up, which returns 1 to the routine's caller. Without a fault this costs
//! nothing.
//!
//! Addresses outside the lower half of the address space are refused without an attempt. A
//! non-canonical address would raise a general protection fault, which reports no address. The
//! vsyscall page is not the program's memory.

use crate::shared::Plain;
use crate::{Errno, UserAddress, memory_reserve, processor, width};
use alloc::vec::Vec;
use core::arch::global_asm;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

mod fault_handler;

pub use fault_handler::install_fault_handler;

/// End of the program's half of the address space: `TASK_SIZE_MAX` with four-level page tables.
/// (mmap(2) returns higher addresses only on request.)
pub const END: u64 = 0x7fff_ffff_f000;

const PAGE: u64 = crate::mapping::PAGE as u64;

global_asm!(
    ".pushsection .text.usring_user_copy,\"ax\",@progbits",
    ".p2align 4",
    ".globl usring_user_copy_first, usring_user_copy_4, usring_user_copy_8, usring_user_copy_16, usring_user_copy_64",
    ".globl usring_user_copy, usring_user_copy_bulk, usring_user_zero, usring_user_touch",
    ".globl usring_user_copy_end, usring_user_copy_fault",
    ".hidden usring_user_copy_first, usring_user_copy_4, usring_user_copy_8, usring_user_copy_16, usring_user_copy_64",
    ".hidden usring_user_copy, usring_user_copy_bulk, usring_user_zero, usring_user_touch",
    ".hidden usring_user_copy_end, usring_user_copy_fault",
    // Each routine copies from rsi to rdi and returns 0 in eax.
    "usring_user_copy_first:",
    "usring_user_copy_4:",
    "mov ecx, [rsi]",
    "mov [rdi], ecx",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    "usring_user_copy_8:",
    "mov rcx, [rsi]",
    "mov [rdi], rcx",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    "usring_user_copy_16:",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    "usring_user_copy_64:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "xor eax, eax",
    "ret",
    // Copies rdx bytes: 64 at a time, then 8, then 1.
    ".p2align 4",
    "usring_user_copy:",
    "2:",
    "cmp rdx, 64",
    "jb 3f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "jmp 2b",
    "3:",
    "cmp rdx, 8",
    "jb 4f",
    "mov rcx, [rsi]",
    "mov [rdi], rcx",
    "add rsi, 8",
    "add rdi, 8",
    "sub rdx, 8",
    "jmp 3b",
    "4:",
    "test rdx, rdx",
    "jz 5f",
    "mov cl, [rsi]",
    "mov [rdi], cl",
    "inc rsi",
    "inc rdi",
    "dec rdx",
    "jmp 4b",
    "5:",
    "xor eax, eax",
    "ret",
    // Copies rdx bytes, by the processor's string instruction. A fault leaves the instruction
    // pointer on that instruction.
    ".p2align 4",
    "usring_user_copy_bulk:",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    // Zeroes rsi bytes at rdi.
    ".p2align 4",
    "usring_user_zero:",
    "mov rcx, rsi",
    "xor eax, eax",
    "rep stosb",
    "ret",
    // Reads and writes the byte at rdi without changing it.
    ".p2align 4",
    "usring_user_touch:",
    "lock or byte ptr [rdi], 0",
    "xor eax, eax",
    "ret",
    "usring_user_copy_end:",
    "usring_user_copy_fault:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn usring_user_copy_4(to: *mut u8, from: *const u8) -> u32;
    fn usring_user_copy_8(to: *mut u8, from: *const u8) -> u32;
    fn usring_user_copy_16(to: *mut u8, from: *const u8) -> u32;
    fn usring_user_copy_64(to: *mut u8, from: *const u8) -> u32;
    fn usring_user_copy(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn usring_user_copy_bulk(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn usring_user_zero(at: *mut u8, length: usize) -> u32;
    fn usring_user_touch(at: *mut u8) -> u32;
    fn usring_user_copy_first();
    fn usring_user_copy_end();
    fn usring_user_copy_fault();
}

/// Returns the address at which the thread has to continue after a fault. `None` if the faulting
/// instruction does not belong to a copy routine.
#[inline]
pub fn fix_up(instruction: usize) -> Option<usize> {
    let range = usring_user_copy_first as *const () as usize..usring_user_copy_end as *const () as usize;
    range.contains(&instruction).then_some(usring_user_copy_fault as *const () as usize)
}

/// Offset of the instruction pointer (RIP) in a `ucontext_t`, in bytes.
const UCONTEXT_RIP: usize = 168;

/// Repairs a fault in a copy routine: the routine then returns an error. Called by a SIGSEGV or
/// SIGBUS handler with its third argument. Returns whether the fault was in a copy routine. The
/// handler must not call this function for a signal that a system call has sent (`si_code` of 0 or
/// less). Such a signal is unrelated to the instruction that it interrupted.
///
/// # Safety
/// `context` must be the `ucontext_t` that the kernel passed to a handler that is still running.
pub unsafe fn handle_fault(context: *mut c_void) -> bool {
    // SAFETY: `context` is the `ucontext_t` in the kernel's signal frame, which the handler may
    // change.
    let instruction = unsafe { &mut *context.byte_add(UCONTEXT_RIP).cast::<usize>() };
    match fix_up(*instruction) {
        Some(target) => {
            *instruction = target;
            true
        }
        None => false,
    }
}

#[inline(always)]
fn check(address: UserAddress, length: usize) -> Result<(), Errno> {
    match address.0.checked_add(length as u64) {
        Some(end) if end <= END => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

#[inline(always)]
fn outcome(fault: u32) -> Result<(), Errno> {
    if fault == 0 { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Least length in bytes for which the processor's string instruction (`rep movsb`) is used. From
/// this length on it is faster than a loop with xmm registers. (usring may not use wider registers,
/// because they hold the program's values.) Measured on sources at random places in 256 MiB: 512
/// bytes take 0.6 of the loop's time, 4096 bytes 0.75. glibc's memcpy with the widest registers
/// takes about as long.
const BULK: usize = 512;

/// Returns whether this processor has a fast string instruction ("enhanced rep movsb"). On other
/// processors, each `rep movsb` takes a long time before it copies the first byte.
fn copies_strings_fast() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    let known = ANSWER.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known == YES;
    }
    const FEATURES: u32 = 7;
    const ENHANCED: u32 = 1 << 9;
    let fast = processor::features(0).eax >= FEATURES && processor::features(FEATURES).ebx & ENHANCED != 0;
    ANSWER.store(if fast { YES } else { NO }, Ordering::Relaxed);
    fast
}

/// Copies bytes. After a fault, the result is `EFAULT`.
///
/// # Safety
/// Of `to` and `from`, one must be usring's memory, valid for this access. The other may be any
/// address below `END`.
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> Result<(), Errno> {
    // SAFETY: 1. The caller guarantees the address in usring's memory. 2. A fault at the other
    // address is repaired. If the other address is valid, the program may name it (see the head of
    // the crate).
    outcome(unsafe {
        match length {
            4 => usring_user_copy_4(to, from),
            8 => usring_user_copy_8(to, from),
            16 => usring_user_copy_16(to, from),
            64 => usring_user_copy_64(to, from),
            BULK.. if copies_strings_fast() => usring_user_copy_bulk(to, from, length),
            _ => usring_user_copy(to, from, length),
        }
    })
}

/// Copies one value from the program's memory.
#[inline]
pub fn read<T: Plain>(address: UserAddress) -> Result<T, Errno> {
    check(address, size_of::<T>())?;
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the target is `value`, and `check` has bounded the source.
    unsafe { copy(value.as_mut_ptr().cast(), address.0 as *const u8, size_of::<T>())? };
    // SAFETY: all bytes were written, and any bytes are a valid `T`.
    Ok(unsafe { value.assume_init() })
}

/// Copies one value to the program's memory.
#[inline]
pub fn write<T: Plain>(address: UserAddress, value: T) -> Result<(), Errno> {
    check(address, size_of::<T>())?;
    // SAFETY: the source is `value`, every byte of which is initialised, and `check` has bounded
    // the target.
    unsafe { copy(address.0 as *mut u8, (&raw const value).cast(), size_of::<T>()) }
}

/// Copies bytes from the program's memory. After `EFAULT` a part may have been copied.
pub fn copy_in(to: &mut [u8], from: UserAddress) -> Result<(), Errno> {
    check(from, to.len())?;
    // SAFETY: the target is `to`, and `check` has bounded the source.
    unsafe { copy(to.as_mut_ptr(), from.0 as *const u8, to.len()) }
}

/// Copies bytes to the program's memory. After `EFAULT` a part may have been copied.
pub fn copy_out(to: UserAddress, from: &[u8]) -> Result<(), Errno> {
    check(to, from.len())?;
    // SAFETY: the source is `from`, and `check` has bounded the target.
    unsafe { copy(to.0 as *mut u8, from.as_ptr(), from.len()) }
}

/// Copies bytes from the program's memory to memory of usring into which no references exist.
///
/// # Safety
/// `to` must be `length` writable bytes of usring's memory.
#[inline]
pub(crate) unsafe fn copy_to_raw(to: *mut u8, from: UserAddress, length: usize) -> Result<(), Errno> {
    check(from, length)?;
    // SAFETY: the caller guarantees the target.
    unsafe { copy(to, from.0 as *const u8, length) }
}

/// Copies bytes to the program's memory from memory of usring into which no references exist.
///
/// # Safety
/// `from` must be `length` readable bytes of usring's memory.
#[inline]
pub(crate) unsafe fn copy_from_raw(to: UserAddress, from: *const u8, length: usize) -> Result<(), Errno> {
    check(to, length)?;
    // SAFETY: the caller guarantees the source.
    unsafe { copy(to.0 as *mut u8, from, length) }
}

/// Zeroes memory of usring into which no references exist.
///
/// # Safety
/// `at` must be `length` writable bytes of usring's memory.
pub(crate) unsafe fn zero_raw(at: *mut u8, length: usize) {
    // SAFETY: the caller guarantees the memory, so no access faults.
    unsafe { usring_user_zero(at, length) };
}

/// Copies `count` values from the program's memory. The caller has checked `count` against its
/// limit. Errors: `EFAULT`; `ENOMEM` if there is no memory for the values.
pub fn read_array<T: Plain>(address: UserAddress, count: usize) -> Result<Vec<T>, Errno> {
    let mut values = Vec::new();
    read_array_into(&mut values, address, count)?;
    Ok(values)
}

/// Copies `count` values from the program's memory into a vector, in place of its old values.
/// Reuses the vector's memory. Errors: `EFAULT`; `ENOMEM`.
pub fn read_array_into<T: Plain>(values: &mut Vec<T>, address: UserAddress, count: usize) -> Result<(), Errno> {
    values.clear();
    let bytes = count.checked_mul(size_of::<T>()).ok_or(Errno::EFAULT)?;
    check(address, bytes)?;
    check_room(bytes)?;
    values.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    // SAFETY: the target is the vector's reserved space for `count` values.
    unsafe { copy(values.as_mut_ptr().cast(), address.0 as *const u8, bytes)? };
    // SAFETY: `count` values were written, and any bytes are a valid `T`.
    unsafe { values.set_len(count) };
    Ok(())
}

/// Refuses to allocate more than 512 bytes while the allocator uses its memory reserve. The reserve
/// is for smaller needs. Errors: `ENOMEM`.
fn check_room(bytes: usize) -> Result<(), Errno> {
    const SMALL: usize = 512;
    if bytes > SMALL && memory_reserve::is_low() { Err(Errno::ENOMEM) } else { Ok(()) }
}

/// Copies a string from the program's memory, of at most `max` bytes including its NUL. The result
/// includes the NUL. Errors: `ENAMETOOLONG` if there is no NUL among `max` bytes; `EFAULT`;
/// `ENOMEM`.
pub fn read_c_string(address: UserAddress, max: usize) -> Result<Vec<u8>, Errno> {
    let mut string = Vec::new();
    check_room(max)?;
    while string.len() < max {
        let from = address.offset(string.len() as u64);
        // Each read stays within one page. The string may end in this page, and the next page may
        // not be readable.
        let to_page_end = width::size(PAGE - from.0 % PAGE);
        let length = to_page_end.min(max - string.len()).min(256);
        let start = string.len();
        string.try_reserve(length).map_err(|_| Errno::ENOMEM)?;
        string.resize(start + length, 0);
        copy_in(&mut string[start..], from)?;
        if let Some(end) = string[start..].iter().position(|byte| *byte == 0) {
            string.truncate(start + end + 1);
            return Ok(string);
        }
    }
    Err(Errno::ENAMETOOLONG)
}

/// Appends bytes to a vector. Errors: `ENOMEM`.
pub fn append(bytes: &mut Vec<u8>, more: &[u8]) -> Result<(), Errno> {
    bytes.try_reserve_exact(more.len()).map_err(|_| Errno::ENOMEM)?;
    bytes.extend_from_slice(more);
    Ok(())
}

/// Checks that every page of a range can be read and written now. Leaves the range's content
/// unchanged. Errors: `EFAULT`.
pub fn probe_writable(address: UserAddress, length: usize) -> Result<(), Errno> {
    check(address, length)?;
    if length == 0 {
        return Ok(());
    }
    let last = address.0 + length as u64 - 1;
    let mut at = address.0;
    while at <= last {
        // SAFETY: a fault is repaired, and no byte is changed.
        outcome(unsafe { usring_user_touch(at as *mut u8) })?;
        at = (at / PAGE + 1) * PAGE;
    }
    Ok(())
}
