//! A reference that is set and read without a lock. A child may be forked while another thread sets
//! or reads the reference. The reference works in this child, too, because no lock stays locked.

use core::sync::atomic::{AtomicPtr, Ordering};

/// A reference that threads read without a lock. It is normally set once. If it is set again, the
/// new value replaces the earlier value, which is never freed.
#[derive(Debug)]
pub struct SetOnce<T: Sync + 'static>(AtomicPtr<T>);

impl<T: Sync + 'static> Default for SetOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Sync + 'static> SetOnce<T> {
    pub const fn new() -> Self {
        SetOnce(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Sets the reference; a later value replaces an earlier one.
    pub fn set(&self, value: &'static T) {
        self.0.store(core::ptr::from_ref(value).cast_mut(), Ordering::Release);
    }

    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or a `&'static T` that `set` stored.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}
