//! State of one process that a forked child must not inherit: locks that
//! another thread held, threads that are not there any more.

use crate::mapping;
use crate::{Errno, SystemCall};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// A value made on first use and, in a forked child, made anew: the pointer to
/// it lies on a page that the kernel empties at fork (MADV_WIPEONFORK). The
/// parent's value is left as it was and never touched by the child. A vfork
/// child shares its parent's memory and so its parent's value.
pub struct PerProcess<T: Sync + 'static> {
    /// Its word on the page, once it has one.
    word: AtomicPtr<AtomicPtr<T>>,
}

/// The page of all such values of the process.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Which of its words are taken, a bit each.
static TAKEN: [AtomicU64; WORDS / 64] = [const { AtomicU64::new(0) }; WORDS / 64];
const WORDS: usize = mapping::PAGE / size_of::<usize>();

/// Makes the page. Whoever serves programs does this before anything else:
/// without the page no value can be made, and from then on any can.
///
/// Errors: `ENOMEM` where there is no memory, or no MADV_WIPEONFORK (Linux
/// before 4.14, some sandboxes).
pub fn prepare() -> Result<(), Errno> {
    page().map(drop)
}

fn page() -> Result<*mut u8, Errno> {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        return Ok(page);
    }
    let fresh = wiped_page()?;
    match PAGE.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fresh),
        Err(other) => {
            let _ = mapping::unmap(fresh as usize, mapping::PAGE);
            Ok(other)
        }
    }
}

/// A word that is zero, and zero again in every forked child.
fn take_word() -> *mut usize {
    let page = page().expect("a page that is emptied at fork: prepare() was not asked").cast::<usize>();
    for (index, bits) in TAKEN.iter().enumerate() {
        let take = |bits: u64| (bits != u64::MAX).then(|| bits | (bits + 1));
        if let Ok(before) = bits.fetch_update(Ordering::Acquire, Ordering::Relaxed, take) {
            return page.wrapping_add(64 * index + before.trailing_ones() as usize);
        }
    }
    // The page is full: a page of its own.
    wiped_page().expect("a page that is emptied at fork").cast()
}

/// Takes back a word that is zero and that nobody knows any more.
fn give_back(word: *mut usize) {
    let offset = (word as usize).wrapping_sub(PAGE.load(Ordering::Acquire) as usize);
    if offset >= mapping::PAGE {
        let _ = mapping::unmap(word as usize, mapping::PAGE);
        return;
    }
    let index = offset / size_of::<usize>();
    TAKEN[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
}

impl<T: Sync + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Sync + 'static> PerProcess<T> {
    pub const fn new() -> Self {
        PerProcess { word: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The value, if this process has made it.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        let word = self.word.load(Ordering::Acquire);
        // SAFETY: 1. A non-null `word` lies on a page that stays mapped for as
        // long as it is this value's, and is this value's alone: zero, or a
        // pointer stored by `get_or_make`. 2. What is stored there came from
        // `Box::into_raw`, and is freed only with its owner.
        unsafe { word.as_ref()?.load(Ordering::Acquire).as_ref() }
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
        let mut word = self.word.load(Ordering::Acquire);
        if word.is_null() {
            let fresh = take_word().cast::<AtomicPtr<T>>();
            let null = core::ptr::null_mut();
            word = match self.word.compare_exchange(null, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => fresh,
                Err(other) => {
                    give_back(fresh.cast());
                    other
                }
            };
        }
        // SAFETY: the word lies on a page that is mapped for as long as the word
        // is this value's; it is aligned, was zero when it was taken, and is no
        // other value's.
        unsafe { &*word }
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
        let word = core::mem::replace(self.0.word.get_mut(), core::ptr::null_mut());
        // SAFETY: as in `get`; in a child the word is zero, not the value's.
        let Some(word) = (unsafe { word.as_ref() }) else { return };
        let value = word.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !value.is_null() {
            // SAFETY: 1. The value came from `Box::into_raw`, and references to
            // it lived only as long as borrows of the owner, of which there are
            // none now. 2. The word's pointer to it is gone.
            drop(unsafe { Box::from_raw(value) });
        }
        give_back(core::ptr::from_ref(word).cast_mut().cast());
    }
}

fn wiped_page() -> Result<*mut u8, Errno> {
    wiped_pages(mapping::PAGE).map(|address| address as *mut u8)
}

/// Pages for so many bytes, zero, and zero again in every forked child.
pub(crate) fn wiped_pages(length: usize) -> Result<usize, Errno> {
    let address = mapping::private_pages(length)?;
    let length = length.next_multiple_of(mapping::PAGE);
    let advice = u64::from(linux::MADV_WIPEONFORK);
    let wiped = SystemCall::new(linux::__NR_madvise, [address as u64, length as u64, advice, 0, 0]).run();
    if wiped.is_err() {
        let _ = mapping::unmap(address, length);
        return Err(Errno::ENOMEM);
    }
    Ok(address)
}
