//! Reading ahead: when a thread's faults follow each other in memory, the pages
//! behind are brought in before it comes to them, by a thread of ours that sleeps
//! until its one larger request is done. Nobody polls for them.
//!
//! Each place remembers where its last faults were. One right behind the last
//! doubles what is read ahead, from 4 pages up; any other ends it. What has been
//! asked for and was not begun yet is replaced by what is asked for later.

use crate::counters::Counter;
use crate::lane::{Lane, Waiting};
use crate::page::State;
use crate::pager::Pager;
use crate::run::MOST;
use core::ops::Range;
use usring_sys::Errno;
use usring_sys::futex;
use usring_sys::ordering::{Edge, Side};
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU32, AtomicU64, Ordering};

/// A power of two; several places share one, at the price of a guess.
const ROWS: usize = 64;
const FIRST: usize = 4;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// Bits of a job that count its pages.
const COUNT_BITS: u32 = 8;

pub struct Streams {
    /// Of each place: the page that would go on, and how many were read ahead.
    expected: PageArray<AtomicU64>,
    /// Of each place: what is to be read, 0 if nothing is.
    jobs: PageArray<AtomicU64>,
    /// Most pages to read ahead; 0: none.
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

    /// A fault at a place has brought this page in; answers the pages to read ahead.
    fn next(&self, page: usize, place: usize) -> Option<Range<usize>> {
        let word = &self.expected[place % ROWS];
        let (expected, before) = unpack(word.load(Ordering::Relaxed));
        if page != expected || page == 0 {
            word.store(pack(page + 1, 0), Ordering::Relaxed);
            return None;
        }
        let count = (2 * before).clamp(FIRST, self.most.max(FIRST)).min(self.most);
        word.store(pack(page + 1 + count, count), Ordering::Relaxed);
        Some(page + 1..page + 1 + count)
    }

    fn ask(&self, pages: Range<usize>, place: usize) {
        self.jobs[place % ROWS].swap(pack(pages.start, pages.len()), Ordering::Relaxed);
        Edge::Sleep.barrier_beside_rmw(Side::Waker);
        self.call();
    }

    fn call(&self) {
        if self.reader.load(Ordering::Relaxed) == ASLEEP && self.reader.swap(AWAKE, Ordering::Relaxed) == ASLEEP {
            futex::wake(&self.reader, 1);
        }
    }

    fn job(&self) -> Option<Range<usize>> {
        let jobs = self.jobs.iter().filter(|job| job.load(Ordering::Relaxed) != 0);
        let word = jobs.map(|job| job.swap(0, Ordering::Relaxed)).find(|word| *word != 0)?;
        let (first, count) = unpack(word);
        Some(first..first + count)
    }

    /// For the reader: sleeps until there is a job. `None`: it is to end.
    fn wait(&self) -> Option<Range<usize>> {
        loop {
            self.reader.store(ASLEEP, Ordering::Relaxed);
            Edge::Sleep.barrier(Side::Sleeper);
            let stops = self.stop.load(Ordering::Relaxed) != 0;
            let job = if stops { None } else { self.job() };
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
        self.call();
    }
}

impl Pager {
    /// After a swap-in: has read ahead what its thread is likely to want next.
    #[inline]
    pub fn follow(&self, page: usize, place: usize) {
        if self.streams.most() == 0 {
            return;
        }
        if let Some(pages) = self.streams.next(page, place) {
            let end = pages.end.min(self.pages());
            if pages.start < end && self.page(pages.start).state() == State::Out {
                self.streams.ask(pages.start..end, place);
            }
        }
    }

    /// The reader's life. Its lane has room for [`MOST`] pages.
    pub fn read_ahead(&self, mut lane: Lane) {
        while let Some(pages) = self.streams.wait() {
            let end = pages.end.min(self.pages());
            let mut page = pages.start;
            while page < end {
                page = self.read_ahead_once(page..end, &mut lane);
            }
        }
    }

    /// Brings in the first pages of a range; answers the page behind, or the end if
    /// there is no room for more.
    fn read_ahead_once(&self, pages: Range<usize>, lane: &mut Lane) -> usize {
        // What is not out is passed over, once.
        let Some(first) = pages.clone().find(|page| self.page(*page).state() == State::Out) else { return pages.end };
        let Some(run) = self.take_run(first..pages.end, || self.limit.take_spare(1)) else {
            // No room, or somebody else has it.
            return if self.page(first).state() == State::Out { pages.end } else { first + 1 };
        };
        let end = first + run.count();
        let (from, length) = self.place_of(&run);
        let content = lane.read(self.store.device(), from, length, Waiting::Asleep);
        // Who touches a page that did not come hears why.
        self.put_in_place(run, content, self.mechanism.tracks_writes(), (Counter::ReadAhead, first));
        end
    }
}
