//! The journal of a shared ring: the ring's requests that have no published CQE yet. Each has its
//! process and its `user_data`. When a process dies, another process uses the journal to complete
//! the dead process's requests.
//!
//! When the ring becomes shared, the process that made the ring adds its requests to the journal,
//! except those that its workers have. The journal also holds the order of the requests that wait
//! behind an IO_DRAIN.
//!
//! A slot:
//!
//! | word | content |
//! |---|---|
//! | owner | number of the process that submitted the request, 0 in a free slot; with a flag |
//! | index | depends on the flag |
//! | `user_data` (two words) | that of the request |
//!
//! | flag | the request | index |
//! |---|---|---|
//! | `NEW` | is being taken from the SQ | its index in the SQ |
//! | none | is in flight | |
//! | `TIMED` | is a timeout in flight | number of its timer ([`timers`]) |
//! | `HELD` | is held back by an IO_DRAIN | its position in the order of held requests |
//! | `LINKED` | was behind a timeout in its chain when the timeout began | slot of the next request of its chain, plus 1 |
//! | `CANCELLED` | is in flight, and its process has to cancel it ([`cancelled`]) | |
//! | `POSTED` | ends with a CQE that is being added to the CQ or to the backlog | index of that CQE |
//!
//! All slots in use lie before the slot number `top`. The word `top` lies in front of the first
//! slot.
//!
//! - All words change under the ring's lock only. A process may die between any two stores. So each
//!   step ends with a release store of the owner's word: it takes effect after all earlier stores.
//! - A slot becomes `POSTED` before its CQE exists, because other processes see a CQE in the
//!   backlog at once. With the opposite order, a process could die after the CQE and before the
//!   flag. Then another process would post a second CQE for the request.
//! - A process frees a `POSTED` slot right after it has published the CQE. If the process dies
//!   before that, it holds the ring's lock. The next process that gets the lock clears `POSTED` in
//!   the slots whose CQEs do not exist ([`Journal::mend`]).
//! - A request that finds the journal full is not entered. It gets no CQE if its process is killed.

mod cancelled;
mod timers;

pub use timers::JournalTimer;

use crate::completion::CompletionQueue;
use crate::layout::Layout;
use alloc::vec::Vec;
use cancelled::CANCELLED;
use timers::{LINKED, TIMED};
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, Ordering};
use usring_sys::width;

const NEW: u32 = 1 << 29;
const HELD: u32 = 1 << 30;
const POSTED: u32 = 1 << 31;
const NUMBER: u32 = NEW - 1;

/// Flags in the index word of a request that an IO_DRAIN holds back (a held request). `MEMBER`: the
/// request is not the first of its chain. `DRAINS`: the request has IO_DRAIN, so later requests
/// wait until it has completed. The bits above the flags are the request's position in the order of
/// held requests.
const MEMBER: u32 = 1;
const DRAINS: u32 = 2;
const ORDER: u32 = !(MEMBER | DRAINS);
/// Difference between two successive positions in the order of the requests that an IO_DRAIN holds
/// back. The bits of an index word below the position hold flags ([`MEMBER`], [`DRAINS`]).
const NEXT: u32 = 4;

const SLOT: usize = 16;
const INDEX: usize = 4;
const USER_DATA: usize = 8;
/// Bytes in front of the first slot.
const HEADER: usize = 64;
/// Offset of the word that holds the next free position. Positions order the requests that an
/// IO_DRAIN holds back.
const NEXT_POSITION: usize = 4;
/// Least number of slots of a journal. A ring with a small CQ can have more requests in flight than
/// its CQ has entries. Slots that were never used take no memory.
const LEAST: usize = 1024;

/// Number of a slot in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSlot(u32);

/// A request that an IO_DRAIN holds back. For a chain of linked requests, this is the first request
/// of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRequest {
    pub slot: JournalSlot,
    /// Number of the process that submitted the request.
    pub owner: u32,
    /// Whether the request has IO_DRAIN, so that later requests wait until it has completed.
    pub drains: bool,
    position: u32,
}

/// Selects the orphans (requests of processes that have ended) that [`Journal::take_one_orphan`]
/// takes.
#[derive(Clone, Copy, Debug)]
pub struct OrphanFilter {
    /// `user_data` of the orphans; `None`: any.
    pub user_data: Option<u64>,
    /// Whether only timeouts are taken.
    pub is_timeout: bool,
}

