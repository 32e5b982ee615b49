//! The page that all processes of a `usring run` share: the rules as text, and the counters. The
//! launcher makes the page as a memory file. The program's processes and `usring ctl` map this
//! file.
//!
//! | words | content |
//! |---|---|
//! | header | magic, version, lock, generation, seed, begin of the run, counts, the trapped calls, the log's path |
//! | rules | per rule: where its text is, and whether it is active |
//! | text | the texts of the rules, one behind the other |
//! | table | counters, found by a hash of what they count |
//!
//! - A rule is written under the page's lock, and then the generation rises. A process that sees a
//!   new generation parses the rules again.
//! - A counter's key never changes once it is set, so counting takes no lock.

use crate::rule::Rule;
use crate::set::Kind;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mapping::{self, PAGE};
use usring_sys::{Errno, spread, width};

/// First word, "usrfault".
const MAGIC: u64 = u64::from_le_bytes(*b"usrfault");
/// Second word. Changes with the layout.
const VERSION: u64 = 3;

// Words of the header.
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_LOCK: usize = 2;
const AT_GENERATION: usize = 3;
const AT_SEED: usize = 4;
const AT_BEGIN: usize = 5;
const AT_RULES: usize = 6;
const AT_TEXT: usize = 7;
const AT_PROCESSES: usize = 8;
const AT_UNCOUNTED: usize = 9;
const AT_HAS_ORDER: usize = 10;
const AT_ORDER_SEED: usize = 11;
const AT_ORDER_UNSURE: usize = 12;
const AT_ORDER_OVERFLOWS: usize = 13;
const AT_TRAPS: usize = 16;
const AT_ORDER_EVENTS: usize = 24;
const AT_LOG_LENGTH: usize = 31;
const AT_LOG: usize = 32;
/// Maximum length of the log's path, in bytes.
const LOG_BYTES: usize = 4096;

const RULES: usize = AT_LOG + LOG_BYTES / 8 + 480;
/// Maximum number of rules that one `usring run` can have, including removed rules.
pub const MOST_RULES: usize = 8192;
const TEXT: usize = RULES + MOST_RULES;
/// Maximum number of bytes of the texts of all rules together.
const TEXT_BYTES: usize = 1 << 20;
const TABLE: usize = TEXT + TEXT_BYTES / 8;
/// Number of counters in the table, a power of two. Each counter takes two words.
const COUNTERS: usize = 1 << 17;
const WORDS: usize = TABLE + 2 * COUNTERS;
/// Bytes of the page.
pub const LENGTH: usize = (WORDS * 8).next_multiple_of(PAGE);

const _: () = assert!(LENGTH / 8 < u32::MAX as usize);

/// Maximum number of table entries to search for a counter. If other counters occupy all of these
/// entries, the call is not counted.
const SEARCHED: usize = 256;

// A rule's word: the offset and the length of its text, and its state.
const LENGTH_SHIFT: u32 = 32;
const STATE_SHIFT: u32 = 48;
const ACTIVE: u64 = 1;
const REMOVED: u64 = 2;
/// Maximum length of one rule's text, in bytes.
const LONGEST_TEXT: usize = 8192;

/// The meaning of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Number of calls of one name in a process.
    Calls,
    /// Number of calls of one name that a rule matched in a process.
    Matched,
    /// Number of faults that a rule made in calls of one name, in all processes.
    Faults,
    /// Not a count, but the number of a process. Processes are numbered in the order of their first
    /// calls that a rule names.
    Process,
}

/// How `usring run --order` has the requests of rings complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderSettings {
    pub seed: u64,
    /// The seed also chooses completions that find no room in the CQ.
    pub overflows: bool,
}

/// Something that `usring run --order` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderEvent {
    /// A request's completion got its position in the order of completions from the seed of
    /// `--order`.
    Ordered,
    /// A request whose completion got its position from the seed of `--order` was also carried out
    /// late.
    RanLate,
    /// All requests that `--order` had held back continued at the same time.
    Burst,
    /// Several sockets became ready at one time, and were served in an order that the seed of
    /// `--order` chose.
    Shuffled,
    /// A ring was signalled without a completion.
    Signalled,
    /// An SQ thread slept before its idle time was over.
    Slept,
    /// A completion found no room in the CQ, and began a backlog.
    Overflowed,
}

impl OrderEvent {
    pub const ALL: [OrderEvent; 7] = [
        OrderEvent::Ordered,
        OrderEvent::RanLate,
        OrderEvent::Burst,
        OrderEvent::Shuffled,
        OrderEvent::Signalled,
        OrderEvent::Slept,
        OrderEvent::Overflowed,
    ];
}

const _: () = assert!(AT_ORDER_EVENTS + OrderEvent::ALL.len() <= AT_LOG_LENGTH);

