//! The arena: the memory of a vhost-user device's queues. It is one file, which the control plane
//! makes. The back end and every process that uses a queue map the file.
//!
//! ```text
//! 0     generation                   control plane → queues
//! 64    parameters                   written once, before the file is mapped elsewhere
//! 4096  queue 0: descriptor table, available ring, used ring, ready word,
//!                counters, request slots, bounce memory
//!       queue 1: …
//! ```
//! In the back end, a byte of the arena has the address [`BASE`] + its offset.
//!
//! [`super::generation`] explains the generation and the ready words.

use super::generation;
use crate::virtqueue::{DESCRIPTOR, QueueLayout};
use usring_sys::Errno;
use usring_sys::descriptor::{OwnedDescriptor, identity};
use usring_sys::mapping::{self, Mapping, PAGE};
use usring_sys::ordering::Edge;
use usring_sys::shared::SharedMemory;
use usring_sys::shared_array::SharedArray;
use usring_sys::sync::{Arc, Ordering};
use usring_sys::width;

/// Address that the start of the arena has in the back end. The arena is the memory of the queues.
/// The program memory that is shared with the back end has higher addresses.
pub const BASE: u64 = 1 << 40;

/// Number of descriptors of a queue. A queue has at most this number of requests in flight.
pub const QUEUE_SIZE: u16 = 256;

/// Maximum number of bytes of a read or write, which is the size of a request's bounce memory.
pub const TRANSFER: u32 = 512 << 10;

/// Maximum number of descriptors of a request: header, data, status.
pub const MOST_DESCRIPTORS: usize = 128;

const GENERATION: usize = 0;
const PARAMETERS: usize = 64;
const HEADER: usize = PAGE;

const SIZE: usize = QUEUE_SIZE as usize;
const AVAILABLE: usize = SIZE * DESCRIPTOR;
/// A multiple of 8, minus 4: see [`QueueLayout::used`].
const USED: usize = AVAILABLE + 1024 + 4;
const READY: usize = AVAILABLE + 1024 + 3072;
const COPIED: usize = READY + 8;
const DIRECT: usize = READY + 12;
const RINGS: usize = READY + 64;
const SLOTS: usize = RINGS.next_multiple_of(PAGE);
const BOUNCE: usize = (SLOTS + SIZE * slot::BYTES).next_multiple_of(PAGE);
const QUEUE: usize = BOUNCE + SIZE * TRANSFER as usize;

const _: () = assert!(USED + 6 + 8 * SIZE <= READY && AVAILABLE + 6 + 2 * SIZE <= USED);

/// Layout of a request's slot: offsets in bytes.
pub mod slot {
    use super::{DESCRIPTOR, MOST_DESCRIPTORS};

    pub const STATUS: usize = 16;
    pub const RANGE: usize = 32;
    pub const TABLE: usize = 64;
    pub const BYTES: usize = TABLE + MOST_DESCRIPTORS * DESCRIPTOR;
}

/// The parameters that the control plane and the back end have negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The negotiated feature bits of virtio.
    pub features: u64,
    /// Size of the device in bytes.
    pub size: u64,
    pub block: u32,
    /// Maximum number of bytes of a descriptor.
    pub segment_bytes: u32,
    /// Maximum number of data descriptors of a request.
    pub segments: u32,
    /// Maximum number of sectors of a discard.
    pub discard_sectors: u32,
    /// Maximum number of sectors of a write of zeroes.
    pub zeroes_sectors: u32,
    pub queues: u32,
    /// Whether a completed write is durable only after a flush.
    pub write_back: bool,
}

/// The mapped memory of a device's queues.
pub struct Arena {
    memory: Arc<SharedMemory>,
}

impl Arena {
    /// Returns the length in bytes of an arena with `queues` queues. Most of it is bounce memory,
    /// whose pages are allocated at their first use.
    pub fn length(queues: u32) -> usize {
        HEADER + queues as usize * QUEUE
    }

