//! A ring's reference to its SQ thread, and the state that the SQ thread shares with the threads
//! that enter its rings. The SQ thread itself is in `driving::sq_thread`.
//!
//! A child that uses an inherited ring has no SQ thread of its own. The SQ thread of the process
//! that made the ring submits for the child, with the maker's files and memory. The child wakes
//! that SQ thread through words in shared memory, which fork(2) passes on ([`Words`]).

use crate::ring::Ring;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::mapping::PAGE;
use usring_sys::mapping_pool::MappingPool;
use usring_sys::mutex::Mutex;
use usring_sys::shared::View;
use usring_sys::sleep::{SleepWord, Sleeper, Wake};
use usring_sys::{Errno, process_number, wait};

/// Longest sleep, in nanoseconds, of a child that waits for room in the SQ. After each sleep, the
/// child checks whether the process that has the SQ thread is still alive.
const LONGEST_CHILD_SLEEP: Nanoseconds = 100_000_000;

/// Shared memory for the [`Words`] of SQ threads: one page for each SQ thread.
static MEMORY: MappingPool = MappingPool::new();

/// The part of an SQ thread's state that is in shared memory, because other processes use it, too.
/// Clones are views of one memory.
#[derive(Clone)]
pub(crate) struct Words {
    /// Word on which the SQ thread sleeps.
    pub sleep: View<SleepWord>,
    /// Word on which threads in enter(2) sleep while they wait for room in an SQ.
    room: View<SleepWord>,
    /// 1 once the SQ thread has ended.
    ended: View<AtomicU32>,
    /// The number of the process that has the SQ thread.
    process: u32,
}

impl Words {
    /// Allocates words. Errors: those of a mapping.
    fn new(process: u32) -> Result<Words, Errno> {
        let memory = Arc::new(MEMORY.take(PAGE)?.memory(0..PAGE));
        // Each word has a cache line of its own. Fresh memory is zero, and so is a new sleep word.
        Ok(Words { sleep: View::of(&memory, 0), room: View::of(&memory, 64), ended: View::of(&memory, 128), process })
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) != 0
    }

    /// Wakes the SQ thread, even if another process died in the middle of waking it.
    fn wake(&self) {
        self.sleep.wake_all_futex();
    }

    /// Wakes the threads that wait for room in an SQ. Only the process that has the SQ thread calls
    /// this function.
    fn announce_room(&self) {
        if self.room.wake_target(u32::MAX) == Wake::Futex {
            self.room.wake_futex();
        }
    }
}

/// A ring's reference to its SQ thread.
#[derive(Default)]
pub(crate) struct SqThreadHandle {
    /// The SQ thread, if it belongs to this process and serves the ring.
    pub thread: Mutex<Option<Arc<SqThread>>>,
    /// The words of the SQ thread. Set before other threads can use the ring, and never changed.
    words: Option<Words>,
    /// Whether the SQ thread belongs to an ancestor of this process.
    is_ancestors: bool,
}

pub(crate) struct SqThread {
    pub rings: Mutex<Vec<Arc<Ring>>>,
    /// Raised whenever `rings` changes.
    pub changes: AtomicU32,
    pub idle: AtomicU64,
    pub processor: Option<u32>,
    pub words: Words,
}

impl SqThreadHandle {
    /// Makes the reference to an SQ thread of this process.
    pub fn new(thread: Arc<SqThread>) -> SqThreadHandle {
        let words = Some(thread.words.clone());
        SqThreadHandle { thread: Mutex::new(Some(thread)), words, is_ancestors: false }
    }

    /// Makes a child's reference to the SQ thread of an ancestor.
    pub fn inherited_from(inherited: &SqThreadHandle) -> SqThreadHandle {
        SqThreadHandle { thread: Mutex::new(None), words: inherited.words.clone(), is_ancestors: true }
    }

    /// Returns whether a thread of this process serves the ring as its SQ thread.
    pub fn is_own(&self) -> bool {
        self.thread.lock().as_ref().is_some_and(|thread| !thread.words.has_ended())
    }

