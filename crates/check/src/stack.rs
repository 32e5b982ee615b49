//! Copies of a thread's stack. The launcher finds the callers in a copy, by the unwind information
//! of the program's files. So no code of the program's process has to read that information.

use crate::format::CopiedStack;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::process_maps::Maps;
use usring_sys::{UserAddress, user_memory, valgrind, width};

/// The registers of a thread of the program when it makes a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Registers {
    /// The address to which the call returns.
    pub instruction: u64,
    /// The stack pointer after that return.
    pub stack: u64,
    /// The register rbp.
    pub frame: u64,
}

/// A copied stack. Requests that one call submits share it.
pub(crate) struct Stack(pub CopiedStack);

/// Maximum number of bytes of a stack that are copied.
pub(crate) const MOST_BYTES: usize = 8192;
/// Bytes of a stack that are copied at a time. A copy ends at the end of the stack's mapping.
const PIECE: usize = 1024;
/// Maximum number of copied stacks of a process at one time. For a further stack only the registers
/// are kept.
const MOST_COPIES: usize = 1024;

static COPIES: AtomicUsize = AtomicUsize::new(0);

impl Stack {
    pub fn copy(registers: Registers) -> Arc<Stack> {
        let mut bytes = Vec::new();
        if COPIES.fetch_add(1, Ordering::Relaxed) < MOST_COPIES {
            let mut piece = [0; PIECE];
            let end = end_of_stack(registers.stack);
            while bytes.len() < MOST_BYTES && registers.stack + (bytes.len() as u64) < end {
                let from = registers.stack + bytes.len() as u64;
                // Each piece ends at a multiple of its length, so that no piece crosses a page
                // boundary.
                let length = PIECE - width::size(from) % PIECE;
                if user_memory::copy_in(&mut piece[..length], UserAddress(from)).is_err()
                    || user_memory::append(&mut bytes, &piece[..length]).is_err()
                {
                    break;
                }
            }
        }
        Arc::new(Stack(CopiedStack { registers, bytes }))
    }
}

/// Returns the address at which the copy of a stack has to end. Normally a copy ends at the first
/// address that cannot be read. But Valgrind may fail to deliver the signal of such an access.
fn end_of_stack(pointer: u64) -> u64 {
    if !valgrind::is_there() {
        return u64::MAX;
    }
    Maps::open().and_then(|maps| maps.area_of(width::size(pointer))).map_or(0, |area| area.range.end as u64)
}

impl Drop for Stack {
    fn drop(&mut self) {
        COPIES.fetch_sub(1, Ordering::Relaxed);
    }
}
