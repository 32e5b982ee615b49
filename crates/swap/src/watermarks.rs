//! The limit of a region: how many pages are resident, and when the background
//! evictor works.
//!
//! ```text
//! 0 ............ low ....... high ......... limit
//!                 ▲ evictor stops   ▲ a fault wakes it   ▲ a fault evicts by itself
//! ```
//! Room is taken before a page comes in and given back after one has gone, so
//! `resident` is never less than what is in memory, and passes the limit only
//! where nothing can be evicted ([`Limit::exceed`]).

use usring_sys::futex;
use usring_sys::ordering::{Edge, Side};
use usring_sys::sync::{AtomicU32, AtomicUsize, Ordering};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Most of a limit, in its parts, that is kept free for faults.
const HIGH: usize = 32;
const LOW: usize = 16;
/// In units, whatever the limit.
const MOST_FREE: usize = 16 << 10;

pub struct Limit {
    resident: AtomicUsize,
    limit: AtomicUsize,
    /// Whether the evictor sleeps.
    evictor: AtomicU32,
    stop: AtomicU32,
}

impl Limit {
    pub fn new(limit: usize) -> Self {
        Limit {
            resident: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            evictor: AtomicU32::new(AWAKE),
            stop: AtomicU32::new(0),
        }
    }

    pub fn resident(&self) -> usize {
        self.resident.load(Ordering::Relaxed)
    }

    pub fn get(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub fn set(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
        // `wake_evictor` takes it for granted that a read-modify-write came before.
        Edge::Sleep.barrier(Side::Waker);
        self.wake_evictor();
    }

    fn below(&self, part: usize) -> usize {
        let limit = self.get();
        limit - (limit / part).min(MOST_FREE)
    }

    pub fn low(&self) -> usize {
        self.below(LOW)
    }

    fn high(&self) -> usize {
        self.below(HIGH)
    }

    /// Takes room for so many pages, if there is.
    #[inline]
    pub fn take(&self, pages: usize) -> bool {
        let before = self.resident.fetch_add(pages, Ordering::Relaxed);
        if before + pages <= self.get() {
            return true;
        }
        self.resident.fetch_sub(pages, Ordering::Relaxed);
        false
    }

    /// Takes room only where the evictor has nothing to do: for pages that
    /// nobody has asked for.
    pub fn take_spare(&self, pages: usize) -> bool {
        self.resident() + pages <= self.high() && self.take(pages)
    }

    /// Takes room that is not there.
    pub fn exceed(&self, pages: usize) {
        self.resident.fetch_add(pages, Ordering::Relaxed);
    }

    pub fn give_back(&self, pages: usize) {
        self.resident.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Lets the evictor work, if it has to and does not.
    #[inline]
    pub fn wake_evictor(&self) {
        if self.resident() <= self.high() {
            return;
        }
        Edge::Sleep.barrier_beside_rmw(Side::Waker);
        self.call();
    }

    #[inline]
    fn call(&self) {
        if self.evictor.load(Ordering::Relaxed) == ASLEEP && self.evictor.swap(AWAKE, Ordering::Relaxed) == ASLEEP {
            futex::wake(&self.evictor, 1);
        }
    }

    /// For the evictor: sleeps until there is work. `false`: it is to end.
    pub fn wait_for_work(&self) -> bool {
        loop {
            self.evictor.store(ASLEEP, Ordering::Relaxed);
            Edge::Sleep.barrier(Side::Sleeper);
            let stops = self.stop.load(Ordering::Relaxed) != 0;
            if stops || self.resident() > self.high() {
                self.evictor.store(AWAKE, Ordering::Relaxed);
                return !stops;
            }
            let _ = futex::wait(&self.evictor, ASLEEP, None);
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) != 0
    }

    /// Ends the evictor.
    pub fn stop(&self) {
        self.stop.store(1, Ordering::Relaxed);
        Edge::Sleep.barrier(Side::Waker);
        self.call();
    }
}
