//! The memory of a trace, which all processes of a `usring run` share: a header, the names, and the
//! records. The launcher makes it as a memory file and reads it at the end. So the events of a
//! process that was killed stay readable.
//!
//! | word | changed by | content |
//! |---|---|---|
//! | 0 … | the launcher, before the program starts | see the constants below |
//! | `AT_NEXT` | each thread that records, by an atomic addition | number of the next event |
//! | `AT_NAMES` | each thread that adds a name, by an atomic addition | words of names so far |
//! | `AT_LOST_NAMES` | each thread that finds no room for a name | number of such names |
//! | `AT_PROCESSES` | each process that begins, by an atomic addition | number of processes so far |
//! | a record's | the thread that claimed its number | the record, sealed by its last word |
//!
//! All accesses are relaxed. A reader trusts a record only if its last word fits the others
//! ([`crate::format::seal`]), so no order is needed. Two threads may even write to one record, if a
//! slow thread is still writing an event when its record is reused for a later one. The mixture of
//! both events does not fit.
//!
//! The program can write to this memory, too. So the file's length is sealed, and every process
//! takes the limits from its own copy of them ([`Page`]).

use crate::format::{Header, MAGIC, NAME_BITS, RECORD, RECORD_BYTES, Record, VERSION, name_length, name_words, seal};
use core::ops::Range;
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
/// Index of the word that counts events. The word has a cache line of its own, because each event
/// changes it.
const AT_NEXT: usize = 64;
const AT_NAMES: usize = 80;
const AT_PROCESSES: usize = 81;
/// Word at which the names begin.
const NAMES: usize = PAGE / 8;

/// Least and most bytes of names.
const NAMES_RANGE: (u64, u64) = (64 << 10, 8 << 20);
const _: () = assert!(NAMES_RANGE.1 / 8 < 1 << NAME_BITS);
/// Least and most bytes of records.
pub const SIZES: core::ops::RangeInclusive<u64> = 64 << 10..=64 << 30;

/// The events that a trace keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of the records.
    pub size: u64,
    /// Whether the memory keeps the last events. Otherwise it keeps the first ones.
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

/// The memory of a trace, as one process has it mapped. The fields are the process's own copy of
/// the words that the launcher has set, because the program may overwrite the shared ones.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    words: &'static [AtomicU64],
    /// Words of names.
    most_names: u64,
    /// Number of records.
    capacity: u64,
    keeps_last: bool,
    ring: u32,
    start: [u64; 2],
    start_of_day: u64,
}

impl Page {
    /// Maps `file`, new memory of [`Settings::length`] bytes, and fills in its header.
    pub fn create(file: &OwnedDescriptor, settings: &Settings) -> Result<Page, Errno> {
        let words = mapping::shared_pages_of_words(file, width::size(settings.length()))?;
        let page = Page {
            words,
            most_names: settings.names() / 8,
            capacity: settings.size / RECORD_BYTES as u64,
            keeps_last: settings.keeps_last,
            ring: settings.ring,
            start: moment(),
            start_of_day: Clock::Realtime.now(),
        };
        let header = [
            (AT_CAPACITY, page.capacity),
            (AT_KEEPS_LAST, u64::from(page.keeps_last)),
            (AT_RING, u64::from(page.ring)),
            (AT_START, page.start[0]),
            (AT_START + 1, page.start[1]),
            (AT_START_OF_DAY, page.start_of_day),
            (AT_MOST_NAMES, page.most_names),
            (AT_VERSION, VERSION),
            (AT_MAGIC, MAGIC),
        ];
        header.into_iter().for_each(|(word, value)| words[word].store(value, Ordering::Relaxed));
        Ok(page)
    }

    /// Maps the memory of a trace. Error: `EINVAL` for the memory of another build.
    pub fn open(file: &OwnedDescriptor) -> Result<Page, Errno> {
        let size = usring_sys::file::measure(file.number())?.size;
        if size < 2 * PAGE as u64 || !size.is_multiple_of(PAGE as u64) {
            return Err(Errno::EINVAL);
        }
        let words = mapping::shared_pages_of_words(file, width::size(size))?;
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let page = Page {
            words,
            most_names: word(AT_MOST_NAMES),
            capacity: word(AT_CAPACITY),
            keeps_last: word(AT_KEEPS_LAST) != 0,
            ring: width::low(word(AT_RING)),
            start: [word(AT_START), word(AT_START + 1)],
            start_of_day: word(AT_START_OF_DAY),
        };
        let is_ours = word(AT_MAGIC) == MAGIC && word(AT_VERSION) == VERSION;
        if is_ours && page.fits() { Ok(page) } else { Err(Errno::EINVAL) }
    }

