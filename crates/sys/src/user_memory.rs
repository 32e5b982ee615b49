//! Copies to and from addresses that the program named. Any number is allowed:
//! what cannot be read or written gives `EFAULT`, never a crash.
//!
//! # How
//! All copies are made by a few assembler routines that lie next to each
//! other. They use no stack and no register that the compiler counts on, so a
//! fault in any of them is mended in one way: the SIGSEGV or SIGBUS handler
//! ([`handle_fault`]) sees that the instruction pointer lies among them and
//! moves it to the one fix-up, which returns 1. Costs nothing where nothing
//! faults.
//!
//! Addresses outside the lower half of the address space are refused before
//! they are tried: a non-canonical one would fault as a protection error
//! without an address, and vsyscall's page is not the program's memory.

use crate::shared::Plain;
use crate::{Errno, UserAddress, memory_reserve};
use alloc::vec::Vec;
use core::arch::global_asm;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

mod fault_handler;

pub use fault_handler::install_fault_handler;

/// Where the program's half of the address space ends (`TASK_SIZE_MAX` with
/// four-level page tables; nobody gets more without asking mmap for it).
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
    // Each: rdi to, rsi from, returns 0 in eax.
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
    // rdx bytes: in 64s, then 8s, then single ones.
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
    // rdx bytes, by the processor's own loop. A fault leaves the instruction
    // pointer on it.
    ".p2align 4",
    "usring_user_copy_bulk:",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    // rdi: rsi bytes of it become zero.
    ".p2align 4",
    "usring_user_zero:",
    "mov rcx, rsi",
    "xor eax, eax",
    "rep stosb",
    "ret",
    // rdi: is read and written, and not changed.
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

/// Where a fault at this instruction continues, if it is one of our copies'.
#[inline]
pub fn fix_up(instruction: usize) -> Option<usize> {
    let range = usring_user_copy_first as *const () as usize..usring_user_copy_end as *const () as usize;
    range.contains(&instruction).then_some(usring_user_copy_fault as *const () as usize)
}

/// Where RIP stands in the `ucontext_t` that a signal handler is given.
const UCONTEXT_RIP: usize = 168;

/// For a SIGSEGV or SIGBUS handler, with its third argument: mends the fault
/// if it happened in one of our copies, and says so. Not for a signal that
/// somebody sent (`si_code` of 0 or less), which says nothing about the
/// instruction that it interrupted.
///
/// # Safety
/// `context` is the `ucontext_t` that the kernel gave to a handler that is
/// still running.
pub unsafe fn handle_fault(context: *mut c_void) -> bool {
    // SAFETY: the kernel's frame, which is this handler's to change.
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

/// From this length on the processor's own string instruction beats a loop
/// through the xmm registers (the wider ones are the program's): measured on
/// sources that lie at random in 256 MiB, 512 bytes take 0.6 of the loop's time and
/// 4096 bytes 0.75, as glibc's memcpy does with the widest registers.
const BULK: usize = 512;

/// Whether that is so on this processor: those without "enhanced rep movsb"
/// start it slowly.
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
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let fast = __cpuid(0).eax >= FEATURES && __cpuid_count(FEATURES, 0).ebx & ENHANCED != 0;
    ANSWER.store(if fast { YES } else { NO }, Ordering::Relaxed);
    fast
}

