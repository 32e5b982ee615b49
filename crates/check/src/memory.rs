//! Memory of requests: checksums, overlaps, and stack frames that have ended.

use crate::format::CopiedStack;
use crate::stack::Registers;
use usring_sys::plain::IoVector;
use usring_sys::process_maps::Maps;
use usring_sys::{SystemCall, UserAddress, thread, user_memory, width};
use usring_uapi::general as linux;

/// Maximum number of bytes of a request's memory that its checksum covers.
const MOST_BYTES: u64 = 256 << 10;
const PIECE: usize = 1024;

/// Returns a checksum over the first bytes of a request's memory. `None`: the memory cannot be
/// read.
pub(crate) fn checksum(members: &[IoVector]) -> Option<u64> {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = PRIME;
    let mut left = MOST_BYTES;
    let mut piece = [0u8; PIECE];
    for member in members {
        let (mut from, mut length) = (member.base, member.length.min(left));
        left -= length;
        while length != 0 {
            let now = width::size(length.min(PIECE as u64));
            user_memory::copy_in(&mut piece[..now], UserAddress(from)).ok()?;
            piece[now..].fill(0);
            for word in piece.as_chunks::<8>().0 {
                sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME).rotate_left(29);
            }
            from += now as u64;
            length -= now as u64;
        }
    }
    Some(sum)
}

/// Returns whether a range of addresses has a byte in common with `member`, a part of a request's
/// memory.
pub(crate) fn overlaps(member: &IoVector, start: u64, length: u64) -> bool {
    member.length != 0
        && member.base < start.saturating_add(length)
        && start < member.base.saturating_add(member.length)
}

/// Bytes below the stack pointer that a function may use (the red zone of the ABI).
const RED_ZONE: u64 = 128;

/// A return address that lies above a buffer in a stack. `value` is the return address, and `at` is
/// the address of the stack word that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReturnSlot {
    at: u64,
    value: u64,
}

impl ReturnSlot {
    /// Finds the first return address above a buffer. This is probably the return address of the
    /// function that has the buffer as a variable. `None`: the copied stack has no return address
    /// above the buffer, or does not contain the buffer.
    pub fn above(buffer: &IoVector, stack: &CopiedStack) -> Option<ReturnSlot> {
        let end = buffer.base.checked_add(buffer.length)?;
        let start = end.checked_sub(stack.registers.stack).filter(|_| buffer.base >= stack.registers.stack)?;
        let words = (usize::try_from(start).ok()?.next_multiple_of(8)..stack.bytes.len()).step_by(8);
        words.map_while(|at| Some((at, stack.bytes.get(at..at + 8)?))).find_map(|(at, bytes)| {
            let value = u64::from_le_bytes(bytes.try_into().ok()?);
            follows_call(value).then_some(ReturnSlot { at: stack.registers.stack + at as u64, value })
        })
    }

    fn has_changed(&self) -> bool {
        user_memory::read::<u64>(UserAddress(self.at)).is_ok_and(|now| now != self.value)
    }
}

/// Returns whether a call instruction ends at an address: `call rel32`, or `call` of a register or
/// of memory.
fn follows_call(address: u64) -> bool {
    /// Length of the longest call instruction, in bytes.
    const MOST_INSTRUCTION_BYTES: usize = 7;
    const LOWEST: u64 = 0x1_0000;
    let mut code = [0u8; MOST_INSTRUCTION_BYTES];
    if !(LOWEST..1 << 47).contains(&address)
        || user_memory::copy_in(&mut code, UserAddress(address - MOST_INSTRUCTION_BYTES as u64)).is_err()
    {
        return false;
    }
    // In the second byte (ModRM) of an indirect call, bits 3 to 5 hold 2, which selects `call`.
    let is_indirect = |length: usize| {
        code[MOST_INSTRUCTION_BYTES - length] == 0xff && code[MOST_INSTRUCTION_BYTES - length + 1] >> 3 & 7 == 2
    };
    code[MOST_INSTRUCTION_BYTES - 5] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(is_indirect)
}

/// Knowledge about the stack frame that a buffer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The frame may exist.
    Exists,
    /// The stack frame that held the buffer has ended: the buffer is below the stack pointer.
    HasEnded,
    /// Another function seems to use the memory of the buffer's stack frame. The launcher compares
    /// the call stacks of the submission and of now, and decides whether the frame has ended.
    HasChanged,
}

/// Returns whether the stack frame that held a buffer at the request's submission still exists.
/// Returns [`Frame::Exists`] unless the buffer and the stack pointer are both in the thread's own
/// stack: this function cannot judge a signal stack or a coroutine's stack.
pub(crate) fn frame_of(buffer: u64, slot: ReturnSlot, now: Registers, is_main: bool) -> Frame {
    let frame = if buffer < now.stack.saturating_sub(RED_ZONE) {
        Frame::HasEnded
    } else if slot.at >= now.stack && slot.has_changed() {
        Frame::HasChanged
    } else {
        return Frame::Exists;
    };
    if is_on_signal_stack() || !is_own_stack(buffer, now, is_main) { Frame::Exists } else { frame }
}

/// Returns whether a buffer and the stack pointer are in the stack that the system or libc has made
/// for the calling thread.
fn is_own_stack(buffer: u64, now: Registers, is_main: bool) -> bool {
    let Some(maps) = Maps::open() else { return false };
    let Some(area) = maps.area_of(width::size(buffer)) else { return false };
    if !area.range.contains(&width::size(now.stack)) {
        return false;
    }
    if is_main {
        return maps.name_of(width::size(buffer)).is_some_and(|name| name == b"[stack]");
    }
    // In a stack that libc has made, the thread's control block lies at the upper end.
    let control_block = thread::current().0;
    area.range.contains(&control_block) && width::size(now.stack) < control_block
}

/// Returns whether the calling thread runs a signal handler on an alternate stack.
fn is_on_signal_stack() -> bool {
    const SS_ONSTACK: u64 = 1;
    // `stack_t`: address, flags, size.
    let mut stack = [0u64; 3];
    let arguments = [0, &raw mut stack as u64, 0, 0, 0];
    SystemCall::new(linux::__NR_sigaltstack, arguments).run_once().is_err() || stack[1] & SS_ONSTACK != 0
}
