//! A buffer ring (REGISTER_PBUF_RING): buffers whose addresses the program writes into shared
//! memory. Either usring makes this memory for the program to map, or it is the program's own
//! memory.

use super::buffer_group::{SelectedBuffers, Usage};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use usring_ring::{GroupSlot, Origin, Registrations, SharedBufferRing};
use usring_sys::plain::{IoVector, Plain};
use usring_sys::shared::SharedMemory;
use usring_sys::{Errno, UserAddress, user_memory, width};

/// Bytes of one entry of a buffer ring (`struct io_uring_buf`).
pub(super) const ENTRY_SIZE: usize = 16;
/// Offset of the buffer's length in an entry, in bytes.
const LENGTH_OFFSET: usize = 8;
/// Offset in a buffer ring of the 32-bit word whose upper half is the tail. (The tail lies in the
/// reserved field of the first entry.)
const TAIL_WORD: usize = 12;
/// Maximum number of buffers that one selection for a bundle takes.
const MANY_LIMIT: u32 = 256;

/// Index of the next buffer, which only the engine changes. (The program changes the tail.)
enum Head {
    Own(u16),
    /// All processes of the io_uring instance share the index.
    Shared(Registrations, GroupSlot),
}

pub(super) struct BufferRing {
    /// The memory of the buffer ring. `None`: another process has registered the ring, in memory
    /// that this process does not have. The ring then counts as empty in this process.
    memory: Option<Arc<SharedMemory>>,
    entries: u32,
    head: Head,
    /// Whether a transfer uses up only as many bytes of a buffer as it transfers
    /// (IOU_PBUF_RING_INC).
    pub incremental: bool,
    /// The registration that made this buffer ring. No two registrations have the same origin.
    origin: Origin,
}

impl BufferRing {
    /// Makes a buffer ring in memory with room for `entries` entries. No other process uses it yet.
    pub fn new(memory: SharedMemory, entries: u32, incremental: bool, origin: Origin) -> BufferRing {
        BufferRing { memory: Some(Arc::new(memory)), entries, head: Head::Own(0), incremental, origin }
    }

    /// Makes this process's view of a buffer ring that another process has registered.
    /// `has_memory`: this process has the ring's memory, at the same address.
    pub fn shared(registrations: &Registrations, slot: GroupSlot, ring: SharedBufferRing, has_memory: bool) -> Self {
        let SharedBufferRing { origin, address, entries, is_incremental: incremental } = ring;
        let size = entries as usize * ENTRY_SIZE;
        let memory = has_memory.then(|| SharedMemory::of_program(UserAddress(address), size).ok()).flatten();
        let head = Head::Shared(registrations.clone(), slot);
        BufferRing { memory: memory.map(Arc::new), entries, head, incremental, origin }
    }

    /// Adds the buffer ring to the registrations that all processes of the io_uring instance see,
    /// unless it is among them already. If there is no room, the buffer ring stays private to this
    /// process.
    pub fn publish(&mut self, registrations: &Registrations, group: u16) {
        let Head::Own(head) = self.head else { return };
        let address = self.memory.as_ref().map_or(0, |memory| memory.address() as u64);
        let ring =
            SharedBufferRing { origin: self.origin, address, entries: self.entries, is_incremental: self.incremental };
        if let Some(slot) = registrations.enter_group(group, usring_ring::SharedGroup::Ring(ring), head) {
            self.head = Head::Shared(registrations.clone(), slot);
        }
    }

    /// Returns whether `ring` describes this buffer ring: both have the same origin.
    pub fn is_described_by(&self, ring: &SharedBufferRing) -> bool {
        self.origin == ring.origin
    }

    /// Returns whether other processes see the buffer ring.
    pub fn is_published(&self) -> bool {
        matches!(self.head, Head::Shared(..))
    }

    #[inline]
    pub fn head(&self) -> u16 {
        match &self.head {
            Head::Own(head) => *head,
            Head::Shared(registrations, slot) => registrations.head(*slot),
        }
    }

    #[inline]
    fn set_head(&mut self, to: u16) {
        match &mut self.head {
            Head::Own(head) => *head = to,
            Head::Shared(registrations, slot) => registrations.set_head(*slot, to),
        }
    }

    /// Uses up the next `count` buffers.
    #[inline]
    pub fn advance(&mut self, count: u16) {
        self.set_head(self.head().wrapping_add(count));
    }

    /// Puts the buffers that were used up last, `count` of them, back into the ring.
    pub fn go_back(&mut self, count: u16) {
        self.set_head(self.head().wrapping_sub(count));
    }

    /// Returns the buffer ring's memory, if usring has made it for the program to map. `None`: the
    /// memory is the program's own, or another process's.
    pub fn memory_to_map(&self) -> Option<&Arc<SharedMemory>> {
        self.memory.as_ref().filter(|memory| memory.mapping().is_some())
    }

    /// Returns the identity and the head of the buffer ring. If neither has changed between two
    /// calls, no other request has taken buffers from the ring meanwhile.
    pub fn position(&self) -> (Origin, u16) {
        (self.origin, self.head())
    }