/// One process's view of a ring's journal. Only the holder of the ring's lock uses it.
pub struct Journal {
    memory: Arc<SharedMemory>,
    start: usize,
    slots: u32,
    /// Number of this process (`sys::process_number`).
    own: u32,
    /// Where the next search for a free slot begins. When this process searched last, all slots
    /// before this one were in use.
    lowest: u32,
    /// Number of requests of this process in the journal that have not ended.
    journaled: u64,
    /// Slots of this process whose requests end with CQEs that have not been published (`POSTED`).
    posted: Vec<JournalSlot>,
}

/// Returns the number of slots in the journal of a ring.
pub(crate) fn slots(layout: &Layout) -> usize {
    (2 * layout.cq_entries as usize).max(LEAST)
}

/// Returns the length of a ring's journal, in bytes. An AIO context has no journal, because no
/// other process uses the context.
pub(crate) fn length(layout: &Layout) -> usize {
    if layout.has_events() {
        return 0;
    }
    HEADER + SLOT * slots(layout) + timers::LENGTH
}

impl Journal {
    pub(crate) fn new(memory: Arc<SharedMemory>, start: usize, layout: &Layout, own: u32) -> Journal {
        let slots = width::count(slots(layout));
        Journal { memory, start, slots, own, lowest: 0, journaled: 0, posted: Vec::new() }
    }

    fn at(&self, slot: u32) -> usize {
        self.start + HEADER + SLOT * slot as usize
    }

    /// Returns the word `top`: all slots with this number or a higher one are free.
    fn top(&self) -> u32 {
        self.memory.word(self.start).load(Ordering::Relaxed).min(self.slots)
    }

    fn set_top(&self, top: u32) {
        self.memory.word(self.start).store(top, Ordering::Relaxed);
    }

    /// Returns the owner's number, and the flag.
    fn owner(&self, slot: u32) -> (u32, u32) {
        let owner = self.memory.word(self.at(slot)).load(Ordering::Relaxed);
        (owner & NUMBER, owner & !NUMBER)
    }

    /// Stores the owner's number and a flag in the slot's first word. This store takes effect after
    /// all earlier stores.
    fn set_owner(&self, slot: u32, owner: u32) {
        self.memory.word(self.at(slot)).store(owner, Ordering::Release);
    }

    fn index(&self, slot: u32) -> u32 {
        self.memory.word(self.at(slot) + INDEX).load(Ordering::Relaxed)
    }

    /// Stores the index, after all earlier stores.
    fn set_index(&self, slot: u32, index: u32) {
        self.memory.word(self.at(slot) + INDEX).store(index, Ordering::Release);
    }

    fn user_data(&self, slot: u32) -> u64 {
        self.memory.read(self.at(slot) + USER_DATA)
    }

    /// Returns the slots in use.
    fn used(&self) -> impl Iterator<Item = u32> {
        (0..self.top()).filter(|slot| self.owner(*slot).0 != 0)
    }

    /// Enters in the journal a request that this process is about to take from the SQ, where it has
    /// the index `sq_index`. The caller takes the request, and then calls [`Journal::confirm`].
    /// `None`: the journal is full.
    pub fn begin(&mut self, user_data: u64, sq_index: u32) -> Option<JournalSlot> {
        self.add(user_data, sq_index, NEW)
    }

    fn add(&mut self, user_data: u64, index: u32, flag: u32) -> Option<JournalSlot> {
        let is_free = |slot: &u32| self.owner(*slot).0 == 0;
        let slot = (self.lowest..self.slots).find(is_free).or_else(|| (0..self.lowest).find(is_free))?;
        self.lowest = slot + 1;
        if slot >= self.top() {
            self.set_top(slot + 1);
        }
        self.memory.write(self.at(slot) + USER_DATA, user_data);
        self.set_index(slot, index);
        self.set_owner(slot, self.own | flag);
        self.journaled += 1;
        Some(JournalSlot(slot))
    }

    /// Adds a request of this process that is in flight, and was submitted before the ring was
    /// shared. `None`: the journal is full.
    pub fn add_in_flight(&mut self, user_data: u64) -> Option<JournalSlot> {
        self.add(user_data, 0, 0)
    }

