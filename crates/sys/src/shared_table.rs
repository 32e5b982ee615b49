//! A table of shared things that is looked into without a lock: each has a place,
//! and who uses one says so by a hazard pointer ([`crate::hazard`]). It grows, and
//! never moves.
//!
//! Who takes a thing out goes on using it by a share of its own; the table's share
//! goes when the last user has left.

use crate::Errno;
use crate::hazard::{self, Use};
use crate::mutex::Mutex;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Places of the first segment; each of the next has twice as many.
const FIRST: usize = 64;
/// Enough for every `u32`.
const SEGMENTS: usize = 27;

/// Each place is 0 or an `Arc<T>` given up by `into_raw`.
pub struct SharedTable<T: Send + Sync> {
    segments: [AtomicPtr<AtomicUsize>; SEGMENTS],
    /// Held by who takes something out, and by who looks and has no hazard pointer.
    removing: Mutex<()>,
    things: PhantomData<Arc<T>>,
}

impl<T: Send + Sync> Default for SharedTable<T> {
    fn default() -> Self {
        SharedTable {
            segments: [const { AtomicPtr::new(null_mut()) }; SEGMENTS],
            removing: Mutex::new(()),
            things: PhantomData,
        }
    }
}

/// A thing in use: it lives at least as long as this does.
pub struct Using<T> {
    thing: ManuallyDrop<Arc<T>>,
    /// What keeps the table's share alive; without it the share is this one's own.
    held: Option<Use>,
}

impl<T> Deref for Using<T> {
    type Target = Arc<T>;

    #[inline(always)]
    fn deref(&self) -> &Arc<T> {
        &self.thing
    }
}

impl<T> Drop for Using<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.held.is_none() {
            // SAFETY: a share of its own, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.thing) };
        }
    }
}

/// Which segment a place is in, and where in it.
#[inline(always)]
fn locate(place: usize) -> (usize, usize) {
    let segment = (place / FIRST + 1).ilog2() as usize;
    (segment, place - FIRST * ((1 << segment) - 1))
}

impl<T: Send + Sync> SharedTable<T> {
    #[inline(always)]
    fn entry(&self, place: usize) -> Option<&AtomicUsize> {
        let (segment, offset) = locate(place);
        let segment = self.segments.get(segment)?.load(Ordering::Acquire);
        if segment.is_null() {
            return None;
        }
        // SAFETY: a segment that is there has as many entries as `locate` assumes,
        // is zero from the start, and stays as long as the table.
        Some(unsafe { &*segment.add(offset) })
    }

    /// Makes sure that there is such a place.
    pub fn reserve(&self, place: usize) -> Result<(), Errno> {
        let (index, _) = locate(place);
        let segment = self.segments.get(index).ok_or(Errno::ENOMEM)?;
        if !segment.load(Ordering::Acquire).is_null() {
            return Ok(());
        }
        let length = FIRST << index;
        let mut entries: Vec<AtomicUsize> = Vec::new();
        entries.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        entries.resize_with(length, || AtomicUsize::new(0));
        let fresh = entries.leak().as_mut_ptr();
        if segment.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: it came from such a vector a moment ago, and nobody knows it.
            drop(unsafe { Vec::from_raw_parts(fresh, length, length) });
        }
        Ok(())
    }

    /// Puts a thing in a place that is reserved and empty.
    ///
    /// # Panics
    /// If it is not reserved.
    pub fn put(&self, place: usize, thing: Arc<T>) {
        hazard::prepare();
        let entry = self.entry(place).expect("who puts something in a place has reserved it");
        entry.store(Arc::into_raw(thing) as usize, Ordering::Release);
    }

    /// What stands in a place.
    #[inline]
    pub fn find(&self, place: usize) -> Option<Using<T>> {
        let entry = self.entry(place)?;
        // Acquire: pairs with the release in `put`.
        match hazard::protect(|| entry.load(Ordering::Acquire)) {
            Some((0, _)) => None,
            // SAFETY: it came from `Arc::into_raw`, and whoever takes it out of the
            // table does not drop it while `held` lives.
            Some((object, held)) => Some(Using { thing: ManuallyDrop::new(unsafe { share(object) }), held }),
            None => self.find_with_lock(entry),
        }
    }

    /// The same where there is no fast way.
    #[cold]
    #[inline(never)]
    fn find_with_lock(&self, entry: &AtomicUsize) -> Option<Using<T>> {
        let _removers_wait = self.removing.lock();
        match entry.load(Ordering::Acquire) {
            0 => None,
            object => {
                // SAFETY: as in `find`; it stays in the table while the lock is held.
                let thing = ManuallyDrop::new(unsafe { share(object) });
                Some(Using { thing: ManuallyDrop::new(Arc::clone(&thing)), held: None })
            }
        }
    }

    /// Takes out what stands in a place, if it is what is meant.
    pub fn take(&self, place: usize, is_meant: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let entry = self.entry(place)?;
        let object = {
            let _one_at_a_time = self.removing.lock();
            let object = entry.load(Ordering::Acquire);
            // SAFETY: as in `find_with_lock`.
            if object == 0 || !is_meant(&ManuallyDrop::new(unsafe { share::<T>(object) })) {
                return None;
            }
            entry.store(0, Ordering::Release);
            object
        };
        // SAFETY: 1. It came from `Arc::into_raw`, and the table's share in it is now
        // ours, to be dropped once. 2. Nobody finds it any more.
        unsafe {
            let thing = Arc::clone(&ManuallyDrop::new(share::<T>(object)));
            hazard::retire(object, drop_share::<T>);
            Some(thing)
        }
    }
}

/// # Safety
/// `object` came from `Arc::<T>::into_raw`, and that share is still there.
#[inline(always)]
unsafe fn share<T>(object: usize) -> Arc<T> {
    // SAFETY: as the caller says.
    unsafe { Arc::from_raw(object as *const T) }
}

/// # Safety
/// As [`share`], and this share is the caller's to drop.
unsafe fn drop_share<T>(object: usize) {
    // SAFETY: as the caller says.
    drop(unsafe { share::<T>(object) });
}
