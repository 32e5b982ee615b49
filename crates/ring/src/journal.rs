//! The requests of a shared ring that have no published CQE yet: which process submitted each, and
//! its `user_data`. Requests from before the ring was shared are not in it. When a process dies,
//! another one completes the requests of the dead process.
//!
//! A slot is two words:
//!
//! | word | content |
//! |---|---|
//! | 0, low half | number of the process that submitted the request, 0 in a free slot; bit 31: the CQE is in the CQ or in the backlog |
//! | 0, high half | index of that CQE |
//! | 1 | `user_data` |
//!
//! The slots in use lie before `top`, a word in front of the first slot.
//!
//! A process frees the slot of a CQE right after it has published the CQE, so no index grows stale.
//! A CQE in the backlog counts as published. If the process dies before that with the ring's lock,
//! the next holder takes the marks off the slots whose CQEs other processes cannot find. All words
//! change under the ring's lock only. A full journal takes no further requests.

use crate::completion::CompletionQueue;
use crate::layout::Layout;
use alloc::vec::Vec;
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, Ordering};

const POSTED: u32 = 1 << 31;
const SLOT: usize = 16;
/// Bytes in front of the first slot.
const HEADER: usize = 64;
/// Fewest slots of a journal.
const LEAST: usize = 64;

/// A slot of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSlot(u32);

/// A process's half of a ring's journal. Only the holder of the ring's lock uses it.
pub struct Journal {
    memory: Arc<SharedMemory>,
    start: usize,
    slots: u32,
    /// This process's number.
    own: u32,
    /// Slots before this one were in use when this process last looked.
    lowest: u32,
    /// Slots whose CQEs have been added and not published yet.
    posted: Vec<JournalSlot>,
}

/// Returns the number of slots in the journal of a ring.
pub(crate) fn slots(layout: &Layout) -> usize {
    (2 * layout.cq_entries as usize).max(LEAST)
}

/// Returns the length of a ring's journal, in bytes. An AIO context has none, because no other
/// process uses it.
pub(crate) fn length(layout: &Layout) -> usize {
    if layout.has_events() {
        return 0;
    }
    HEADER + SLOT * slots(layout)
}

impl Journal {
    pub(crate) fn new(memory: Arc<SharedMemory>, start: usize, layout: &Layout, own: u32) -> Journal {
        Journal { memory, start, slots: slots(layout) as u32, own, lowest: 0, posted: Vec::new() }
    }

    fn at(&self, slot: u32) -> usize {
        self.start + HEADER + SLOT * slot as usize
    }

    /// Returns the number of slots of which some may be in use.
    fn top(&self) -> u32 {
        self.memory.word(self.start).load(Ordering::Relaxed).min(self.slots)
    }

    fn set_top(&self, top: u32) {
        self.memory.word(self.start).store(top, Ordering::Relaxed);
    }

    /// Returns the owner's number and the index of the CQE, if it is in the CQ.
    fn owner(&self, slot: u32) -> (u32, Option<u32>) {
        let word: u64 = self.memory.read(self.at(slot));
        let owner = word as u32;
        (owner & !POSTED, (owner & POSTED != 0).then_some((word >> 32) as u32))
    }

    fn set(&self, slot: u32, owner: u32, index: u32) {
        self.memory.write(self.at(slot), u64::from(owner) | u64::from(index) << 32);
    }

    /// Notes a request that this process has taken from the SQ. `None`: the journal is full.
    pub fn begin(&mut self, user_data: u64) -> Option<JournalSlot> {
        let is_free = |slot: &u32| self.owner(*slot).0 == 0;
        let slot = (self.lowest..self.slots).find(is_free).or_else(|| (0..self.lowest).find(is_free))?;
        self.lowest = slot + 1;
        if slot >= self.top() {
            self.set_top(slot + 1);
        }
        self.memory.write(self.at(slot) + 8, user_data);
        self.set(slot, self.own, 0);
        Some(JournalSlot(slot))
    }

    /// Notes that the last CQE of a request has just been added to `cq`.
    pub fn end(&mut self, slot: JournalSlot, cq: &CompletionQueue) {
        self.set(slot.0, self.own | POSTED, cq.end().wrapping_sub(1));
        self.posted.push(slot);
    }

    /// Frees the slots whose CQEs have been published.
    pub fn clear_published(&mut self) {
        while let Some(slot) = self.posted.pop() {
            self.free(slot.0);
        }
    }

    fn free(&mut self, slot: u32) {
        self.set(slot, 0, 0);
        self.lowest = self.lowest.min(slot);
        if slot + 1 == self.top() {
            self.set_top(slot);
        }
    }

    /// Notes that the CQEs behind the end of `cq` do not exist. For a process that has taken the
    /// ring's lock from a dead one, before it adds CQEs of its own.
    pub fn forget_unpublished(&mut self, cq: &CompletionQueue) {
        for slot in 0..self.top() {
            if let (owner, Some(index)) = self.owner(slot)
                && index.wrapping_sub(cq.end()) as i32 >= 0
            {
                self.set(slot, owner, 0);
            }
        }
    }

    /// Returns whether another process has requests without a published CQE.
    pub fn has_others(&self) -> bool {
        (0..self.top()).map(|slot| self.owner(slot).0).any(|owner| owner != 0 && owner != self.own)
    }

    /// Takes over the requests of each process that is not alive. Returns the slots whose requests
    /// have no published CQE, each with its `user_data`. The caller posts their CQEs, and calls
    /// [`Journal::end`] for each.
    pub fn take_from_dead(&mut self, is_alive: impl Fn(u32) -> bool) -> Vec<(JournalSlot, u64)> {
        let mut known: Vec<(u32, bool)> = Vec::new();
        let mut taken = Vec::new();
        for slot in 0..self.top() {
            let (owner, index) = self.owner(slot);
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
            if lives {
                continue;
            }
            if index.is_some() {
                // Published: see `forget_unpublished`.
                self.free(slot);
                continue;
            }
            self.set(slot, self.own, 0);
            taken.push((JournalSlot(slot), self.memory.read(self.at(slot) + 8)));
        }
        taken
    }
}
