//! The driver's half of a split virtqueue (virtio 1.2, section 2.7) in memory that is shared with
//! the device: descriptor table, available ring, used ring. This file does not know the content of
//! the buffers.
//!
//! # Ownership
//! - The device owns the descriptors of a chain from the publication of the chain's head until the
//!   driver takes the head from the used ring. Otherwise the driver owns them.
//! - Each side writes its own ring. Behind the ring's entries lies the side's *event index*: the
//!   position in the other side's ring at which this side wants the next notification.
//!
//! | word | edge |
//! |---|---|
//! | index of the available ring | [`Edge::AvailableIndex`] |
//! | index of the used ring | [`Edge::UsedIndex`] |
//! | available event, or the flags of the used ring | [`Edge::AvailableEvent`] |
//! | used event, or the flags of the available ring | [`Edge::UsedEvent`] |
//!
//! The device is not trusted. Values that it writes are only numbers, and the caller checks each
//! head that it takes from the used ring.

use usring_sys::ordering::{Edge, Side};
use usring_sys::shared::SharedMemory;
use usring_sys::shared_array::SharedArray;
use usring_sys::sync::{Arc, AtomicU16, Ordering};
use usring_sys::width;

/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 16;

/// Descriptor flag: the chain continues with the descriptor `next`.
const NEXT: u16 = 1;
/// Descriptor flag: the device writes the buffer; otherwise it reads the buffer.
const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
const INDIRECT: u16 = 4;

/// Flag of the available ring: the driver wants no interrupts.
const NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the device wants no notifications.
const NO_NOTIFY: u16 = 1;

/// A descriptor: a buffer, or a table of descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Address of the buffer, or of the indirect table, as the device sees it.
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

    /// Makes the descriptor that refers to an indirect table of `count` descriptors at `address`.
    pub fn table(address: u64, count: u16) -> Self {
        Descriptor { address, length: u32::from(count) * width::count(DESCRIPTOR), flags: INDIRECT, next: 0 }
    }

    /// Returns this descriptor with the flag that the chain continues with descriptor `next`.
    #[must_use]
    pub fn followed_by(self, next: u16) -> Self {
        Descriptor { flags: self.flags | NEXT, next, ..self }
    }

    /// Returns the descriptor as it is stored in a table.
    #[inline]
    fn words(self) -> [u64; 2] {
        [self.address, u64::from(self.length) | u64::from(self.flags) << 32 | u64::from(self.next) << 48]
    }

    /// Stores the descriptor in shared memory, at an offset that is a multiple of 16.
    #[inline]
    pub fn store(self, memory: &SharedMemory, offset: usize) {
        memory.write(offset, self.words());
    }
}

/// Offsets of the parts of a queue with `size` descriptors, in the shared memory.
#[derive(Clone, Copy, Debug)]
pub struct QueueLayout {
    /// A multiple of 16.
    pub descriptors: usize,
    /// A multiple of 2.
    pub available: usize,
    /// Offset of the used ring: a multiple of 8, minus 4, so that the ring's entries are aligned to
    /// 8 bytes.
    pub used: usize,
    /// A power of two.
    pub size: u16,
}

impl QueueLayout {
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

    /// Offset of the used event, which the driver writes.
    fn used_event(&self) -> usize {
        self.available_entries() + 2 * usize::from(self.size)
    }

    /// Offset of the available event, which the device writes.
    fn available_event(&self) -> usize {
        self.used_entries() + 8 * usize::from(self.size)
    }
}

/// Returns whether one side of a virtqueue must notify the other side (virtio 1.2, section
/// 2.7.7.2). The notification is due if the side's index passes the other side's event index on the
/// way from `old` to `new`.
#[inline]
fn needs_notification(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// One 16-bit word in shared memory.
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
    /// Whether VIRTIO_RING_F_EVENT_IDX was negotiated.
    event_index: bool,
    /// Number of heads (first descriptors of chains) added to the available ring, published or not.
    /// Wraps around.
    added: u16,
    published: u16,
    /// Number of entries taken from the used ring. Wraps around.
    taken: u16,
}

