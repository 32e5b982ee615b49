//! A table of shared objects (`Arc`) that is read without a lock. Each object has an index, its
//! place. A user protects the object by a hazard pointer ([`crate::hazard`]). The table can grow;
//! its entries never move.
//!
//! A thread that removes an object from the table gets a new reference to the object. The table's
//! own reference is dropped when no hazard pointer protects the object any more.

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

/// Number of places (indices of objects) in the first segment of a table. Each further segment has
/// twice as many places as the segment before it.
const FIRST: usize = 64;
/// Number of segments. Together they have a place for every `u32`.
const SEGMENTS: usize = 27;

/// A table of shared objects. Each entry is 0, or a pointer from `Arc::<T>::into_raw`.
pub struct SharedTable<T: Send + Sync> {
    segments: [AtomicPtr<AtomicUsize>; SEGMENTS],
    /// Locked by a thread that removes an object, and by a thread that searches for an object
    /// without a hazard pointer.
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

/// A reference to an object of a [`SharedTable`]. The object lives at least as long as this value.
pub struct Using<T> {
    thing: ManuallyDrop<Arc<T>>,
    /// The hazard pointer that protects the object, so that the table keeps its reference. `None`:
    /// this value owns a reference.
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
            // SAFETY: without `held` this value owns a reference count, and it does not use `thing`
            // again.
            unsafe { ManuallyDrop::drop(&mut self.thing) };
        }
    }
}

/// Returns where the entry of `place` is: the number of its segment, and its index in that segment.
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
        // SAFETY: a segment has as many entries as `locate` assumes, starts as zeroes, and lives as
        // long as the table.
        Some(unsafe { &*segment.add(offset) })
    }

    /// Allocates the segment that has the entry of `place`, if it does not exist yet. Errors:
    /// `ENOMEM`.
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
            // SAFETY: `fresh` is the leaked `entries`, with this length and capacity, and was not
            // published.
            drop(unsafe { Vec::from_raw_parts(fresh, length, length) });
        }
        Ok(())
    }

    /// Puts an object into a place of the table that is reserved and empty.
    ///
    /// # Panics
    /// If the place is not reserved.
    pub fn put(&self, place: usize, thing: Arc<T>) {
        hazard::prepare();
        let entry = self.entry(place).expect("a place is reserved before an object is put there");
        entry.store(Arc::into_raw(thing) as usize, Ordering::Release);
    }

    /// Returns the object in a place of the table. `None`: the place is empty or does not exist.
    #[inline]
    pub fn find(&self, place: usize) -> Option<Using<T>> {
        let entry = self.entry(place)?;
        // Acquire: pairs with the release in `put`.
        match hazard::protect(|| entry.load(Ordering::Acquire)) {
            Some((0, _)) => None,
            // SAFETY: `object` came from `Arc::into_raw`. A thread that removes it from the table
            // does not drop the table's reference while `held` lives.
            Some((object, held)) => Some(Using { thing: ManuallyDrop::new(unsafe { arc_of(object) }), held }),
            None => self.find_with_lock(entry),
        }
    }

    /// Returns the object in a place of the table, for a thread that has no hazard pointer. Uses
    /// the lock instead.
    #[cold]
    #[inline(never)]
    fn find_with_lock(&self, entry: &AtomicUsize) -> Option<Using<T>> {
        let _removers_wait = self.removing.lock();
        match entry.load(Ordering::Acquire) {
            0 => None,
            object => {
                // SAFETY: `object` came from `Arc::into_raw`, and stays in the table while the lock
                // is held.
                let thing = ManuallyDrop::new(unsafe { arc_of(object) });
                Some(Using { thing: ManuallyDrop::new(Arc::clone(&thing)), held: None })
            }
        }
    }

    /// Removes the object in a place from the table, and returns the object. `None` if the place is
    /// empty, or if `is_meant` returned `false` for the object, which then stays.
    pub fn take(&self, place: usize, is_meant: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let entry = self.entry(place)?;
        let object = {
            let _one_at_a_time = self.removing.lock();
            let object = entry.load(Ordering::Acquire);
            // SAFETY: `object` came from `Arc::into_raw`, and stays in the table while the lock is
            // held.
            if object == 0 || !is_meant(&ManuallyDrop::new(unsafe { arc_of::<T>(object) })) {
                return None;
            }
            entry.store(0, Ordering::Release);
            object
        };
        // SAFETY: 1. `object` came from `Arc::into_raw`, and this function now owns the table's
        // reference, which `retire` drops once. 2. The entry is 0, so no thread can find the object
        // any more.
        unsafe {
            let thing = Arc::clone(&ManuallyDrop::new(arc_of::<T>(object)));
            hazard::retire(object, drop_share::<T>);
            Some(thing)
        }
    }
}

/// Returns the `Arc` whose pointer is stored in an entry of a table.
///
/// # Safety
/// `object` must come from `Arc::<T>::into_raw`, and that reference must still exist.
#[inline(always)]
unsafe fn arc_of<T>(object: usize) -> Arc<T> {
    // SAFETY: the caller guarantees that the pointer came from `Arc::<T>::into_raw`.
    unsafe { Arc::from_raw(object as *const T) }
}

/// Drops the reference that an entry of a table owns.
///
/// # Safety
/// `object` must come from `Arc::<T>::into_raw`, and the caller must own that reference.
unsafe fn drop_share<T>(object: usize) {
    // SAFETY: the caller owns this reference.
    drop(unsafe { arc_of::<T>(object) });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_place_lies_inside_its_segment() {
        let mut expected = (0, 0);
        for place in 0..100_000 {
            assert_eq!(locate(place), expected, "place {place}");
            let is_last = expected.1 + 1 == FIRST << expected.0;
            expected = if is_last { (expected.0 + 1, 0) } else { (expected.0, expected.1 + 1) };
        }
    }
}
