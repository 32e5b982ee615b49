//! The table of usring's own threads. A thread is in the table from clone(2) (CLONE_PARENT_SETTID)
//! to its end.
//!
//! [`crate::credentials`] finds in the table the threads that have to make a change of credentials.
//! The kernel itself writes a thread's id to the table, while it creates the thread. So a change
//! reaches every new thread, and no thread of usring is mistaken for a thread of the program.

use crate::credential_change::{Follower, Generations, Order, Origin};
use crate::signals::{is_alive, thread_id};
use crate::thread::{self, Credentials, ThreadId};
use crate::{Errno, program_threads, width};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Maximum number of threads of usring in a process.
const THREADS: usize = 4096;

/// A slot of the table of usring's own threads, for one thread.
pub(crate) struct Slot {
    /// The thread's id, or [`RESERVED`] until clone(2) has written it. The kernel stores [`FREE`]
    /// when the thread has ended (CLONE_CHILD_CLEARTID).
    thread: AtomicU32,
    /// Id of the thread that has the slot or had it last. It is needed because an ended thread
    /// stays in /proc/self/task for a moment after the kernel has cleared `thread`.
    last: AtomicU32,
    /// The thread's [`ThreadId`] from [`ThreadSlot::begin`] to [`ThreadSlot::end`]; otherwise 0.
    locals: AtomicUsize,
    /// The thread's [`Credentials`], as a number.
    kind: AtomicU32,
    /// The generation of the credentials with which the thread started (see [`Generations`]), or
    /// [`UNKNOWN`]. Stored as its bitwise complement. So an unused slot is zero, and the table
    /// takes no room in the files of launcher and library.
    generation: AtomicU32,
    pub follower: Follower,
}

const FREE: u32 = 0;
const RESERVED: u32 = u32::MAX;

/// Generation of a thread that started during a change of credentials.
const UNKNOWN: u32 = u32::MAX;

#[cfg(not(loom))]
static TABLE: [Slot; THREADS] = [const { Slot::new() }; THREADS];

#[cfg(loom)]
loom::lazy_static! {
    static ref TABLE: alloc::vec::Vec<Slot> = (0..THREADS).map(|_| Slot::new()).collect();
}

/// Number of slots of [`TABLE`] that have ever been used. They are the first slots of the table.
static USED: AtomicU32 = AtomicU32::new(0);

impl Slot {
    #[cfg(not(loom))]
    const fn new() -> Slot {
        Slot {
            thread: AtomicU32::new(FREE),
            last: AtomicU32::new(FREE),
            locals: AtomicUsize::new(0),
            kind: AtomicU32::new(0),
            generation: AtomicU32::new(!UNKNOWN),
            follower: Follower::new(),
        }
    }

    #[cfg(loom)]
    fn new() -> Slot {
        let word = AtomicU32::new;
        Slot {
            thread: word(FREE),
            last: word(FREE),
            locals: AtomicUsize::new(0),
            kind: word(0),
            generation: word(!UNKNOWN),
            follower: Follower::new(),
        }
    }

    /// Returns the thread's id, if the slot has a thread.
    pub fn thread(&self) -> Option<u32> {
        let thread = self.thread.load(Ordering::Acquire);
        (thread != FREE && thread != RESERVED).then_some(thread)
    }

    pub fn has(&self, kind: Credentials) -> bool {
        self.kind.load(Ordering::Relaxed) == kind as u32
    }

    /// Returns the thread's id, if the thread repeats every change of credentials that the program
    /// makes. `None` for any other thread.
    pub fn following(&self) -> Option<u32> {
        self.thread().filter(|_| self.has(Credentials::Following) || self.has(Credentials::Service))
    }

    /// Reserves the slot for a new thread, if the slot is free and its last thread no longer
    /// exists. Returns whether the slot was reserved.
    fn reserve(&self) -> bool {
        let is_taken = || self.thread.compare_exchange(FREE, RESERVED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let has_left = |last| last == FREE || !is_alive(last);
        self.thread.load(Ordering::Acquire) == FREE && has_left(self.last.load(Ordering::Acquire)) && is_taken()
    }

    /// Returns whether `thread` had this slot of the thread table last, and is ending or has ended.
    /// Returns `false` if a new thread with this id is alive.
    fn is_left_by(&self, thread: u32) -> bool {
        let ends = || program_threads::is_ending(thread) || !is_alive(thread);
        self.last.load(Ordering::Acquire) == thread && ends()
    }

    /// Returns the generation of the credentials with which the thread started. `None` if it is not
    /// known.
    pub fn generation(&self) -> Option<u32> {
        let generation = !self.generation.load(Ordering::Acquire);
        (generation != UNKNOWN).then_some(generation)
    }

    fn set_generation(&self, generation: Option<u32>) {
        self.generation.store(!generation.unwrap_or(UNKNOWN), Ordering::Release);
    }
}

/// Returns all slots that have ever been used.
pub(crate) fn all() -> impl Iterator<Item = &'static Slot> {
    TABLE.iter().take(USED.load(Ordering::Acquire) as usize)
}

