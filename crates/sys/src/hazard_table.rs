//! The words of the hazard pointers, and what users and removers do with them. [`crate::hazard`]
//! has the process's table and says what it is for. The loom models run this file.
//!
//! Two pairs of words are stored on one side and read on the other ([`Edge::Hazard`]):
//!
//! | side | stores | reads after its barrier |
//! |---|---|---|
//! | user, at the beginning ([`Table::protect`]) | its pointer | whether the object can still be found |
//! | remover ([`Table::retire`]) | that the object cannot be found | all pointers |
//! | user, at the end ([`Table::end`]) | its empty pointer | whether objects are put aside |
//! | remover | that one is put aside | all pointers |
//!
//! The remover's barrier is membarrier(2), which acts on all threads. So the user's barrier orders
//! only the compiler.

use crate::mutex::Mutex;
use crate::ordering::{Edge, Side};
use crate::spread;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use alloc::vec::Vec;

/// Hazard pointers per thread. A call may look up a second descriptor while it uses the first.
const DEPTH: usize = 2;

/// A hazard pointer: the object that its thread uses, or 0.
pub struct Pointer(AtomicUsize);

#[repr(align(64))]
struct ThreadRow {
    thread: AtomicUsize,
    used: [Pointer; DEPTH],
}

/// The pointers of all threads. All zeroes: no thread has a row, and no object is in use. `ROWS`,
/// the number of threads that can have pointers, is a power of two.
#[repr(align(64))]
pub struct Table<const ROWS: usize> {
    /// Number of objects put aside.
    aside: AtomicU32,
    /// 1 if a thread was requested to call [`Table::sweep`] and has not begun.
    sweep_is_due: AtomicU32,
    rows: [ThreadRow; ROWS],
}

/// An object put aside, and how to free it.
#[derive(Clone, Copy)]
pub struct PutAside {
    object: usize,
    free: unsafe fn(usize),
}

/// Objects that were taken out of their table while a thread used them.
pub type AsideList = Mutex<Vec<PutAside>>;

impl<const ROWS: usize> Table<ROWS> {
    /// Makes a table, for models. (The process's own begins as zeroed pages.)
    #[cfg(loom)]
    pub fn model() -> Self {
        let pointer = |()| Pointer(AtomicUsize::new(0));
        let row = |()| ThreadRow { thread: AtomicUsize::new(0), used: [(); DEPTH].map(pointer) };
        Table { aside: AtomicU32::new(0), sweep_is_due: AtomicU32::new(0), rows: [(); ROWS].map(row) }
    }

    /// Returns the row of `thread`, the calling thread, and takes a free row the first time.
    /// `None`: all rows are taken. A signal handler may interrupt this function and take a row for
    /// the same thread. Both rows are then valid, because removers read all rows.
    #[inline]
    fn own_row(&self, thread: usize) -> Option<&ThreadRow> {
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

    /// Returns a free hazard pointer of `thread`, the calling thread. `None`: it has none.
    #[inline]
    pub fn free_pointer(&self, thread: usize) -> Option<&Pointer> {
        self.own_row(thread)?.used.iter().find(|pointer| pointer.0.load(Ordering::Relaxed) == 0)
    }

    /// Finds an object and announces its use at `pointer`: calls `find`, writes the result to
    /// `pointer`, and calls `find` again, until both calls find the same object. The values 0 and 1
    /// are no objects, and are returned at once. Returns also whether anything was announced: then
    /// the use has to be ended ([`Table::end`]), even if no object was found at last. A remover may
    /// have put the announced one aside.
    #[inline]
    pub fn protect(pointer: &Pointer, find: impl Fn() -> usize) -> (usize, bool) {
        let mut object = find();
        let mut is_announced = false;
        while object > 1 {
            pointer.0.store(object, Ordering::Relaxed);
            is_announced = true;
            Edge::Hazard.light_barrier(Side::Sleeper);
            let again = find();
            if again == object {
                break;
            }
            object = again;
        }
        (object, is_announced)
    }

    /// Ends the use that a pointer of this table announces. Returns whether objects are put aside:
    /// then a thread has to call [`Table::sweep`].
    #[inline(always)]
    pub fn end(&self, pointer: &Pointer) -> bool {
        pointer.0.store(0, Ordering::Release);
        Edge::Hazard.light_barrier(Side::Sleeper);
        self.aside.load(Ordering::Relaxed) != 0
    }

    /// Notes that a sweep is requested. Returns `false` if one was requested before and has not
    /// begun.
    pub fn request_sweep(&self) -> bool {
        self.sweep_is_due.swap(1, Ordering::AcqRel) == 0
    }

    fn is_used(&self, object: usize) -> bool {
        // Acquire: all that a user did with the object has happened before its row is seen empty.
        self.rows.iter().any(|row| row.used.iter().any(|pointer| pointer.0.load(Ordering::Acquire) == object))
    }

    /// Frees an object that was just taken out of its table, or puts it aside while it is used. If
    /// the barrier is refused, users are unknown and the object is never freed.
    ///
    /// # Safety
    /// No thread can find the object any more, and `free` may be called for it once.
    pub unsafe fn retire<'a>(&self, list: impl Fn() -> &'a AsideList, object: usize, free: unsafe fn(usize)) {
        self.aside.fetch_add(1, Ordering::SeqCst);
        let is_known = Edge::Hazard.barrier_everywhere(Side::Waker);
        if is_known && self.is_used(object) {
            // If its user has left meanwhile, and found an empty list, the list's lock shows that.
            list().lock().push(PutAside { object, free });
            return self.sweep(list());
        }
        self.aside.fetch_sub(1, Ordering::SeqCst);
        if is_known {
            // SAFETY: the caller permits it, and no thread uses the object.
            unsafe { free(object) };
        }
    }

    /// Frees the objects of the list that are no longer used.
    #[cold]
    pub fn sweep(&self, list: &AsideList) {
        // Before the rows are read: a user that leaves from here on requests a sweep again, and
        // this sweep sees the rows of those that have relied on it.
        self.sweep_is_due.swap(0, Ordering::AcqRel);
        let mut unused = Vec::new();
        list.lock().retain(|aside| {
            let used = self.is_used(aside.object);
            if !used {
                unused.push(*aside);
            }
            used
        });
        for PutAside { object, free } in unused {
            self.aside.fetch_sub(1, Ordering::SeqCst);
            // SAFETY: the caller of `retire` permits one call, and the object came off the list
            // once.
            unsafe { free(object) };
        }
    }
}
