//! A reference that is set once and read without a lock, also by a child that
//! was forked while somebody else was setting or reading it.

use core::sync::atomic::{AtomicPtr, Ordering};

/// See the head of this file.
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

    /// Sets it; a later value takes the place of an earlier one.
    pub fn set(&self, value: &'static T) {
        self.0.store(core::ptr::from_ref(value).cast_mut(), Ordering::Release);
    }

    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: only `set` stores here, and what it takes lives for ever and
        // is only ever shared.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}