    /// Records that the request in `slot` is in flight. Called when the request has been taken from
    /// the SQ, and when an IO_DRAIN no longer holds the request back.
    pub fn confirm(&self, slot: JournalSlot) {
        self.set_owner(slot.0, self.own);
    }

    /// Gives a request of this process another `user_data`.
    pub fn rename(&self, slot: JournalSlot, user_data: u64) {
        self.memory.write(self.at(slot.0) + USER_DATA, user_data);
    }

    /// Records that the request in `slot` ends with the next `cqes` CQEs, at least one. After this
    /// call, the caller adds these CQEs to `cq`.
    pub fn end(&mut self, slot: JournalSlot, cqes: u32, cq: &CompletionQueue) {
        if self.owner(slot.0).1 == TIMED {
            self.set_owner(slot.0, self.own);
        }
        self.set_index(slot.0, cq.end().wrapping_add(cqes - 1));
        self.set_owner(slot.0, self.own | POSTED);
        self.journaled -= 1;
        self.posted.push(slot);
    }

    /// Removes a request of this process that ends without a CQE.
    pub fn remove(&mut self, slot: JournalSlot) {
        self.journaled -= 1;
        self.free(slot.0);
    }

    /// Frees the slots whose CQEs have been published.
    pub fn clear_published(&mut self) {
        while let Some(slot) = self.posted.pop() {
            self.free(slot.0);
        }
    }

    fn free(&mut self, slot: u32) {
        self.set_owner(slot, 0);
        self.lowest = self.lowest.min(slot);
        let mut top = self.top();
        while top > 0 && self.owner(top - 1).0 == 0 {
            top -= 1;
        }
        self.set_top(top);
    }

    /// Repairs the journal after a process died with the ring's lock. Called before the calling
    /// process adds CQEs of its own.
    ///
    /// | slot | condition | new state |
    /// |---|---|---|
    /// | `POSTED` | `cq` ends before the CQE, so the CQE does not exist | in flight |
    /// | `NEW` | the request is still in the SQ, whose head is `sq_head` | free |
    /// | `NEW` | the request was taken from the SQ | in flight |
    pub fn mend(&mut self, cq: &CompletionQueue, sq_head: u32) {
        for slot in 0..self.top() {
            let ((owner, flag), index) = (self.owner(slot), self.index(slot));
            match flag {
                POSTED if index.wrapping_sub(cq.end()).cast_signed() >= 0 => self.set_owner(slot, owner),
                NEW if index == sq_head => self.free(slot),
                NEW => self.set_owner(slot, owner),
                _ => {}
            }
        }
    }

    /// Returns the number of this process's requests in the journal that have not ended.
    pub fn journaled(&self) -> u64 {
        self.journaled
    }

    /// Returns whether the journal has requests of another process.
    pub fn has_others(&self) -> bool {
        self.used().any(|slot| self.owner(slot).0 != self.own)
    }

