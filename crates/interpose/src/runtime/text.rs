//! The addresses of the library's code, and of the entry points in it.

use core::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::width;

/// A range of addresses, as start and length, which assembler code reads.
#[repr(C)]
pub struct Range {
    start: AtomicUsize,
    length: AtomicUsize,
}

impl Range {
    const fn empty() -> Self {
        Range { start: AtomicUsize::new(0), length: AtomicUsize::new(0) }
    }

    fn set(&self, start: usize, end: usize) {
        self.start.store(start, Ordering::Relaxed);
        self.length.store(end - start, Ordering::Release);
    }

    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start.load(Ordering::Relaxed)) < self.length.load(Ordering::Relaxed)
    }
}

/// All code of this library.
pub static LIBRARY: Range = Range::empty();
/// The entry points.
pub static ENTRY_POINTS: Range = Range::empty();

unsafe extern "C" {
    // The linker makes these symbols: the library's own ELF header, and the bounds of the section
    // `usring_entry`.
    static __ehdr_start: u8;
    static __start_usring_entry: u8;
    static __stop_usring_entry: u8;
}

// ELF64: offsets in the header and in a program header.
const PHOFF: usize = 32;
const PHNUM: usize = 56;
const PHENTSIZE: usize = 56;
const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;

/// Finds the addresses of the library's code, in the library's own program headers. Called before
/// the first handler is installed.
pub fn find() {
    let base = &raw const __ehdr_start;
    // SAFETY: the loader has mapped the header and, right after it, the program headers. They are
    // read-only.
    let segments = unsafe {
        let first = base.add(width::size(*base.add(PHOFF).cast::<u64>()));
        let count = *base.add(PHNUM).cast::<u16>() as usize;
        core::slice::from_raw_parts(first.cast::<[u64; PHENTSIZE / 8]>(), count)
    };
    for [kind_and_flags, _, address, _, _, size, _] in segments {
        let (kind, flags) = (width::low(*kind_and_flags), (*kind_and_flags >> 32) as u32);
        if kind == PT_LOAD && flags & PF_X != 0 {
            let start = base as usize + width::size(*address);
            LIBRARY.set(start, start + width::size(*size));
        }
    }
    ENTRY_POINTS.set(&raw const __start_usring_entry as usize, &raw const __stop_usring_entry as usize);
}

/// Returns whether an interrupted thread with this instruction pointer is inside the engine.
pub fn is_engine(instruction_pointer: usize) -> bool {
    LIBRARY.contains(instruction_pointer) && !ENTRY_POINTS.contains(instruction_pointer)
}

/// Returns the address at which the loader has mapped the library.
pub fn base() -> usize {
    &raw const __ehdr_start as usize
}

/// Returns whether an address is code of the library.
pub fn is_library(address: usize) -> bool {
    LIBRARY.contains(address)
}
