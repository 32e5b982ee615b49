//! Atomics and cells, from `core` or, when the models are built, from loom.
//! Everything that two threads touch on this floor and in `ring` goes through
//! here, so that what is modelled is what runs.

/// Shared ownership; not itself an object of the models.
pub use alloc::sync::Arc;
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// A full memory barrier: no load after it is done before a store ahead of it
/// can be seen by every other processor.
#[inline(always)]
pub fn full_barrier() {
    fence(Ordering::SeqCst);
}

/// One turn of a loop that waits for another thread.
#[inline(always)]
pub fn relax() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(loom)]
pub(crate) use loom::cell::{MutPtr, UnsafeCell};

/// loom's cell, reduced to what is used here and to no cost.
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

/// A pointer into an [`UnsafeCell`]; loom's own remembers that the cell is
/// being written for as long as it lives.
#[cfg(not(loom))]
pub(crate) struct MutPtr<T>(*mut T);

#[cfg(not(loom))]
impl<T> MutPtr<T> {
    /// # Safety
    /// Nobody else may use the cell while the reference lives.
    #[inline(always)]
    #[expect(
        clippy::mut_from_ref,
        reason = "as UnsafeCell::get, and with loom's signature: the caller promises to be alone"
    )]
    pub(crate) unsafe fn deref(&self) -> &mut T {
        // SAFETY: as the caller promised.
        unsafe { &mut *self.0 }
    }
}