/// Returns the calling thread's slot, without a system call. Returns `None` for a thread of the
/// program. Also returns `None` for a thread of usring before [`ThreadSlot::begin`] or after
/// [`ThreadSlot::end`].
pub(crate) fn current() -> Option<&'static Slot> {
    let ThreadId(locals) = thread::current();
    // A thread that the program made by a raw clone(2) may have the thread pointer 0. `locals` of
    // an unused slot is 0, too, so the search below would find such a slot.
    if locals == 0 {
        return None;
    }
    all().find(|slot| slot.locals.load(Ordering::Acquire) == locals)
}

/// Returns the calling thread's slot, even before [`ThreadSlot::begin`] and after
/// [`ThreadSlot::end`]. Costs a system call.
pub(crate) fn current_by_id() -> Option<&'static Slot> {
    let thread = thread_id();
    all().find(|slot| slot.thread.load(Ordering::Acquire) == thread)
}

/// Whether a thread of this process is the program's or usring's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Program,
    Usring,
    /// A thread of usring that submits with credentials of its own ([`Credentials::OfSubmitter`]).
    Submitter,
    /// Not known. usring is just starting a thread, which may be the examined thread.
    Unknown,
}

/// Returns whether a thread, which the caller has found in /proc/self/task, is the program's or
/// usring's.
pub fn owner_of(thread: u32) -> Owner {
    let mut owner = Owner::Program;
    for slot in all() {
        // One load is enough. usring reserves a thread's slot before it makes the thread. So when
        // /proc/self/task lists the thread, its slot is already reserved.
        match slot.thread.load(Ordering::Acquire) {
            found if found == thread && slot.has(Credentials::OfSubmitter) => return Owner::Submitter,
            found if found == thread => return Owner::Usring,
            RESERVED => owner = Owner::Unknown,
            _ if slot.is_left_by(thread) => return Owner::Usring,
            _ => {}
        }
    }
    owner
}

/// Returns whether a thread is certainly the program's. The caller has found the thread in
/// /proc/self/task. Returns `false` for a thread of usring, even if it is just starting or ending.
pub(crate) fn is_certainly_programs(thread: u32) -> bool {
    owner_of(thread) == Owner::Program && all().all(|slot| slot.last.load(Ordering::Acquire) != thread)
}

/// Frees all slots, in a forked child, which has no thread of usring.
pub(crate) fn forget() {
    for slot in all() {
        slot.thread.store(FREE, Ordering::Relaxed);
        slot.last.store(FREE, Ordering::Relaxed);
        slot.locals.store(0, Ordering::Relaxed);
    }
}

/// A slot of the table, reserved for one thread of usring. The kernel frees the slot of a bare
/// thread (made by clone(2)). For any other thread, the drop of this value frees the slot.
#[derive(Debug)]
pub struct ThreadSlot {
    index: usize,
    origin: Origin,
}

impl ThreadSlot {
    /// Reserves a slot for a thread that the caller is about to make. `generation` is the number of
    /// changes of credentials that have ended so far.
    ///
    /// Errors: `EAGAIN` if there are too many threads.
    pub fn reserve(kind: Credentials, generation: u32) -> Result<ThreadSlot, Errno> {
        let origin = match current().filter(|creator| creator.has(Credentials::OfSpawn)) {
            Some(creator) => Origin::Inherited(creator.generation()),
            None => Origin::Seen(generation),
        };
        let index = TABLE.iter().position(Slot::reserve).ok_or(Errno::EAGAIN)?;
        USED.fetch_max(width::count(index) + 1, Ordering::AcqRel);
        TABLE[index].kind.store(kind as u32, Ordering::Release);
        TABLE[index].set_generation(None);
        TABLE[index].follower.answer(0, 0);
        Ok(ThreadSlot { index, origin })
    }

    /// Returns the word for the thread's id: clone(2) writes the id to it, and the kernel clears it
    /// when the thread ends.
    pub fn thread_word(&self) -> *mut u32 {
        TABLE[self.index].thread.as_ptr()
    }

    /// Enters the calling thread, which has just started, into its slot. Returns the thread's id.
    pub fn begin(&self, generations: &Generations, order: &Order) -> u32 {
        let slot = &TABLE[self.index];
        let generation = slot.follower.begin(self.origin, generations, order);
        slot.set_generation(generation);
        let thread = thread_id();
        slot.last.store(thread, Ordering::Release);
        slot.locals.store(thread::current().0, Ordering::Release);
        slot.thread.store(thread, Ordering::Release);
        thread
    }

    /// Ends the calling thread's use of its slot. Removes the thread's [`ThreadId`], because a new
    /// thread may soon get an equal one. Then frees the slot. The slot of a bare thread (made by
    /// clone(2)) stays: the kernel frees it when the thread has ended.
    pub fn end(self, is_bare: bool) {
        TABLE[self.index].locals.store(0, Ordering::Release);
        if is_bare {
            core::mem::forget(self);
        }
    }
}

impl Drop for ThreadSlot {
    fn drop(&mut self) {
        TABLE[self.index].thread.store(FREE, Ordering::Release);
    }
}
