//! Which slots of the backing store are taken: a bit each. Slots are handed out
//! in runs, and from where the last run ended, so that what is evicted together
//! is written, and read ahead, as one request.
//!
//! Any thread takes and frees at any time, by one compare-and-swap. A slot that
//! is taken belongs to the page that has its number, and so to whoever has the
//! page.

use usring_sys::Errno;
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU64, AtomicUsize, Ordering};

/// Longest run; the slots of a word.
pub const LONGEST: u32 = 64;

/// Words that are looked at for a run of the wanted length before a shorter one is good enough.
const LOOKED_AT: usize = 64;

pub struct Slots {
    words: PageArray<AtomicU64>,
    count: u32,
    taken: AtomicUsize,
    /// The word to look at first.
    next: AtomicUsize,
}

/// Consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: u32,
    pub length: u32,
}

impl Slots {
    pub fn new(count: u32) -> Result<Self, Errno> {
        let words = PageArray::<AtomicU64>::new(count.div_ceil(64) as usize)?;
        if !count.is_multiple_of(64)
            && let Some(last) = words.last()
        {
            last.store(u64::MAX << (count % 64), Ordering::Relaxed);
        }
        Ok(Slots { words, count, taken: AtomicUsize::new(0), next: AtomicUsize::new(0) })
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    pub fn are_all_taken(&self) -> bool {
        self.taken() == self.count as usize
    }

    /// Takes up to `wanted` consecutive slots, at least one; `None` if there is none left.
    pub fn take(&self, wanted: u32) -> Option<Run> {
        let wanted = wanted.clamp(1, LONGEST);
        loop {
            let (index, word, run) = self.find(wanted)?;
            let bits = mask(run.length) << run.first;
            let took = self.words[index].compare_exchange(word, word | bits, Ordering::AcqRel, Ordering::Relaxed);
            if took.is_ok() {
                self.taken.fetch_add(run.length as usize, Ordering::Relaxed);
                let is_used_up = run.first + run.length == 64;
                self.next.store(index + usize::from(is_used_up), Ordering::Relaxed);
                return Some(Run { first: index as u32 * 64 + run.first, length: run.length });
            }
        }
    }

    /// A free run, with the word that it lies in and what that held.
    fn find(&self, wanted: u32) -> Option<(usize, u64, Run)> {
        let start = self.next.load(Ordering::Relaxed);
        let (before, behind) = self.words.split_at(start.min(self.words.len()));
        let words = behind.iter().chain(before);
        let mut best: Option<(usize, u64, Run)> = None;
        for (step, word) in words.enumerate() {
            let word = word.load(Ordering::Relaxed);
            let least = best.map_or(1, |(_, _, best)| best.length + 1);
            if let Some(run) = longest_run(!word, least, wanted) {
                best = Some(((start + step) % self.words.len(), word, run));
            }
            if best.is_some_and(|(_, _, best)| best.length == wanted || step >= LOOKED_AT) {
                break;
            }
        }
        best
    }

    pub fn free(&self, slot: u32) {
        let bit = 1 << (slot % 64);
        let before = self.words[slot as usize / 64].fetch_and(!bit, Ordering::AcqRel);
        assert!(before & bit != 0, "slot {slot} was not taken");
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

fn mask(length: u32) -> u64 {
    if length >= 64 { u64::MAX } else { (1 << length) - 1 }
}

/// Where runs of so many bits begin.
#[inline]
fn starts(free: u64, length: u32) -> u64 {
    let (mut starts, mut known) = (free, 1);
    while known < length {
        let more = known.min(length - known);
        starts &= starts >> more;
        known += more;
    }
    starts
}

/// The first run of `wanted` bits, or else the longest that there is, if it has
/// `least` of them, which are no more.
#[inline]
fn longest_run(free: u64, least: u32, wanted: u32) -> Option<Run> {
    let (mut found, mut length) = (starts(free, least), least);
    if found == 0 {
        return None;
    }
    while length < wanted && found & (free >> length) != 0 {
        found &= free >> length;
        length += 1;
    }
    Some(Run { first: found.trailing_zeros(), length })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_handed_out_in_runs_and_no_slot_twice() {
        let slots = Slots::new(200).unwrap();
        assert_eq!(slots.take(64), Some(Run { first: 0, length: 64 }));
        assert_eq!(slots.take(10), Some(Run { first: 64, length: 10 }));
        assert_eq!(slots.take(54), Some(Run { first: 74, length: 54 }));
        slots.free(3);
        let mut seen = [false; 200];
        seen[..128].fill(true);
        seen[3] = false;
        while let Some(run) = slots.take(7) {
            for slot in run.first..run.first + run.length {
                assert!(!std::mem::replace(&mut seen[slot as usize], true), "slot {slot} twice");
            }
        }
        assert!(seen.iter().all(|seen| *seen));
        assert_eq!(slots.taken(), 200);
    }

    #[test]
    fn a_shorter_run_is_taken_only_where_no_longer_one_is_near() {
        let slots = Slots::new(128).unwrap();
        for _ in 0..2 {
            slots.take(64);
        }
        for slot in [1, 3, 4, 70, 71, 72] {
            slots.free(slot);
        }
        assert_eq!(slots.take(3), Some(Run { first: 70, length: 3 }));
        assert_eq!(slots.take(3), Some(Run { first: 3, length: 2 }));
        assert_eq!(slots.take(3), Some(Run { first: 1, length: 1 }));
        assert_eq!(slots.take(3), None);
    }
}
