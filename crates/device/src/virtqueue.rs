//! The driver's half of a split virtqueue (virtio 1.2, section 2.7) in memory
//! that is shared with the device: descriptor table, available ring, used ring.
//! It knows nothing of what the buffers mean.
//!
//! # Who writes what
//! The driver owns the descriptors of a chain until it has published the
//! chain's head, and again once it has taken the head from the used ring. Each
//! side writes its own ring and, behind the other's ring, the index from which
//! on it wants to be told.
//!
//! | word | edge |
//! |---|---|
//! | index of the available ring | [`Edge::AvailableIndex`] |
//! | index of the used ring | [`Edge::UsedIndex`] |
//! | available event, or the flags of the used ring | [`Edge::AvailableEvent`] |
//! | used event, or the flags of the available ring | [`Edge::UsedEvent`] |
//!
//! The device is not trusted with our memory: what it writes is taken for
//! numbers, and whoever takes a head checks it.

use usring_sys::ordering::{Edge, Side};
use usring_sys::shared::SharedMemory;
use usring_sys::shared_array::SharedArray;
use usring_sys::sync::{Arc, AtomicU16, Ordering};

/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 16;

/// The chain goes on with the next one.
const NEXT: u16 = 1;
/// The device writes it (else it reads it).
const WRITE: u16 = 2;
/// It is a table of descriptors.
const INDIRECT: u16 = 4;

/// Flags of the available ring: do not tell me.
const NO_INTERRUPT: u16 = 1;
/// Flags of the used ring: do not tell me.
const NO_NOTIFY: u16 = 1;

/// One buffer, or a table of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// As the device knows the memory.
    pub address: u64,
    pub length: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    pub fn readable(address: u64, length: u32) -> Self {
        Descriptor { address, length, ..Self::default() }
    }

    pub fn writable(address: u64, length: u32) -> Self {
        Descriptor { address, length, flags: WRITE, next: 0 }
    }

    /// A table of `count` descriptors at an address.
    pub fn table(address: u64, count: usize) -> Self {
        Descriptor { address, length: (count * DESCRIPTOR) as u32, flags: INDIRECT, next: 0 }
    }

    /// The same, with the chain going on.
    #[must_use]
    pub fn followed_by(self, next: u16) -> Self {
        Descriptor { flags: self.flags | NEXT, next, ..self }
    }

    /// As it lies in a table.
    #[inline]
    fn words(self) -> [u64; 2] {
        [self.address, u64::from(self.length) | u64::from(self.flags) << 32 | u64::from(self.next) << 48]
    }

    /// Puts it into shared memory, at a multiple of 16.
    #[inline]
    pub fn store(self, memory: &SharedMemory, offset: usize) {
        memory.write(offset, self.words());
    }
}

/// Where the parts of a queue of `size` descriptors lie in their memory.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// At a multiple of 16.
    pub descriptors: usize,
    /// At a multiple of 2.
    pub available: usize,
    /// At a multiple of 8, less 4: its entries lie at multiples of 8 then.
    pub used: usize,
    /// A power of two.
    pub size: u16,
}

impl Places {
    pub fn available_index(&self) -> usize {
        self.available + 2
    }

    pub fn used_index(&self) -> usize {
        self.used + 2
    }

    fn available_entries(&self) -> usize {
        self.available + 4
    }

    fn used_entries(&self) -> usize {
        self.used + 4
    }

    /// Written by the driver.
    fn used_event(&self) -> usize {
        self.available_entries() + 2 * usize::from(self.size)
    }

    /// Written by the device.
    fn available_event(&self) -> usize {
        self.used_entries() + 8 * usize::from(self.size)
    }
}

/// Whether an index that moves from `old` to `new` passes the one from which on
/// somebody wants to be told (virtio 1.2, section 2.7.7.2).
#[inline]
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A half word by itself.
type Word = SharedArray<AtomicU16, 2>;

/// The driver's half of a queue.
pub struct VirtQueue {
    memory: Arc<SharedMemory>,
    size: u16,
    descriptors: SharedArray<[u64; 2], DESCRIPTOR>,
    available_flags: Word,
    available_index: Word,
    available: SharedArray<AtomicU16, 2>,
    available_event: Word,
    used_flags: Word,
    used_index: Word,
    used: SharedArray<u64, 8>,
    used_event: Word,
    /// VIRTIO_RING_F_EVENT_IDX was agreed on.
    event_index: bool,
    /// Heads put into the available ring, published or not.
    added: u16,
    published: u16,
    /// Entries of the used ring that have been taken.
    taken: u16,
}

