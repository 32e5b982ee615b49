//! Pins swapped memory while a system call uses it. Swapped memory is memory of the program whose
//! pages usring itself evicts. A page fault inside the kernel does not bring such a page back.
//!
//! A program does not know that its memory is swapped, so it names this memory in any request.
//! Therefore every system call that usring makes passes through this file. In a process with
//! swapped memory, the pin hook ([`PinHook`]) examines the call. Until the call returns, the hook
//! pins the memory that the call names. If no pin hook is set, each call only loads a pointer more.
//!
//! The kernel must not get swapped memory in a request that it finishes after the call has returned
//! (asynchronous I/O). Code that makes such requests first checks [`is_evictable`].
//!
//! Some threads of usring read and write swapped pages themselves. Their system calls pin nothing
//! ([`exempt`]).

use crate::plain::IoVector;
use crate::{Errno, SystemCall, spread, thread};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Functions of the swap code that pin swapped memory during a system call.
pub struct PinHook {
    /// Called before each system call of usring. Pins the memory that the call names, and changes
    /// the call if necessary. Returns a token for [`PinHook::finish`], or 0 if `finish` has nothing
    /// to do and is not called.
    pub prepare: fn(&mut SystemCall) -> Result<usize, Errno>,
    /// Called after the system call, with the token of [`PinHook::prepare`] and the kernel's
    /// answer. Returns the answer for the caller. `None` if the hook has changed the call: the
    /// caller then makes the call again.
    pub finish: fn(usize, &mut SystemCall, answer: u64) -> Option<u64>,
    /// The addresses that swapped memory may have.
    pub window: Range<u64>,
}

static PIN_HOOK: AtomicPtr<PinHook> = AtomicPtr::new(core::ptr::null_mut());

/// Makes `hook` examine all system calls of usring from now on.
pub fn set_pin_hook(hook: &'static PinHook) {
    PIN_HOOK.store(core::ptr::from_ref(hook).cast_mut(), Ordering::Release);
}

/// Ends all exemptions ([`exempt`]) in a forked child: they belong to threads of the parent.
pub fn forget_after_fork() {
    for row in EXEMPT.iter().filter(|row| row.load(Ordering::Relaxed) != 0) {
        row.store(0, Ordering::Relaxed);
    }
}

/// Removes the pin hook, in a forked child that has no swapped memory.
pub fn forget_pin_hook() {
    PIN_HOOK.store(core::ptr::null_mut(), Ordering::Relaxed);
}

/// Returns whether the process has swapped memory. If so, code that makes asynchronous requests has
/// to check [`is_evictable`] first.
#[inline]
pub fn has_pin_hook() -> bool {
    !PIN_HOOK.load(Ordering::Acquire).is_null()
}

/// Returns whether a part of `memory` may be swapped memory, which can be evicted at any time.
#[inline]
pub fn is_evictable(memory: IoVector) -> bool {
    // SAFETY: the pointer is null or a `&'static PinHook`.
    match unsafe { PIN_HOOK.load(Ordering::Acquire).as_ref() } {
        None => false,
        Some(PinHook { window, .. }) => {
            memory.base < window.end && memory.base.saturating_add(memory.length) > window.start
        }
    }
}

/// Makes a system call by `make`, while the memory that the call names is pinned.
#[inline]
pub(crate) fn call_pinned(call: &SystemCall, make: impl Fn(&SystemCall) -> u64) -> u64 {
    // SAFETY: the pointer is null or a `&'static PinHook`.
    match unsafe { PIN_HOOK.load(Ordering::Acquire).as_ref() } {
        None => make(call),
        Some(hook) => with_hook(hook, call, make),
    }
}

#[inline(never)]
fn with_hook(hook: &PinHook, call: &SystemCall, make: impl Fn(&SystemCall) -> u64) -> u64 {
    let mut call = *call;
    match (hook.prepare)(&mut call) {
        Ok(0) => make(&call),
        Ok(token) => loop {
            let answer = make(&call);
            if let Some(answer) = (hook.finish)(token, &mut call, answer) {
                return answer;
            }
        },
        Err(error) => i64::from(error.negative()).cast_unsigned(),
    }
}

/// Maximum number of threads that are exempt together: their system calls pin nothing ([`exempt`]).
/// Any further thread waits for a free row of [`EXEMPT`].
const ROWS: usize = 256;

/// Thread pointers of the threads whose system calls pin nothing; 0 in a free row.
static EXEMPT: [AtomicUsize; ROWS] = [const { AtomicUsize::new(0) }; ROWS];

/// While this value lives, the system calls of the thread that made it pin nothing.
#[must_use = "the thread is exempt until it is dropped"]
#[derive(Debug)]
pub struct Exempt(usize);

/// Exempts the calling thread, which reads and writes swapped pages itself: its system calls pin
/// nothing.
pub fn exempt() -> Exempt {
    let thread = thread::current().0;
    let start = row_of(thread);
    for step in 0.. {
        let row = (start + step) % ROWS;
        if EXEMPT[row].compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Exempt(row);
        }
    }
    unreachable!("the search ends only at a free row")
}

impl Drop for Exempt {
    fn drop(&mut self) {
        EXEMPT[self.0].store(0, Ordering::Relaxed);
    }
}

/// Returns whether the calling thread is [`exempt`].
pub fn is_exempt() -> bool {
    let thread = thread::current().0;
    EXEMPT.iter().any(|row| row.load(Ordering::Relaxed) == thread)
}

fn row_of(thread: usize) -> usize {
    spread::row(thread, ROWS)
}
