//! Memory that has to be kept where it is while the kernel uses it: pages that come
//! and go by our own hand are not brought back by a system call.
//!
//! Where a process has such memory and does not know which calls name it (a program
//! that knows nothing of it), every system call that we make for it goes by here:
//! the [`Keeper`] looks at the call, and keeps what it names until the call is over.
//! One look at a pointer where there is no keeper. What the kernel would use after a call, it
//! is not given at all: who hands it such requests asks [`comes_and_goes`].
//!
//! What moves the pages itself is [`exempt`]: it has them in its hand.

use crate::plain::IoVector;
use crate::{Errno, SystemCall, thread};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Who knows which memory that is.
pub struct Keeper {
    /// Has the memory there that the call names, and the call name it where it is;
    /// answers what [`Keeper::finish`] is given, 0 if that is nothing.
    pub prepare: fn(&mut SystemCall) -> Result<usize, Errno>,
    /// The kernel has answered the call: what its maker gets. `None`: the call, as it
    /// stands now, is to be made, too.
    pub finish: fn(usize, &mut SystemCall, answer: u64) -> Option<u64>,
    /// Where such memory lies.
    pub window: Range<u64>,
}

static KEEPER: AtomicPtr<Keeper> = AtomicPtr::new(core::ptr::null_mut());

/// From now on calls are looked at by `keeper`.
pub fn set_keeper(keeper: &'static Keeper) {
    KEEPER.store(core::ptr::from_ref(keeper).cast_mut(), Ordering::Release);
}

/// In a forked child: the threads that were exempt are the parent's.
pub fn forget_after_fork() {
    for row in EXEMPT.iter().filter(|row| row.load(Ordering::Relaxed) != 0) {
        row.store(0, Ordering::Relaxed);
    }
}

/// In a forked child that has no such memory.
pub fn forget_keeper() {
    KEEPER.store(core::ptr::null_mut(), Ordering::Relaxed);
}

/// Whether there is such memory: then nothing may be handed to the kernel that it
/// uses after the call.
#[inline]
pub fn has_keeper() -> bool {
    !KEEPER.load(Ordering::Acquire).is_null()
}

/// Whether some of this memory may be such.
#[inline]
pub fn comes_and_goes(memory: IoVector) -> bool {
    // SAFETY: only references that live for ever are stored.
    match unsafe { KEEPER.load(Ordering::Acquire).as_ref() } {
        None => false,
        Some(Keeper { window, .. }) => {
            memory.base < window.end && memory.base.saturating_add(memory.length) > window.start
        }
    }
}

/// Makes a call while what it names is kept.
#[inline]
pub(crate) fn during(call: &SystemCall, make: impl Fn(&SystemCall) -> u64) -> u64 {
    // SAFETY: only references that live for ever are stored.
    match unsafe { KEEPER.load(Ordering::Acquire).as_ref() } {
        None => make(call),
        Some(keeper) => during_kept(keeper, call, make),
    }
}

#[inline(never)]
fn during_kept(keeper: &Keeper, call: &SystemCall, make: impl Fn(&SystemCall) -> u64) -> u64 {
    let mut call = *call;
    match (keeper.prepare)(&mut call) {
        Ok(0) => make(&call),
        Ok(kept) => loop {
            let answer = make(&call);
            if let Some(answer) = (keeper.finish)(kept, &mut call, answer) {
                return answer;
            }
        },
        Err(error) => i64::from(error.negative()) as u64,
    }
}

/// Threads that are exempt at the same time; one that finds no row waits.
const ROWS: usize = 256;

/// Thread pointers.
static EXEMPT: [AtomicUsize; ROWS] = [const { AtomicUsize::new(0) }; ROWS];

/// While it lives nothing is kept for this thread.
#[must_use = "the thread is exempt until it is dropped"]
#[derive(Debug)]
pub struct Exempt(usize);

/// For who moves the pages.
pub fn exempt() -> Exempt {
    let thread = thread::current().0;
    let start = row_of(thread);
    for step in 0.. {
        let row = (start + step) % ROWS;
        if EXEMPT[row].compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Exempt(row);
        }
    }
    unreachable!("rows are looked at until one is free")
}

impl Drop for Exempt {
    fn drop(&mut self) {
        EXEMPT[self.0].store(0, Ordering::Relaxed);
    }
}

/// Whether the calling thread is.
pub fn is_exempt() -> bool {
    let thread = thread::current().0;
    EXEMPT.iter().any(|row| row.load(Ordering::Relaxed) == thread)
}

fn row_of(thread: usize) -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    ((thread as u64).wrapping_mul(GOLDEN) >> (64 - ROWS.trailing_zeros())) as usize
}
