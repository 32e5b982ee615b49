//! What a region counts: by place, so that threads that fault write to no
//! common cache line.

use usring_sys::Errno;
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU64, Ordering};

/// See [`crate::Statistics`] for what each means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    FirstTouches,
    SwapIns,
    WriteFaults,
    LateFaults,
    ReadAhead,
    Evicted,
    Written,
    WriteRequests,
    DirectEvictions,
    ReadErrors,
    WriteErrors,
    OverLimit,
}

const COUNTERS: usize = 12;
/// Of a row: whole cache lines.
const WORDS: usize = 16;
/// A power of two.
const ROWS: usize = 64;

pub struct Counters(PageArray<AtomicU64>);

impl Counters {
    pub fn new() -> Result<Self, Errno> {
        Ok(Counters(PageArray::new(ROWS * WORDS)?))
    }

    #[inline]
    pub fn add(&self, place: usize, counter: Counter, count: u64) {
        self.0[place % ROWS * WORDS + counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub fn sum(&self, counter: Counter) -> u64 {
        (0..ROWS).map(|row| self.0[row * WORDS + counter as usize].load(Ordering::Relaxed)).sum()
    }
}

const _: () = assert!(Counter::OverLimit as usize == COUNTERS - 1 && COUNTERS <= WORDS);

/// What has happened to a region since it was made. Pages are units: 4 KiB, but
/// for the mechanism `mprotect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Pages of the region.
    pub pages: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// Most of them that may be resident.
    pub limit: u64,
    /// That are resident now.
    pub resident: u64,
    /// That must not be evicted now.
    pub pinned: u64,
    /// Of the backing store.
    pub slots: u64,
    /// That hold a page.
    pub slots_taken: u64,
    /// Pages that were touched for the first time.
    pub first_touches: u64,
    /// Pages that were read by the thread that touched them.
    pub swap_ins: u64,
    /// First writes to pages that had been clean.
    pub write_faults: u64,
    /// Faults on pages that somebody else had brought in meanwhile.
    pub late_faults: u64,
    /// Pages that were read before anybody touched them.
    pub read_ahead: u64,
    /// Pages that were evicted, written or not.
    pub evicted: u64,
    /// Of these, pages that had to be written.
    pub written: u64,
    /// Requests that wrote them.
    pub write_requests: u64,
    /// Clusters that a thread had to evict from before it could have its page.
    pub direct_evictions: u64,
    /// Pages that could not be read; their threads got a SIGBUS.
    pub read_errors: u64,
    /// Requests that could not be written; their pages stayed in memory.
    pub write_errors: u64,
    /// Pages that came in although the limit was reached, because nothing could be
    /// evicted: the backing store is full, or fails, or too much is pinned.
    pub over_limit: u64,
}
