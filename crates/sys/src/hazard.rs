//! Who is using what a table points to, without a locked instruction: hazard
//! pointers, one row of two per thread.
//!
//! A thread that is about to use an object writes its address into its own row
//! and then looks whether the object still stands where it found it. Who takes
//! an object out of its place has every processor pass a barrier (membarrier)
//! and then looks through the rows: whoever saw the object in its place is seen
//! to use it. An object in use is put aside, and who leaves while something is
//! put aside looks again. The same barrier stands between the two sides there:
//! either the leaver sees that something was put aside, or its row is seen
//! empty.
//!
//! A thread is known by its thread pointer. Rows are never given up: the next
//! thread with the same pointer has the row of one that has ended. Threads that
//! find no row, and all of them where membarrier is refused, take a lock.
//!
//! All of it lies on pages that are empty in a forked child, where nobody uses
//! anything: a child has only the lock until it asks for the fast way itself.

use crate::mutex::Mutex;
use crate::per_process::{self, PerProcess};
use crate::{mapping, membarrier, thread};
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};

/// Threads that can use the fast way; a power of two.
const ROWS: usize = 1024;
/// A call may look up a second descriptor while it uses the first.
const DEPTH: usize = 2;

#[repr(align(64))]
struct Row {
    thread: AtomicUsize,
    used: [AtomicUsize; DEPTH],
}

/// What the threads of a process share. Zeroes are a process that does not use it
/// yet.
#[repr(align(64))]
struct Table {
    /// Whether this process is registered for the barrier.
    fast: AtomicU32,
    /// How many objects are put aside.
    aside: AtomicU32,
    /// Somebody has been asked to sweep, and has not begun.
    sweep_is_due: AtomicU32,
    rows: [Row; ROWS],
}

/// Made once, for the process and its children.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// The table, if the fast way was ever asked for.
#[inline(always)]
fn table() -> Option<&'static Table> {
    // SAFETY: 1. What stands there are pages that are never unmapped, zero at first
    // and in each forked child, which is a table. 2. All of it are atomics.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// What was taken out of its place while somebody used it. A forked child frees
/// nothing of its parent's.
static PUT_ASIDE: PerProcess<Mutex<Vec<PutAside>>> = PerProcess::new();

fn put_aside() -> &'static Mutex<Vec<PutAside>> {
    PUT_ASIDE.get_or_make(|| Mutex::new(Vec::new()))
}

/// Such an object, and how to free it.
#[derive(Clone, Copy)]
struct PutAside {
    object: usize,
    free: unsafe fn(usize),
}

impl Table {
    /// A signal handler may come by while its own thread is here: from the moment
    /// that the row is the thread's, it is looked through.
    #[inline]
    fn own_row(&self) -> Option<&Row> {
        let thread = thread::current().0;
        let start = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ROWS.trailing_zeros());
        for step in 0..ROWS {
            let row = &self.rows[(start + step) % ROWS];
            let found = row.thread.load(Ordering::Relaxed);
            if found == thread {
                return Some(row);
            }
            if found == 0 && row.thread.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Some(row);
            }
        }
        None
    }

    fn is_used(&self, object: usize) -> bool {
        // Acquire: what a user did with it has happened when its row is empty.
        self.rows.iter().any(|row| row.used.iter().any(|place| place.load(Ordering::Acquire) == object))
    }
}

/// Where this thread may say what it uses. `None`: it has to take the lock.
#[inline]
fn own_place() -> Option<&'static AtomicUsize> {
    let table = table().filter(|table| table.fast.load(Ordering::Relaxed) != 0)?;
    table.own_row()?.used.iter().find(|place| place.load(Ordering::Relaxed) == 0)
}

/// A use; over when it is dropped.
pub struct Use(&'static AtomicUsize);

/// Announces the use of what `find` finds, until it finds the same again after
/// that; 0 and 1 are nothing that could be used, and returned at once. `None`:
/// only the lock will do.
#[inline]
pub fn protect(find: impl Fn() -> usize) -> Option<(usize, Option<Use>)> {
    let place = own_place()?;
    let mut object = find();
    loop {
        if object <= 1 {
            place.store(0, Ordering::Relaxed);
            return Some((object, None));
        }
        place.store(object, Ordering::Relaxed);
        // The processor's part of this barrier is the remover's membarrier.
        compiler_fence(Ordering::SeqCst);
        let again = find();
        if again == object {
            return Some((object, Some(Use(place))));
        }
        object = again;
    }
}

impl Use {
    #[inline(always)]
    fn end(&self) -> Option<&'static Table> {
        self.0.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        table().filter(|table| table.aside.load(Ordering::Relaxed) != 0)
    }

    /// Ends a use where nothing may be freed: a lock is held, and what is put aside
    /// may be what has that lock. Whether the caller has to see to it that [`sweep`]
    /// is called soon; nobody else is asked until that has begun.
    #[must_use]
    pub fn end_inside(self) -> bool {
        let table = self.end();
        core::mem::forget(self);
        table.is_some_and(|table| table.sweep_is_due.swap(1, Ordering::SeqCst) == 0)
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

/// Frees an object that was just taken out of its place, at once or when its
/// last user has left. Where that cannot be told (the barrier is refused, after it
/// had been granted), never.
///
/// # Safety
/// Nobody finds the object any more, and `free` may be called for it once.
pub unsafe fn retire(object: usize, free: unsafe fn(usize)) {
    if let Some(table) = table().filter(|table| table.fast.load(Ordering::SeqCst) != 0) {
        table.aside.fetch_add(1, Ordering::SeqCst);
        let is_known = membarrier::everywhere();
        if is_known && table.is_used(object) {
            put_aside().lock().push(PutAside { object, free });
            // Its user may have left before it was on the list.
            membarrier::everywhere();
            return sweep();
        }
        table.aside.fetch_sub(1, Ordering::SeqCst);
        if !is_known {
            return;
        }
    }
    // SAFETY: as the caller says, and nobody uses it.
    unsafe { free(object) };
}

/// Frees what was put aside and is used no more.
#[cold]
pub fn sweep() {
    let Some(table) = table() else { return };
    // Before the look: who leaves from here on asks again.
    table.sweep_is_due.store(0, Ordering::SeqCst);
    let mut unused = Vec::new();
    put_aside().lock().retain(|aside| {
        let used = table.is_used(aside.object);
        if !used {
            unused.push(*aside);
        }
        used
    });
    for PutAside { object, free } in unused {
        table.aside.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: `retire` was promised that; it came off the list once.
        unsafe { free(object) };
    }
}

/// Opens the fast way, before the first object can be found; in every process anew.
pub fn prepare() {
    let Some(table) = table().or_else(make_table) else { return };
    if table.fast.load(Ordering::Relaxed) == 0 && membarrier::register() {
        table.fast.store(1, Ordering::SeqCst);
    }
}

#[cold]
fn make_table() -> Option<&'static Table> {
    let fresh = per_process::wiped_pages(size_of::<Table>()).ok()?;
    let made = TABLE.compare_exchange(null_mut(), fresh as *mut Table, Ordering::AcqRel, Ordering::Acquire);
    if made.is_err() {
        let _ = mapping::unmap(fresh, size_of::<Table>());
    }
    table()
}
