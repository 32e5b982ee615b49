//! A ring's reference to its SQ thread, and the state that the SQ thread shares with the threads
//! that enter its rings. The SQ thread itself is in `driving::sq_thread`.

use crate::ring::Ring;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use usring_sys::mutex::Mutex;
use usring_sys::sleep::{SleepWord, Sleeper, Wake};
use usring_sys::{Errno, wait};

/// A ring's reference to its SQ thread.
#[derive(Default)]
pub(crate) struct SqThreadHandle {
    pub thread: Mutex<Option<Arc<SqThread>>>,
}

pub(crate) struct SqThread {
    pub rings: Mutex<Vec<Arc<Ring>>>,
    /// Raised whenever `rings` changes.
    pub changes: AtomicU32,
    pub idle: AtomicU64,
    pub processor: Option<u32>,
    /// Word on which the SQ thread sleeps.
    pub sleep: SleepWord,
    /// Word on which callers sleep while they wait for room in an SQ.
    pub room: SleepWord,
    pub has_ended: AtomicBool,
}

impl SqThreadHandle {
    fn get(&self) -> Option<Arc<SqThread>> {
        self.thread.lock().clone()
    }

    /// Returns `EOWNERDEAD` if the ring's SQ thread could not be started.
    pub fn check_alive(&self) -> Result<(), Errno> {
        match self.get() {
            Some(thread) if !thread.has_ended.load(Ordering::SeqCst) => Ok(()),
            _ => Err(Errno::EOWNERDEAD),
        }
    }

    /// Wakes the SQ thread, if there is one.
    pub fn wake(&self) {
        if let Some(thread) = self.get() {
            thread.wake();
        }
    }

    /// Sleeps until the ring's SQ has room (SQ_WAIT). Errors: `EINTR` after a signal; `EOWNERDEAD`
    /// if the ring has no SQ thread (any more).
    pub fn wait_for_room(&self, ring: &Ring) -> Result<(), Errno> {
        let Some(thread) = self.get() else { return Err(Errno::EOWNERDEAD) };
        loop {
            let ticket = thread.room.announce(Sleeper::Futex, 1);
            let slept = if ring.memory.is_submission_full() && !thread.has_ended.load(Ordering::SeqCst) {
                wait::futex(thread.room.futex(), ticket.futex_value(), None)
            } else {
                Ok(())
            };
            // `retract` returns whether the SQ thread has chosen to wake this waiter. That does not
            // matter here: when the SQ thread has made room, it wakes all waiters at once.
            let _ = thread.room.retract(ticket);
            match slept {
                Err(Errno::EINTR) => return Err(Errno::EINTR),
                _ if !ring.memory.is_submission_full() => return Ok(()),
                _ => self.check_alive()?,
            }
        }
    }
}

impl SqThread {
    /// Adds a ring to those that the SQ thread serves. Returns `false` if the SQ thread has ended
    /// or could not be started.
    pub fn add(&self, ring: &Arc<Ring>) -> bool {
        {
            // The SQ thread is marked as ended only under this lock. An SQ thread that runs is
            // marked only while `rings` is empty. An SQ thread that could not be started is marked
            // in any case (`die`).
            let mut rings = self.rings.lock();
            if self.has_ended.load(Ordering::SeqCst) {
                return false;
            }
            rings.push(ring.clone());
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.wake();
        true
    }

    pub fn wake(&self) {
        wake(&self.sleep);
    }

    /// Marks the SQ thread as ended, because it could not be started. Rings that have joined it
    /// meanwhile have no SQ thread: enter(2) on them returns `EOWNERDEAD`.
    pub fn die(&self) {
        let rings = self.rings.lock();
        self.has_ended.store(true, Ordering::SeqCst);
        drop(rings);
        self.announce_room();
    }

    /// Returns whether the SQ thread has to end, because it has no ring left. If so, marks it as
    /// ended.
    pub fn ends(&self) -> bool {
        let rings = self.rings.lock();
        if !rings.is_empty() {
            return false;
        }
        self.has_ended.store(true, Ordering::SeqCst);
        drop(rings);
        self.announce_room();
        true
    }

    pub fn announce_room(&self) {
        wake(&self.room);
    }
}

fn wake(word: &SleepWord) {
    if word.wake_target(u32::MAX) == Wake::Futex {
        word.wake_futex();
    }
}