    /// Returns the words of the SQ thread of `ring`. Error: `EOWNERDEAD` if the SQ thread has ended
    /// or could not be started, or if it does not serve the ring any more.
    fn alive(&self, ring: &Ring) -> Result<&Words, Errno> {
        let serves = |words: &&Words| match self.is_ancestors {
            // An SQ thread that serves several rings continues after its process has closed `ring`.
            true => !words.has_ended() && ring.control.maker().is_some() && process_number::is_alive(words.process),
            false => self.is_own(),
        };
        self.words.as_ref().filter(serves).ok_or(Errno::EOWNERDEAD)
    }

    /// Returns whether `ring` used the SQ thread of an ancestor, and that SQ thread does not serve
    /// the ring any more. The ring may then get no further CQE.
    pub fn is_lost(&self, ring: &Ring) -> bool {
        self.is_ancestors && self.words.is_some() && self.alive(ring).is_err()
    }

    /// Returns `EOWNERDEAD` if `ring` has no SQ thread, or no longer has one.
    pub fn check_alive(&self, ring: &Ring) -> Result<(), Errno> {
        self.alive(ring).map(drop)
    }

    /// Wakes the SQ thread, if there is one.
    pub fn wake(&self) {
        if let Some(words) = &self.words {
            words.wake();
        }
    }

    /// Sleeps until the SQ of `ring` has room (SQ_WAIT). Errors: `EINTR` after a signal;
    /// `EOWNERDEAD` if the ring has no SQ thread, or no longer has one.
    pub fn wait_for_room(&self, ring: &Ring) -> Result<(), Errno> {
        let limit = self.is_ancestors.then_some(LONGEST_CHILD_SLEEP);
        loop {
            let words = self.alive(ring)?;
            let ticket = words.room.announce(Sleeper::Futex, 1);
            let slept = if ring.memory.is_submission_full() && !words.has_ended() {
                wait::futex(words.room.futex(), ticket.futex_value(), limit)
            } else {
                Ok(())
            };
            // `retract` returns whether the SQ thread has chosen to wake this waiter. The result is
            // not needed: when the SQ thread has made room, it wakes all waiters at once.
            let _ = words.room.retract(ticket);
            if slept == Err(Errno::EINTR) {
                return Err(Errno::EINTR);
            }
            if !ring.memory.is_submission_full() {
                return Ok(());
            }
        }
    }
}

impl SqThread {
    /// Makes the state of an SQ thread that sleeps after `idle` nanoseconds without work, and runs
    /// on `processor`. Errors: the errors of making a mapping.
    pub fn new(idle: Nanoseconds, processor: Option<u32>) -> Result<Arc<SqThread>, Errno> {
        // A process without a process number shares no ring with others (`Ring::from_parts`).
        let own = process_number::own().unwrap_or(process_number::ALONE);
        Ok(Arc::new(SqThread {
            rings: Mutex::new(Vec::new()),
            changes: AtomicU32::new(0),
            idle: AtomicU64::new(idle),
            processor,
            words: Words::new(own)?,
        }))
    }

    /// Adds a ring to those that the SQ thread serves. Returns `false` if the SQ thread has ended
    /// or could not be started.
    pub fn add(&self, ring: &Arc<Ring>) -> bool {
        {
            // The lock of `rings` also guards the end of the SQ thread. A running SQ thread is
            // marked as ended only while `rings` is empty. An SQ thread that could not be started
            // is marked as ended in any case (`mark_ended`).
            let mut rings = self.rings.lock();
            if self.words.has_ended() {
                return false;
            }
            rings.push(ring.clone());
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.wake();
        true
    }

    pub fn wake(&self) {
        self.words.wake();
    }

    /// Called if the SQ thread could not be started. Rings that have joined it meanwhile have no SQ
    /// thread: enter(2) on them returns `EOWNERDEAD`.
    pub fn mark_ended(&self) {
        let rings = self.rings.lock();
        self.words.ended.store(1, Ordering::SeqCst);
        drop(rings);
        self.announce_room();
    }

    /// Marks the SQ thread as ended if it has no ring left. Returns whether it has ended.
    pub fn end_if_without_ring(&self) -> bool {
        let rings = self.rings.lock();
        if !rings.is_empty() {
            return false;
        }
        self.words.ended.store(1, Ordering::SeqCst);
        drop(rings);
        self.announce_room();
        true
    }

    pub fn announce_room(&self) {
        self.words.announce_room();
    }
}
