//! The table of a store's slots, in memory that processes related by fork share.
//!
//! # Which processes use a slot
//! - Each process is a *user* and has a bit for each slot, set if the process uses the slot.
//! - Each slot has a count of its users, and is free at 0.
//! - The user that allocates a slot writes the slot's content once, before another user can know of
//!   the slot. So every user may read its slots at any time.
//!
//! # When a user ends
//! A user holds a lock (F_OFD_SETLK) on one byte of the table's file. The byte's offset is the
//! user's number. No other process has the lock's open file description, so exec, exit and SIGKILL
//! all end the lock. Another user that needs slots frees the slots of users whose lock has ended.
//! If a process is killed while it changes the table, up to 64 slots (one word) may stay allocated
//! for ever.
//!
//! | change | order | effect of a kill between two steps |
//! |---|---|---|
//! | allocate | table's bit, counts, user's bit | the slot stays allocated without a user |
//! | free | user's bit, count of users, table's bit, count of slots | the slot stays allocated without a user |
//!
//! So the count of allocated slots is never less than the number of slots that have a user.

use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mapping::{PAGE, memory_file};
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU32, AtomicU64, Ordering};
use usring_sys::{Errno, file, width};

/// Maximum number of processes that share one table.
pub const MOST_USERS: usize = 32;

/// States of a user number, in the low half of the number's word in the table's file. With the
/// state `TAKEN_BY + n`, the user with the number n is working on this number. It assigns the
/// number to a new user, or frees the slots of the number's former user.
const FREE: u64 = 0;
const USED: u64 = 1;
const TAKEN_BY: u64 = 2;
/// The high half of the word of a user number, in the table's file, counts how often the number was
/// assigned.
const ONE_USE: u64 = 1 << 32;

const fn use_of(word: u64) -> u64 {
    word % ONE_USE
}

/// Indices of words at the head of the table's file. At `TAKEN` is the number of allocated slots.
/// At `NUMBERS` begin the words of the user numbers, one for each.
const TAKEN: usize = 0;
const NUMBERS: usize = 1;
const HEAD: usize = PAGE / size_of::<u64>();

/// The tables that all users share, mapped from one file.
pub struct SlotUsers {
    head: PageArray<AtomicU64>,
    /// Number of users of each slot.
    holders: PageArray<AtomicU32>,
    /// For each user number, a row with one bit for each slot. The bit is set if the user uses the
    /// slot.
    own: PageArray<AtomicU64>,
    row: usize,
}

/// The number of a user, with an open file description. The lock of this description shows that the
/// user still lives.
#[derive(Debug)]
pub struct SlotUser {
    number: usize,
    file: OwnedDescriptor,
}

impl SlotUser {
    fn claim(file: &OwnedDescriptor, number: usize) -> Result<SlotUser, Errno> {
        let file = file::reopen(file.number())?;
        file::claim_byte(file.number(), number).map(|()| SlotUser { number, file })
    }

    /// Returns the descriptor whose open file description has the user's lock. Only the user's own
    /// process keeps this descriptor open.
    pub fn descriptor(&self) -> i32 {
        self.file.number()
    }
}

impl SlotUsers {
    /// Makes tables for 64 * `words` free slots, with the calling process as the only user. Returns
    /// the tables, the user, and the bits of the slots: a bit is set if its slot is allocated.
    pub fn new(words: usize) -> Result<(SlotUsers, SlotUser, PageArray<AtomicU64>), Errno> {
        let pages = |bytes: usize| bytes.next_multiple_of(PAGE);
        let row = words.next_multiple_of(PAGE / size_of::<u64>());
        let taken = PAGE;
        let holders = taken + pages(words * size_of::<u64>());
        let own = holders + pages(words * 64 * size_of::<u32>());
        let length = own + MOST_USERS * row * size_of::<u64>();
        let file = memory_file(c"usring-slots", length as u64)?;
        let tables = SlotUsers {
            head: PageArray::of_file(&file, 0, HEAD)?,
            holders: PageArray::of_file(&file, holders, words * 64)?,
            own: PageArray::of_file(&file, own, MOST_USERS * row)?,
            row,
        };
        let words = PageArray::of_file(&file, taken, words)?;
        let user = SlotUser::claim(&file, 0)?;
        tables.head[NUMBERS].store(USED, Ordering::Release);
        Ok((tables, user, words))
    }