    /// Returns whether the mapping is large enough for the names and the records that the header
    /// announces, and the header announces at least one record.
    fn fits(&self) -> bool {
        let records = self.capacity.checked_mul(RECORD as u64);
        let needed = records.and_then(|records| records.checked_add(self.most_names)?.checked_add(NAMES as u64));
        self.capacity != 0 && needed.is_some_and(|needed| needed <= self.words.len() as u64)
    }

    /// Returns the index of the word in the shared memory at which the records begin.
    fn records_begin(&self) -> usize {
        NAMES + width::size(self.most_names)
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
        let start = self.records_begin() + width::size(slot) * RECORD;
        let Some(target) = self.words.get(start..start + RECORD) else { return };
        let words = record.words();
        for (target, word) in target.iter().zip(words) {
            target.store(word, Ordering::Relaxed);
        }
        target[RECORD - 1].store(seal(&words, number), Ordering::Relaxed);
    }

    /// Claims the next process number for a process that begins to record.
    pub fn claim_process(&self) -> u32 {
        width::low(self.words[AT_PROCESSES].fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a name, and returns the number by which records refer to it. Returns 0 if there is no
    /// room.
    pub fn add_name(&self, text: &[u8]) -> u32 {
        let length = name_length(text.len());
        let fits = |place: u64| place.checked_add(length).is_some_and(|end| end <= self.most_names);
        let has_room = fits(self.load(AT_NAMES));
        let place = if has_room { self.words[AT_NAMES].fetch_add(length, Ordering::Relaxed) } else { u64::MAX };
        if !fits(place) {
            self.words[AT_LOST_NAMES].fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        let start = NAMES + width::size(place);
        for (target, word) in self.words[start..].iter().zip(name_words(text, place)) {
            target.store(word, Ordering::Relaxed);
        }
        width::low(place) + 1
    }

    /// Returns the numbers of the events that the memory keeps after `events` events were recorded.
    fn kept(&self, events: u64) -> Range<u64> {
        if self.keeps_last { events.saturating_sub(self.capacity)..events } else { 0..events.min(self.capacity) }
    }

    /// Returns the header of the file for the events so far. Its number of records includes records
    /// that [`Page::records`] leaves out.
    pub fn header(&self) -> Header {
        let events = self.load(AT_NEXT);
        let kept = self.kept(events);
        let records = kept.end - kept.start;
        Header {
            names: self.load(AT_NAMES).min(self.most_names),
            records,
            events,
            lost: events - records,
            lost_names: self.load(AT_LOST_NAMES),
            keeps_last: u64::from(self.keeps_last),
            ring: self.ring.into(),
            start: self.start,
            end: moment(),
            start_of_day: self.start_of_day,
        }
    }

    /// Returns the number of bytes of the records.
    pub fn size(&self) -> u64 {
        self.capacity * RECORD_BYTES as u64
    }

    /// Returns the words of the names.
    pub fn names(&self, header: &Header) -> impl Iterator<Item = u64> {
        self.words[NAMES..].iter().take(width::size(header.names)).map(|word| word.load(Ordering::Relaxed))
    }

    /// Returns the events, oldest first, each with its words. Leaves out a record that its writer
    /// has not finished, or is overwriting now.
    pub fn records(&self, header: &Header) -> impl Iterator<Item = (Record, [u64; RECORD])> {
        self.kept(header.events).filter_map(|number| {
            let start = self.records_begin() + width::size(number % self.capacity) * RECORD;
            let words: [u64; RECORD] = core::array::from_fn(|index| self.load(start + index));
            let (written, record) = Record::read(&words)?;
            (written == number).then_some((record, words))
        })
    }
}

/// Returns the present time: in ticks of the processor's counter, and in nanoseconds of the
/// monotonic clock.
fn moment() -> [u64; 2] {
    let pair = || {
        let (before, now, after) = (Ticks::now(), Clock::Monotonic.now(), Ticks::now());
        (after.0 - before.0, [before.0 + (after.0 - before.0) / 2, now])
    };
    // Reads both clocks four times, and uses the fastest reading. In a slow reading, the thread may
    // have lost its processor between the two clocks.
    [pair(), pair(), pair(), pair()].into_iter().min().map_or([0; 2], |(_, moment)| moment)
}
