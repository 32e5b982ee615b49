//! Rings registered with a thread (IORING_REGISTER_RING_FDS). In the calls of this one thread, an
//! index from 0 to 15 stands for a registered ring, in place of a descriptor.
//!
//! A thread is identified by its thread pointer, because that costs the least. Each thread has a
//! row in the table, which only this thread changes, so its own look-ups need no lock. When a
//! thread registers a ring, the rows of ended threads are cleared.

use crate::files::descriptors::{self, File, Found};
use crate::process;
use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use usring_sys::{Errno, SystemCall, UserAddress, signals, spread, thread, user_memory, width};
use usring_uapi::general as linux;
use usring_uapi::io_uring::io_uring_rsrc_update;

/// Rings that one thread can register (IO_RINGFD_REG_MAX).
const MOST_RINGS: usize = 16;
/// Maximum number of threads that can have registered rings at one time. A further thread gets
/// `ENOMEM`.
const ROWS: usize = 1024;

/// Thread pointer in a row that was released. A search continues after such a row, because rows in
/// use may follow.
const RELEASED_ROW: usize = 1;

struct ThreadRings {
    thread: AtomicUsize,
    id: AtomicU32,
    /// The registered rings by index: pointers of `Arc::into_raw`, or null.
    files: [AtomicPtr<File>; MOST_RINGS],
}

static TABLE: [ThreadRings; ROWS] = [const {
    ThreadRings {
        thread: AtomicUsize::new(0),
        id: AtomicU32::new(0),
        files: [const { AtomicPtr::new(null_mut()) }; MOST_RINGS],
    }
}; ROWS];

/// Returns the rows of the table in the order in which a thread searches for its own row.
fn rows_from(thread: usize) -> impl Iterator<Item = &'static ThreadRings> {
    let start = spread::row(thread, ROWS);
    (0..ROWS).map(move |step| &TABLE[(start + step) % ROWS])
}

fn row_of_this_thread() -> Option<&'static ThreadRings> {
    let thread = thread::current().0;
    for row in rows_from(thread) {
        match row.thread.load(Ordering::Relaxed) {
            found if found == thread => return Some(row),
            0 => return None,
            _ => {}
        }
    }
    None
}

/// Claims a row of the table for the calling thread, which has made a ring. From now on, a call of
/// this thread that names an unused index fails with `EBADF`. Without the row it fails with
/// `EINVAL`. The kernel makes this difference, too.
pub fn claim_row() {
    let _ = claim();
}

/// Returns the ring that the calling thread has at `index`. Errors: `EINVAL` if the index is too
/// large, or if this thread has never made or registered a ring; `EBADF` if the index has no ring.
///
/// # Safety
/// The caller may use the result only until this thread next removes one of its registered rings.
#[inline(always)]
pub unsafe fn find(index: u32) -> Result<ManuallyDrop<Arc<File>>, Errno> {
    if index as usize >= MOST_RINGS {
        return Err(Errno::EINVAL);
    }
    let row = row_of_this_thread().ok_or(Errno::EINVAL)?;
    let place = &row.files[index as usize];
    let file = place.load(Ordering::Relaxed);
    if file.is_null() {
        return Err(Errno::EBADF);
    }
    // SAFETY: 1. The pointer comes from `Arc::into_raw`. 2. Only this thread removes rings from
    // this row. No signal handler runs on this thread while the thread is in the engine. 3. The
    // caller does not use the result after this thread has removed a ring.
    Ok(ManuallyDrop::new(unsafe { Arc::from_raw(file) }))
}

/// Returns the row of the calling thread. If the thread has no row, claims one.
fn claim() -> Result<&'static ThreadRings, Errno> {
    let (thread, id) = (thread::current().0, signals::thread_id());
    let _one_at_a_time = process::current().registered.lock();
    clear_ended();
    if let Some(row) = row_of_this_thread() {
        return Ok(row);
    }
    let row = rows_from(thread).find(|row| row.thread.load(Ordering::Relaxed) <= RELEASED_ROW).ok_or(Errno::ENOMEM)?;
    row.id.store(id, Ordering::Relaxed);
    row.thread.store(thread, Ordering::Relaxed);
    Ok(row)
}

/// Releases the rows of threads that have ended. The caller holds the lock of
/// `Process::registered`.
fn clear_ended() {
    let process = u64::from(process::id());
    let used = TABLE.iter().filter(|row| row.thread.load(Ordering::Relaxed) > RELEASED_ROW);
    for row in used {
        let id = u64::from(row.id.load(Ordering::Relaxed));
        let asked = SystemCall::new(linux::__NR_tgkill, [process, id, 0, 0, 0]).run_once();
        if asked == Err(Errno::ESRCH) {
            row.files.iter().for_each(|place| drop(take(place)));
            row.thread.store(RELEASED_ROW, Ordering::Relaxed);
        }
    }
}

