//! Saves signal frames while their signals are deferred.
//!
//! For a handler, the kernel puts a frame on the stack: a return address, the ucontext_t, the
//! siginfo_t, and above them the state of the floating-point and vector registers. The library
//! copies the frame away when the signal arrives. When the signal may be delivered, the library
//! puts the frame back, perhaps at another address. So the handler sees all that the kernel
//! provided, and rt_sigreturn(2) accepts the frame.
//!
//! When the signal is delivered, the general registers and the low 16 bytes of the vector registers
//! in the frame are of no use. They are the engine's, and the entry point restores the program's
//! afterwards. Only the upper parts of the vector registers still matter: they are the program's,
//! because no code of usring changes them.

use crate::signals::context;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum number of frames that are saved at one time. A thread with a deferred signal has one
/// saved frame.
const MOST_FRAMES: usize = 64;
/// Bytes that a slot has for a frame. The largest frame on x86-64 processors has 11 KiB (with AMX).
const SIZE: usize = 16 * 1024;

/// Offset, in a frame's register state, of the number that shows the state's format. It is
/// [`MAGIC`] if the state is longer than the legacy 512 bytes.
const STATE_MAGIC: usize = 464;
/// Offset, in a frame's register state, of the number that contains the state's length in bytes.
const STATE_SIZE: usize = 468;
const MAGIC: u32 = 0x4650_5853;
const OLD_STATE: usize = 512;

/// Bytes of a signal frame without the register state: return address, ucontext_t, siginfo_t.
const HEAD: usize = 8 + context::SIZE + 128;

struct SavedFrame {
    /// Address at which the kernel had put the frame.
    origin: AtomicUsize,
    length: AtomicUsize,
    bytes: UnsafeCell<[u8; SIZE]>,
}

// SAFETY: only the thread that has set the slot's bit of `USED` accesses the bytes.
unsafe impl Sync for SavedFrame {}

/// The slots in use, as a bitmap. A bit in each slot would also do, but a forked child frees all
/// slots, and with the bitmap it touches only one page.
static USED: AtomicU64 = AtomicU64::new(0);
const _: () = assert!(MOST_FRAMES == u64::BITS as usize);

static TABLE: [SavedFrame; MOST_FRAMES] = [const {
    SavedFrame { origin: AtomicUsize::new(0), length: AtomicUsize::new(0), bytes: UnsafeCell::new([0; SIZE]) }
}; MOST_FRAMES];

fn slot(number: u32) -> Option<&'static SavedFrame> {
    TABLE.get((number as usize).wrapping_sub(1))
}

/// Copies a frame into a free slot. Returns the slot's number, which is never 0. `None` if no slot
/// is free, or the frame is larger than a slot.
///
/// # Safety
/// `frame` must be a signal frame of the kernel's on this thread's stack.
pub unsafe fn save(frame: *const u8) -> Option<u32> {
    // SAFETY: the caller guarantees a signal frame.
    let length = unsafe { length_of(frame) };
    if length > SIZE {
        return None;
    }
    // This load of `USED` pairs with the releasing change in `give_back`. Before that change, the
    // slot's last user has finished with the slot's bytes.
    let take = |used: u64| (used != u64::MAX).then(|| used | (used + 1));
    let number = USED.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok()?.trailing_ones() + 1;
    let place = slot(number)?;
    place.origin.store(frame as usize, Ordering::Relaxed);
    place.length.store(length, Ordering::Relaxed);
    // SAFETY: this thread owns the slot. The frame has this length, which fits into the slot.
    unsafe { place.bytes.get().cast::<u8>().copy_from_nonoverlapping(frame, length) };
    Some(number)
}

/// Returns the length of a frame.
///
/// # Safety
/// `frame` must be a signal frame of the kernel's.
unsafe fn length_of(frame: *const u8) -> usize {
    // SAFETY: the offsets are those of the kernel's signal frames. The register state, if there is
    // one, lies above the head and contains its own length.
    unsafe {
        let state = *frame.add(8 + context::REGISTER_STATE).cast::<*const u8>();
        if state.is_null() {
            return HEAD;
        }
        let is_extended = *state.add(STATE_MAGIC).cast::<u32>() == MAGIC;
        let size = if is_extended { *state.add(STATE_SIZE).cast::<u32>() as usize } else { OLD_STATE };
        state as usize + size - frame as usize
    }
}

/// Frees the slot with this number ([`save`]).
pub fn give_back(saved_frame: u32) {
    if slot(saved_frame).is_some() {
        USED.fetch_and(!(1 << (saved_frame - 1)), Ordering::Release);
    }
}

/// Frees all slots in a forked child: the child does not have the threads of its parent that used
/// them. (The forking thread uses none: `swap::fork` delivers a deferred signal before the fork.)
pub fn forget_after_fork() {
    USED.store(0, Ordering::Relaxed);
}

/// Returns the maximum number of bytes of stack that [`place`] needs to put a frame back.
pub fn room_for(saved_frame: u32) -> u64 {
    // The frame's copy may begin up to 63 bytes above `room`, because its register state must keep
    // its alignment.
    slot(saved_frame).map_or(0, |place| place.length.load(Ordering::Relaxed) as u64 + 64)
}

/// Puts a saved frame back, in `room` or at its original address. Returns the frame's address.
///
/// # Safety
/// `room` must be aligned to 64 bytes, and at least as long as [`room_for`] returned. The stack
/// pointer must not be above `room`.
pub unsafe fn place(saved_frame: u32, room: *mut u8) -> *mut u8 {
    let place = slot(saved_frame).expect("the number of a saved frame");
    let (origin, length) = (place.origin.load(Ordering::Relaxed), place.length.load(Ordering::Relaxed));
    let saved = place.bytes.get().cast::<u8>();
    // SAFETY: 1. The saved bytes are a whole frame. 2. The target is `room`, or the alternate stack
    // that the kernel had chosen. This thread does not run on the alternate stack, so no byte of
    // that stack is in use.
    unsafe {
        let frame =
            if is_on_other_stack(saved, origin, room as usize) { origin as *mut u8 } else { room.add(origin % 64) };
        frame.copy_from_nonoverlapping(saved, length);
        let state = frame.add(8 + context::REGISTER_STATE).cast::<usize>();
        if *state != 0 {
            *state = *state - origin + frame as usize;
        }
        give_back(saved_frame);
        frame
    }
}

/// Returns whether the saved frame may be put back on the alternate stack. It must have been there,
/// and that stack must be unused now: neither the interrupted code nor the present code runs on it.
unsafe fn is_on_other_stack(saved: *const u8, origin: usize, now: usize) -> bool {
    // SAFETY: the caller guarantees a frame. Its ucontext_t describes the alternate stack by start,
    // flags and size.
    let (start, size, interrupted) = unsafe {
        let saved = saved.add(8);
        (
            *saved.add(context::ALTERNATE_STACK).cast::<usize>(),
            *saved.add(context::ALTERNATE_STACK + 16).cast::<usize>(),
            *saved.add(context::STACK_POINTER).cast::<usize>(),
        )
    };
    let within = |address: usize| address.wrapping_sub(start) < size;
    within(origin) && !within(interrupted) && !within(now)
}
