//! Atomics and cells: those of `core`, or those of loom when the models are built. A protocol that
//! has a model uses no others, so the model checks the code that runs.

/// The real `Arc`: loom models do not check reference counts.
pub use alloc::sync::Arc;
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Executes a full memory barrier: every earlier store is visible to all processors before any
/// later load is executed.
#[inline(always)]
pub fn full_barrier() {
    fence(Ordering::SeqCst);
}

/// Pauses for a moment, in a loop that waits for another thread.
#[inline(always)]
pub fn relax() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(loom)]
pub(crate) use loom::cell::{MutPtr, UnsafeCell};

/// A cell with the functions of loom's `UnsafeCell` that are used here. It costs nothing.
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

/// A pointer into an [`UnsafeCell`]. In a model, loom's own type takes its place. It records that
/// the cell is being written while the pointer lives.
#[cfg(not(loom))]
pub(crate) struct MutPtr<T>(*mut T);

#[cfg(not(loom))]
impl<T> MutPtr<T> {
    /// # Safety
    /// While the returned reference lives, no other code may access the cell's content.
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
