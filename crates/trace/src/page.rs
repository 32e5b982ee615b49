//! The memory of a trace, which all processes of a run share: a header, the names, and the records.
//! The launcher makes it as a memory file and reads it at the end. So the events of a process that
//! was killed stay readable.
//!
//! | word | changed by | content |
//! |---|---|---|
//! | 0 … | the launcher, before the program starts | see the constants below |
//! | `AT_NEXT` | each thread that records, by an atomic addition | number of the next event |
//! | `AT_NAMES` | each thread that adds a name, by an atomic addition | words of names so far |
//! | a record's | the thread that claimed its number | the record, sealed by its last word |
//!
//! All accesses are relaxed. A reader trusts a record only if its last word fits the others
//! ([`crate::format::seal`]), so no order is needed. That also holds if the recorder overtakes
//! itself: when two threads write the same record, a whole lap of the memory apart, a mixture of
//! both does not fit.

use crate::format::{Header, MAGIC, RECORD, RECORD_BYTES, Record, VERSION, name_length, name_words, seal};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::clock::Clock;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mapping::{self, PAGE};
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, width};

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_CAPACITY: usize = 2;
const AT_KEEPS_LAST: usize = 3;
const AT_RING: usize = 4;
const AT_START: usize = 5;
const AT_START_OF_DAY: usize = 7;
const AT_MOST_NAMES: usize = 8;
const AT_LOST_NAMES: usize = 9;
/// On a line of the cache for itself, because each event changes it.
const AT_NEXT: usize = 64;
const AT_NAMES: usize = 80;
/// Word at which the names begin.
const NAMES: usize = PAGE / 8;

/// Least and most bytes of names.
const NAMES_RANGE: (u64, u64) = (64 << 10, 8 << 20);
/// Least and most bytes of records.
pub const SIZES: core::ops::RangeInclusive<u64> = 64 << 10..=64 << 30;

/// The events that a trace keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of the records.
    pub size: u64,
    /// Keep the last events, and not the first ones.
    pub keeps_last: bool,
    /// The ring to trace, by its number in its process; 0: all rings.
    pub ring: u32,
}

impl Settings {
    fn names(&self) -> u64 {
        (self.size / 16).clamp(NAMES_RANGE.0, NAMES_RANGE.1) / PAGE as u64 * PAGE as u64
    }

    /// Returns the length of the memory, in bytes.
    pub fn length(&self) -> u64 {
        (PAGE as u64 + self.names() + self.size).next_multiple_of(PAGE as u64)
    }
}

/// The memory, as one process has it mapped.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    words: &'static [AtomicU64],
    capacity: u64,
    records: usize,
    keeps_last: bool,
    ring: u32,
}

impl Page {
    /// Fills the new memory `file`, of [`Settings::length`] bytes, and maps it.
    pub fn create(file: &OwnedDescriptor, settings: &Settings) -> Result<Page, Errno> {
        let words = mapping::shared_pages_of_words(file, width::size(settings.length()))?;
        let [ticks, now] = moment();
        let header = [
            (AT_CAPACITY, settings.size / RECORD_BYTES as u64),
            (AT_KEEPS_LAST, u64::from(settings.keeps_last)),
            (AT_RING, u64::from(settings.ring)),
            (AT_START, ticks),
            (AT_START + 1, now),
            (AT_START_OF_DAY, Clock::Realtime.now()),
            (AT_MOST_NAMES, settings.names() / 8),
            (AT_VERSION, VERSION),
            (AT_MAGIC, MAGIC),
        ];
        header.into_iter().for_each(|(word, value)| words[word].store(value, Ordering::Relaxed));
        Ok(Page::of(words))
    }

    /// Maps the memory of a run. Error: `EINVAL` for the memory of another build.
    pub fn open(file: &OwnedDescriptor) -> Result<Page, Errno> {
        let size = usring_sys::file::measure(file.number())?.size;
        if size < 2 * PAGE as u64 || !size.is_multiple_of(PAGE as u64) {
            return Err(Errno::EINVAL);
        }
        let words = mapping::shared_pages_of_words(file, width::size(size))?;
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let needed = NAMES as u64 + word(AT_MOST_NAMES) + word(AT_CAPACITY) * RECORD as u64;
        let is_ours = word(AT_MAGIC) == MAGIC && word(AT_VERSION) == VERSION;
        let fits = word(AT_CAPACITY) != 0 && needed <= words.len() as u64;
        if is_ours && fits { Ok(Page::of(words)) } else { Err(Errno::EINVAL) }
    }