    /// Returns the numbers of the other processes that have a request without a CQE. `user_data`:
    /// counts only requests with this value; `None`: counts all. Requests that already have the
    /// mark `CANCELLED` do not count.
    pub fn others(&self, user_data: Option<u64>) -> Vec<u32> {
        let mut owners = Vec::new();
        for slot in self.used() {
            let (owner, flag) = self.owner(slot);
            let is_meant = user_data.is_none_or(|user_data| self.user_data(slot) == user_data);
            if owner != self.own && !matches!(flag, POSTED | CANCELLED) && is_meant && !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        owners
    }

    /// Makes this process the owner of a request of another process. Returns the request's slot and
    /// `user_data`.
    fn take_over(&mut self, slot: u32) -> (JournalSlot, u64) {
        let flag = self.owner(slot).1;
        self.set_owner(slot, self.own | if matches!(flag, TIMED | LINKED) { flag } else { 0 });
        self.journaled += 1;
        (JournalSlot(slot), self.user_data(slot))
    }

    /// Takes over one request in flight that matches `wanted` and whose process is not alive.
    /// Returns the request's slot and `user_data`; `None`: there is no such request. The caller
    /// calls [`Journal::end`] for the slot, and posts the request's CQE.
    pub fn take_one_orphan(
        &mut self,
        wanted: OrphanFilter,
        is_alive: impl Fn(u32) -> bool,
    ) -> Option<(JournalSlot, u64)> {
        let behind_timeouts = self.behind_timeouts();
        let is_wanted = |slot: &u32| {
            let (owner, flag) = self.owner(*slot);
            owner != self.own
                && !behind_timeouts.contains(slot)
                && !matches!(flag, HELD | POSTED)
                && (flag == TIMED || !wanted.is_timeout)
                && wanted.user_data.is_none_or(|user_data| self.user_data(*slot) == user_data)
        };
        let found = self.used().find(|slot| is_wanted(slot) && !is_alive(self.owner(*slot).0))?;
        Some(self.take_over(found))
    }

    /// Returns whether a slot belongs to a process that is not alive.
    pub fn has_orphans(&self, is_alive: impl Fn(u32) -> bool) -> bool {
        let mut known: Vec<u32> = Vec::new();
        self.used().any(|slot| {
            let owner = self.owner(slot).0;
            let is_new = owner != self.own && !known.contains(&owner);
            if is_new {
                known.push(owner);
            }
            is_new && !is_alive(owner)
        })
    }

    /// Takes over the requests of each process that is not alive, and frees the slots of requests
    /// whose CQE is published. Returns the slots taken over, each with its `user_data`. For each
    /// slot, the caller calls [`Journal::end`] and posts the request's CQE.
    ///
    /// Leaves out two kinds of requests: chains whose first request an IO_DRAIN still holds back
    /// ([`Journal::take_held`]), and requests behind a timeout in flight ([`Journal::take_chain`]).
    pub fn take_orphans(&mut self, is_alive: impl Fn(u32) -> bool) -> Vec<(JournalSlot, u64)> {
        let mut known: Vec<(u32, bool)> = Vec::new();
        let mut taken = Vec::new();
        let behind_timeouts = self.behind_timeouts();
        for slot in 0..self.top() {
            let (owner, flag) = self.owner(slot);
            if owner == 0 || owner == self.own {
                continue;
            }
            let lives = match known.iter().find(|(number, _)| *number == owner) {
                Some((_, lives)) => *lives,
                None => {
                    let lives = is_alive(owner);
                    known.push((owner, lives));
                    lives
                }
            };
            match flag {
                _ if lives => {}
                HELD if self.has_held_head(slot) => {}
                LINKED if behind_timeouts.contains(&slot) => {}
                // [`Journal::mend`] has reset the slots whose CQE was not published. So a slot that
                // is still `POSTED` has a published CQE.
                POSTED => self.free(slot),
                _ => taken.push(self.take_over(slot)),
            }
        }
        taken
    }
}

/// The order of the requests that an IO_DRAIN holds back (held requests). If an IO_DRAIN holds back
/// a chain, all requests of the chain have one position.
impl Journal {
    /// Returns a new position behind all held requests.
    pub fn last_position(&self) -> u32 {
        self.last_positions(1)
    }

    /// Takes `count` new positions behind all held requests. Returns the first of the positions.
    fn last_positions(&self, count: u32) -> u32 {
        let next = self.memory.word(self.start + NEXT_POSITION);
        let position = next.load(Ordering::Relaxed) & ORDER;
        next.store(position.wrapping_add(NEXT.wrapping_mul(count)), Ordering::Relaxed);
        position
    }

    /// Returns `count` new positions, in order, which lie before the positions of all held
    /// requests.
    pub fn first_positions(&self, count: u32) -> impl Iterator<Item = u32> + use<> {
        let length = NEXT.wrapping_mul(count);
        let first = match self.first_held() {
            Some(held) => held.position.wrapping_sub(length),
            None => self.last_positions(count),
        };
        (0..count).map(move |index| first.wrapping_add(NEXT.wrapping_mul(index)))
    }

    /// Adds a request of this process that an IO_DRAIN holds back. `position`: its position in the
    /// order of held requests. `drains`: whether later requests wait until it has completed.
    /// `None`: the journal is full. For a chain, the caller first adds the later requests
    /// ([`Journal::add_held_member`]), and then the chain's first request by this function.
    pub fn add_held(&mut self, user_data: u64, position: u32, drains: bool) -> Option<JournalSlot> {
        self.add(user_data, position | if drains { DRAINS } else { 0 }, HELD)
    }