/// The key of a counter. Fields that a [`Counter`] does not need are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub counter: Counter,
    /// See [`crate::armed`].
    pub process: u32,
    pub rule: u16,
    pub kind: Kind,
    pub number: u16,
}

impl Key {
    fn word(self) -> u64 {
        let kind = self.kind as u64;
        1 << 63
            | (self.counter as u64) << 60
            | kind << 58
            | u64::from(self.number & 0x3ff) << 48
            | u64::from(self.rule) << 32
            | u64::from(self.process)
    }

    fn of_word(word: u64) -> Option<Key> {
        if word >> 63 == 0 {
            return None;
        }
        let counter = match word >> 60 & 3 {
            0 => Counter::Calls,
            1 => Counter::Matched,
            2 => Counter::Faults,
            _ => Counter::Process,
        };
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u64 == word >> 58 & 3)?;
        let number = u16::try_from(word >> 48 & 0x3ff).ok()?;
        let rule = u16::try_from(word >> 32 & 0xffff).ok()?;
        Some(Key { counter, kind, number, rule, process: width::low(word) })
    }
}

/// The page, as one process has it mapped.
#[derive(Clone, Copy, Debug)]
pub struct Page(&'static [AtomicU64]);

/// A rule's text and whether the rule is active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub index: u16,
    pub is_active: bool,
    pub text: String,
}

impl Page {
    /// Maps `file`, a new memory file that no other process uses yet, and fills the page in.
    /// `begin`: the present time of the monotonic clock.
    pub fn create(file: &OwnedDescriptor, seed: u64, begin: u64) -> Result<Page, Errno> {
        let page = Page(mapping::shared_pages_of_words(file, LENGTH)?);
        page.begin(seed, begin);
        Ok(page)
    }

    /// Makes a page that only this process and the children that it forks later can use.
    pub fn of_process(seed: u64, begin: u64) -> Result<Page, Errno> {
        Page::create(&mapping::memory_file(c"usring-faults", LENGTH as u64)?, seed, begin)
    }

    /// Maps the page that the processes of a `usring run` share. Error: `EINVAL` for a page of
    /// another build.
    pub fn open(file: &OwnedDescriptor) -> Result<Page, Errno> {
        if usring_sys::file::measure(file.number())?.size < LENGTH as u64 {
            return Err(Errno::EINVAL);
        }
        let page = Page(mapping::shared_pages_of_words(file, LENGTH)?);
        let is_ours = page.load(AT_MAGIC) == MAGIC && page.load(AT_VERSION) == VERSION;
        if is_ours { Ok(page) } else { Err(Errno::EINVAL) }
    }

    fn begin(&self, seed: u64, begin: u64) {
        self.store(AT_SEED, seed);
        self.store(AT_BEGIN, begin);
        self.store(AT_VERSION, VERSION);
        self.store(AT_MAGIC, MAGIC);
    }

    fn load(&self, word: usize) -> u64 {
        self.0[word].load(Ordering::Acquire)
    }

    fn store(&self, word: usize, value: u64) {
        self.0[word].store(value, Ordering::Release);
    }

