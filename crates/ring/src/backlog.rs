//! The backlog: CQEs that found no room in the CQ, in order.
//!
//! The backlog lies in a circular area of the ring's memory, after the journal, so every process of
//! the ring finds it. The CQE with index *n* lies at position *n* of the area. So the CQ's
//! published tail is also the index of the backlog's first CQE. To move CQEs from the backlog to
//! the CQ, a process copies them, and stores the new tail. This one store publishes the CQEs, and
//! removes them from the backlog.
//!
//! | word | content |
//! |---|---|
//! | `HAS_CQES` | 1 while there may be CQEs in the area |
//! | `END_INDEX` | index after the last of these CQEs; meaningless without `HAS_CQES` |
//!
//! - All words change under the ring's lock only.
//! - If a process dies while it holds the lock, the backlog still has only whole CQEs: `END_INDEX`
//!   moves after the CQE is written, and `HAS_CQES` is set after that.
//! - CQEs that find the area full stay in the memory of the process that posted them (the *rest*).
//!   They move to the area as soon as it has room. The CQEs of the rest are lost when their process
//!   ends, and CQEs of another process may overtake them.
//! - AIO contexts, which one process uses, have no area.

use crate::completion::Extension;
use crate::layout::Layout;
use alloc::collections::VecDeque;
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, Ordering};
use usring_uapi::Cqe;

const HAS_CQES: usize = 0;
const END_INDEX: usize = 4;
/// Bytes in front of the first CQE.
const HEADER: usize = 64;
/// Least capacity of a backlog's area, in CQEs.
const LEAST: u32 = 1024;

/// Returns the capacity of a backlog's area, in CQEs: a power of two, and at least the size of the
/// CQ.
fn capacity(layout: &Layout) -> u32 {
    (2 * layout.cq_entries).max(LEAST)
}

/// Returns the length of a backlog's area, in bytes.
pub(crate) fn length(layout: &Layout) -> usize {
    if layout.has_events() {
        return 0;
    }
    HEADER + ((capacity(layout) as usize) << layout.cqe_shift)
}

/// The circular area of the backlog, in the ring's memory.
pub(crate) struct Area {
    memory: Arc<SharedMemory>,
    start: usize,
    capacity: u32,
    /// Binary logarithm of the bytes per CQE.
    shift: u32,
}

impl Area {
    /// Returns the backlog's area at the byte offset `start`; `None` for an AIO context, which has
    /// no area.
    pub fn new(memory: Arc<SharedMemory>, start: usize, layout: &Layout) -> Option<Area> {
        let (capacity, shift) = (capacity(layout), layout.cqe_shift);
        (!layout.has_events()).then_some(Area { memory, start, capacity, shift })
    }

    /// Stores a word, after all earlier stores.
    fn set(&self, word: usize, value: u32) {
        self.memory.word(self.start + word).store(value, Ordering::Release);
    }

    fn get(&self, word: usize) -> u32 {
        self.memory.word(self.start + word).load(Ordering::Relaxed)
    }

    fn offset_of(&self, index: u32) -> usize {
        self.start + HEADER + (((index & (self.capacity - 1)) as usize) << self.shift)
    }

    fn write(&self, index: u32, (cqe, extension): (Cqe, Extension)) {
        let place = self.offset_of(index);
        self.memory.write(place, cqe.words());
        if self.shift > 4 {
            self.memory.write(place + 16, extension);
        }
        self.set(END_INDEX, index.wrapping_add(1));
        self.set(HAS_CQES, 1);
    }

    fn read(&self, index: u32) -> (Cqe, Extension) {
        let place = self.offset_of(index);
        let extension = if self.shift > 4 { self.memory.read(place + 16) } else { [0; 2] };
        (Cqe::from_words(self.memory.read(place)), extension)
    }
}

/// One process's view of a ring's backlog. Only the holder of the ring's lock uses it.
pub(crate) struct Backlog {
    area: Option<Area>,
    /// Number of CQEs in the shared area of the backlog. [`Backlog::catch_up`] corrects it after
    /// another process has changed the area.
    in_area: u32,
    /// CQEs of the backlog that found no room in the shared area. They are in this process's
    /// private memory.
    rest: VecDeque<(Cqe, Extension)>,
}

impl Backlog {
    pub fn new(area: Option<Area>) -> Backlog {
        Backlog { area, in_area: 0, rest: VecDeque::new() }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.in_area == 0 && self.rest.is_empty()
    }

    pub fn len(&self) -> usize {
        self.in_area as usize + self.rest.len()
    }

    /// Returns whether the backlog has CQEs in this process's private memory. These CQEs found no
    /// room in the shared area.
    pub fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Appends a CQE. `tail` is the CQ's published tail. Returns `false` if there is no memory for
    /// the CQE.
    pub fn push(&mut self, tail: u32, cqe: Cqe, extension: Extension) -> bool {
        if let Some(area) = self.area.as_ref().filter(|area| self.in_area < area.capacity) {
            area.write(tail.wrapping_add(self.in_area), (cqe, extension));
            self.in_area += 1;
            return true;
        }
        let has_room = self.rest.try_reserve(1).is_ok();
        if has_room {
            self.rest.push_back((cqe, extension));
        }
        has_room
    }

    /// Takes the first CQE out of the backlog. The caller stores the CQE in the CQ at the index
    /// `tail`. The shared area keeps its copy of the CQE until the CQ's tail is published. If this
    /// process dies before that, other processes still find the CQE in the backlog.
    pub fn pop(&mut self, tail: u32) -> Option<(Cqe, Extension)> {
        match &self.area {
            Some(_) if self.in_area == 0 => None,
            Some(area) => {
                self.in_area -= 1;
                Some(area.read(tail))
            }
            None => self.rest.pop_front(),
        }
    }

    /// Moves CQEs from this process's private memory to the backlog's area while the area has room.
    /// `tail` is the CQ's published tail.
    pub fn move_to_area(&mut self, tail: u32) {
        let Some(area) = &self.area else { return };
        while self.in_area < area.capacity
            && let Some(entry) = self.rest.pop_front()
        {
            area.write(tail.wrapping_add(self.in_area), entry);
            self.in_area += 1;
        }
        if self.in_area == 0 {
            area.set(HAS_CQES, 0);
        }
        if self.rest.is_empty() {
            self.rest = VecDeque::new();
        }
    }

    /// Reads the changes that other processes have made to the backlog's area. `tail` is the CQ's
    /// published tail.
    pub fn catch_up(&mut self, tail: u32) {
        let Some(area) = &self.area else { return };
        let length = area.get(END_INDEX).wrapping_sub(tail);
        let has = area.get(HAS_CQES) != 0;
        self.in_area = if has && length <= area.capacity { length } else { 0 };
        if has && self.in_area == 0 {
            // A process has emptied the backlog's area, and died before it cleared `HAS_CQES`.
            area.set(HAS_CQES, 0);
        }
        if self.has_rest() {
            self.move_to_area(tail);
        }
    }
}
