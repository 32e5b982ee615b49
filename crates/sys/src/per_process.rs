//! State of one process that a forked child must not inherit: locks that
//! another thread held, threads that are not there any more.

use crate::SystemCall;
use crate::mapping;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};
use linux_raw_sys::general as linux;

/// A value made on first use and, in a forked child, made anew: the pointer to
/// it lies on a page that the kernel empties at fork (MADV_WIPEONFORK). The
/// parent's value is left as it was and never touched by the child. A vfork
/// child shares its parent's memory and so its parent's value.
pub struct PerProcess<T: Sync + 'static> {
    page: AtomicPtr<AtomicPtr<T>>,
}

impl<T: Sync + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Sync + 'static> PerProcess<T> {
    pub const fn new() -> Self {
        PerProcess { page: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The value, if this process has made it.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        let page = self.page.load(Ordering::Acquire);
        // SAFETY: 1. A non-null `page` is the page that `page()` published and
        // that is never unmapped; its first word is a pointer, zero or stored
        // by `get_or_make`. 2. What is stored there came from `Box::leak`.
        unsafe { page.as_ref()?.load(Ordering::Acquire).as_ref() }
    }

    /// The value, made by `make` if this process has none yet.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let fresh = Box::into_raw(Box::new(make()));
        let slot = self.slot();
        let null = core::ptr::null_mut();
        match slot.compare_exchange(null, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `fresh` came from `Box::into_raw` and is now published
            // for good: nobody frees it.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: 1. `fresh` was not published, so it is ours alone.
                // 2. `other` was published by another thread and lives on.
                unsafe {
                    drop(Box::from_raw(fresh));
                    &*other
                }
            }
        }
    }

    fn slot(&self) -> &'static AtomicPtr<T> {
        let mut page = self.page.load(Ordering::Acquire);
        if page.is_null() {
            let fresh = wiped_page().cast::<AtomicPtr<T>>();
            let null = core::ptr::null_mut();
            page = match self.page.compare_exchange(null, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => fresh,
                Err(other) => {
                    let _ = mapping::unmap(fresh as usize, mapping::PAGE);
                    other
                }
            };
        }
        // SAFETY: the page is mapped, aligned, zeroed at birth, and stays.
        unsafe { &*page }
    }
}

/// A [`PerProcess`] value with an owner: it goes when the owner does, in each
/// process by itself. (A forked child that drops its owner leaves its parent's
/// value alone; what of it lies in the child's memory is never freed.)
#[derive(Default)]
pub struct OwnedPerProcess<T: Sync + 'static>(PerProcess<T>);

impl<T: Sync + 'static> OwnedPerProcess<T> {
    pub const fn new() -> Self {
        OwnedPerProcess(PerProcess::new())
    }

    /// As [`PerProcess::get_or_make`], for as long as the owner is there.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_make(make)
    }
}

impl<T: Sync + 'static> Drop for OwnedPerProcess<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.get() else { return };
        let page = core::mem::replace(self.0.page.get_mut(), core::ptr::null_mut());
        // SAFETY: 1. The value came from `Box::into_raw`, and references to it
        // lived only as long as borrows of the owner, of which there are none
        // now. 2. The page's pointer to it is not used again.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(value).cast_mut()) });
        let _ = mapping::unmap(page as usize, mapping::PAGE);
    }
}

/// A page that is zero again in every forked child.
fn wiped_page() -> *mut u8 {
    let address = mapping::private_pages(mapping::PAGE).expect("a page for per-process state");
    let advice = u64::from(linux::MADV_WIPEONFORK);
    SystemCall::new(linux::__NR_madvise, [address as u64, mapping::PAGE as u64, advice, 0, 0])
        .run()
        .expect("MADV_WIPEONFORK (Linux 4.14)");
    address as *mut u8
}