    /// Makes a new arena. Called by the control plane.
    pub fn create(parameters: &Parameters) -> Result<Arena, Errno> {
        let length = Self::length(parameters.queues);
        let file = mapping::sealed_memory_file(c"usring-vhost-user", length as u64)?;
        let memory = SharedMemory::new(Mapping::of_file(file, length)?);
        let Parameters { features, size, block, segment_bytes, segments, .. } = *parameters;
        let Parameters { discard_sectors, zeroes_sectors, queues, write_back, .. } = *parameters;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            features,
            size,
            pair(block, segment_bytes),
            pair(segments, discard_sectors),
            pair(zeroes_sectors, queues),
            u64::from(write_back),
        ];
        memory.write(PARAMETERS, words);
        generation::set_first(&memory, GENERATION);
        Ok(Arena { memory: Arc::new(memory) })
    }

    /// Maps the arena that the control plane has made. Errors: `EINVAL` if the file is too short
    /// for its parameters; the errors of fstat(2) and mmap(2).
    pub fn open(file: OwnedDescriptor) -> Result<Arena, Errno> {
        let length = width::size(identity(file.number())?.size);
        if length < HEADER {
            return Err(Errno::EINVAL);
        }
        let arena = Arena { memory: Arc::new(SharedMemory::new(Mapping::of_file(file, length)?)) };
        if length < Self::length(arena.parameters().queues) { Err(Errno::EINVAL) } else { Ok(arena) }
    }

    pub fn parameters(&self) -> Parameters {
        let [features, size, third, fourth, fifth, sixth] = self.memory.read::<[u64; 6]>(PARAMETERS);
        Parameters {
            features,
            size,
            block: width::low(third),
            segment_bytes: (third >> 32) as u32,
            segments: width::low(fourth),
            discard_sectors: (fourth >> 32) as u32,
            zeroes_sectors: width::low(fifth),
            queues: (fifth >> 32) as u32,
            write_back: sixth != 0,
        }
    }

    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Returns the descriptor of the arena's file. `None` in a loom model, which has no file.
    pub fn file(&self) -> Option<i32> {
        self.memory.mapping().and_then(Mapping::file)
    }

    pub fn queue(&self, index: u32) -> QueueArea {
        assert!(index < self.parameters().queues, "an arena has as many queues as its parameters say");
        QueueArea { base: HEADER + index as usize * QUEUE }
    }

    /// Announces a new back end: begins a generation. The caller then makes the queues' interrupts
    /// readable.
    pub fn begin_generation(&self) {
        generation::begin_next(&self.memory, GENERATION, self.generation());
    }

    /// Announces that no back end will follow. The caller then makes the queues' interrupts
    /// readable.
    pub fn end(&self) {
        generation::mark_last(&self.memory, GENERATION, self.generation());
    }

    #[inline]
    pub fn generation(&self) -> u32 {
        generation::current(&self.memory, GENERATION)
    }

    /// Sets a queue's rings to zero, and marks them as laid out for the present back end. Called
    /// only while the queue has no user.
    pub fn reset_queue(&self, queue: QueueArea) {
        (queue.base..queue.base + RINGS).step_by(8).for_each(|offset| self.memory.write(offset, 0u64));
        queue.mark_ready(&self.memory, self.generation());
    }

    /// Returns the index up to which a queue's user has published requests, and the index up to
    /// which the back end has completed them.
    pub fn progress(&self, queue: QueueArea) -> (u16, u16) {
        let layout = queue.layout();
        let published = self.memory.half_word(layout.available_index()).load(Edge::AvailableIndex.acquire());
        (published, self.memory.half_word(layout.used_index()).load(Edge::UsedIndex.acquire()))
    }
}

/// An array of one field (such as the header) of all slots of a queue.
pub type SlotArray<T> = SharedArray<T, { slot::BYTES }>;

/// The part of the arena that belongs to one queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueArea {
    base: usize,
}

impl QueueArea {
    pub fn layout(&self) -> QueueLayout {
        QueueLayout {
            descriptors: self.base,
            available: self.base + AVAILABLE,
            used: self.base + USED,
            size: QUEUE_SIZE,
        }
    }

    /// Marks a queue's rings as *ready*: laid out for the back end of `generation`.
    pub fn mark_ready(&self, memory: &SharedMemory, generation: u32) {
        generation::mark_ready(memory, self.base + READY, generation);
    }

    /// Returns the generation of the back end for which a queue's rings are laid out.
    pub fn ready_generation(&self, memory: &SharedMemory) -> u32 {
        generation::ready_generation(memory, self.base + READY)
    }

    /// Counts a read or write in one of two counters. `copied`: the data passes through the bounce
    /// memory; otherwise the back end accesses the program's memory directly.
    #[inline]
    pub fn count_transfer(&self, memory: &SharedMemory, copied: bool) {
        let counter = memory.word(self.base + if copied { COPIED } else { DIRECT });
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns how many reads and writes of the queue were copied, and how many were direct, since
    /// the queue was lent to its user.
    pub fn transfer_counts(&self, memory: &SharedMemory) -> (u32, u32) {
        let read = |at| memory.word(self.base + at).load(Ordering::Relaxed);
        (read(COPIED), read(DIRECT))
    }

    /// Returns the offset of a request's slot in the arena. `head` is the index of the request's
    /// first descriptor.
    #[inline]
    pub fn slot(&self, head: u16) -> usize {
        self.base + SLOTS + usize::from(head) * slot::BYTES
    }

    /// Returns the request headers in all slots, indexed by the requests' first descriptors.
    pub fn headers(&self, memory: &Arc<SharedMemory>) -> SlotArray<[u64; 2]> {
        SlotArray::new(memory, self.slot(0), SIZE)
    }

    /// Returns the status bytes in all slots, indexed by the requests' first descriptors.
    pub fn statuses(&self, memory: &Arc<SharedMemory>) -> SlotArray<u8> {
        SlotArray::new(memory, self.slot(0) + slot::STATUS, SIZE)
    }

    #[inline]
    pub fn bounce(&self, head: u16) -> usize {
        self.base + BOUNCE + usize::from(head) * TRANSFER as usize
    }
}

/// Returns the address in the back end that belongs to an offset in the arena.
#[inline]
pub fn address(offset: usize) -> u64 {
    BASE + offset as u64
}
