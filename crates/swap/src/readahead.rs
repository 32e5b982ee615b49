//! Read-ahead: when a thread's faults are sequential, the reader thread pages in the next pages by
//! one larger request. The reader thread sleeps until the request completes.
//!
//! - A thread has a fault slot while usring serves its fault. For each fault slot, the reader knows
//!   the page at which a sequence of faults would continue.
//! - If a fault is on that page, the number of pages to read ahead doubles. It begins with 4. A
//!   fault on another page ends the sequence.
//! - Each fault slot has at most one job (pages to read). A new job replaces the previous job if
//!   the reader has not begun it.

use crate::counters::Counter;
use crate::page::State;
use crate::pager::Pager;
use crate::run::MOST;
use crate::store_queue::{StoreQueue, Waiting};
use core::ops::Range;
use usring_sys::Errno;
use usring_sys::futex;
use usring_sys::ordering::{Edge, Side};
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU32, AtomicU64, Ordering};

/// Number of elements of `expected` and `jobs`, a power of two. Two fault slots may share an
/// element. Then each ends the other's sequence of faults, so fewer pages are read ahead.
const ROWS: usize = 64;
const FIRST: usize = 4;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// Low bits of a job, which hold its number of pages. The bits above them hold the job's first
/// page.
const COUNT_BITS: u32 = 8;

pub struct Streams {
    /// For each fault slot: the page that a sequence of faults would touch next, and the number of
    /// pages that the last job read ahead.
    expected: PageArray<AtomicU64>,
    /// For each fault slot: the pages that the reader thread should read next (a job). 0 if there
    /// is no job.
    jobs: PageArray<AtomicU64>,
    /// Maximum number of pages to read ahead; 0 turns read-ahead off.
    most: usize,
    reader: AtomicU32,
    stop: AtomicU32,
}

fn pack(page: usize, count: usize) -> u64 {
    (page as u64) << COUNT_BITS | count as u64
}

fn unpack(word: u64) -> (usize, usize) {
    ((word >> COUNT_BITS) as usize, (word & ((1 << COUNT_BITS) - 1)) as usize)
}

impl Streams {
    pub fn new(most: usize) -> Result<Self, Errno> {
        Ok(Streams {
            expected: PageArray::new(ROWS)?,
            jobs: PageArray::new(ROWS)?,
            most: most.min(MOST),
            reader: AtomicU32::new(AWAKE),
            stop: AtomicU32::new(0),
        })
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// Records that a fault has paged in `page` for the thread with this fault slot. Returns the
    /// pages to read ahead. `None` if the fault does not continue the fault slot's sequence.
    fn next(&self, page: usize, fault_slot: usize) -> Option<Range<usize>> {
        let word = &self.expected[fault_slot % ROWS];
        let (expected, before) = unpack(word.load(Ordering::Relaxed));
        if page != expected || page == 0 {
            word.store(pack(page + 1, 0), Ordering::Relaxed);
            return None;
        }
        let count = (2 * before).clamp(FIRST, self.most.max(FIRST)).min(self.most);
        word.store(pack(page + 1 + count, count), Ordering::Relaxed);
        Some(page + 1..page + 1 + count)
    }

    fn ask(&self, pages: Range<usize>, fault_slot: usize) {
        self.jobs[fault_slot % ROWS].swap(pack(pages.start, pages.len()), Ordering::Relaxed);
        Edge::Sleep.barrier_beside_rmw(Side::Waker);
        self.wake_reader();
    }

    fn wake_reader(&self) {
        if self.reader.load(Ordering::Relaxed) == ASLEEP && self.reader.swap(AWAKE, Ordering::Relaxed) == ASLEEP {
            futex::wake(&self.reader, 1);
        }
    }

    fn take_job(&self) -> Option<Range<usize>> {
        let jobs = self.jobs.iter().filter(|job| job.load(Ordering::Relaxed) != 0);
        let word = jobs.map(|job| job.swap(0, Ordering::Relaxed)).find(|word| *word != 0)?;
        let (first, count) = unpack(word);
        Some(first..first + count)
    }

    /// Puts the reader to sleep until there is a job. Returns the pages of the job. `None` if the
    /// reader must end.
    fn wait(&self) -> Option<Range<usize>> {
        loop {
            self.reader.store(ASLEEP, Ordering::Relaxed);
            Edge::Sleep.barrier(Side::Sleeper);
            let stops = self.stop.load(Ordering::Relaxed) != 0;
            let job = if stops { None } else { self.take_job() };
            if stops || job.is_some() {
                self.reader.store(AWAKE, Ordering::Relaxed);
                return job;
            }
            let _ = futex::wait(&self.reader, ASLEEP, None);
        }
    }

    pub fn stop(&self) {
        self.stop.store(1, Ordering::Relaxed);
        Edge::Sleep.barrier(Side::Waker);
        self.wake_reader();
    }
}

impl Pager {
    /// Continues read-ahead after a fault has read `page` from the store. If the faults of this
    /// fault slot are sequential, asks the reader thread to page in the next pages.
    #[inline]
    pub fn note_page_in(&self, page: usize, fault_slot: usize) {
        if self.streams.most() == 0 {
            return;
        }
        if let Some(pages) = self.streams.next(page, fault_slot) {
            let end = pages.end.min(self.pages());
            if pages.start < end && self.page(pages.start).state() == State::Out {
                self.streams.ask(pages.start..end, fault_slot);
            }
        }
    }

    /// Runs the reader thread. `queue` has a buffer for [`MOST`] pages. Returns when the region
    /// stops its threads.
    pub fn read_ahead(&self, mut queue: StoreQueue) {
        while let Some(pages) = self.streams.wait() {
            let end = pages.end.min(self.pages());
            let mut page = pages.start;
            while page < end {
                page = self.read_ahead_once(page..end, &mut queue);
            }
        }
    }

    /// Finds the first evicted pages of a range, and pages them in by one request. Returns the page
    /// after the last of them. Returns the end of the range if the range has no evicted page, or if
    /// there is no room for one.
    fn read_ahead_once(&self, pages: Range<usize>, queue: &mut StoreQueue) -> usize {
        // Only evicted pages (`Out`) are read from the store. Other pages were never touched, or
        // are in memory.
        let Some(first) = pages.clone().find(|page| self.page(*page).state() == State::Out) else { return pages.end };
        let Some(run) = self.take_run(first..pages.end, || self.limit.take_spare(1)) else {
            // If the first page is still evicted, there is no room for it. Otherwise another thread
            // has taken it.
            return if self.page(first).state() == State::Out { pages.end } else { first + 1 };
        };
        let end = first + run.count();
        let (from, length) = self.device_range(&run);
        let content = queue.read(self.store.device(), from, length, Waiting::Asleep);
        // A page that could not be read stays evicted. The next thread that touches it tries to
        // read it again, and reports the error.
        self.map_run(run, content, self.mechanism.tracks_writes(), (Counter::ReadAhead, first));
        end
    }
}
