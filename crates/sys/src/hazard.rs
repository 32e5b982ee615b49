//! Hazard pointers protect objects that a thread finds through a table from being freed while the
//! thread uses them. They need no locked instruction. Each thread has one row of two hazard
//! pointers. [`crate::hazard_table`] defines the rows and their protocol.
//!
//! | user | remover |
//! |---|---|
//! | writes the object's address into its row | takes the object out of the table |
//! | checks whether the table still has the object | executes a barrier in all threads (membarrier(2)) |
//! | uses the object, then clears the row | reads all rows |
//!
//! So the remover sees the row of every thread that found the object in the table. If the object is
//! in use, the remover retires it: the object goes to a list and is freed later. A user that clears
//! its row while objects are retired frees those that no row names. The barrier orders these two
//! sides, too: the user sees that an object was retired, or the remover sees the user's row empty.
//!
//! - A thread is identified by its thread pointer. Rows are never released: a new thread with an
//!   ended thread's pointer takes over the row of the ended thread.
//! - A thread that finds no free row acquires the lock of the objects' table instead. If the kernel
//!   refuses membarrier(2), every thread does so.
//! - The rows lie on pages that are zero in a forked child, where no thread uses an object. A
//!   child's threads use the lock until the child calls [`prepare`].

use crate::hazard_table::{self, RetiredList};
use crate::mutex::Mutex;
use crate::per_process::{self, PerProcess};
use crate::{mapping, membarrier, thread};
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Number of threads that can find objects without a lock; a power of two.
const ROWS: usize = 1024;

type Table = hazard_table::Table<ROWS>;

/// The hazard pointers of a process, which all its threads access. Before the process has called
/// [`prepare`], all bytes are zero.
#[repr(align(64))]
struct Shared {
    /// Whether this process is registered for membarrier(2), so that its threads need no lock.
    fast: AtomicU32,
    table: Table,
}

/// Address of the hazard pointers of this process. Their pages are mapped once. A forked child
/// inherits the mapping, but its pages are zero.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(null_mut());

/// Returns the hazard pointers of this process, if [`prepare`] has made them.
#[inline(always)]
fn shared() -> Option<&'static Shared> {
    // SAFETY: 1. A non-null pointer leads to pages that are never unmapped. 2. The pages are zero
    // at first and in each forked child, and a zeroed `Shared` is valid. 3. All fields are atomics.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// Objects that were removed from their table while a thread used them. A forked child starts with
/// an empty list, and never frees its parent's objects.
static RETIRED: PerProcess<RetiredList> = PerProcess::new();

fn retired() -> &'static RetiredList {
    RETIRED.get_or_make(|| Mutex::new(Vec::new()))
}

/// A thread's use of an object, which a hazard pointer protects from being freed. Dropping this
/// value ends the use.
pub struct Use(&'static hazard_table::Pointer);

/// Finds an object by `find`, and protects the object by a hazard pointer of the calling thread
/// ([`hazard_table::Table::protect`]). Returns the last result of `find`. If the thread has
/// announced a use, also returns the [`Use`], which the caller has to end. `None` if the caller has
/// to acquire the lock of the objects' table instead.
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

    /// Ends the use of an object, and frees no retired object. For a caller that holds a lock: the
    /// lock may be part of a retired object. If the result is `true`, the caller has to arrange a
    /// [`sweep`] soon. No other thread gets `true` until that sweep begins.
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

/// Frees an object that was just removed from its table. If a thread uses the object, it is freed
/// when its last use has ended. If membarrier(2) fails here, it is unknown whether a thread uses
/// the object, so it is never freed.
///
/// # Safety
/// No thread can find the object any more, and `free` may be called for it once.
pub unsafe fn retire(object: usize, free: unsafe fn(usize)) {
    match shared().filter(|shared| shared.fast.load(Ordering::SeqCst) != 0) {
        // SAFETY: the caller guarantees that no thread can find the object, and that `free` may be
        // called once.
        Some(shared) => unsafe { shared.table.retire(retired, object, free) },
        // SAFETY: the caller permits one call of `free`. There are no hazard pointers, so a thread
        // uses an object only under the lock of its table. This object is in no table, so no thread
        // uses it.
        None => unsafe { free(object) },
    }
}

/// Frees those retired objects that no thread uses any more.
#[cold]
pub fn sweep() {
    if let Some(shared) = shared() {
        shared.table.sweep(retired());
    }
}

/// Prepares this process, so that its threads can find objects without a lock. Each process calls
/// this function before any of its objects can be found.
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
