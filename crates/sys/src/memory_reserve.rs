//! Records whether the allocator's memory reserve is in use.
//!
//! usring's allocator in a served program keeps a memory reserve. The allocator uses the reserve
//! when the kernel refuses more memory (RLIMIT_AS, RLIMIT_DATA), so that requests under way can
//! complete. From then on [`check`] refuses calls that would begin new work, until the reserve is
//! full again.
//!
//! Invariants:
//! - An allocator without a reserve never calls [`begin`], so no call is refused.
//! - A call allocates less than the reserve holds before it checks [`is_low`] again.

use crate::Errno;
use crate::unusual::{self, Unusual};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function that fills the allocator's memory reserve and calls [`end`] if it succeeds. Returns
/// whether the reserve is full.
pub type Refill = fn() -> bool;

static REFILL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the function that fills the reserve.
pub fn set_refill(refill: Refill) {
    REFILL.store(refill as *mut (), Ordering::Release);
}

/// Notes that the allocator has begun to use its reserve. The caller holds the allocator's lock.
#[cold]
pub fn begin() {
    unusual::set(Unusual::LowMemory);
}

/// Notes that the allocator's memory reserve is full again. The caller holds the allocator's lock.
pub fn end() {
    unusual::clear(Unusual::LowMemory);
}

/// Returns whether the memory reserve is in use, by one load.
#[inline(always)]
pub fn is_low() -> bool {
    unusual::has(Unusual::LowMemory)
}

/// Fills the allocator's memory reserve if it is in use. If that fails, the caller returns the
/// error to a program's call that would begin new work.
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
