//! The engine's half of the CQ, which produces entries.
//!
//! - A CQE that finds no room goes to the backlog (`crate::backlog`), so no CQE is lost. CQEs keep
//!   their order: while the backlog is not empty, every new CQE is appended to the backlog.
//! - The SQ's flag `CQ_OVERFLOW` asks the program to call io_uring_enter(2), which calls
//!   [`CompletionQueue::flush_overflow`].
//! - The CQ may be an AIO context's ring instead (`crate::events`). Each CQE is then stored as an
//!   event. Head and tail of such a ring are slot numbers, which wrap around at the number of
//!   slots. The number of slots need not be a power of two.

use crate::backlog::Backlog;
use crate::events;
use crate::layout;
use crate::memory::{Memory, flags};
use usring_sys::ordering::Edge;
use usring_sys::sync::Ordering;
use usring_sys::width;
use usring_uapi::Cqe;

/// The 16 bytes after a CQE on a ring with `CQE32`. In an AIO context's ring, the first word is the
/// event's `data`.
pub type Extension = [u64; 2];

/// The engine's half of the CQ. Only the holder of the ring's lock uses it.
pub struct CompletionQueue {
    memory: Memory,
    /// Index of the next CQE to write; [`CompletionQueue::publish`] shows all earlier CQEs to the
    /// program.
    tail: u32,
    published: u32,
    /// If the CQ is an AIO context's ring: the slot for the CQE with the index `tail`.
    slot: u32,
    /// Number of slots that are free as far as this process knows. The program can only free more
    /// slots, so the head is loaded again only when this number is zero. Always zero while there is
    /// a backlog.
    free: u32,
    backlog: Backlog,
    /// Whether the backlog has grown since the last [`CompletionQueue::take_growth`].
    has_grown: bool,
    lost: u32,
    /// Whether CQEs go to the backlog even if the CQ has room
    /// ([`CompletionQueue::force_overflow`]).
    forces_overflow: bool,
}

impl Memory {
    /// Returns the CQ's head, as the program has last stored it. The caller needs no lock.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.completions.header_word(layout::CQ_HEAD).load(Edge::CqHead.acquire())
    }

    /// Returns the number of published CQEs with the index `consumed` or a later one. `consumed`:
    /// the CQ's head at an earlier time, from [`Memory::consumed`]. The caller needs no lock.
    #[inline]
    pub fn published_since(&self, consumed: u32) -> u32 {
        self.completions.header_word(layout::CQ_TAIL).load(Ordering::Acquire).wrapping_sub(consumed)
    }
}

impl CompletionQueue {
    pub fn new(memory: &Memory) -> CompletionQueue {
        CompletionQueue {
            memory: memory.clone(),
            tail: 0,
            published: 0,
            slot: 0,
            free: memory.layout.cq_entries,
            backlog: Backlog::new(memory.backlog_area()),
            has_grown: false,
            forces_overflow: false,
            lost: 0,
        }
    }

