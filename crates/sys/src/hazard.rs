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

use crate::mutex::Mutex;
use crate::per_process::PerProcess;
use crate::{membarrier, thread};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};

/// Threads that can use the fast way; a power of two.
const ROWS: usize = 1024;
/// A call may look up a second descriptor while it uses the first.
const DEPTH: usize = 2;

#[repr(align(64))]
struct Row {
    thread: AtomicUsize,
    used: [AtomicUsize; DEPTH],
}

static TABLE: [Row; ROWS] =
    [const { Row { thread: AtomicUsize::new(0), used: [const { AtomicUsize::new(0) }; DEPTH] } }; ROWS];

/// The rows that belong to a thread, as indices plus one, in the order in which
/// they were taken: what has to be looked through.
static TAKEN: [AtomicU32; ROWS] = [const { AtomicU32::new(0) }; ROWS];
static TAKEN_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether this process is registered for the barrier.
static FAST: AtomicU32 = AtomicU32::new(0);

/// How many objects are put aside.
static ASIDE: AtomicU32 = AtomicU32::new(0);

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

#[inline]
fn own_row() -> Option<&'static Row> {
    let thread = thread::current().0;
    let start = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ROWS.trailing_zeros());
    for step in 0..ROWS {
        let index = (start + step) % ROWS;
        let row = &TABLE[index];
        let found = row.thread.load(Ordering::Relaxed);
        if found == thread {
            return Some(row);
        }
        if found == 0 && row.thread.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // Before the first use: who does not find it here yet is found out
            // by the second look of that use.
            let place = TAKEN_COUNT.fetch_add(1, Ordering::SeqCst);
            TAKEN[place].store(index as u32 + 1, Ordering::SeqCst);
            return Some(row);
        }
    }
    None
}

/// Where this thread may say what it uses. `None`: it has to take the lock.
#[inline]
fn own_place() -> Option<&'static AtomicUsize> {
    if FAST.load(Ordering::Relaxed) == 0 {
        return None;
    }
    own_row()?.used.iter().find(|place| place.load(Ordering::Relaxed) == 0)
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
    /// Ends a use where nothing may be freed: a lock is held, and what is put aside
    /// may be what has that lock. Whether [`sweep`] is to be called soon.
    #[must_use]
    pub fn end_inside(self) -> bool {
        let place = self.0;
        core::mem::forget(self);
        place.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        ASIDE.load(Ordering::Relaxed) != 0
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        if ASIDE.load(Ordering::Relaxed) != 0 {
            sweep();
        }
    }
}

fn is_used(object: usize) -> bool {
    let taken = TAKEN[..TAKEN_COUNT.load(Ordering::SeqCst)].iter().map(|index| index.load(Ordering::SeqCst) as usize);
    let mut rows = taken.filter(|index| *index != 0).map(|index| &TABLE[index - 1]);
    // Acquire: what a user did with it has happened when its row is empty.
    rows.any(|row| row.used.iter().any(|place| place.load(Ordering::Acquire) == object))
}

/// Frees an object that was just taken out of its place, at once or when its
/// last user has left.
///
/// # Safety
/// Nobody finds the object any more, and `free` may be called for it once.
pub unsafe fn retire(object: usize, free: unsafe fn(usize)) {
    ASIDE.fetch_add(1, Ordering::SeqCst);
    barrier();
    if is_used(object) {
        put_aside().lock().push(PutAside { object, free });
        // Its user may have left before it was on the list.
        barrier();
        return sweep();
    }
    ASIDE.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: as the caller says, and nobody uses it.
    unsafe { free(object) };
}

/// Frees what was put aside and is used no more.
#[cold]
pub fn sweep() {
    let mut unused = Vec::new();
    put_aside().lock().retain(|aside| {
        let used = is_used(aside.object);
        if !used {
            unused.push(*aside);
        }
        used
    });
    for PutAside { object, free } in unused {
        ASIDE.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: `retire` was promised that; it came off the list once.
        unsafe { free(object) };
    }
}

/// Every processor that runs this process passes a full barrier.
fn barrier() {
    core::sync::atomic::fence(Ordering::SeqCst);
    if FAST.load(Ordering::Relaxed) != 0 {
        membarrier::everywhere();
    }
}

/// Opens the fast way, before the first object can be found; in every process anew.
pub fn prepare() {
    if membarrier::register() {
        FAST.store(1, Ordering::SeqCst);
    }
}

/// In a forked child: nobody else is there, and nothing is put aside.
pub fn forget_after_fork() {
    // Rows are taken only where this was ever used.
    if FAST.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    for row in TABLE.iter().filter(|row| row.thread.load(Ordering::Relaxed) != 0) {
        row.thread.store(0, Ordering::Relaxed);
        row.used.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }
    TAKEN.iter().for_each(|index| index.store(0, Ordering::Relaxed));
    TAKEN_COUNT.store(0, Ordering::Relaxed);
    ASIDE.store(0, Ordering::Relaxed);
}
