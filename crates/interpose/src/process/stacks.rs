//! usring's own stacks, for programs whose stacks are small. Go's goroutines make system calls with
//! a few hundred bytes of stack left, and other data lies directly below. musl's posix_spawn gives
//! its child 5 KiB. In such a program the entry points run each call on a stack of usring's, one
//! for each thread.
//!
//! A thread is identified by its thread pointer. A vfork child has its parent's thread pointer, so
//! it runs on the stack that usring has made for its parent. The parent does not need this stack
//! meanwhile. The child does not return from a successful exec. So at that exec, the kernel marks
//! the stack as free ([`released_by`]).

use crate::process;
use crate::runtime::libc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use usring_sys::{SystemCall, UserAddress, spread, thread, user_memory, width};
use usring_uapi::general as linux;

/// Maximum number of threads with a stack of usring's. A power of two, above the 10,000 threads
/// that Go's runtime makes at most. (Rows of the table take memory only where they are used.)
pub const ROWS: usize = 16384;
/// Bytes of a stack. The kernel allocates pages when they are touched.
pub const SIZE: usize = 128 * 1024;

/// A thread pointer, and the address of the top of that thread's stack. The entry points read both
/// words. The word at the top of the stack shows whether the stack is in use.
#[repr(C)]
pub struct OwnStack {
    thread: AtomicU64,
    top: AtomicU64,
}

pub static TABLE: [OwnStack; ROWS] = [const { OwnStack { thread: AtomicU64::new(0), top: AtomicU64::new(0) } }; ROWS];

const _: () = assert!(size_of::<OwnStack>() == 16 && ROWS.is_power_of_two());

static SMALL: AtomicU32 = AtomicU32::new(0);

/// Returns whether this program has small stacks.
pub fn are_small() -> bool {
    SMALL.load(Ordering::Relaxed) != 0
}

/// Returns the word that shows whether the calling thread's own stack of usring's is in use: the
/// word is then not 0. `None`: usring has made no stack for the thread.
fn in_use() -> Option<&'static AtomicU32> {
    let thread = thread::current().0 as u64;
    let start = spread::row(width::size(thread), ROWS);
    for step in 0..ROWS {
        let row = &TABLE[(start + step) % ROWS];
        match row.thread.load(Ordering::Relaxed) {
            0 => return None,
            found if found == thread => {
                let top = row.top.load(Ordering::Relaxed) as *const AtomicU32;
                // SAFETY: the pointer is null, or points to the top word of a stack that is never
                // unmapped.
                return unsafe { top.as_ref() };
            }
            _ => {}
        }
    }
    None
}

/// Runs `exec`, which returns only if it fails. A vfork child runs on the stack that usring has
/// made for its parent. If the child's exec succeeds, the kernel clears the word at the top of that
/// stack (set_tid_address(2)), so the parent finds the stack free. Until then, a signal handler in
/// the child finds the stack in use.
pub fn released_by<T>(exec: impl FnOnce() -> T) -> T {
    let Some(word) = in_use().filter(|_| !process::is_own()) else { return exec() };
    let clear_at_end = |word: u64| {
        let _ = SystemCall::new(linux::__NR_set_tid_address, [word, 0, 0, 0, 0]).run_once();
    };
    clear_at_end(word.as_ptr() as u64);
    let result = exec();
    clear_at_end(0);
    result
}

/// Marks all stacks as free in a forked child, except that of the calling thread. The other stacks
/// belonged to threads of the parent that do not exist in the child. New threads of the child may
/// use them.
pub fn forget_after_fork() {
    if !are_small() {
        return;
    }
    let own = thread::current().0 as u64;
    for row in
        TABLE.iter().filter(|row| !matches!(row.thread.load(Ordering::Relaxed), thread if thread == 0 || thread == own))
    {
        let top = row.top.load(Ordering::Relaxed) as *const AtomicU32;
        // SAFETY: the pointer is null, or points to the top word of a stack that is never unmapped.
        if let Some(word) = unsafe { top.as_ref() } {
            word.store(0, Ordering::Relaxed);
        }
    }
}

// Offsets of ELF64 fields, in the file's header, in a program header, and in a note.
const PHOFF: u64 = 32;
const PHENTSIZE: u64 = 56;
const PHNUM: u64 = 56;
const PT_PHDR: u32 = 6;
const PT_NOTE: u32 = 4;
const NOTE_HEAD: u64 = 12;
/// Name and type of the note that identifies a Go program (NT_GOBUILDID).
const GO: u32 = u32::from_le_bytes(*b"Go\0\0");
const GO_BUILD_ID: u32 = 4;

/// Keys of the auxiliary vector: the address of the program headers, and their number.
const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;

/// Notes whether the program or one of its libraries runs code on small stacks, as musl and Go do.
/// `auxiliary` is the auxiliary vector from the kernel.
pub fn note_small_stacks(auxiliary: *const [u64; 2]) {
    let (mut headers, mut count) = (0, 0);
    let mut entry = UserAddress(auxiliary as u64);
    while let Ok([kind, value]) = user_memory::read::<[u64; 2]>(entry)
        && kind != 0
    {
        match kind {
            AT_PHDR => headers = value,
            AT_PHNUM => count = value,
            _ => {}
        }
        entry = entry.offset(16);
    }
    let program = has_go_note(UserAddress(headers), count, None);
    if program || !libc::is_glibc() || libc::libraries().any(is_go_library) {
        SMALL.store(1, Ordering::Relaxed);
    }
}

/// Returns whether the library that is loaded at an address was made by Go (`-buildmode=c-shared`).
fn is_go_library(base: usize) -> bool {
    let base = UserAddress(base as u64);
    const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
    if base.is_null() || user_memory::read::<u32>(base) != Ok(ELF) {
        return false;
    }
    let offset = user_memory::read::<u64>(base.offset(PHOFF)).unwrap_or(0);
    let count = user_memory::read::<u16>(base.offset(PHNUM)).unwrap_or(0);
    has_go_note(base.offset(offset), u64::from(count), Some(base.0))
}

/// Returns whether program headers lead to the note that identifies Go programs. `base`: the load
/// address. If it is `None`, this function computes the load address from the headers.
fn has_go_note(headers: UserAddress, count: u64, base: Option<u64>) -> bool {
    let header = |index: u64| user_memory::read::<[u64; 7]>(headers.offset(index * PHENTSIZE)).ok();
    let all = || (0..count).filter_map(header);
    let own = all().find(|header| width::low(header[0]) == PT_PHDR).map(|header| headers.0.wrapping_sub(header[2]));
    let base = base.or(own).unwrap_or(0);
    all().filter(|header| width::low(header[0]) == PT_NOTE).any(|header| is_go(base.wrapping_add(header[2]), header[5]))
}

/// Returns whether the ELF notes in `size` bytes at `start` contain the note that identifies Go
/// programs.
fn is_go(start: u64, size: u64) -> bool {
    let mut at = 0;
    while at + NOTE_HEAD <= size {
        let note = UserAddress(start).offset(at);
        let Ok([name, description, kind, text]) = user_memory::read::<[u32; 4]>(note) else { return false };
        if name == 4 && kind == GO_BUILD_ID && text == GO {
            return true;
        }
        at += NOTE_HEAD + u64::from(name).next_multiple_of(4) + u64::from(description).next_multiple_of(4);
    }
    false
}
