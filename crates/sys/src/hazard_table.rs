//! The table of hazard pointers, and the protocol of its users and removers. [`crate::hazard`]
//! explains the purpose of the table, and has the table of this process. The loom models check this
//! file.
//!
//! Each side stores one word and then reads the other side's word ([`Edge::Hazard`]):
//!
//! | side | stores | reads after its barrier |
//! |---|---|---|
//! | user, at the beginning ([`Table::protect`]) | the object, in its pointer | whether the object can still be found |
//! | remover ([`Table::retire`]) | that the object cannot be found | all pointers |
//! | user, at the end ([`Table::end`]) | 0, in its pointer | whether objects are retired (to be freed later) |
//! | remover | that an object is retired | all pointers |
//!
//! The remover's barrier is membarrier(2), which acts on all threads. So a compiler fence is enough
//! on the user's side.

use crate::mutex::Mutex;
use crate::ordering::{Edge, Side};
use crate::spread;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use alloc::vec::Vec;

/// Hazard pointers per thread. A call that uses the object of one descriptor may look up a second
/// descriptor.
const DEPTH: usize = 2;

/// A hazard pointer: the address of the object that its thread uses, or 0.
pub struct Pointer(AtomicUsize);

#[repr(align(64))]
struct ThreadRow {
    thread: AtomicUsize,
    used: [Pointer; DEPTH],
}

/// The hazard pointers of all threads. A zeroed table has free rows only. `ROWS`, the number of
/// threads that can have hazard pointers, is a power of two.
#[repr(align(64))]
pub struct Table<const ROWS: usize> {
    /// Number of retired objects: removed from their table, but not freed yet.
    retired: AtomicU32,
    /// 1 if a sweep was requested and has not begun; see [`Table::request_sweep`]. A sweep frees
    /// the retired objects that no thread uses.
    sweep_is_due: AtomicU32,
    rows: [ThreadRow; ROWS],
}

/// A retired object, and the function that frees it.
#[derive(Clone, Copy)]
pub struct Retired {
    object: usize,
    free: unsafe fn(usize),
}

/// List of objects that were removed from their table while a thread used them.
pub type RetiredList = Mutex<Vec<Retired>>;

impl<const ROWS: usize> Table<ROWS> {
    /// Makes a table for a loom model. (The process's own table is made of zeroed pages.)
    #[cfg(loom)]
    pub fn model() -> Self {
        let pointer = |()| Pointer(AtomicUsize::new(0));
        let row = |()| ThreadRow { thread: AtomicUsize::new(0), used: [(); DEPTH].map(pointer) };
        Table { retired: AtomicU32::new(0), sweep_is_due: AtomicU32::new(0), rows: [(); ROWS].map(row) }
    }

    /// Returns the row of hazard pointers of `thread`, the calling thread. If the thread has no row
    /// yet, it gets a free row; `None` if no row is free. A signal handler may interrupt this
    /// function and acquire another row for this thread. Both rows are then valid, because removers
    /// read all rows.
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

    /// Returns a free hazard pointer of `thread`, the calling thread. `None` if the thread has no
    /// row, or if all its hazard pointers are in use.
    #[inline]
    pub fn free_pointer(&self, thread: usize) -> Option<&Pointer> {
        self.own_row(thread)?.used.iter().find(|pointer| pointer.0.load(Ordering::Relaxed) == 0)
    }

    /// Finds an object and announces its use at `pointer`: calls `find`, writes the result to
    /// `pointer`, and calls `find` again, until both calls find one object. A result of 0 or 1 is
    /// no object, and is returned at once. Returns the last result of `find`, and whether an object
    /// was announced. If so, the caller has to end the use ([`Table::end`]), even if the last
    /// result is no object: a remover may have retired the object announced before.
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

    /// Ends the use that `pointer` announces. Returns whether any objects are retired. If so, a
    /// thread has to call [`Table::sweep`].
    #[inline(always)]
    pub fn end(&self, pointer: &Pointer) -> bool {
        pointer.0.store(0, Ordering::Release);
        Edge::Hazard.light_barrier(Side::Sleeper);
        self.retired.load(Ordering::Relaxed) != 0
    }

    /// Requests a call of [`Table::sweep`]. Returns `false` if the sweep of an earlier request has
    /// not begun yet.
    pub fn request_sweep(&self) -> bool {
        self.sweep_is_due.swap(1, Ordering::AcqRel) == 0
    }

    fn is_used(&self, object: usize) -> bool {
        // Acquire: pairs with the release in `end`. If this thread reads a hazard pointer as empty,
        // the last access of its user to the object has happened before.
        self.rows.iter().any(|row| row.used.iter().any(|pointer| pointer.0.load(Ordering::Acquire) == object))
    }

    /// Frees an object that was just removed from its table. If a thread uses the object, retires
    /// it instead. If membarrier(2) fails, it is unknown whether a thread uses the object, so it is
    /// never freed.
    ///
    /// # Safety
    /// No thread can find the object any more, and `free` may be called for it once.
    pub unsafe fn retire<'a>(&self, list: impl Fn() -> &'a RetiredList, object: usize, free: unsafe fn(usize)) {
        self.retired.fetch_add(1, Ordering::SeqCst);
        let is_known = Edge::Hazard.barrier_everywhere(Side::Waker);
        if is_known && self.is_used(object) {
            // A user of the object may have ended its use meanwhile, and may have swept the list
            // before this thread added the object. In that case this thread locks the list after
            // that user, and sees that the user's pointer is cleared. So this thread sweeps the
            // list, too.
            list().lock().push(Retired { object, free });
            return self.sweep(list());
        }
        self.retired.fetch_sub(1, Ordering::SeqCst);
        if is_known {
            // SAFETY: the caller permits one call of `free`, and no hazard pointer has the object.
            unsafe { free(object) };
        }
    }

    /// Frees the retired objects of `list` that no hazard pointer names any more.
    #[cold]
    pub fn sweep(&self, list: &RetiredList) {
        // The request for this sweep is reset before the hazard pointers are read. So a thread that
        // ends its use after the reset requests another sweep. A thread that ended its use before
        // the reset had cleared its pointer by then, so this sweep sees the cleared pointer.
        self.sweep_is_due.swap(0, Ordering::AcqRel);
        let mut unused = Vec::new();
        list.lock().retain(|retired| {
            let used = self.is_used(retired.object);
            if !used {
                unused.push(*retired);
            }
            used
        });
        for Retired { object, free } in unused {
            self.retired.fetch_sub(1, Ordering::SeqCst);
            // SAFETY: the caller of `retire` permits one call of `free`, and an object is removed
            // from the list once.
            unsafe { free(object) };
        }
    }
}