    /// Makes the queue continue at `index`, as if `index` entries had passed through it. For tests
    /// of indices that wrap around.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, index: u32) {
        (self.tail, self.published) = (index, index);
        self.memory.rings.header_word(layout::CQ_TAIL).store(index, Ordering::Relaxed);
    }

    /// Reads the CQ's tail and the backlog again, because another process's engine may have added
    /// CQEs. This process continues behind those CQEs. CQEs that this process has added and not
    /// published are dropped.
    pub fn catch_up(&mut self) {
        self.tail = self.memory.completions.header_word(layout::CQ_TAIL).load(Ordering::Relaxed);
        (self.published, self.free) = (self.tail, 0);
        let had_rest = self.backlog.has_rest();
        self.backlog.catch_up(self.tail);
        if had_rest {
            self.show_overflow();
        }
    }

    /// Sets or clears the SQ's flag `CQ_OVERFLOW`, according to whether there is a backlog.
    pub fn show_overflow(&self) {
        match self.backlog.is_empty() {
            true => self.memory.clear_flag(flags::CQ_OVERFLOW),
            false => self.memory.set_flag(flags::CQ_OVERFLOW),
        }
    }

    /// Adds a CQE. The program sees it after [`CompletionQueue::publish`].
    #[inline(always)]
    pub fn post(&mut self, cqe: Cqe) {
        self.post_wide(cqe, || [0; 2]);
    }

    /// Adds a CQE with its extension. Calls `extension` only if the ring stores extensions.
    #[inline(always)]
    pub fn post_wide(&mut self, cqe: Cqe, extension: impl FnOnce() -> Extension) {
        if self.free == 0 && self.room() == 0 {
            let layout = &self.memory.layout;
            let extended = layout.has_wide_cqes() || layout.has_events();
            self.keep(cqe, if extended { extension() } else { [0; 2] });
        } else {
            self.fill(cqe, extension);
        }
    }

    /// Adds a CQE only if the CQ has room for it. Returns whether the CQE was added.
    #[inline]
    pub fn try_post(&mut self, cqe: Cqe) -> bool {
        let fits = self.free != 0 || self.room() != 0;
        if fits {
            self.fill(cqe, || [0; 2]);
        }
        fits
    }

    #[inline(always)]
    fn fill(&mut self, cqe: Cqe, extension: impl FnOnce() -> Extension) {
        let layout = &self.memory.layout;
        if layout.has_events() {
            return self.fill_event(cqe, extension());
        }
        let at = layout::CQES + (((self.tail & (layout.cq_entries - 1)) as usize) << layout.cqe_shift);
        // The CQE is written as two words, which the compiler keeps in registers. The compiler
        // would put a structure on the stack first, and then copy it from the stack to the ring.
        self.memory.rings.write(at, cqe.words());
        if layout.has_wide_cqes() {
            self.memory.rings.write(at + 16, extension());
        }
        self.tail = self.tail.wrapping_add(1);
        self.free -= 1;
    }

    #[inline(never)]
    fn fill_event(&mut self, cqe: Cqe, extension: Extension) {
        let event = events::event(cqe, extension);
        self.memory.completions.write(events::place(self.slot), event);
        self.slot = events::after(self.slot, self.memory.layout.event_slots);
        self.tail = self.tail.wrapping_add(1);
        self.free -= 1;
    }

    /// Makes all new CQEs go to the backlog as if the CQ were full, until this function is called
    /// with `false`. A fault of `usring run --inject` calls this function.
    pub fn force_overflow(&mut self, forces: bool) {
        self.forces_overflow = forces;
        if forces {
            self.free = 0;
        }
    }

    /// Appends a CQE to the backlog.
    #[cold]
    fn keep(&mut self, cqe: Cqe, extension: Extension) {
        let is_first = self.backlog.is_empty();
        if is_first && !self.memory.layout.has_events() {
            // The backlog begins at the published tail. So the CQEs that the CQ already has must be
            // published before the first CQE goes to the backlog. A later `publish` still reports
            // them as new.
            self.memory.completions.header_word(layout::CQ_TAIL).store(self.tail, Edge::CqTail.release());
        }
        if !self.backlog.push(self.tail, cqe, extension) {
            // If there is no memory for the backlog, the CQE is lost and counted, as in the kernel.
            // io_uring_enter(2) reports the loss.
            self.lost = self.lost.wrapping_add(1);
            self.memory.rings.header_word(layout::CQ_OVERFLOW).store(self.lost, Ordering::Relaxed);
            return;
        }
        if is_first {
            self.memory.set_flag(flags::CQ_OVERFLOW);
        }
        self.has_grown = true;
    }

    /// Returns whether CQEs have gone to the backlog since the last call of this function.
    pub fn take_growth(&mut self) -> bool {
        core::mem::take(&mut self.has_grown)
    }

    /// Shows the program all CQEs added so far except the last, while the engine still posts a
    /// batch. At the end of the batch [`CompletionQueue::publish`] shows the last CQE, and so
    /// returns `true`. Does nothing for AIO contexts. Does nothing while there is a backlog either:
    /// then the program already sees all CQEs of the CQ.
    pub fn publish_early(&mut self) {
        let shown = self.tail.wrapping_sub(1);
        let is_behind = self.published != self.tail && self.published != shown && self.backlog.is_empty();
        if is_behind && !self.memory.layout.has_events() {
            self.published = shown;
            self.memory.completions.header_word(layout::CQ_TAIL).store(shown, Edge::CqTail.release());
        }
    }

    /// Shows the program all CQEs added so far. Returns whether any of them is new since the last
    /// call.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        let tail = if self.memory.layout.has_events() { self.slot } else { self.tail };
        self.memory.completions.header_word(layout::CQ_TAIL).store(tail, Edge::CqTail.release());
        true
    }

    /// Returns whether waiters must still be notified of a CQE. That is a CQE that went to the CQ
    /// since the last [`CompletionQueue::publish`], or to the backlog since
    /// [`CompletionQueue::take_growth`].
    pub fn has_unannounced(&self) -> bool {
        self.published != self.tail || self.has_grown
    }

    /// Returns the number of free slots for new CQEs; 0 while there is a backlog.
    #[inline(always)]
    pub fn room(&mut self) -> u32 {
        if self.backlog.is_empty() && !self.forces_overflow {
            self.free = self.unused();
        }
        self.free
    }

    /// Returns the number of free slots according to the head that the program has stored. In a CQ,
    /// an invalid head (beyond the tail) counts as a full CQ.
    #[inline(always)]
    fn unused(&self) -> u32 {
        let entries = self.memory.layout.cq_entries;
        if self.memory.layout.has_events() {
            return entries - self.memory.events_before(self.slot, self.head());
        }
        entries - self.tail.wrapping_sub(self.head()).min(entries)
    }

    #[inline]
    fn head(&self) -> u32 {
        self.memory.consumed()
    }

    /// Moves CQEs from the backlog into the CQ, as far as there is room, and publishes them.
    /// Returns whether any CQE was published.
    pub fn flush_overflow(&mut self) -> bool {
        if self.backlog.is_empty() {
            return false;
        }
        self.free = self.unused();
        while self.free > 0
            && let Some((cqe, extension)) = self.backlog.pop(self.tail)
        {
            self.fill(cqe, || extension);
        }
        let published = self.publish();
        self.backlog.move_to_area(self.tail);
        if self.backlog.is_empty() {
            self.memory.clear_flag(flags::CQ_OVERFLOW);
        }
        published
    }

    /// Returns the index after the last CQE in the CQ, published or not. CQEs of the backlog are
    /// not counted.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the index after the last published CQE.
    #[inline]
    pub fn published(&self) -> u32 {
        self.published
    }

    /// Returns the number of published CQEs that the program has not consumed. For an AIO context,
    /// returns the number of events that [`Memory::take_events`] would take. The program can remove
    /// events by overwriting the tail: a waiter must not wake for such events.
    #[inline(always)]
    pub fn ready(&self) -> u32 {
        if self.memory.layout.has_events() {
            return self.memory.ready_events();
        }
        self.published.wrapping_sub(self.head()).min(self.memory.layout.cq_entries)
    }

    /// Returns whether the CQ has a CQE, published or not, that the program has not consumed.
    pub fn has_unread(&self) -> bool {
        self.unused() < self.memory.layout.cq_entries
    }

    /// Returns the CQ's head, as the program has last stored it.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.memory.consumed()
    }

    /// Returns the number of CQEs that count for a wait which began when the CQ's head was
    /// `consumed`. CQEs that were published since then count, even if another thread or process has
    /// already consumed them. For an AIO context, counts the events that the program can take now.
    #[inline]
    pub fn arrived_since(&self, consumed: u32) -> u32 {
        if self.memory.layout.has_events() {
            return self.memory.ready_events();
        }
        self.published.wrapping_sub(consumed)
    }

    /// Returns whether a new CQE would go to the backlog.
    #[inline]
    pub fn is_full(&mut self) -> bool {
        self.free == 0 && self.room() == 0
    }

    #[inline]
    pub fn has_overflow(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Returns whether the backlog has CQEs in this process's private memory. These CQEs found no
    /// room in the backlog's shared area.
    pub fn has_overflow_alone(&self) -> bool {
        self.backlog.has_rest()
    }

    /// Returns the index after the last CQE in the backlog, or in the CQ if there is no backlog.
    pub fn end(&self) -> u32 {
        self.tail.wrapping_add(width::count(self.backlog.len()))
    }

    /// Returns the number of CQEs in the backlog.
    pub fn overflow_length(&self) -> usize {
        self.backlog.len()
    }
}
