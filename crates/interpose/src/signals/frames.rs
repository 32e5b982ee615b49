//! Signal frames that are kept while their signal is put off.
//!
//! A frame is what the kernel lays on the stack for a handler: a return
//! address, the ucontext_t, the siginfo_t, and above them the state of the
//! floating-point and vector registers. It is copied away when the signal
//! arrives and put back, perhaps elsewhere, when it may be delivered, so the
//! handler sees what the kernel meant it to see, and rt_sigreturn(2) takes it
//! for its own. Of the state of the registers only the upper parts of the
//! vectors matter by then, which nothing of ours has changed; the lower parts
//! are the engine's and are set by the door afterwards.

use crate::signals::{CONTEXT_SIZE, CONTEXT_STACK_POINTER};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Frames kept at the same time, one per thread that has a signal put off.
const PLACES: usize = 64;
/// Room for the largest frame that x86-64 processors have (with AMX 11 KiB).
const SIZE: usize = 16 * 1024;

// Offsets in a ucontext_t.
const CONTEXT_ALTERNATE_STACK: usize = 16;
const CONTEXT_STATE: usize = 224;
/// Offsets in the state of the registers, and what stands there if it goes
/// beyond the 512 bytes of old.
const STATE_MAGIC: usize = 464;
const STATE_SIZE: usize = 468;
const MAGIC: u32 = 0x4650_5853;
const OLD_STATE: usize = 512;

/// A signal frame without the state: return address, ucontext_t, siginfo_t.
const HEAD: usize = 8 + CONTEXT_SIZE + 128;

struct Place {
    used: AtomicU32,
    /// Where the frame was, and how long it is.
    origin: AtomicUsize,
    length: AtomicUsize,
    bytes: UnsafeCell<[u8; SIZE]>,
}

// SAFETY: the bytes are touched by whoever has set `used`.
unsafe impl Sync for Place {}

static TABLE: [Place; PLACES] = [const {
    Place {
        used: AtomicU32::new(0),
        origin: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        bytes: UnsafeCell::new([0; SIZE]),
    }
}; PLACES];

fn place_of(note: u32) -> Option<&'static Place> {
    TABLE.get((note as usize).wrapping_sub(1))
}

/// Copies a frame away; answers the note by which it is found again, never 0.
/// `None` if there is no room.
///
/// # Safety
/// `frame` is a signal frame of the kernel's on this thread's stack.
pub unsafe fn keep(frame: *const u8) -> Option<u32> {
    // SAFETY: as the caller says.
    let length = unsafe { length_of(frame) };
    if length > SIZE {
        return None;
    }
    // Acquire and release: whoever had the place before is done with it.
    let free = |place: &Place| place.used.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let index = TABLE.iter().position(free)?;
    let place = &TABLE[index];
    place.origin.store(frame as usize, Ordering::Relaxed);
    place.length.store(length, Ordering::Relaxed);
    // SAFETY: the place is ours now, and the frame has this length.
    unsafe { place.bytes.get().cast::<u8>().copy_from_nonoverlapping(frame, length) };
    Some(index as u32 + 1)
}

/// # Safety
/// As for [`keep`].
unsafe fn length_of(frame: *const u8) -> usize {
    // SAFETY: the layout of the kernel's frames; the state, if there is one,
    // lies above the head and says how long it is.
    unsafe {
        let state = *frame.add(8 + CONTEXT_STATE).cast::<*const u8>();
        if state.is_null() {
            return HEAD;
        }
        let is_extended = *state.add(STATE_MAGIC).cast::<u32>() == MAGIC;
        let size = if is_extended { *state.add(STATE_SIZE).cast::<u32>() as usize } else { OLD_STATE };
        state as usize + size - frame as usize
    }
}

/// Frees a place without having used it.
pub fn give_back(note: u32) {
    if let Some(place) = place_of(note) {
        place.used.store(0, Ordering::Release);
    }
}

/// In a forked child: what was kept for other threads of the parent is free.
/// (A thread that forks has none: one that finds a signal put off lets it in before, see `forked`.)
pub fn forget_after_fork() {
    // Only read where nothing is to be changed: the child shares these pages.
    for place in TABLE.iter().filter(|place| place.used.load(Ordering::Relaxed) != 0) {
        place.used.store(0, Ordering::Relaxed);
    }
}

/// How much stack putting it back may need.
pub fn room_for(note: u32) -> u64 {
    // The state has to lie as it lay relative to 64-byte lines.
    place_of(note).map_or(0, |place| place.length.load(Ordering::Relaxed) as u64 + 64)
}

/// Puts a frame back, into `room` or where it was, and answers its address.
///
/// # Safety
/// `room` is aligned to 64 bytes and as large as [`room_for`] asked; the stack
/// pointer is at it or below.
pub unsafe fn place(note: u32, room: *mut u8) -> *mut u8 {
    let place = place_of(note).expect("a frame that was kept");
    let (origin, length) = (place.origin.load(Ordering::Relaxed), place.length.load(Ordering::Relaxed));
    let kept = place.bytes.get().cast::<u8>();
    // SAFETY: 1. The kept bytes are a frame. 2. The target is `room`, or the
    // alternate stack that the kernel had chosen and that this thread does not
    // stand on, so nothing of it is in use.
    unsafe {
        let frame =
            if is_on_other_stack(kept, origin, room as usize) { origin as *mut u8 } else { room.add(origin % 64) };
        frame.copy_from_nonoverlapping(kept, length);
        let state = frame.add(8 + CONTEXT_STATE).cast::<usize>();
        if *state != 0 {
            *state = *state - origin + frame as usize;
        }
        give_back(note);
        frame
    }
}

/// Whether the frame was on the alternate stack while the thread was not, and
/// still is not.
///
/// # Safety
/// `kept` is a frame.
unsafe fn is_on_other_stack(kept: *const u8, origin: usize, now: usize) -> bool {
    // SAFETY: the ucontext_t tells the alternate stack: start, flags, size.
    let (start, size, interrupted) = unsafe {
        let context = kept.add(8);
        (
            *context.add(CONTEXT_ALTERNATE_STACK).cast::<usize>(),
            *context.add(CONTEXT_ALTERNATE_STACK + 16).cast::<usize>(),
            *context.add(CONTEXT_STACK_POINTER).cast::<usize>(),
        )
    };
    let within = |address: usize| address.wrapping_sub(start) < size;
    within(origin) && !within(interrupted) && !within(now)
}