fn take(place: &AtomicPtr<File>) -> Option<Arc<File>> {
    let file = place.swap(null_mut(), Ordering::Relaxed);
    // SAFETY: the pointer comes from `Arc::into_raw`, and the swap above took it out of the row.
    (!file.is_null()).then(|| unsafe { Arc::from_raw(file) })
}

/// Puts a ring at the first free index of a range in this thread's row. Errors: `EBUSY` if no index
/// is free, `ENOMEM` if no row is free.
fn put(file: Arc<File>, mut range: core::ops::Range<usize>) -> Result<u32, Errno> {
    let row = claim()?;
    let free = |index: &usize| row.files[*index].load(Ordering::Relaxed).is_null();
    let index = range.find(free).ok_or(Errno::EBUSY)?;
    row.files[index].store(Arc::into_raw(file).cast_mut(), Ordering::Relaxed);
    Ok(width::count(index))
}

/// Registers a ring that has no descriptor (IORING_SETUP_REGISTERED_FD_ONLY).
pub fn put_anywhere(file: Arc<File>) -> Result<u32, Errno> {
    put(file, 0..MOST_RINGS)
}

/// Answers IORING_REGISTER_RING_FDS; returns how many rings were registered.
pub fn register(argument: UserAddress, count: u32) -> Result<u32, Errno> {
    for_each(argument, count, |update, address| {
        if update.resv != 0 {
            return Err(Errno::EINVAL);
        }
        let range = match update.offset {
            u32::MAX => 0..MOST_RINGS,
            offset if (offset as usize) < MOST_RINGS => offset as usize..offset as usize + 1,
            _ => return Err(Errno::EINVAL),
        };
        let file = match descriptors::with(width::int(update.data), Arc::clone) {
            Found::Ring(file) => file,
            Found::Inherited(error) => return Err(error),
            Found::Other => return Err(not_a_ring(width::int(update.data))),
        };
        let index = put(file, range)?;
        user_memory::write(address, index).inspect_err(|_| {
            drop(row_of_this_thread().and_then(|row| take(&row.files[index as usize])));
        })
    })
}

/// Answers IORING_UNREGISTER_RING_FDS.
pub fn unregister(argument: UserAddress, count: u32) -> Result<u32, Errno> {
    let row = row_of_this_thread();
    for_each(argument, count, |update, _| {
        if update.resv != 0 || update.data != 0 || update.offset as usize >= MOST_RINGS {
            return Err(Errno::EINVAL);
        }
        drop(row.and_then(|row| take(&row.files[update.offset as usize])));
        Ok(())
    })
}

/// Calls `work` for each member of an array of `count` updates at `argument`, and stops at the
/// first member for which `work` fails. Returns the number of members before it. If that number is
/// 0, returns the error.
fn for_each(
    argument: UserAddress,
    count: u32,
    mut work: impl FnMut(io_uring_rsrc_update, UserAddress) -> Result<(), Errno>,
) -> Result<u32, Errno> {
    if count == 0 || count as usize > MOST_RINGS {
        return Err(Errno::EINVAL);
    }
    for index in 0..count {
        let address = argument.offset(u64::from(index) * size_of::<io_uring_rsrc_update>() as u64);
        let done = user_memory::read(address).and_then(|update| work(update, address));
        match done {
            Ok(()) => {}
            Err(error) if index == 0 => return Err(error),
            Err(_) => return Ok(index),
        }
    }
    Ok(count)
}

/// Returns the error that the kernel gives for a descriptor that is no ring.
pub fn not_a_ring(number: i32) -> Errno {
    let arguments = [width::word(number), u64::from(linux::F_GETFD), 0, 0, 0];
    match SystemCall::new(linux::__NR_fcntl, arguments).run() {
        Ok(_) => Errno::EOPNOTSUPP,
        Err(_) => Errno::EBADF,
    }
}

/// Clears the table in a forked child. The registrations belong to the parent, so the child
/// releases no ring.
pub fn reset_in_child() {
    // After the fork, child and parent share these pages until one of them writes to a page, which
    // copies the page. So the child writes only to the rows in use.
    for row in TABLE.iter().filter(|row| row.thread.load(Ordering::Relaxed) != 0) {
        row.thread.store(0, Ordering::Relaxed);
        row.files.iter().for_each(|place| place.store(null_mut(), Ordering::Relaxed));
    }
}
