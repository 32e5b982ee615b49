//! Hazard pointers: protect objects that are found through a table, without a locked instruction.
//! Each thread has one row of two pointers. [`crate::hazard_table`] has the words.
//!
//! | user | remover |
//! |---|---|
//! | writes the object's address into its row | takes the object out of the table |
//! | looks whether the table still has the object | passes a barrier everywhere (membarrier(2)) |
//! | uses the object | reads all rows |
//!
//! So the remover sees the row of every thread that found the object in the table. An object in use
//! is put aside: it goes to a list and is freed later. A user that leaves while objects are put
//! aside reads the rows again, and frees those that are unused. The barrier stands between those
//! two sides, too: either the leaving thread sees that an object was put aside, or the remover sees
//! its row empty.
//!
//! - A thread is identified by its thread pointer. Rows are never released: a new thread with an
//!   ended thread's pointer takes over its row.
//! - A thread that finds no free row takes a lock instead. If membarrier(2) is refused, every
//!   thread does.
//! - All of this lies on pages that are empty in a forked child, where no thread uses an object. A
//!   child has only the lock until it calls [`prepare`].

use crate::hazard_table::{self, AsideList};
use crate::mutex::Mutex;
use crate::per_process::{self, PerProcess};
use crate::{mapping, membarrier, thread};
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Threads that can use the path without a lock; a power of two.
const ROWS: usize = 1024;

type Table = hazard_table::Table<ROWS>;

/// The data that the threads of a process share. All zeroes: the process does not use it yet.
#[repr(align(64))]
struct Shared {
    /// Whether this process is registered for membarrier(2), so that its threads need no lock.
    fast: AtomicU32,
    table: Table,
}

/// Allocated once, for the process and its children.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(null_mut());

/// Returns the shared data, if [`prepare`] has made it.
#[inline(always)]
fn shared() -> Option<&'static Shared> {
    // SAFETY: 1. The pointer leads to pages that are never unmapped. They are zero at first and in
    // each forked child, and zeroes are a valid table. 2. All of it is atomics.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// Objects that were taken out of their table while a thread used them. A forked child frees none
/// of its parent's.
static PUT_ASIDE: PerProcess<AsideList> = PerProcess::new();

fn put_aside() -> &'static AsideList {
    PUT_ASIDE.get_or_make(|| Mutex::new(Vec::new()))
}

/// A protected use; dropping it ends the use.
pub struct Use(&'static hazard_table::Pointer);

/// Finds an object and announces its use ([`hazard_table::Table::protect`]). `None`: the caller has
/// to take the lock. A caller that gets no object may get a use all the same, and ends it.
#[inline]
pub fn protect(find: impl Fn() -> usize) -> Option<(usize, Option<Use>)> {
    let shared = shared().filter(|shared| shared.fast.load(Ordering::Relaxed) != 0)?;
    let pointer = shared.table.free_pointer(thread::current().0)?;
    let (object, is_announced) = Table::protect(pointer, find);
    Some((object, is_announced.then_some(Use(pointer))))
}

impl Use {
    #[inline(always)]
    fn end(&self) -> Option<&'static Table> {
        shared().map(|shared| &shared.table).filter(|table| table.end(self.0))
    }

    /// Ends a use without freeing objects, for a caller that holds a lock that an object put aside
    /// may contain. If it returns `true`, the caller has to arrange that [`sweep`] is called soon.
    /// No other thread gets `true` until that sweep begins.
    #[must_use]
    pub fn end_inside(self) -> bool {
        let table = self.end();
        core::mem::forget(self);
        table.is_some_and(Table::request_sweep)
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        if self.end().is_some() {
            sweep();
        }
    }
}

/// Frees an object that was just taken out of its table: at once, or when its last user has left.
/// If the barrier is refused after it had been granted, users are unknown and the object is never
/// freed.
///
/// # Safety
/// No thread can find the object any more, and `free` may be called for it once.
pub unsafe fn retire(object: usize, free: unsafe fn(usize)) {
    match shared().filter(|shared| shared.fast.load(Ordering::SeqCst) != 0) {
        // SAFETY: the caller permits it.
        Some(shared) => unsafe { shared.table.retire(put_aside, object, free) },
        // SAFETY: the caller permits it, and no thread uses the object without the lock.
        None => unsafe { free(object) },
    }
}

/// Frees the objects put aside that are no longer used.
#[cold]
pub fn sweep() {
    if let Some(shared) = shared() {
        shared.table.sweep(put_aside());
    }
}

/// Enables the path without a lock. Each process calls this function before the first object can be
/// found.
pub fn prepare() {
    let Some(shared) = shared().or_else(make_shared) else { return };
    if shared.fast.load(Ordering::Relaxed) == 0 && membarrier::register() {
        shared.fast.store(1, Ordering::SeqCst);
    }
}

#[cold]
fn make_shared() -> Option<&'static Shared> {
    let fresh = per_process::wiped_pages(size_of::<Shared>()).ok()?;
    let made = SHARED.compare_exchange(null_mut(), fresh as *mut Shared, Ordering::AcqRel, Ordering::Acquire);
    if made.is_err() {
        let _ = mapping::unmap(fresh, size_of::<Shared>());
    }
    shared()
}
