//! Holds state of one process that a forked child must not inherit. Examples are the state of a
//! lock that another thread held at the fork, and records of threads that do not exist in the
//! child.

use crate::mapping;
use crate::{Errno, SystemCall};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// A value that each process makes on first use, for itself. The pointer to the value lies on a
/// page that is zero in a forked child (MADV_WIPEONFORK). So the child never touches the parent's
/// value. A vfork child shares its parent's memory, and therefore its parent's value.
pub struct PerProcess<T: Sync + 'static> {
    /// Address of the word that points to the value. The word lies on a page that is zero in a
    /// forked child. Null before the first use.
    word: AtomicPtr<AtomicPtr<T>>,
}

/// The page with the words of all `PerProcess` values, zero in a forked child. Null until [`page`]
/// maps it.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Bitmap of the words of [`PAGE`] that are in use.
static TAKEN: [AtomicU64; WORDS / 64] = [const { AtomicU64::new(0) }; WORDS / 64];
const WORDS: usize = mapping::PAGE / size_of::<usize>();

/// Maps the page on which the pointers to `PerProcess` values lie. Must be called before the first
/// such value is made, which would panic if the page cannot be mapped.
///
/// Errors: `ENOMEM` if there is no memory, or no MADV_WIPEONFORK (Linux before 4.14, some
/// sandboxes).
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

/// Allocates a word that is zero now, and zero in every forked child.
fn take_word() -> *mut usize {
    let page = page().expect("a page that is zero in forked children: prepare() was not called").cast::<usize>();
    for (index, bits) in TAKEN.iter().enumerate() {
        let take = |bits: u64| (bits != u64::MAX).then(|| bits | (bits + 1));
        if let Ok(before) = bits.fetch_update(Ordering::Acquire, Ordering::Relaxed, take) {
            return page.wrapping_add(64 * index + before.trailing_ones() as usize);
        }
    }
    // `PAGE` is full, so this word gets a page of its own.
    wiped_page().expect("a page that is zero in forked children").cast()
}

/// Frees a word that [`take_word`] has allocated. The word must be zero and no longer referenced.
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

    /// Returns this process's value, if the process has made it.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        let word = self.word.load(Ordering::Acquire);
        // SAFETY: 1. A non-null `word` lies on a page that stays mapped for as long as the word
        // belongs to this value. 2. Only this value uses the word, which is zero or a pointer
        // stored by `get_or_make`. 3. The stored pointer came from `Box::into_raw`, and is freed
        // only by the drop of an `OwnedPerProcess`.
        unsafe { word.as_ref()?.load(Ordering::Acquire).as_ref() }
    }

    /// Returns this process's value. If the process has none yet, `make` makes it.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let fresh = Box::into_raw(Box::new(make()));
        let slot = self.slot();
        let null = core::ptr::null_mut();
        match slot.compare_exchange(null, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `fresh` came from `Box::into_raw` and is now published for good; no code
            // frees it.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: 1. `fresh` came from `Box::into_raw` and was not published, so only this
                // function has it. 2. `other` was published by another thread, and no code frees it
                // while `self` is borrowed.
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
        // SAFETY: 1. The word lies on a page that is mapped for as long as the word belongs to this
        // value. 2. The word is aligned, was zero when it was allocated, and belongs to no other
        // value.
        unsafe { &*word }
    }
}

/// Owner of a [`PerProcess`] value. When a process drops the owner, this frees the value of that
/// process. A forked child never frees its copy of its parent's value.
#[derive(Default)]
pub struct OwnedPerProcess<T: Sync + 'static>(PerProcess<T>);

impl<T: Sync + 'static> OwnedPerProcess<T> {
    pub const fn new() -> Self {
        OwnedPerProcess(PerProcess::new())
    }

    /// Returns the value, which lives as long as `self`. If this process has none yet, `make` makes
    /// it.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_make(make)
    }
}

impl<T: Sync + 'static> Drop for OwnedPerProcess<T> {
    fn drop(&mut self) {
        let word = core::mem::replace(self.0.word.get_mut(), core::ptr::null_mut());
        // SAFETY: a non-null `word` lies on a page that stays mapped until `give_back` frees the
        // word, below.
        let Some(word) = (unsafe { word.as_ref() }) else { return };
        let value = word.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !value.is_null() {
            // SAFETY: 1. The value came from `Box::into_raw`. 2. References to it lived only as
            // long as borrows of the owner, and none is left. 3. The word no longer points to it.
            drop(unsafe { Box::from_raw(value) });
        }
        give_back(core::ptr::from_ref(word).cast_mut().cast());
    }
}

fn wiped_page() -> Result<*mut u8, Errno> {
    wiped_pages(mapping::PAGE).map(|address| address as *mut u8)
}

/// Maps pages for `length` bytes: zero now, and zero in every forked child.
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
