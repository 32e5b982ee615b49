//! The limit of a region: how many pages may be resident, and when the background evictor works.
//!
//! ```text
//! 0 ............ low ....... high ......... limit
//!                 ▲ evictor stops   ▲ a fault wakes it   ▲ a fault evicts by itself
//! ```
//! A thread *reserves room* (raises `resident`) before it pages a page in. A thread that frees a
//! page's memory releases room afterwards. So `resident` is never less than the number of pages in
//! memory.
//!
//! If too few pages can be evicted, [`Limit::raise`] adds an `excess` to the limit, by one chunk of
//! pages each time, for two reasons:
//! - While a chunk has room, threads neither search for pages to evict nor repeat writes that fail.
//! - One instruction may need several pages, which must be in memory together. Without the excess,
//!   one of these pages could take the place of another.
//!
//! The evictor lowers the excess as pages are evicted or freed.

use usring_sys::clock::Nanoseconds;
use usring_sys::futex;
use usring_sys::ordering::{Edge, Side};
use usring_sys::sync::{AtomicU32, AtomicUsize, Ordering};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// A fault wakes the evictor when less than `1/HIGH` of the limit is free. The evictor stops when
/// `1/LOW` of the limit is free again.
const HIGH: usize = 32;
const LOW: usize = 16;
/// Maximum number of units that the evictor keeps free. With a large limit, it is less than `1/LOW`
/// of the limit.
const MOST_FREE: usize = 16 << 10;
/// [`Limit::raise`] adds room for `1/CHUNK` of the limit, but at least for [`LEAST_CHUNK`] units.
const CHUNK: usize = 32;
pub const LEAST_CHUNK: usize = 64;

/// Result of [`Limit::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// There was room below the limit. Holds the number of resident pages, including the new pages.
    Within(usize),
    /// There was room in the excess beyond the limit. Holds the number of resident pages, including
    /// the new pages.
    Beyond(usize),
    None,
}

pub struct Limit {
    resident: AtomicUsize,
    limit: AtomicUsize,
    /// Number of pages by which the resident pages may exceed the limit for now.
    excess: AtomicUsize,
    /// Futex word on which the evictor sleeps after an eviction that freed no page. The evictor has
    /// to wake if the limit is set, or if it is stopped. So the value counts these events.
    changes: AtomicU32,
    /// Futex word on which the evictor sleeps while it has no work: `AWAKE` or `ASLEEP`.
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
        self.announce_change();
        // A full barrier must come before `wake_evictor`. The other callers of `wake_evictor` need
        // none, because they have just made an atomic read-modify-write, which is a full barrier.
        Edge::Sleep.barrier(Side::Waker);
        self.wake_evictor();
    }

    fn mark_below_limit(&self, part: usize) -> usize {
        let limit = self.get();
        limit - (limit / part).min(MOST_FREE)
    }

    pub fn low_mark(&self) -> usize {
        self.mark_below_limit(LOW)
    }

    fn high_mark(&self) -> usize {
        self.mark_below_limit(HIGH)
    }

    /// Reserves room for `pages` pages by counting them as resident. If the limit and the excess do
    /// not allow all of them, counts none.
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

    /// Returns whether one more page may become resident within the limit and its present excess.
    pub fn has_room(&self) -> bool {
        self.resident() < self.get() + self.excess.load(Ordering::Relaxed)
    }

    /// Raises the excess, so that one more chunk of pages has room. A thread calls this function
    /// when it has found too few pages to evict.
    pub fn raise(&self) {
        let excess = self.excess.load(Ordering::Relaxed);
        let limit = self.get();
        let needed = (self.resident() + (limit / CHUNK).max(LEAST_CHUNK)).saturating_sub(limit);
        if needed > excess {
            // If the exchange fails, another thread has changed the excess meanwhile. This thread
            // then uses that excess.
            let _ = self.excess.compare_exchange(excess, needed, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Lowers the excess to the number of pages that are resident beyond the limit.
    pub fn lower(&self) {
        let excess = self.excess.load(Ordering::Relaxed);
        let needed = self.resident().saturating_sub(self.get());
        if needed < excess {
            let _ = self.excess.compare_exchange(excess, needed, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Reserves room for pages to read ahead. Returns `false`, and reserves nothing, if the
    /// resident pages would then be above the high mark, so that the evictor would have to wake.
    pub fn take_spare(&self, pages: usize) -> bool {
        self.resident() + pages <= self.high_mark() && self.take(pages) != Share::None
    }

    /// Counts pages as resident even if the limit has no room for them. A forked child calls this
    /// function for the pages that it has from the start.
    pub fn exceed(&self, pages: usize) {
        self.resident.fetch_add(pages, Ordering::Relaxed);
    }

    pub fn give_back(&self, pages: usize) {
        self.resident.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Wakes the evictor if it sleeps and the number of resident pages is above the high mark.
    #[inline]
    pub fn wake_evictor(&self) {
        if self.resident() <= self.high_mark() {
            return;
        }
        Edge::Sleep.barrier_beside_rmw(Side::Waker);
        self.wake_sleeping_evictor();
    }

    #[inline]
    fn wake_sleeping_evictor(&self) {
        if self.evictor.load(Ordering::Relaxed) == ASLEEP && self.evictor.swap(AWAKE, Ordering::Relaxed) == ASLEEP {
            futex::wake(&self.evictor, 1);
        }
    }

    /// Puts the evictor to sleep until it has work. Returns `false` if the evictor must end.
    pub fn wait_for_work(&self) -> bool {
        loop {
            self.evictor.store(ASLEEP, Ordering::Relaxed);
            Edge::Sleep.barrier(Side::Sleeper);
            let stops = self.stop.load(Ordering::Relaxed) != 0;
            if stops || self.resident() > self.high_mark() {
                self.evictor.store(AWAKE, Ordering::Relaxed);
                return !stops;
            }
            let _ = futex::wait(&self.evictor, ASLEEP, None);
        }
    }

    fn announce_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        futex::wake(&self.changes, 1);
    }

    /// Returns how often the limit was set or the evictor was stopped. A later value shows that
    /// this has happened again.
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Puts the evictor to sleep for `time`, or until [`Limit::changes`] differs from `changes`.
    pub fn pause(&self, changes: u32, time: Nanoseconds) {
        let _ = futex::wait(&self.changes, changes, Some(time));
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) != 0
    }

    /// Makes the evictor thread end.
    pub fn stop(&self) {
        self.stop.store(1, Ordering::Relaxed);
        self.announce_change();
        Edge::Sleep.barrier(Side::Waker);
        self.wake_sleeping_evictor();
    }
}