/// # Safety
/// One of the two is memory of ours that may be used so; the other may be any
/// address below `END`.
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> Result<(), Errno> {
    // SAFETY: 1. Our side is valid, as the caller promised. 2. On the other
    // side a fault is mended; if it is valid memory, it is the program's to
    // name (see the crate's head).
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

/// Copies one value from the program.
#[inline]
pub fn read<T: Plain>(address: UserAddress) -> Result<T, Errno> {
    check(address, size_of::<T>())?;
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the target is `value`.
    unsafe { copy(value.as_mut_ptr().cast(), address.0 as *const u8, size_of::<T>())? };
    // SAFETY: all bytes were written, and any bytes are a `T`.
    Ok(unsafe { value.assume_init() })
}

/// Copies one value to the program.
#[inline]
pub fn write<T: Plain>(address: UserAddress, value: T) -> Result<(), Errno> {
    check(address, size_of::<T>())?;
    // SAFETY: the source is `value`, every byte of which is initialised.
    unsafe { copy(address.0 as *mut u8, (&raw const value).cast(), size_of::<T>()) }
}

/// Copies bytes from the program. After `EFAULT` a part may have been copied.
pub fn copy_in(to: &mut [u8], from: UserAddress) -> Result<(), Errno> {
    check(from, to.len())?;
    // SAFETY: the target is `to`.
    unsafe { copy(to.as_mut_ptr(), from.0 as *const u8, to.len()) }
}

/// Copies bytes to the program. After `EFAULT` a part may have been copied.
pub fn copy_out(to: UserAddress, from: &[u8]) -> Result<(), Errno> {
    check(to, from.len())?;
    // SAFETY: the source is `from`.
    unsafe { copy(to.0 as *mut u8, from.as_ptr(), from.len()) }
}

/// [`copy_in`] to memory into which there are no references.
///
/// # Safety
/// `to` is `length` bytes of ours that may be written.
#[inline]
pub(crate) unsafe fn copy_to_raw(to: *mut u8, from: UserAddress, length: usize) -> Result<(), Errno> {
    check(from, length)?;
    // SAFETY: the target, as the caller promised.
    unsafe { copy(to, from.0 as *const u8, length) }
}

/// [`copy_out`] from memory into which there are no references.
///
/// # Safety
/// `from` is `length` bytes of ours that may be read.
#[inline]
pub(crate) unsafe fn copy_from_raw(to: UserAddress, from: *const u8, length: usize) -> Result<(), Errno> {
    check(to, length)?;
    // SAFETY: the source, as the caller promised.
    unsafe { copy(to.0 as *mut u8, from, length) }
}

/// Makes memory of ours zero into which there are no references.
///
/// # Safety
/// `at` is `length` bytes of ours that may be written.
pub(crate) unsafe fn zero_raw(at: *mut u8, length: usize) {
    // SAFETY: as the caller promised; so nothing faults.
    unsafe { usring_user_zero(at, length) };
}

/// Copies `count` values from the program. `count` has been checked against
/// the limit of what it counts; `ENOMEM` if there is no room for so many.
pub fn read_array<T: Plain>(address: UserAddress, count: usize) -> Result<Vec<T>, Errno> {
    let mut values = Vec::new();
    read_array_into(&mut values, address, count)?;
    Ok(values)
}

/// The same into a vector that may have room already; what it held is dropped.
pub fn read_array_into<T: Plain>(values: &mut Vec<T>, address: UserAddress, count: usize) -> Result<(), Errno> {
    values.clear();
    let bytes = count.checked_mul(size_of::<T>()).ok_or(Errno::EFAULT)?;
    check(address, bytes)?;
    check_room(bytes)?;
    values.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    // SAFETY: the target is the vector's room for `count` values.
    unsafe { copy(values.as_mut_ptr().cast(), address.0 as *const u8, bytes)? };
    // SAFETY: that many were written, and any bytes are a `T`.
    unsafe { values.set_len(count) };
    Ok(())
}

/// Copies that are not small leave what memory is kept back to others.
fn check_room(bytes: usize) -> Result<(), Errno> {
    const SMALL: usize = 512;
    if bytes > SMALL && memory_reserve::is_low() { Err(Errno::ENOMEM) } else { Ok(()) }
}

/// Copies a string from the program, its NUL included, of at most `max` bytes
/// with it; `ENAMETOOLONG` if no NUL is among them.
pub fn read_c_string(address: UserAddress, max: usize) -> Result<Vec<u8>, Errno> {
    let mut string = Vec::new();
    check_room(max)?;
    while string.len() < max {
        let from = address.offset(string.len() as u64);
        // Never across a page that the string may not reach.
        let to_page_end = (PAGE - from.0 % PAGE) as usize;
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

/// Puts what was copied behind other bytes. Error: `ENOMEM`.
pub fn append(bytes: &mut Vec<u8>, more: &[u8]) -> Result<(), Errno> {
    bytes.try_reserve_exact(more.len()).map_err(|_| Errno::ENOMEM)?;
    bytes.extend_from_slice(more);
    Ok(())
}

/// Whether every page of a range can be read and written now. The contents
/// stay as they are.
pub fn probe_writable(address: UserAddress, length: usize) -> Result<(), Errno> {
    check(address, length)?;
    if length == 0 {
        return Ok(());
    }
    let last = address.0 + length as u64 - 1;
    let mut at = address.0;
    while at <= last {
        // SAFETY: a fault is mended, and nothing is changed.
        outcome(unsafe { usring_user_touch(at as *mut u8) })?;
        at = (at / PAGE + 1) * PAGE;
    }
    Ok(())
}
