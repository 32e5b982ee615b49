//! Requests of a program to the Valgrind that runs it (client requests). They are a part of
//! Valgrind's public interface. Each is a sequence of instructions without an effect, which
//! Valgrind recognises. Outside of Valgrind they do nothing.

use crate::plain::IoVector;
use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

// Numbers of the requests: first those that every tool knows, then those of memcheck.
const RUNNING_ON_VALGRIND: u64 = 0x1001;
const DISCARD_TRANSLATIONS: u64 = 0x1002;
const CHANGE_ERROR_REPORTING: u64 = 0x1801;
const MEMCHECK: u64 = (b'M' as u64) << 24 | (b'C' as u64) << 16;
const MAKE_INACCESSIBLE: u64 = MEMCHECK;
const MAKE_DEFINED: u64 = MEMCHECK | 2;
const CHECK_ADDRESSABLE: u64 = MEMCHECK | 4;
const CHECK_DEFINED: u64 = MEMCHECK | 5;

/// Makes a request. Returns 0 outside of Valgrind, or if the tool does not know the request. The
/// function is inlined: so in an error report of Valgrind, the stack begins at the caller.
#[inline(always)]
fn request(number: u64, first: u64, second: u64) -> u64 {
    let words = [number, first, second, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: the rotations add up to 128 bits and the exchange is with itself, so the instructions
    // change only flags. Valgrind reads the six words, and stores its answer to rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") words.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer
}

/// Returns whether Valgrind runs this process. Asks Valgrind at the first call.
pub fn is_there() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 2;
    let mut answer = ANSWER.load(Ordering::Relaxed);
    if answer == UNKNOWN {
        answer = u8::from(request(RUNNING_ON_VALGRIND, 0, 0) != 0);
        ANSWER.store(answer, Ordering::Relaxed);
    }
    answer == 1
}

/// Makes Valgrind discard its translation of the code at an address, after the code has been
/// changed.
pub fn forget_code(address: usize, length: usize) {
    request(DISCARD_TRANSLATIONS, address as u64, length as u64);
}

/// Calls `work`. Under Valgrind, errors of the calling thread are not reported meanwhile.
pub fn without_errors<T>(work: impl FnOnce() -> T) -> T {
    if !is_there() {
        return work();
    }
    request(CHANGE_ERROR_REPORTING, 1, 0);
    let result = work();
    request(CHANGE_ERROR_REPORTING, u64::MAX, 0);
    result
}

/// Makes memcheck treat memory as holding values that the program may use.
pub fn make_defined(memory: &IoVector) {
    request(MAKE_DEFINED, memory.base, memory.length);
}

/// Makes memcheck report each access of the program to this memory.
pub fn make_inaccessible(memory: &IoVector) {
    request(MAKE_INACCESSIBLE, memory.base, memory.length);
}

/// Returns the address of the first byte of `memory` that the program must not use. If there is
/// such a byte, memcheck reports an error in the calling thread, except inside [`without_errors`].
#[inline(always)]
pub fn first_inaccessible(memory: &IoVector) -> Option<u64> {
    Some(request(CHECK_ADDRESSABLE, memory.base, memory.length)).filter(|address| *address != 0)
}

/// Returns the address of the first byte of `memory` that has no value, or that the program must
/// not use. If there is such a byte, memcheck reports an error in the calling thread, except inside
/// [`without_errors`].
#[inline(always)]
pub fn first_undefined(memory: &IoVector) -> Option<u64> {
    Some(request(CHECK_DEFINED, memory.base, memory.length)).filter(|address| *address != 0)
}
