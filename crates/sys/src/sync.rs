//! Atomics and cells, from `core`, or from loom when the models are built. All data that two
//! threads share in this crate and in `ring` goes through this module, so the models check the code
//! that runs.

/// Shared ownership; the models do not check it.
pub use alloc::sync::Arc;
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Passes a full memory barrier: every earlier store is visible to all processors before any later
/// load is done.
#[inline(always)]
pub fn full_barrier() {
    fence(Ordering::SeqCst);
}

/// Pauses one iteration of a loop that waits for another thread.
#[inline(always)]
pub fn relax() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(loom)]
pub(crate) use loom::cell::{MutPtr, UnsafeCell};

/// loom's cell, reduced to the functions used here, at no cost.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T: ?Sized>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn get_mut(&self) -> MutPtr<T> {
        MutPtr(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A pointer into an [`UnsafeCell`]. loom's own type records that the cell is being written for as
/// long as the pointer lives.
#[cfg(not(loom))]
pub(crate) struct MutPtr<T>(*mut T);

#[cfg(not(loom))]
impl<T> MutPtr<T> {
    /// # Safety
    /// No other reference or access to the cell's content may exist while the reference lives.
    #[inline(always)]
    #[expect(
        clippy::mut_from_ref,
        reason = "as UnsafeCell::get, and with loom's signature: the caller promises to be alone"
    )]
    pub(crate) unsafe fn deref(&self) -> &mut T {
        // SAFETY: the caller guarantees exclusive use of the cell.
        unsafe { &mut *self.0 }
    }
}