    /// Reads a value that the program wrote in the buffer ring. `None`: the program has unmapped
    /// the ring's memory, or this process does not have it. The ring then counts as empty.
    fn read<T: Plain>(&self, offset: usize) -> Option<T> {
        let memory = self.memory.as_ref()?;
        if memory.mapping().is_some() {
            let value = memory.read(offset);
            fence(Ordering::Acquire);
            return Some(value);
        }
        let value = user_memory::read(UserAddress((memory.address() + offset) as u64)).ok();
        // On x86-64 every load is an acquire, so this fence restrains only the compiler.
        fence(Ordering::Acquire);
        value
    }

    /// Writes a value in the ring. If the program has unmapped the memory, nothing is written.
    fn write<T: Plain>(&self, offset: usize, value: T) {
        match &self.memory {
            None => {}
            Some(memory) if memory.mapping().is_some() => memory.write(offset, value),
            Some(memory) => {
                let _ = user_memory::write(UserAddress((memory.address() + offset) as u64), value);
            }
        }
    }

    /// Returns the tail: the index after the last entry that the program has filled. Pairs with
    /// the program's store-release of the tail.
    #[inline]
    fn tail(&self) -> Option<u16> {
        // Reads the 32-bit word that contains the tail, because that is a single load.
        self.read::<u32>(TAIL_WORD).map(|word| (word >> 16) as u16)
    }

    /// Returns the offset in bytes of the next buffer's entry.
    fn entry(&self) -> usize {
        (u32::from(self.head()) & (self.entries - 1)) as usize * ENTRY_SIZE
    }

    /// Uses up `length` bytes of an incremental ring's buffers, starting at the next buffer. If
    /// only a part of the last of these buffers is used up, this buffer stays the next one, and its
    /// entry then describes the rest. Returns whether the last buffer stays. A `length` of 0 uses
    /// up nothing, so the result is `true`.
    fn consume(&mut self, mut length: u32) -> bool {
        if length == 0 {
            return true;
        }
        while length > 0 {
            let entry = self.entry();
            let Some([address, rest]) = self.read::<[u64; 2]>(entry) else { return false };
            let has = width::low(rest);
            let used = length.min(has);
            if has != used || used == 0 {
                self.write(entry, address.wrapping_add(u64::from(used)));
                self.write(entry + LENGTH_OFFSET, has - used);
                return true;
            }
            self.write(entry + LENGTH_OFFSET, 0u32);
            self.advance(1);
            length -= used;
        }
        false
    }

    pub fn usage_of(&mut self, length: u32) -> Usage {
        if self.consume(length) { Usage::Partial } else { Usage::Whole }
    }

    /// Selects the ring's next buffers that hold at most `most` bytes. If `most` is 0, selects only
    /// the first buffer. The buffers stay in the ring. Error: `ENOBUFS` if the ring is empty.
    pub fn select_many(&mut self, most: u32, into: &mut Vec<IoVector>) -> Result<SelectedBuffers, Errno> {
        let (_, length, first) = self.next_buffer().ok_or(Errno::ENOBUFS)?;
        let tail = self.tail().ok_or(Errno::ENOBUFS)?;
        if most != 0 && length == 0 {
            return Err(Errno::ENOBUFS);
        }
        let needed = if most == 0 { 1 } else { most.div_ceil(length).min(MANY_LIMIT) };
        let count = u32::from(tail.wrapping_sub(self.head())).min(self.entries).min(needed);
        let mut many = SelectedBuffers { first, bytes: 0, count: 0, emptied: false, is_cut: false, from_ring: true };
        let mut left = if most == 0 { i32::MAX as u32 } else { most };
        let mut at = self.head();
        for index in 0..count {
            let entry = (u32::from(at) & (self.entries - 1)) as usize * ENTRY_SIZE;
            let Some([address, rest]) = self.read::<[u64; 2]>(entry) else { break };
            let mut length = width::low(rest);
            if length > left {
                length = left;
                if !self.incremental {
                    many.is_cut = true;
                    if index > 0 {
                        break;
                    }
                }
            }
            into.push(IoVector { base: address, length: u64::from(length) });
            many.bytes += length;
            many.count += 1;
            left -= length;
            if left == 0 {
                break;
            }
            at = at.wrapping_add(1);
        }
        many.emptied = at == tail;
        Ok(many)
    }

    /// Uses up the first `bytes` bytes of a selection of buffers. Returns whether a part of the
    /// last buffer is left.
    pub fn use_up(&mut self, bytes: u32, many: &SelectedBuffers) -> bool {
        if self.incremental {
            return self.consume(bytes);
        }
        // With MSG_TRUNC, a receive reports the full length of a truncated message, which may
        // exceed the buffers.
        let mut bytes = bytes.min(many.bytes);
        // Buffers of length 0 are used up together with the buffer after them.
        for _ in 0..self.entries {
            let Some([_, rest]) = self.read::<[u64; 2]>(self.entry()) else { break };
            self.advance(1);
            let length = width::low(rest);
            if length >= bytes {
                break;
            }
            bytes -= length;
        }
        false
    }

    /// Returns the address, length and id of the ring's next buffer; `None`: the ring is empty or
    /// cannot be read.
    pub fn next_buffer(&self) -> Option<(UserAddress, u32, u16)> {
        if self.tail()? == self.head() {
            return None;
        }
        let [address, rest]: [u64; 2] = self.read(self.entry())?;
        let (length, id) = (width::low(rest), width::short(rest >> 32));
        Some((UserAddress(address), length, id))
    }
}
