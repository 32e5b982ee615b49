//! The allocator of slots: one bit for each slot of the backing store. Slots are allocated in runs
//! (consecutive slots), and each run begins where the previous run ended. So pages that are evicted
//! together are written by one request, and can later be read ahead by one request.
//!
//! Invariants:
//! - Any thread allocates and frees at any time, by one atomic operation on a word.
//! - An allocated slot belongs to the page that stores its number. Only the thread that owns the
//!   page uses the slot.
//! - Processes related by fork may share the slots (`crate::slot_users`).

use crate::slot_users::{SlotUser, SlotUsers};
use alloc::sync::Arc;
use usring_sys::Errno;
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU64, AtomicUsize, Ordering};
use usring_sys::width;

/// Maximum number of slots in a run. A run lies in one word of the slot table, which has this
/// number of bits.
pub const MOST_SLOTS_OF_RUN: u32 = 64;

/// Maximum number of words of the slot table in which a run of the wanted length is searched for.
/// If there is none, the longest run in these words is allocated. If all these words are full, the
/// search continues.
const WORDS_FOR_WANTED_RUN: usize = 64;

pub struct Slots {
    table: Arc<Table>,
    count: u32,
    /// Index of the word of the slot table at which the next search for free slots begins.
    next: AtomicUsize,
    /// The user number of this process in the shared table; `None` if the slots cannot be shared.
    user: Option<SlotUser>,
}

/// The part of the allocator that processes related by fork share.
struct Table {
    words: PageArray<AtomicU64>,
    /// Number of allocated slots, if the table is not shared. If the table is shared, the number is
    /// in `users` instead.
    taken: AtomicU64,
    users: Option<SlotUsers>,
}

/// Consecutive slots of one word of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    pub first: u32,
    pub length: u32,
}

impl Slots {
    pub fn new(count: u32) -> Result<Self, Errno> {
        let words = PageArray::new(count.div_ceil(64) as usize)?;
        let table = Table { words, taken: AtomicU64::new(0), users: None };
        Ok(Self::of(table, count, None))
    }

    /// Makes an allocator that forked children can share with this process.
    ///
    /// Errors: those of making shared memory.
    pub fn shareable(count: u32) -> Result<Self, Errno> {
        let (users, user, words) = SlotUsers::new(count.div_ceil(64) as usize)?;
        let table = Table { words, taken: AtomicU64::new(0), users: Some(users) };
        Ok(Self::of(table, count, Some(user)))
    }

    fn of(table: Table, count: u32, user: Option<SlotUser>) -> Self {
        if !count.is_multiple_of(64)
            && let Some(last) = table.words.last()
        {
            last.store(u64::MAX << (count % 64), Ordering::Relaxed);
        }
        Slots { table: Arc::new(table), count, next: AtomicUsize::new(0), user }
    }

    fn sharing(&self) -> Option<(&SlotUsers, &SlotUser)> {
        self.table.users.as_ref().zip(self.user.as_ref())
    }

    /// Adds a child that is about to be forked as a user of the slots. When no process has the
    /// descriptor of the result open any more, the child's slots are freed. Errors: `EOPNOTSUPP` if
    /// the slots cannot be shared; those of [`SlotUsers::admit`].
    pub fn admit(&self) -> Result<SlotUser, Errno> {
        self.reap();
        let (users, own) = self.sharing().ok_or(Errno::EOPNOTSUPP)?;
        users.admit(own)
    }

    /// Makes a child another user of slots that this process uses. Slots with neighbouring numbers
    /// should follow each other in `slots`: they then need one atomic operation together.
    pub fn lend(&self, user: &SlotUser, slots: impl Iterator<Item = u32>) {
        let Some((users, _)) = self.sharing() else { return };
        let (mut word, mut bits) = (0, 0);
        for slot in slots {
            if slot as usize / 64 != word {
                users.lend(user, word, bits);
                (word, bits) = (slot as usize / 64, 0);
            }
            bits |= 1 << (slot % 64);
        }
        users.lend(user, word, bits);
    }

    /// Returns the allocator of a forked child, on the slots that the child shares with its parent.
    /// Called in the child.
    pub fn inherit(&self, user: SlotUser) -> Slots {
        let next = AtomicUsize::new(self.next.load(Ordering::Relaxed));
        Slots { table: self.table.clone(), count: self.count, next, user: Some(user) }
    }