    /// Returns a number that changes whenever the rules change.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.load(AT_GENERATION)
    }

    pub fn seed(&self) -> u64 {
        self.load(AT_SEED)
    }

    /// Returns when the run began, on the monotonic clock.
    pub fn begin_time(&self) -> u64 {
        self.load(AT_BEGIN)
    }

    /// Returns how many processes have made a call that a rule named.
    pub fn processes(&self) -> u64 {
        self.load(AT_PROCESSES)
    }

    /// Returns how many counts were lost because the table of counters was full.
    pub fn uncounted(&self) -> u64 {
        self.load(AT_UNCOUNTED)
    }

    /// Makes the completions of rings come in an order that a seed chooses.
    pub fn set_order(&self, order: OrderSettings) {
        self.store(AT_ORDER_SEED, order.seed);
        self.store(AT_ORDER_OVERFLOWS, order.overflows.into());
        self.store(AT_HAS_ORDER, 1);
    }

    /// Returns how the order of completions is chosen. `None` if the run has no `--order`.
    pub fn order(&self) -> Option<OrderSettings> {
        let overflows = self.load(AT_ORDER_OVERFLOWS) != 0;
        (self.load(AT_HAS_ORDER) != 0).then(|| OrderSettings { seed: self.load(AT_ORDER_SEED), overflows })
    }

    /// Counts something that the order did.
    pub fn count_order(&self, event: OrderEvent) {
        self.0[AT_ORDER_EVENTS + event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often each event came.
    pub fn order_counts(&self) -> [u64; OrderEvent::ALL.len()] {
        OrderEvent::ALL.map(|event| self.load(AT_ORDER_EVENTS + event as usize))
    }

    /// Notes that the seed alone does not determine the order of completions, because several
    /// threads or processes use rings.
    pub fn note_unsure_order(&self) {
        self.store(AT_ORDER_UNSURE, 1);
    }

    /// Returns whether [`Page::note_unsure_order`] was called.
    pub fn has_unsure_order(&self) -> bool {
        self.load(AT_ORDER_UNSURE) != 0
    }

    /// Sets the plain calls that the run's processes trap.
    pub fn set_traps(&self, calls: [u64; 8]) {
        calls.into_iter().enumerate().for_each(|(index, word)| self.store(AT_TRAPS + index, word));
    }

    /// Returns the plain calls that the run's processes trap.
    pub fn traps(&self) -> [u64; 8] {
        core::array::from_fn(|index| self.load(AT_TRAPS + index))
    }

    /// Sets the path of the log. Returns `false` if it is too long.
    pub fn set_log(&self, path: &[u8]) -> bool {
        if path.len() > LOG_BYTES {
            return false;
        }
        self.write_bytes(AT_LOG * 8, path);
        self.store(AT_LOG_LENGTH, path.len() as u64);
        true
    }

    /// Returns the path of the log; `None`: there is no log.
    pub fn log(&self) -> Option<Vec<u8>> {
        let length = width::size(self.load(AT_LOG_LENGTH)).min(LOG_BYTES);
        (length > 0).then(|| self.read_bytes(AT_LOG * 8, length))
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let (word, shift) = ((offset + index) / 8, (offset + index) % 8 * 8);
            let kept = self.0[word].load(Ordering::Relaxed) & !(0xff << shift);
            self.0[word].store(kept | u64::from(*byte) << shift, Ordering::Relaxed);
        }
    }

    fn read_bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let byte = |at: usize| self.0[at / 8].load(Ordering::Relaxed).to_le_bytes()[at % 8];
        (offset..offset + length).map(byte).collect()
    }

    /// Adds a rule to the page, and returns its index. `None`: the page has no room.
    pub fn add(&self, rule: &Rule) -> Option<u16> {
        let _lock = self.lock();
        let (index, start) = (width::size(self.load(AT_RULES)), width::size(self.load(AT_TEXT)));
        let text = rule.text.as_bytes();
        if index >= MOST_RULES || text.len() > LONGEST_TEXT || start + text.len() > TEXT_BYTES {
            return None;
        }
        self.write_bytes(TEXT * 8 + start, text);
        self.store(AT_TEXT, (start + text.len()) as u64);
        let word = start as u64 | (text.len() as u64) << LENGTH_SHIFT | ACTIVE << STATE_SHIFT;
        self.store(RULES + index, word);
        self.store(AT_RULES, index as u64 + 1);
        self.0[AT_GENERATION].fetch_add(1, Ordering::AcqRel);
        u16::try_from(index).ok()
    }

    /// Returns whether the rule with this index is active.
    pub fn is_active(&self, index: u16) -> bool {
        usize::from(index) < MOST_RULES && self.load(RULES + usize::from(index)) >> STATE_SHIFT == ACTIVE
    }

    /// Removes a rule. Returns `false` if there is no active rule with this index.
    pub fn remove(&self, index: u16) -> bool {
        let _lock = self.lock();
        let at = usize::from(index);
        if at >= width::size(self.load(AT_RULES)).min(MOST_RULES) || self.load(RULES + at) >> STATE_SHIFT != ACTIVE {
            return false;
        }
        let word = self.load(RULES + at) & ((1 << STATE_SHIFT) - 1);
        self.store(RULES + at, word | REMOVED << STATE_SHIFT);
        self.0[AT_GENERATION].fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Returns all rules, in the order in which they were added.
    pub fn rules(&self) -> Vec<Entry> {
        let count = width::size(self.load(AT_RULES)).min(MOST_RULES);
        (0..count).filter_map(|index| self.entry(index)).collect()
    }

    fn entry(&self, index: usize) -> Option<Entry> {
        let word = self.load(RULES + index);
        let (start, length) = (width::size(word & 0xffff_ffff), width::size(word >> LENGTH_SHIFT & 0xffff));
        if start + length > TEXT_BYTES {
            return None;
        }
        let text = String::from_utf8(self.read_bytes(TEXT * 8 + start, length)).ok()?;
        Some(Entry { index: u16::try_from(index).ok()?, is_active: word >> STATE_SHIFT == ACTIVE, text })
    }

    /// Returns the counter with this key; makes it if it is missing. `None`: other counters occupy
    /// each of the [`SEARCHED`] entries where it could be.
    fn counter(&self, key: Key) -> Option<&'static AtomicU64> {
        let (word, table) = (key.word(), self.0);
        let first = spread::row(width::size(word), COUNTERS);
        for step in 0..SEARCHED {
            let at = TABLE + 2 * ((first + step) % COUNTERS);
            let found = match table[at].load(Ordering::Acquire) {
                0 => table[at].compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire).err().unwrap_or(word),
                known => known,
            };
            if found == word {
                return Some(&table[at + 1]);
            }
        }
        self.0[AT_UNCOUNTED].fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Increments a counter, and returns the new count. If the table has no room for the counter,
    /// returns 0, a count at which no rule makes a fault.
    pub fn count(&self, key: Key) -> u64 {
        self.counter(key).map_or(0, |counter| counter.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns the number of a process among those of the `usring run`, from 1. Gives the process
    /// the next number on first use. Returns `u32::MAX` if the table has no room.
    pub fn number_of_process(&self, process: u32) -> u32 {
        let key = Key { counter: Counter::Process, process, rule: 0, kind: Kind::Ring, number: 0 };
        let Some(counter) = self.counter(key) else { return u32::MAX };
        let _lock = self.lock();
        if counter.load(Ordering::Relaxed) == 0 {
            counter.store(self.0[AT_PROCESSES].fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        width::low(counter.load(Ordering::Relaxed))
    }

    /// Returns all counters that are not 0.
    pub fn counters(&self) -> Vec<(Key, u64)> {
        let places = self.0[TABLE..TABLE + 2 * COUNTERS].chunks_exact(2);
        let counted = places.filter_map(|place| {
            Some((Key::of_word(place[0].load(Ordering::Acquire))?, place[1].load(Ordering::Relaxed)))
        });
        counted.filter(|(_, count)| *count != 0).collect()
    }

    fn lock(&self) -> Lock {
        const MOST_TRIES: u32 = 1_000_000;
        let word = &self.0[AT_LOCK];
        let mut tries = 0;
        while word.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            core::hint::spin_loop();
            tries += 1;
            // A process that was killed while it held the lock never unlocks it. That process has
            // written a rule completely or not at all. So this process takes over the lock.
            if tries == MOST_TRIES {
                break;
            }
        }
        Lock(word)
    }
}

/// The page's lock. A process holds the lock while it adds or removes a rule, or gets its number.
struct Lock(&'static AtomicU64);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn page() -> Page {
        Page::of_process(5, 0).unwrap()
    }

    fn key(counter: Counter, process: u32) -> Key {
        Key { counter, process, rule: 3, kind: Kind::Aio, number: 22 }
    }

    #[test]
    fn rules_are_read_back_as_they_were_added() {
        let (page, before) = (page(), page().generation());
        assert_eq!(page.add(&parse("read:error=EIO").unwrap()), Some(0));
        assert_eq!(page.add(&parse("write:error=ENOSPC:path=/ä*").unwrap()), Some(1));
        assert!(page.generation() > before);
        let texts: Vec<_> = page.rules().into_iter().map(|entry| (entry.text, entry.is_active)).collect();
        assert_eq!(texts, [("read:error=EIO".into(), true), ("write:error=ENOSPC:path=/ä*".into(), true)]);
        assert!(page.remove(0) && !page.remove(0) && !page.remove(2));
        assert!(!page.rules()[0].is_active && page.rules()[1].is_active);
    }

    #[test]
    fn counters_of_different_keys_are_apart() {
        let page = page();
        assert_eq!(page.count(key(Counter::Matched, 1)), 1);
        assert_eq!(page.count(key(Counter::Matched, 1)), 2);
        assert_eq!(page.count(key(Counter::Matched, 2)), 1);
        assert_eq!(page.count(key(Counter::Faults, 1)), 1);
        let mut counters = page.counters();
        counters.sort_by_key(|(key, _)| (key.counter as u8, key.process));
        let expected = [(key(Counter::Matched, 1), 2), (key(Counter::Matched, 2), 1), (key(Counter::Faults, 1), 1)];
        assert_eq!(counters, expected);
    }

    #[test]
    fn processes_are_numbered_in_order() {
        let page = page();
        assert_eq!((page.number_of_process(77), page.number_of_process(5), page.number_of_process(77)), (1, 2, 1));
        assert_eq!(page.processes(), 2);
    }

    #[test]
    fn the_page_keeps_its_seed_log_and_traps() {
        let page = page();
        assert_eq!((page.seed(), page.log()), (5, None));
        assert!(page.set_log(b"/tmp/log") && !page.set_log(&[b'x'; LOG_BYTES + 1]));
        assert_eq!(page.log().as_deref(), Some(b"/tmp/log".as_slice()));
        page.set_traps([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(page.traps(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
