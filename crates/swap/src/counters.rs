//! The counters of a swap region. A thread has a fault slot while usring serves its page fault.
//! Each of the first 64 fault slots has a row of counters of its own. So up to 64 faulting threads
//! count without sharing a cache line.

use usring_sys::Errno;
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU64, Ordering};
use usring_sys::width;

/// A counter; [`crate::Statistics`] has the meaning of each.
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
/// Index, in the first row of counters, of the word with the peak (see [`Counters::raise_peak`]).
/// The two words after it hold the limit and the unit.
const PEAK: usize = 12;
const LIMIT: usize = 13;
const UNIT: usize = 14;
/// Words of a row of counters. 16 words are two whole cache lines.
const WORDS: usize = 16;
/// Number of rows of counters, a power of two. A fault slot with a higher number shares a row with
/// a lower one.
const ROWS: usize = 64;

pub struct Counters(PageArray<AtomicU64>);

impl Counters {
    pub fn new() -> Result<Self, Errno> {
        Ok(Counters(PageArray::new(ROWS * WORDS)?))
    }

    /// Makes counters on words that the caller has mapped from the file of counters of a run (see
    /// [`run`]).
    pub fn of(words: PageArray<AtomicU64>) -> Self {
        assert!(words.len() == ROWS * WORDS);
        Counters(words)
    }

    /// Stores the limit (in units) and the unit (in bytes) among the counters. The launcher reads
    /// them from the file of counters of a run ([`run`]).
    pub fn set_sizes(&self, limit: usize, unit: usize) {
        self.0[LIMIT].store(limit as u64, Ordering::Relaxed);
        self.0[UNIT].store(unit as u64, Ordering::Relaxed);
    }

    /// Raises the peak (the highest number of pages that were ever resident) to `resident`, unless
    /// the peak is higher already.
    #[inline]
    pub fn raise_peak(&self, resident: usize) {
        let peak = &self.0[PEAK];
        if peak.load(Ordering::Relaxed) < resident as u64 {
            peak.fetch_max(resident as u64, Ordering::Relaxed);
        }
    }

    pub fn peak(&self) -> u64 {
        self.0[PEAK].load(Ordering::Relaxed)
    }

    #[inline]
    pub fn add(&self, fault_slot: usize, counter: Counter, count: u64) {
        self.0[fault_slot % ROWS * WORDS + counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub fn sum(&self, counter: Counter) -> u64 {
        (0..ROWS).map(|row| self.0[row * WORDS + counter as usize].load(Ordering::Relaxed)).sum()
    }
}

const _: () = assert!(Counter::OverLimit as usize == COUNTERS - 1 && COUNTERS <= WORDS);

/// The counters of a region since it was made. A page is one unit of the region: 4 KiB, or at least
/// 64 KiB with the mechanism `mprotect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Pages of the region, in memory or not.
    pub pages: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// Maximum number of pages that may be resident, as set by the user.
    pub limit: u64,
    /// Pages resident now.
    pub resident: u64,
    /// Highest number of pages that were ever resident.
    pub peak: u64,
    /// Pages pinned now.
    pub pinned: u64,
    /// Slots of the backing store.
    pub slots: u64,
    /// Slots that hold a page.
    pub slots_taken: u64,
    /// Pages that came into memory for the first time, holding zeroes.
    pub first_touches: u64,
    /// Evicted pages that were read back by the thread that touched or pinned them.
    pub swap_ins: u64,
    /// First writes to clean pages. A clean page has equal content in memory and in the store; the
    /// write makes it dirty.
    pub write_faults: u64,
    /// Faults for which nothing had to be done: before usring served the fault, another thread had
    /// paged the page in.
    pub late_faults: u64,
    /// Pages that the reader thread read before a thread touched them.
    pub read_ahead: u64,
    /// Evicted pages, both those that were written to the store and those that needed no write.
    pub evicted: u64,
    /// Evicted pages that were written to the backing store.
    pub written: u64,
    /// Write requests to the backing store.
    pub write_requests: u64,
    /// Evictions by faulting threads, to make room for their pages.
    pub direct_evictions: u64,
    /// Pages that could not be read back. If a thread touched such a page, it got SIGBUS. If it
    /// pinned the page, it got `EIO`.
    pub read_errors: u64,
    /// Write requests that failed. The pages that they would have written stayed in memory.
    pub write_errors: u64,
    /// Pages that were paged in above the limit, because no page could be evicted: the backing
    /// store is full or fails, or all pages are in use.
    pub over_limit: u64,
}

/// The file of counters of a run. Each process of the run counts in its own part of the file. The
/// counts remain in the file after a process has ended, even by SIGKILL.
pub mod run {
    use super::*;
    use alloc::vec::Vec;
    use core::ffi::CStr;
    use usring_sys::page_array::PageArray;
    use usring_sys::{Errno, mapping};

    /// Maximum number of processes that have counters in the file of a run. Any further process
    /// counts in its own memory, and its counts do not reach the file.
    pub const MOST: usize = 64;
    /// Bytes of the file: one page, then a part for each of [`MOST`] processes. The first word of
    /// the file is the number of processes that have asked for a part.
    pub const SIZE: usize = mapping::PAGE + MOST * PART;
    const PART: usize = ROWS * WORDS * size_of::<u64>();

    /// The counts of one process.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Sums {
        pub page_size: u64,
        pub limit: u64,
        pub peak: u64,
        /// Pages that were paged in by the thread that touched them.
        pub swap_ins: u64,
        /// Pages that were paged in by the reader.
        pub read_ahead: u64,
        pub first_touches: u64,
        pub evicted: u64,
        pub written: u64,
        pub over_limit: u64,
    }

    /// Returns counters in a part of the run's file of counters. No other process uses this part.
    /// `None` if no part is left, or if the file cannot be opened or mapped.
    pub fn take(path: &CStr) -> Option<Counters> {
        let file = usring_sys::file::open_shared(path).ok()?;
        let part = width::size(mapping::shared_words(&file).ok()?[0].fetch_add(1, Ordering::Relaxed));
        let words = (part < MOST).then(|| PageArray::of_file(&file, mapping::PAGE + part * PART, ROWS * WORDS))?;
        words.map(Counters::of).ok()
    }

    /// Returns the counts of each process. `words`: the content of the run's file of counters.
    /// Error: `EINVAL` if the file is too short.
    pub fn sums(words: &[u64]) -> Result<Vec<Sums>, Errno> {
        let parts = words.get(mapping::PAGE / size_of::<u64>()..).ok_or(Errno::EINVAL)?;
        let taken = width::size(words[0]).min(MOST);
        let parts = parts.chunks_exact(ROWS * WORDS).take(taken);
        Ok(parts.map(of_part).filter(|sums| sums.page_size != 0).collect())
    }

    fn of_part(words: &[u64]) -> Sums {
        let sum = |counter: Counter| words.chunks(WORDS).map(|row| row[counter as usize]).sum();
        Sums {
            page_size: words[UNIT],
            limit: words[LIMIT],
            peak: words[PEAK],
            swap_ins: sum(Counter::SwapIns),
            read_ahead: sum(Counter::ReadAhead),
            first_touches: sum(Counter::FirstTouches),
            evicted: sum(Counter::Evicted),
            written: sum(Counter::Written),
            over_limit: sum(Counter::OverLimit),
        }
    }
}