impl VirtQueue {
    /// Makes a queue in zeroed memory. `event_index`: the feature EVENT_IDX was negotiated.
    /// Interrupts are off until the driver asks for one.
    pub fn new(memory: Arc<SharedMemory>, places: QueueLayout, event_index: bool) -> Self {
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

    /// Sets a descriptor of the main table. If the table already has this descriptor, nothing is
    /// written. The descriptor's cache line can then stay in the caches of both processors, because
    /// the device only reads it.
    #[inline]
    pub fn set_descriptor(&self, index: u16, descriptor: Descriptor) {
        let words = descriptor.words();
        if self.descriptors.read(usize::from(index)) != words {
            self.descriptors.write(usize::from(index), words);
        }
    }

    /// Prefetches the available index and the available event, for the next publication, which
    /// writes the first and reads the second. The device has accessed both since the last
    /// publication, so they are in its processor's cache.
    #[inline]
    pub fn prefetch_to_publish(&self) {
        self.available_index.prefetch_to_write(0);
        if self.event_index {
            self.available_event.prefetch(0);
        }
    }

    /// Appends a complete chain to the available ring. With few requests in flight, the entry of
    /// the ring often holds this head from an earlier request. The function then writes nothing, so
    /// the device's processor keeps the cache line.
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

    /// Publishes the heads added so far to the device. Returns whether the device wants a
    /// notification.
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
            needs_notification(self.available_event.half_word(0).load(Ordering::Relaxed), new, old)
        } else {
            self.used_flags.half_word(0).load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    /// Returns the number of used heads that can be taken: at most the queue's size, whatever the
    /// device writes.
    #[inline]
    pub fn ready_count(&self) -> u16 {
        self.used_index().wrapping_sub(self.taken).min(self.size)
    }

    /// Takes the next head from the used ring, if there is one. The value is what the device has
    /// written, unchecked.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        if !self.has_used() {
            return None;
        }
        let entry = self.used.read(usize::from(self.taken));
        self.taken = self.taken.wrapping_add(1);
        Some(width::low(entry))
    }

    /// Returns the head that [`VirtQueue::take`] will return after `ahead` other heads, if the
    /// device works in order. The function reads this guess from the available ring, to avoid a
    /// wait for a cache line that the device writes.
    #[inline]
    pub fn guess_head(&self, ahead: u16) -> u16 {
        self.available.half_word(usize::from(self.taken.wrapping_add(ahead))).load(Ordering::Relaxed)
    }

    /// Returns whether the device has used a head that the driver has not taken.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.used_index() != self.taken
    }

    #[inline]
    fn used_index(&self) -> u16 {
        self.used_index.half_word(0).load(Edge::UsedIndex.acquire())
    }

    /// Asks the device for an interrupt at the next head that it adds to the used ring. Returns
    /// `false` if the used ring already has a head. For that head there may be no interrupt.
    pub fn ask_for_interrupt(&self) -> bool {
        if self.event_index {
            self.used_event.half_word(0).store(self.taken, Ordering::Relaxed);
        } else {
            self.available_flags.half_word(0).store(0, Ordering::Relaxed);
        }
        Edge::UsedEvent.barrier(Side::Sleeper);
        self.used_index() == self.taken
    }

    /// Withdraws the request for an interrupt. With EVENT_IDX the used event is set to a position
    /// that the used index has passed already. The index comes back to this position only after
    /// 65,536 heads.
    pub fn refuse_interrupt(&self) {
        if self.event_index {
            self.used_event.half_word(0).store(self.taken.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.available_flags.half_word(0).store(NO_INTERRUPT, Ordering::Relaxed);
        }
    }

    /// Returns the used heads that the driver has not taken. Called only while no device works on
    /// the queue.
    pub fn not_taken(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.ready_count()).map(|index| width::low(self.used.read(usize::from(self.taken.wrapping_add(index)))))
    }

    /// Prepares the queue for a new device, which starts at the used index. From that index on, the
    /// available ring then holds exactly `heads`, the requests that have not completed yet. Called
    /// only while no device works on the queue.
    pub fn reset_for_new_device(&mut self, heads: impl Iterator<Item = u16>) {
        self.added = self.used_index();
        heads.for_each(|head| self.add(head));
        self.published = self.added;
        // The old device may have asked for no notifications. So this function asks the driver for
        // a notification of the next head, in place of the new device.
        self.used_flags.half_word(0).store(0, Ordering::Relaxed);
        self.available_event.half_word(0).store(self.added, Ordering::Relaxed);
        self.available_index.half_word(0).store(self.added, Edge::AvailableIndex.release());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_notification_is_due_when_the_index_moves_past_the_event_index() {
        assert!(needs_notification(0, 1, 0));
        assert!(!needs_notification(1, 1, 0));
        assert!(needs_notification(5, 9, 5));
        assert!(!needs_notification(4, 9, 5));
        assert!(needs_notification(0xffff, 0, 0xffff));
        assert!(needs_notification(0xfffe, 3, 0xfff0));
        assert!(!needs_notification(0x8000, 3, 0xfff0));
    }
}