impl VirtQueue {
    /// A queue whose memory is all zero; its device tells nobody until asked to.
    pub fn new(memory: Arc<SharedMemory>, places: Places, event_index: bool) -> Self {
        let size = usize::from(places.size);
        let word = |at| Word::new(&memory, at, 1);
        let queue = VirtQueue {
            size: places.size,
            descriptors: SharedArray::new(&memory, places.descriptors, size),
            available_flags: word(places.available),
            available_index: word(places.available_index()),
            available: SharedArray::new(&memory, places.available_entries(), size),
            available_event: word(places.available_event()),
            used_flags: word(places.used),
            used_index: word(places.used_index()),
            used: SharedArray::new(&memory, places.used_entries(), size),
            used_event: word(places.used_event()),
            memory,
            event_index,
            added: 0,
            published: 0,
            taken: 0,
        };
        queue.refuse_interrupt();
        queue
    }

    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Sets one of the main table. Where it is there already nothing is written:
    /// the device has read it, and both keep the line.
    #[inline]
    pub fn set_descriptor(&self, index: u16, descriptor: Descriptor) {
        let words = descriptor.words();
        if self.descriptors.read(usize::from(index)) != words {
            self.descriptors.write(usize::from(index), words);
        }
    }

    /// Says that a chain is going to be added and published soon: the device has
    /// read the index since we wrote it, and has written since then from which one
    /// on it wants to be told.
    #[inline]
    pub fn prefetch_to_publish(&self) {
        self.available_index.prefetch_to_write(0);
        if self.event_index {
            self.available_event.prefetch(0);
        }
    }

    /// Puts a chain, which is complete, at the end of the available ring: where
    /// few are out it is often the one that was in this place before, and then
    /// the device keeps the line.
    #[inline]
    pub fn add(&mut self, head: u16) {
        let entry = self.available.half_word(usize::from(self.added));
        if entry.load(Ordering::Relaxed) != head {
            entry.store(head, Ordering::Relaxed);
        }
        self.added = self.added.wrapping_add(1);
    }

    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.added != self.published
    }

    /// Lets the device see what was added; `true` if it wants to be told of it.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.added);
        if old == new {
            return false;
        }
        self.available_index.half_word(0).store(new, Edge::AvailableIndex.release());
        self.published = new;
        Edge::AvailableEvent.barrier(Side::Waker);
        if self.event_index {
            passes(self.available_event.half_word(0).load(Ordering::Relaxed), new, old)
        } else {
            self.used_flags.half_word(0).load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    /// How many heads the device has done with, which may be taken. Never more
    /// than there are, whatever it says.
    #[inline]
    pub fn ready(&self) -> u16 {
        self.used_index().wrapping_sub(self.taken).min(self.size)
    }

    /// The next head that the device has done with: whatever it says.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        if !self.has_used() {
            return None;
        }
        let entry = self.used.read(usize::from(self.taken));
        self.taken = self.taken.wrapping_add(1);
        Some(entry as u32)
    }

    /// The head that [`VirtQueue::take`] is going to answer after so many others, if
    /// the device does one after the other. A guess, without waiting for what the
    /// device wrote.
    #[inline]
    pub fn expected(&self, ahead: u16) -> u16 {
        self.available.half_word(usize::from(self.taken.wrapping_add(ahead))).load(Ordering::Relaxed)
    }

    /// Whether there is a head that the device has done with.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.used_index() != self.taken
    }

    #[inline]
    fn used_index(&self) -> u16 {
        self.used_index.half_word(0).load(Edge::UsedIndex.acquire())
    }

    /// Asks to be told of the next head that is done. `false` if there is one
    /// already, of which nobody may tell.
    pub fn ask_for_interrupt(&self) -> bool {
        if self.event_index {
            self.used_event.half_word(0).store(self.taken, Ordering::Relaxed);
        } else {
            self.available_flags.half_word(0).store(0, Ordering::Relaxed);
        }
        Edge::UsedEvent.barrier(Side::Sleeper);
        self.used_index() == self.taken
    }

    /// Takes the wish back. (With EVENT_IDX one wish is one interrupt; what is
    /// left is that the index passes the same place again, once in 65,536.)
    pub fn refuse_interrupt(&self) {
        if self.event_index {
            self.used_event.half_word(0).store(self.taken.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.available_flags.half_word(0).store(NO_INTERRUPT, Ordering::Relaxed);
        }
    }

    /// Heads that the device has done with and nobody has taken yet. Only while
    /// no device is at work on the queue.
    pub fn not_taken(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.ready()).map(|index| self.used.read(usize::from(self.taken.wrapping_add(index))) as u32)
    }

    /// Makes the queue ready for another device, which starts at the used
    /// index: what lies in the available ring from there on is exactly `heads`,
    /// everything that is still to be done. Only while no device is at work on it.
    pub fn make_over(&mut self, heads: impl Iterator<Item = u16>) {
        self.added = self.used_index();
        heads.for_each(|head| self.add(head));
        self.published = self.added;
        // It is told of the next one, whatever the other device had wished.
        self.used_flags.half_word(0).store(0, Ordering::Relaxed);
        self.available_event.half_word(0).store(self.added, Ordering::Relaxed);
        self.available_index.half_word(0).store(self.added, Edge::AvailableIndex.release());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_index_passes_an_event_when_it_moves_beyond_it() {
        assert!(passes(0, 1, 0));
        assert!(!passes(1, 1, 0));
        assert!(passes(5, 9, 5));
        assert!(!passes(4, 9, 5));
        assert!(passes(0xffff, 0, 0xffff));
        assert!(passes(0xfffe, 3, 0xfff0));
        assert!(!passes(0x8000, 3, 0xfff0));
    }
}