    /// Frees the slots of processes that have ended, if the slots are shared.
    pub fn reap(&self) {
        if let Some((users, own)) = self.sharing() {
            users.reap(own, |slot| self.release(slot));
        }
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    fn count_taken(&self) -> &AtomicU64 {
        self.table.users.as_ref().map_or(&self.table.taken, SlotUsers::taken)
    }

    pub fn taken(&self) -> usize {
        width::size(self.count_taken().load(Ordering::Relaxed))
    }

    /// Returns whether all slots are allocated, according to the count of allocated slots. If a
    /// process was killed while it changed the table, the count may be wrong.
    pub fn are_all_taken(&self) -> bool {
        self.taken() >= self.count as usize
    }

    /// Allocates up to `wanted` consecutive slots, at least one. `None` if no slot is free.
    pub fn take(&self, wanted: u32) -> Option<SlotRun> {
        let wanted = wanted.clamp(1, MOST_SLOTS_OF_RUN);
        loop {
            let found = self.find(wanted).or_else(|| {
                // No slot is free, so the slots of ended processes are freed. This is decided by
                // the slots' bits, not by the count of allocated slots. A process that was killed
                // while it allocated may have set bits without counting them.
                self.reap();
                self.find(wanted)
            });
            let (index, word, run) = found?;
            let bits = mask(run.length) << run.first;
            let took = self.table.words[index].compare_exchange(word, word | bits, Ordering::AcqRel, Ordering::Relaxed);
            if took.is_ok() {
                // First the count of allocated slots is raised, then the slots get a user. If this
                // process is killed after that, another process frees the slots of this user, and
                // lowers the count.
                self.count_taken().fetch_add(u64::from(run.length), Ordering::Relaxed);
                if let Some((users, own)) = self.sharing() {
                    users.take(own, index, bits);
                }
                let is_used_up = run.first + run.length == 64;
                self.next.store(index + usize::from(is_used_up), Ordering::Relaxed);
                return Some(SlotRun { first: width::count(index) * 64 + run.first, length: run.length });
            }
        }
    }

    /// Searches the slot table for free slots. Returns the index and the value of a word, and a run
    /// of free slots in that word. Prefers a run of `wanted` slots to a shorter run. `None` if no
    /// slot is free.
    fn find(&self, wanted: u32) -> Option<(usize, u64, SlotRun)> {
        let start = self.next.load(Ordering::Relaxed);
        let all = &self.table.words;
        let (before, behind) = all.split_at(start.min(all.len()));
        let words = behind.iter().chain(before);
        let mut best: Option<(usize, u64, SlotRun)> = None;
        for (step, word) in words.enumerate() {
            let word = word.load(Ordering::Relaxed);
            let least = best.map_or(1, |(_, _, best)| best.length + 1);
            if let Some(run) = longest_run(!word, least, wanted) {
                best = Some(((start + step) % all.len(), word, run));
            }
            let is_last = step + 1 >= WORDS_FOR_WANTED_RUN;
            if best.is_some_and(|(_, _, best)| best.length == wanted || is_last) {
                break;
            }
        }
        best
    }

    pub fn free(&self, slot: u32) {
        if self.sharing().is_none_or(|(users, own)| users.give_back(own, slot)) {
            self.release(slot);
        }
    }

    /// Frees a slot that no process uses any more.
    fn release(&self, slot: u32) {
        let bit = 1 << (slot % 64);
        let before = self.table.words[slot as usize / 64].fetch_and(!bit, Ordering::AcqRel);
        assert!(before & bit != 0, "slot {slot} was not taken");
        self.count_taken().fetch_sub(1, Ordering::Relaxed);
    }
}

fn mask(length: u32) -> u64 {
    if length >= 64 { u64::MAX } else { (1 << length) - 1 }
}

/// Returns a word with a bit for each position at which `length` consecutive set bits of `free`
/// begin.
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

/// Returns the first run of `wanted` set bits in `free`. If there is no such run, returns the
/// longest run that has at least `least` set bits. `None` if all runs are shorter.
#[inline]
fn longest_run(free: u64, least: u32, wanted: u32) -> Option<SlotRun> {
    let (mut found, mut length) = (starts(free, least), least);
    if found == 0 {
        return None;
    }
    while length < wanted && found & (free >> length) != 0 {
        found &= free >> length;
        length += 1;
    }
    Some(SlotRun { first: found.trailing_zeros(), length })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_allocated_in_runs_and_never_twice() {
        let slots = Slots::new(200).unwrap();
        assert_eq!(slots.take(64), Some(SlotRun { first: 0, length: 64 }));
        assert_eq!(slots.take(10), Some(SlotRun { first: 64, length: 10 }));
        assert_eq!(slots.take(54), Some(SlotRun { first: 74, length: 54 }));
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
    fn a_shared_slot_is_free_once_no_live_process_uses_it() {
        let slots = Slots::shareable(200).unwrap();
        slots.take(64);
        let child = slots.admit().unwrap();
        slots.lend(&child, 0..10);
        let childs = slots.inherit(child);
        let own = childs.take(5).unwrap();
        (5..20).for_each(|slot| slots.free(slot));
        assert_eq!(slots.taken(), 64 + 5 - 10, "the child still uses slots 0 to 9");
        (0..3).for_each(|slot| childs.free(slot));
        childs.free(9);
        childs.free(own.first);
        assert_eq!(slots.taken(), 64 + 4 - 11, "slot 9 has no user left");
        let grandchild = childs.admit().unwrap();
        childs.lend(&grandchild, 3..5);
        slots.reap();
        assert_eq!(slots.taken(), 64 + 4 - 11, "both processes are alive");
        drop(childs);
        slots.reap();
        assert_eq!(slots.taken(), 64 - 15 + 4 - 4, "the child was the last user of slots 5 to 8");
        assert_eq!(slots.take(1), Some(SlotRun { first: own.first, length: 1 }));
    }

    #[test]
    fn slots_of_a_dead_process_are_found_although_the_count_is_wrong() {
        let slots = Slots::shareable(128).unwrap();
        let child = slots.admit().unwrap();
        let childs = slots.inherit(child);
        childs.take(60).unwrap();
        slots.take(64).unwrap();
        // The slot table now looks as if a process had been killed after it set the slots' bits and
        // before it raised the count.
        slots.table.words[0].fetch_or(u64::MAX << 60, Ordering::Relaxed);
        assert_eq!(slots.take(1), None);
        drop(childs);
        assert!(!slots.are_all_taken());
        assert_eq!(slots.take(64).map(|run| run.length), Some(60));
    }

    #[test]
    fn slots_of_the_first_process_are_freed_when_it_ends_before_its_children() {
        let first = Slots::shareable(200).unwrap();
        first.take(64);
        let child = first.admit().unwrap();
        first.lend(&child, 0..10);
        let childs = first.inherit(child);
        drop(first);
        childs.reap();
        assert_eq!(childs.taken(), 10);
        // The first process has ended. Its user number is assigned to two later processes, one
        // after the other.
        for _ in 0..2 {
            let other = childs.admit().unwrap();
            childs.lend(&other, 3..5);
            let others = childs.inherit(other);
            childs.reap();
            (3..5).for_each(|slot| others.free(slot));
            others.take(7).unwrap();
            drop(others);
            childs.reap();
            assert_eq!(childs.taken(), 10);
        }
    }

    #[test]
    fn a_shorter_run_is_taken_only_if_no_longer_run_is_near() {
        let slots = Slots::new(128).unwrap();
        for _ in 0..2 {
            slots.take(64);
        }
        for slot in [1, 3, 4, 70, 71, 72] {
            slots.free(slot);
        }
        assert_eq!(slots.take(3), Some(SlotRun { first: 70, length: 3 }));
        assert_eq!(slots.take(3), Some(SlotRun { first: 3, length: 2 }));
        assert_eq!(slots.take(3), Some(SlotRun { first: 1, length: 1 }));
        assert_eq!(slots.take(3), None);
    }

    #[test]
    fn a_longer_run_is_sought_in_no_more_words_than_the_limit() {
        let words = width::count(WORDS_FOR_WANTED_RUN);
        let slots = Slots::new((words + 1) * 64).unwrap();
        while slots.take(64).is_some() {}
        slots.next.store(0, Ordering::Relaxed);
        (0..2).for_each(|slot| slots.free(slot));
        (0..3).for_each(|slot| slots.free(words * 64 + slot));
        assert_eq!(slots.take(3), Some(SlotRun { first: 0, length: 2 }));
        slots.next.store(0, Ordering::Relaxed);
        (0..4).for_each(|slot| slots.free((words - 1) * 64 + slot));
        assert_eq!(slots.take(3), Some(SlotRun { first: (words - 1) * 64, length: 3 }));
    }
}
