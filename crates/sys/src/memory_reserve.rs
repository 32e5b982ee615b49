//! Reports whether the memory reserve is in use.
//!
//! The allocator of a served program keeps a memory reserve. It allocates from it when the kernel
//! refuses more memory (RLIMIT_AS, RLIMIT_DATA), so that work under way can complete. From then on
//! calls that would begin work are refused ([`check`]) until the reserve is full again.
//!
//! Invariants:
//! - An allocator without a reserve never calls [`begin`]; no call is refused then.
//! - A call allocates less than the reserve holds before it checks [`is_low`] again.

use crate::Errno;
use crate::unusual::{self, Unusual};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Fills the reserve, calls [`end`] if that succeeds, and returns whether the reserve is full.
pub type Refill = fn() -> bool;

static REFILL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the function that fills the reserve.
pub fn set_refill(refill: Refill) {
    REFILL.store(refill as *mut (), Ordering::Release);
}

/// Notes that the allocator has begun to use its reserve. The allocator's lock is held.
#[cold]
pub fn begin() {
    unusual::set(Unusual::LowMemory);
}

/// Notes that the reserve is full again. The allocator's lock is held, as for [`begin`].
pub fn end() {
    unusual::clear(Unusual::LowMemory);
}

/// Returns whether the reserve is in use. One load.
#[inline(always)]
pub fn is_low() -> bool {
    unusual::has(Unusual::LowMemory)
}

/// Fills the reserve if it is not full.
///
/// Errors: `ENOMEM` if the kernel has no memory for it.
#[inline]
pub fn check() -> Result<(), Errno> {
    if is_low() { refill() } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn refill() -> Result<(), Errno> {
    let refill = REFILL.load(Ordering::Acquire);
    // SAFETY: only `set_refill` stores here, and it stores a `Refill`.
    let is_full = refill.is_null() || unsafe { core::mem::transmute::<*mut (), Refill>(refill)() };
    if is_full { Ok(()) } else { Err(Errno::ENOMEM) }
}