    pub fn taken(&self) -> &AtomicU64 {
        &self.head[TAKEN]
    }

    fn row(&self, number: usize) -> &[AtomicU64] {
        &self.own[number * self.row..(number + 1) * self.row]
    }

    /// Makes `user` the only user of slots that were just allocated. `word` is the index of a word
    /// of the table. In that word, `bits` are the bits of these slots.
    pub fn take(&self, user: &SlotUser, word: usize, bits: u64) {
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            self.holders[word * 64 + bit].store(1, Ordering::Relaxed);
        }
        self.row(user.number)[word].fetch_or(bits, Ordering::Release);
    }

    /// Makes `user` a further user of slots that the caller uses. `word` is the index of a word of
    /// the table. In that word, `bits` are the bits of these slots.
    pub fn lend(&self, user: &SlotUser, word: usize, bits: u64) {
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            self.holders[word * 64 + bit].fetch_add(1, Ordering::Relaxed);
        }
        self.row(user.number)[word].fetch_or(bits, Ordering::Release);
    }

    /// Ends a user's use of a slot. Returns whether the user was the slot's last user.
    pub fn give_back(&self, user: &SlotUser, slot: u32) -> bool {
        let bit = 1 << (slot % 64);
        let before = self.row(user.number)[slot as usize / 64].fetch_and(!bit, Ordering::AcqRel);
        assert!(before & bit != 0, "slot {slot} was not this process's");
        self.leave(slot)
    }

    fn leave(&self, slot: u32) -> bool {
        self.holders[slot as usize].fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Assigns a free number to a child that will be forked. When no process has the descriptor of
    /// the result open any more, the child has ended, and other users free its slots.
    ///
    /// Errors: `EAGAIN` if all numbers are in use; those of reopening the file.
    pub fn admit(&self, by: &SlotUser) -> Result<SlotUser, Errno> {
        let taken_by = TAKEN_BY + by.number as u64;
        let numbers = &self.head[NUMBERS..NUMBERS + MOST_USERS];
        let mut uses = 0;
        let take = |word: &AtomicU64| {
            let before = word.load(Ordering::Relaxed);
            uses = (before - use_of(before)).wrapping_add(ONE_USE);
            use_of(before) == FREE
                && word.compare_exchange(before, uses + taken_by, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let number = numbers.iter().position(take).ok_or(Errno::EAGAIN)?;
        let admitted = SlotUser::claim(&by.file, number);
        numbers[number].store(uses + if admitted.is_ok() { USED } else { FREE }, Ordering::Release);
        admitted
    }

    /// Frees the slots of users that have ended. Calls `free` for each slot that then has no user.
    pub fn reap(&self, by: &SlotUser, mut free: impl FnMut(u32)) {
        let taken_by = TAKEN_BY + by.number as u64;
        for number in (0..MOST_USERS).filter(|number| *number != by.number) {
            let word = &self.head[NUMBERS + number];
            let before = word.load(Ordering::Acquire);
            let (used, uses) = (use_of(before), before - use_of(before));
            if used == FREE || !self.is_gone(by, number, used) {
                continue;
            }
            // If the exchange fails, another user has begun to free or to assign the number since
            // this function read the word. That user then does all the work.
            if word.compare_exchange(before, uses + taken_by, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            for (first, word) in (0..).step_by(64).zip(self.row(number)) {
                if word.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let bits = word.swap(0, Ordering::AcqRel);
                let slots = (0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| first + bit);
                slots.filter(|slot| self.leave(*slot)).for_each(&mut free);
            }
            self.head[NUMBERS + number].store(uses + FREE, Ordering::Release);
        }
    }

    /// Returns whether the user of a number has ended. `used` is the number's state. If another
    /// process is assigning the number or freeing its slots, that process must have ended, too.
    fn is_gone(&self, by: &SlotUser, number: usize, used: u64) -> bool {
        let is_claimed = |number: usize| file::is_byte_claimed(by.file.number(), number).unwrap_or(true);
        let in_hand = |owner: usize| owner == by.number || is_claimed(owner);
        match used {
            USED => !is_claimed(number),
            taken => !is_claimed(number) && !in_hand(width::size(taken - TAKEN_BY)),
        }
    }
}