    /// Adds a request of this process that is held back behind the first request of its chain.
    /// `position`: the chain's position. `None`: the journal is full.
    pub fn add_held_member(&mut self, user_data: u64, position: u32) -> Option<JournalSlot> {
        self.add(user_data, position | MEMBER, HELD)
    }

    /// Records that a request of this process is held back behind the first request of its chain.
    /// The caller then calls [`Journal::hold`] for the chain's first request.
    pub fn hold_member(&self, slot: JournalSlot, position: u32) {
        self.set_index(slot.0, position | MEMBER);
        self.set_owner(slot.0, self.own | HELD);
    }

    /// Records that an IO_DRAIN holds back a request of this process. `position`: its position in
    /// the order of held requests. `drains`: whether later requests wait until it has completed.
    pub fn hold(&self, slot: JournalSlot, position: u32, drains: bool) {
        self.set_index(slot.0, position | if drains { DRAINS } else { 0 });
        self.set_owner(slot.0, self.own | HELD);
    }

    /// Returns whether an IO_DRAIN holds back a request of this process.
    pub fn is_held(&self, slot: JournalSlot) -> bool {
        self.owner(slot.0).1 == HELD
    }

    /// Returns the index word of a slot whose request an IO_DRAIN holds back. `None` for any other
    /// slot.
    fn held_index(&self, slot: u32) -> Option<u32> {
        (self.owner(slot).1 == HELD).then(|| self.index(slot))
    }

    /// Returns whether an IO_DRAIN holds back the first request of the chain to which the request
    /// in `slot` belongs. `slot` has a held request, which can be the first request itself.
    fn has_held_head(&self, slot: u32) -> bool {
        let position = self.index(slot) & ORDER;
        self.used().filter_map(|slot| self.held_index(slot)).any(|index| index & !DRAINS == position)
    }

    /// Returns the held request whose position is first. If it belongs to a chain, returns the
    /// chain's first request.
    pub fn first_held(&self) -> Option<HeldRequest> {
        let mut first: Option<HeldRequest> = None;
        for slot in self.used() {
            let Some(index) = self.held_index(slot).filter(|index| index & MEMBER == 0) else { continue };
            let position = index & ORDER;
            if first.is_none_or(|first| position.wrapping_sub(first.position).cast_signed() < 0) {
                let (owner, drains) = (self.owner(slot).0, index & DRAINS != 0);
                first = Some(HeldRequest { slot: JournalSlot(slot), owner, drains, position });
            }
        }
        first
    }

    /// Returns whether any process has a request in flight. Two kinds of requests do not count:
    /// those that an IO_DRAIN holds back, and those whose last CQE is being posted.
    pub fn is_any_in_flight(&self) -> bool {
        self.used().any(|slot| !matches!(self.owner(slot).1, HELD | POSTED))
    }

    /// Returns the slots of a chain that an IO_DRAIN holds back, without the slot of the chain's
    /// first request.
    fn members(&self, held: &HeldRequest) -> Vec<u32> {
        let is_member = |slot: &u32| self.held_index(*slot) == Some(held.position | MEMBER);
        self.used().filter(is_member).collect()
    }

    /// Records that an IO_DRAIN no longer holds back a request and the later requests of its chain.
    /// The process of these requests learns this from [`Journal::is_held`], and starts them.
    pub fn release(&self, held: &HeldRequest) {
        let members = self.members(held);
        self.set_owner(held.slot.0, held.owner);
        members.into_iter().for_each(|slot| self.set_owner(slot, held.owner));
    }

    /// Takes over a request that an IO_DRAIN holds back, with the later requests of its chain.
    /// Their process has died. Returns their slots, each with its `user_data`; the chain's first
    /// request comes first. For each slot, the caller calls [`Journal::end`] and posts the CQE.
    pub fn take_held(&mut self, held: &HeldRequest) -> Vec<(JournalSlot, u64)> {
        let members = self.members(held);
        core::iter::once(held.slot.0).chain(members).map(|slot| self.take_over(slot)).collect()
    }
}
