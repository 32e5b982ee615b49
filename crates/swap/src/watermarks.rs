//! The limit of a region: how many pages are resident, and when the background
//! evictor works.
//!
//! ```text
//! 0 ............ low ....... high ......... limit
//!                 ▲ evictor stops   ▲ a fault wakes it   ▲ a fault evicts by itself
//! ```
//! Room is taken before a page comes in and given back after one has gone, so
//! `resident` is never less than what is in memory, and passes the limit only
//! where nothing can be evicted: then there is an `excess` that pages may come in by besides ([`Limit::raise`]). It is
//! raised by a chunk at a time, so that what cannot go is not searched for, or written in vain, for each page; and so
//! that the pages that one instruction needs find room beside each other where none but they could make way. The
//! evictor lowers it as pages go.

use usring_sys::clock::Nanoseconds;
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
/// Of a limit, in its parts, by which it is exceeded at a time, and in units at least.
const CHUNK: usize = 32;
pub const LEAST_CHUNK: usize = 64;

/// What has come of asking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Below the limit; so many pages are resident then.
    Within(usize),
    /// Of the excess.
    Beyond(usize),
    None,
}

pub struct Limit {
    resident: AtomicUsize,
    limit: AtomicUsize,
    /// How many more may be resident for now.
    excess: AtomicUsize,
    /// What the evictor sleeps on while it leaves alone what cannot go.
    changes: AtomicU32,
    /// Whether the evictor sleeps.
    evictor: AtomicU32,
    stop: AtomicU32,
}

impl Limit {
    pub fn new(limit: usize) -> Self {
        Limit {
            resident: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            excess: AtomicUsize::new(0),
            changes: AtomicU32::new(0),
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
        self.excess.store(0, Ordering::Relaxed);
        self.change();
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
    pub fn take(&self, pages: usize) -> Share {
        let resident = self.resident.fetch_add(pages, Ordering::Relaxed) + pages;
        let limit = self.get();
        if resident <= limit {
            return Share::Within(resident);
        }
        if resident <= limit + self.excess.load(Ordering::Relaxed) {
            return Share::Beyond(resident);
        }
        self.resident.fetch_sub(pages, Ordering::Relaxed);
        Share::None
    }

    /// Whether there is room for a page, be it beyond the limit.
    pub fn has_room(&self) -> bool {
        self.resident() < self.get() + self.excess.load(Ordering::Relaxed)
    }

    /// Nothing more can go: has room for a chunk of pages beside what is resident.
    pub fn raise(&self) {
        let excess = self.excess.load(Ordering::Relaxed);
        let limit = self.get();
        let needed = (self.resident() + (limit / CHUNK).max(LEAST_CHUNK)).saturating_sub(limit);
        if needed > excess {
            // Who else does so at this moment has done it for both.
            let _ = self.excess.compare_exchange(excess, needed, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// What has gone does not come back by right.
    pub fn lower(&self) {
        let excess = self.excess.load(Ordering::Relaxed);
        let needed = self.resident().saturating_sub(self.get());
        if needed < excess {
            let _ = self.excess.compare_exchange(excess, needed, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes room only where the evictor has nothing to do: for pages that
    /// nobody has asked for.
    pub fn take_spare(&self, pages: usize) -> bool {
        self.resident() + pages <= self.high() && self.take(pages) != Share::None
    }

    /// Takes room that need not be there.
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

    fn change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        futex::wake(&self.changes, 1);
    }

    /// How often the limit has changed, or the evictor was to end.
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// For the evictor: sleeps for so many nanoseconds, or until there is a change after these.
    pub fn pause(&self, changes: u32, time: Nanoseconds) {
        let _ = futex::wait(&self.changes, changes, Some(time));
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) != 0
    }

    /// Ends the evictor.
    pub fn stop(&self) {
        self.stop.store(1, Ordering::Relaxed);
        self.change();
        Edge::Sleep.barrier(Side::Waker);
        self.call();
    }
}
