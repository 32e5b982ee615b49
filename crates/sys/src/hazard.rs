//! Hazard pointers: protect objects that are found through a table, without a locked instruction.
//! Each thread has one row of two pointers.
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

use crate::mutex::Mutex;
use crate::per_process::{self, PerProcess};
use crate::{mapping, membarrier, spread, thread};
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};

/// Threads that can use the path without a lock; a power of two.
const ROWS: usize = 1024;
/// Hazard pointers per thread. A call may look up a second descriptor while it uses the first.
const DEPTH: usize = 2;

#[repr(align(64))]
struct ThreadRow {
    thread: AtomicUsize,
    used: [AtomicUsize; DEPTH],
}

/// The data that the threads of a process share. All zeroes: the process does not use it yet.
#[repr(align(64))]
struct Table {
    /// Whether this process is registered for membarrier(2), so that its threads need no lock.
    fast: AtomicU32,
    /// Number of objects put aside.
    aside: AtomicU32,
    /// 1 if a thread was requested to call [`sweep`] and has not begun.
    sweep_is_due: AtomicU32,
    rows: [ThreadRow; ROWS],
}

/// Allocated once, for the process and its children.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// Returns the table, if [`prepare`] has made it.
#[inline(always)]
fn table() -> Option<&'static Table> {
    // SAFETY: 1. The pointer leads to pages that are never unmapped. They are zero at first and in
    // each forked child, and zeroes are a valid table. 2. All of it is atomics.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Objects that were taken out of their table while a thread used them. A forked child frees none
/// of its parent's.
static PUT_ASIDE: PerProcess<Mutex<Vec<PutAside>>> = PerProcess::new();

fn put_aside() -> &'static Mutex<Vec<PutAside>> {
    PUT_ASIDE.get_or_make(|| Mutex::new(Vec::new()))
}

/// An object put aside, and how to free it.
#[derive(Clone, Copy)]
struct PutAside {
    object: usize,
    free: unsafe fn(usize),
}

impl Table {
    /// Returns the calling thread's row, and takes a free row the first time. `None`: all rows are
    /// taken. A signal handler may interrupt this function and take a row for the same thread. Both
    /// rows are then valid, because removers read all rows.
    #[inline]
    fn own_row(&self) -> Option<&ThreadRow> {
        let thread = thread::current().0;
        let start = spread::row(thread, ROWS);
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
        // Acquire: all that a user did with the object has happened before its row is seen empty.
        self.rows.iter().any(|row| row.used.iter().any(|place| place.load(Ordering::Acquire) == object))
    }
}

/// Returns a free hazard pointer of this thread. `None`: the thread has to take the lock.
#[inline]
fn own_place() -> Option<&'static AtomicUsize> {
    let table = table().filter(|table| table.fast.load(Ordering::Relaxed) != 0)?;
    table.own_row()?.used.iter().find(|place| place.load(Ordering::Relaxed) == 0)
}

/// A protected use; dropping it ends the use.
pub struct Use(&'static AtomicUsize);

/// Finds an object and announces its use: calls `find`, writes the result to a hazard pointer, and
/// calls `find` again, until both calls find the same object. The values 0 and 1 are no objects and
/// are returned at once. `None`: the caller has to take the lock.
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
        // This orders only the compiler. The remover's membarrier(2) is the processor's part of the
        // barrier.
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

    /// Ends a use without freeing objects, for a caller that holds a lock that an object put aside
    /// may contain. If it returns `true`, the caller has to arrange that [`sweep`] is called soon.
    /// No other thread gets `true` until that sweep begins.
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

/// Frees an object that was just taken out of its table: at once, or when its last user has left.
/// If the barrier is refused after it had been granted, users are unknown and the object is never
/// freed.
///
/// # Safety
/// No thread can find the object any more, and `free` may be called for it once.
pub unsafe fn retire(object: usize, free: unsafe fn(usize)) {
    if let Some(table) = table().filter(|table| table.fast.load(Ordering::SeqCst) != 0) {
        table.aside.fetch_add(1, Ordering::SeqCst);
        let is_known = membarrier::everywhere();
        if is_known && table.is_used(object) {
            put_aside().lock().push(PutAside { object, free });
            // Its user may have left before the object was on the list.
            membarrier::everywhere();
            return sweep();
        }
        table.aside.fetch_sub(1, Ordering::SeqCst);
        if !is_known {
            return;
        }
    }
    // SAFETY: the caller permits it, and no thread uses the object.
    unsafe { free(object) };
}

/// Frees the objects put aside that are no longer used.
#[cold]
pub fn sweep() {
    let Some(table) = table() else { return };
    // Before the rows are read: a user that leaves from here on requests a sweep again.
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
        // SAFETY: the caller of `retire` permits one call, and the object came off the list once.
        unsafe { free(object) };
    }
}

/// Enables the path without a lock. Each process calls this function before the first object can be
/// found.
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