    fn of(words: &'static [AtomicU64]) -> Page {
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        Page {
            words,
            capacity: word(AT_CAPACITY),
            records: NAMES + width::size(word(AT_MOST_NAMES)),
            keeps_last: word(AT_KEEPS_LAST) != 0,
            ring: width::low(word(AT_RING)),
        }
    }

    fn load(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    /// Returns whether events of this ring are recorded.
    #[inline]
    pub fn has_ring(&self, ring: u32) -> bool {
        self.ring == 0 || self.ring == ring
    }

    /// Writes an event. If there is no room, the event is only counted.
    #[inline]
    pub fn record(&self, record: &Record) {
        let number = self.words[AT_NEXT].fetch_add(1, Ordering::Relaxed);
        let slot = match self.keeps_last {
            false if number >= self.capacity => return,
            false => number,
            true => number % self.capacity,
        };
        let start = self.records + width::size(slot) * RECORD;
        let Some(target) = self.words.get(start..start + RECORD) else { return };
        let words = record.words();
        for (target, word) in target.iter().zip(words) {
            target.store(word, Ordering::Relaxed);
        }
        target[RECORD - 1].store(seal(&words, number), Ordering::Relaxed);
    }

    /// Adds a name, and returns the number by which records refer to it. Returns 0 if there is no
    /// room.
    pub fn add_name(&self, text: &[u8]) -> u32 {
        let length = name_length(text.len());
        let limit = self.load(AT_MOST_NAMES);
        if self.load(AT_NAMES) + length > limit {
            self.words[AT_LOST_NAMES].fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        let place = self.words[AT_NAMES].fetch_add(length, Ordering::Relaxed);
        if place + length > limit {
            self.words[AT_LOST_NAMES].fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        let start = NAMES + width::size(place);
        for (target, word) in self.words[start..].iter().zip(name_words(text, place)) {
            target.store(word, Ordering::Relaxed);
        }
        width::low(place) + 1
    }

    /// Returns the events so far, oldest first, with the header of their file.
    pub fn read(&self) -> (Header, Vec<u64>, Vec<[u64; RECORD]>) {
        let events = self.load(AT_NEXT);
        let first = if self.keeps_last { events.saturating_sub(self.capacity) } else { 0 };
        let last = if self.keeps_last { events } else { events.min(self.capacity) };
        let mut records = Vec::new();
        for number in first..last {
            let start = self.records + width::size(number % self.capacity) * RECORD;
            let words: [u64; RECORD] = core::array::from_fn(|index| self.load(start + index));
            // A record that its writer has not finished, or has begun anew meanwhile, is left out.
            if Record::read(&words).is_some_and(|(written, _)| written == number) {
                records.push(words);
            }
        }
        let names = self.load(AT_NAMES).min(self.load(AT_MOST_NAMES));
        let names: Vec<u64> = (NAMES..NAMES + width::size(names)).map(|word| self.load(word)).collect();
        let header = Header {
            names: names.len() as u64,
            records: records.len() as u64,
            events,
            lost: events - records.len() as u64,
            lost_names: self.load(AT_LOST_NAMES),
            keeps_last: u64::from(self.keeps_last),
            ring: self.ring.into(),
            start: [self.load(AT_START), self.load(AT_START + 1)],
            end: moment(),
            start_of_day: self.load(AT_START_OF_DAY),
        };
        (header, names, records)
    }
}

/// Returns this moment in ticks, and in nanoseconds of the monotonic clock.
fn moment() -> [u64; 2] {
    let pair = || {
        let (before, now, after) = (Ticks::now(), Clock::Monotonic.now(), Ticks::now());
        (after.0 - before.0, [before.0 + (after.0 - before.0) / 2, now])
    };
    // If the thread loses its processor between two reads, another pair is used.
    [pair(), pair(), pair(), pair()].into_iter().min().map_or([0; 2], |(_, moment)| moment)
}
