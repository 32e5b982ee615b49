//! Slots that a process has together with the children that it has forked, and they with
//! theirs: one table of them all, in memory that they share.
//!
//! # Whose a slot is
//! Each process is a *member* and has a bit for each slot that it uses; a slot says how many
//! members do, and is free when it is nobody's. Its content is written once, by who took it,
//! before anybody else can know of it. So what a parent and its child have both in a slot stays there
//! until neither wants it, and either may read it at any time.
//!
//! # When a member is gone
//! A member has claimed the byte of its number in the table's file, by a description of
//! its own, which only it has open: exec, exit and SIGKILL end the claim alike. Whoever needs
//! slots then gives back what the table says was that member's. A process that is killed
//! within a call on the table leaves slots taken for good, at most one word of them.
//!
//! | order of a change | what a kill in between does |
//! |---|---|
//! | take: the table's bit, the counts, the own bit | the slot is nobody's and taken |
//! | give back: the own bit, the count of holders, the table's bit, the count of slots | the same |
//!
//! So never are fewer slots counted than are taken of those that somebody has.

use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mapping::{PAGE, memory_file};
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU32, AtomicU64, Ordering};
use usring_sys::{Errno, file};

/// Processes that share a table at the same time.
pub const MEMBERS: usize = 32;

/// What a member's number is used for. `TAKEN_BY + n`: member n prepares or clears it.
const FREE: u64 = 0;
const USED: u64 = 1;
const TAKEN_BY: u64 = 2;
/// Above that: how often the number has been given out.
const ONE_USE: u64 = 1 << 32;

const fn use_of(word: u64) -> u64 {
    word % ONE_USE
}

/// In the head: how many slots are taken, and what each number is used for.
const TAKEN: usize = 0;
const NUMBERS: usize = 1;
const HEAD: usize = PAGE / size_of::<u64>();

/// What all members have.
pub struct Tables {
    head: PageArray<AtomicU64>,
    /// How many members have a slot.
    holders: PageArray<AtomicU32>,
    /// A row of bits for each member.
    own: PageArray<AtomicU64>,
    row: usize,
}

/// A number, claimed; and the file of the tables.
#[derive(Debug)]
pub struct Member {
    number: usize,
    file: OwnedDescriptor,
}

impl Member {
    fn claim(file: &OwnedDescriptor, number: usize) -> Result<Member, Errno> {
        let file = file::reopen(file.number())?;
        file::claim_byte(file.number(), number).map(|()| Member { number, file })
    }

    /// To be kept open by the process whose number it is, and by nobody else.
    pub fn descriptor(&self) -> i32 {
        self.file.number()
    }
}

impl Tables {
    /// Tables for so many words of slots, with the calling process as the only member; and
    /// those words, all free.
    pub fn new(words: usize) -> Result<(Tables, Member, PageArray<AtomicU64>), Errno> {
        let pages = |bytes: usize| bytes.next_multiple_of(PAGE);
        let row = words.next_multiple_of(PAGE / size_of::<u64>());
        let taken = PAGE;
        let holders = taken + pages(words * size_of::<u64>());
        let own = holders + pages(words * 64 * size_of::<u32>());
        let length = own + MEMBERS * row * size_of::<u64>();
        let file = memory_file(c"usring-slots", length as u64)?;
        let tables = Tables {
            head: PageArray::of_file(&file, 0, HEAD)?,
            holders: PageArray::of_file(&file, holders, words * 64)?,
            own: PageArray::of_file(&file, own, MEMBERS * row)?,
            row,
        };
        let words = PageArray::of_file(&file, taken, words)?;
        let member = Member::claim(&file, 0)?;
        tables.head[NUMBERS].store(USED, Ordering::Release);
        Ok((tables, member, words))
    }

    pub fn taken(&self) -> &AtomicU64 {
        &self.head[TAKEN]
    }

    fn row(&self, number: usize) -> &[AtomicU64] {
        &self.own[number * self.row..(number + 1) * self.row]
    }

    /// These slots of a word are the member's alone from now on.
    pub fn take(&self, member: &Member, word: usize, bits: u64) {
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            self.holders[word * 64 + bit].store(1, Ordering::Relaxed);
        }
        self.row(member.number)[word].fetch_or(bits, Ordering::Release);
    }

    /// Slots of a word that the caller has are the member's, too.
    pub fn lend(&self, member: &Member, word: usize, bits: u64) {
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            self.holders[word * 64 + bit].fetch_add(1, Ordering::Relaxed);
        }
        self.row(member.number)[word].fetch_or(bits, Ordering::Release);
    }

    /// The member has a slot no more; `true` if nobody else has.
    pub fn give_back(&self, member: &Member, slot: u32) -> bool {
        let bit = 1 << (slot % 64);
        let before = self.row(member.number)[slot as usize / 64].fetch_and(!bit, Ordering::AcqRel);
        assert!(before & bit != 0, "slot {slot} was not this process's");
        self.leave(slot)
    }

    fn leave(&self, slot: u32) -> bool {
        self.holders[slot as usize].fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// A number for a child, whose slots are given back once nobody has its descriptor open.
    ///
    /// Errors: `EAGAIN` where there are as many as can be; what opening the file again answers.
    pub fn admit(&self, by: &Member) -> Result<Member, Errno> {
        let taken_by = TAKEN_BY + by.number as u64;
        let numbers = &self.head[NUMBERS..NUMBERS + MEMBERS];
        let mut uses = 0;
        let take = |word: &AtomicU64| {
            let before = word.load(Ordering::Relaxed);
            uses = (before - use_of(before)).wrapping_add(ONE_USE);
            use_of(before) == FREE
                && word.compare_exchange(before, uses + taken_by, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let number = numbers.iter().position(take).ok_or(Errno::EAGAIN)?;
        let admitted = Member::claim(&by.file, number);
        numbers[number].store(uses + if admitted.is_ok() { USED } else { FREE }, Ordering::Release);
        admitted
    }

    /// Gives back what members had that are gone. `free` is told of each slot that is nobody's now.
    pub fn reap(&self, by: &Member, mut free: impl FnMut(u32)) {
        let taken_by = TAKEN_BY + by.number as u64;
        for number in (0..MEMBERS).filter(|number| *number != by.number) {
            let word = &self.head[NUMBERS + number];
            let before = word.load(Ordering::Acquire);
            let (used, uses) = (use_of(before), before - use_of(before));
            if used == FREE || !self.is_gone(by, number, used) {
                continue;
            }
            // It is this use of the number that has ended.
            if word.compare_exchange(before, uses + taken_by, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            for (index, word) in self.row(number).iter().enumerate() {
                if word.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let bits = word.swap(0, Ordering::AcqRel);
                let slots = (0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| index as u32 * 64 + bit);
                slots.filter(|slot| self.leave(*slot)).for_each(&mut free);
            }
            self.head[NUMBERS + number].store(uses + FREE, Ordering::Release);
        }
    }

    /// Whether a number is used by nobody alive, nor being prepared or cleared by somebody who is.
    fn is_gone(&self, by: &Member, number: usize, used: u64) -> bool {
        let is_claimed = |number: usize| file::is_byte_claimed(by.file.number(), number).unwrap_or(true);
        let in_hand = |owner: usize| owner == by.number || is_claimed(owner);
        match used {
            USED => !is_claimed(number),
            taken => !is_claimed(number) && !in_hand((taken - TAKEN_BY) as usize),
        }
    }
}
