//! Records whether the allocator's memory reserve is in use.
//!
//! In a served program, usring's allocator keeps a memory reserve. When the kernel refuses more
//! memory (RLIMIT_AS, RLIMIT_DATA), the allocator uses the reserve, so that requests under way can
//! complete. From then on [`check`] refuses calls that would begin new work, until the reserve is
//! full again.
//!
//! Invariants:
//! - An allocator without a reserve never calls [`begin`], so no call is refused.
//! - Between two checks of [`is_low`], a call allocates less than the reserve holds.

use crate::Errno;
use crate::unusual::{self, Unusual};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function that fills the allocator's memory reserve, and calls [`end`] if the reserve is full
/// then. Returns whether the reserve is full.
pub type Refill = fn() -> bool;

static REFILL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the function that fills the reserve.
pub fn set_refill(refill: Refill) {
    REFILL.store(refill as *mut (), Ordering::Release);
}

/// Records that the allocator has begun to use its reserve. The caller holds the allocator's lock.
#[cold]
pub fn begin() {
    unusual::set(Unusual::LowMemory);
}

/// Records that the allocator's memory reserve is full again. The caller holds the allocator's
/// lock.
pub fn end() {
    unusual::clear(Unusual::LowMemory);
}

/// Returns whether the memory reserve is in use, by one load.
#[inline(always)]
pub fn is_low() -> bool {
    unusual::has(Unusual::LowMemory)
}

/// Fills the allocator's memory reserve if it is in use. Called for a program's call that would
/// begin new work. If the reserve cannot be filled, that call returns the error.
///
/// Errors: `ENOMEM` if the kernel refuses the memory.
#[inline]
pub fn check() -> Result<(), Errno> {
    if is_low() { refill() } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn refill() -> Result<(), Errno> {
    let refill = REFILL.load(Ordering::Acquire);
    // SAFETY: only `set_refill` stores to `REFILL`, and it stores a `Refill`.
    let is_full = refill.is_null() || unsafe { core::mem::transmute::<*mut (), Refill>(refill)() };
    if is_full { Ok(()) } else { Err(Errno::ENOMEM) }
}
