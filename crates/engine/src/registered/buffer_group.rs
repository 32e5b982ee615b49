//! Provided buffers: groups of buffers from which a request takes one when it has data for it. The
//! buffers of a classic group come from PROVIDE_BUFFERS. Those of a buffer ring
//! (REGISTER_PBUF_RING) are entries in shared memory, which is either usring's, for the program to
//! map, or the program's own.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use usring_sys::mapping::Mapping;
use usring_sys::plain::{IoVector, Plain};
use usring_sys::shared::SharedMemory;
use usring_sys::{Errno, UserAddress, user_memory};
use usring_uapi::io_uring as abi;

/// Bytes of one entry of a buffer ring (`struct io_uring_buf`).
const ENTRY_SIZE: usize = 16;
/// Offset of the buffer's length in an entry, in bytes.
const LENGTH_OFFSET: usize = 8;
/// Offset in a buffer ring of the 32-bit word whose upper half is the tail. (The tail lies in the
/// reserved field of the first entry.)
const TAIL_WORD: usize = 12;
/// Most buffers that one selection for a bundle takes.
const MANY_LIMIT: u32 = 256;
/// A buffer ring has fewer entries than this.
const ENTRIES_LIMIT: u32 = 1 << 16;

/// A buffer that a request has taken from its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectedBuffer {
    pub group: u16,
    pub id: u16,
    pub address: UserAddress,
    /// Bytes that the request may use.
    pub length: u32,
    /// Bytes of the whole buffer. A buffer that is returned to a classic group has this length
    /// again.
    pub whole_length: u32,
    /// The buffer comes from a buffer ring.
    pub from_ring: bool,
    pub usage: Usage,
}

/// How much of its buffer a request has used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// The whole buffer.
    Whole,
    /// Buffer of an incremental ring (IOU_PBUF_RING_INC): not known until the transfer is done. The
    /// length of the transfer is used up.
    Open,
    /// Buffer of an incremental ring: only the first bytes. The next request gets the others.
    Partial,
}

/// A selection of several consecutive buffers of a group, for a bundle.
pub(crate) struct Many {
    /// Id of the first selected buffer.
    pub first: u16,
    pub bytes: u32,
    /// Number of selected buffers.
    pub count: u32,
    /// The group has no buffer behind the selected ones.
    pub emptied: bool,
    /// A buffer was longer than the limit in bytes leaves room for. If it is the first buffer, it
    /// is shortened. Otherwise the selection ends before it.
    pub is_cut: bool,
    pub from_ring: bool,
}

struct Classic {
    id: u16,
    address: UserAddress,
    length: u32,
}

struct BufferRing {
    memory: Arc<SharedMemory>,
    entries: u32,
    /// Index of the next buffer, which only the engine changes. (The program changes the tail.)
    head: u16,
    /// A transfer uses up only as many bytes of a buffer as it transfers (IOU_PBUF_RING_INC).
    incremental: bool,
    /// Number of the registration that made this buffer ring. No two registrations have the same
    /// number.
    identity: u64,
}

enum BufferGroup {
    Classic(VecDeque<Classic>),
    Ring(BufferRing),
}

#[derive(Default)]
pub(crate) struct BufferGroups {
    groups: BTreeMap<u16, BufferGroup>,
    /// Number of buffer rings registered so far.
    registrations: u64,
}

impl BufferGroups {
    /// Takes the next buffer of a group. The request may use the first `wanted` bytes of the
    /// buffer; 0: all. `decides` is called only for an incremental ring. If it returns `true`,
    /// these bytes are used up now, however short the transfer is.
    ///
    /// Error: `ENOBUFS` if there is no such group, or no buffer in it.
    pub fn select(&mut self, group: u16, wanted: u32, decides: impl FnOnce() -> bool) -> Result<SelectedBuffer, Errno> {
        let bound = |length: u32| if wanted == 0 { length } else { length.min(wanted) };
        match self.groups.get_mut(&group).ok_or(Errno::ENOBUFS)? {
            BufferGroup::Classic(buffers) => {
                let Classic { id, address, length } = buffers.pop_front().ok_or(Errno::ENOBUFS)?;
                let (whole_length, usage) = (length, Usage::Whole);
                Ok(SelectedBuffer { group, id, address, length: bound(length), whole_length, from_ring: false, usage })
            }
            BufferGroup::Ring(ring) => {
                let (address, whole_length, id) = ring.first().ok_or(Errno::ENOBUFS)?;
                let length = bound(whole_length);
                let usage = if !ring.incremental {
                    ring.head = ring.head.wrapping_add(1);
                    Usage::Whole
                } else if decides() {
                    ring.usage_of(length)
                } else {
                    Usage::Open
                };
                Ok(SelectedBuffer { group, id, address, length, whole_length, from_ring: true, usage })
            }
        }
    }

    /// Returns whether there is a group with this number.
    pub fn has(&self, group: u16) -> bool {
        self.groups.contains_key(&group)
    }

    /// Returns whether the group is a buffer ring.
    pub fn is_ring(&self, group: u16) -> bool {
        matches!(self.groups.get(&group), Some(BufferGroup::Ring(_)))
    }

    /// Selects consecutive buffers of a group that hold at most `most` bytes; 0: only the first
    /// buffer. They stay in the group until the caller uses them up ([`BufferGroups::use_up`]).
    ///
    /// Errors: `ENOENT` if there is no such group; `ENOBUFS` if there is no buffer in it.
    pub fn select_many(&mut self, group: u16, most: u32, into: &mut Vec<IoVector>) -> Result<Many, Errno> {
        match self.groups.get_mut(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Classic(buffers) => {
                let &Classic { id, address, length } = buffers.front().ok_or(Errno::ENOBUFS)?;
                let length = if most == 0 { length } else { length.min(most) };
                into.push(IoVector { base: address.0, length: u64::from(length) });
                let emptied = buffers.len() == 1;
                Ok(Many { first: id, bytes: length, count: 1, emptied, is_cut: false, from_ring: false })
            }
            BufferGroup::Ring(ring) => ring.select_many(most, into),
        }
    }

    /// Uses up the first `bytes` bytes of a selection. Returns whether a part of the last buffer is
    /// left.
    pub fn use_up(&mut self, group: u16, many: &Many, bytes: u32) -> bool {
        match self.groups.get_mut(&group) {
            Some(BufferGroup::Ring(ring)) if many.from_ring => ring.use_up(bytes, many),
            Some(BufferGroup::Classic(buffers)) if !many.from_ring => {
                buffers.pop_front();
                false
            }
            _ => false,
        }
    }

    /// Uses up all buffers of a selection, including those of length 0. Returns whether a part of
    /// the last buffer is left.
    pub fn use_up_all(&mut self, group: u16, many: &Many) -> bool {
        if let Some(BufferGroup::Ring(ring)) = self.groups.get_mut(&group)
            && many.from_ring
            && !ring.incremental
        {
            ring.head = ring.head.wrapping_add(many.count as u16);
            return false;
        }
        self.use_up(group, many, many.bytes)
    }

    /// Records a selection that was used up, for a request that fills the buffers in several steps.
    pub fn keep(&self, group: u16, many: Many) -> Kept {
        let place = match self.groups.get(&group) {
            Some(BufferGroup::Ring(ring)) => Some(ring.place()),
            _ => None,
        };
        Kept { many, place }
    }

    /// Returns buffers to their group when the request that was filling them completes: all except
    /// those that hold the first `bytes` bytes. If other requests have taken buffers since, none is
    /// returned.
    pub fn give_back_behind(&mut self, group: u16, kept: &Kept, bytes: u32) {
        if let Some(BufferGroup::Ring(ring)) = self.groups.get_mut(&group)
            && kept.place == Some(ring.place())
            && !ring.incremental
        {
            ring.head = ring.head.wrapping_sub(kept.many.count as u16);
            ring.use_up(bytes, &kept.many);
        }
    }

    /// Returns an unused buffer to its group, as the group's next buffer.
    pub fn give_back(&mut self, buffer: Option<SelectedBuffer>) {
        let Some(SelectedBuffer { group, id, address, whole_length, from_ring, .. }) = buffer else { return };
        match self.groups.get_mut(&group) {
            Some(BufferGroup::Classic(buffers)) if !from_ring => {
                buffers.push_front(Classic { id, address, length: whole_length });
            }
            // A buffer of an incremental ring is either still in the group or already used up.
            Some(BufferGroup::Ring(ring)) if from_ring && !ring.incremental => ring.head = ring.head.wrapping_sub(1),
            _ => {}
        }
    }

    /// Notes that `length` bytes of a buffer were transferred. A buffer of an incremental ring
    /// keeps the bytes behind them.
    pub fn used(&mut self, buffer: &mut SelectedBuffer, length: u32) {
        if buffer.usage != Usage::Open {
            return;
        }
        buffer.usage = match self.groups.get_mut(&buffer.group) {
            Some(BufferGroup::Ring(ring)) if ring.incremental => ring.usage_of(length),
            _ => Usage::Whole,
        };
    }

    /// Returns the CQE flags that name the buffer that a request has used, and takes the buffer off
    /// the request. The program owns the buffer from then on.
    #[inline]
    pub fn flags_of(&mut self, buffer: &mut Option<SelectedBuffer>) -> u32 {
        match buffer.take() {
            None => 0,
            Some(buffer) => {
                let more = if buffer.usage == Usage::Partial { abi::IORING_CQE_F_BUF_MORE } else { 0 };
                more | abi::IORING_CQE_F_BUFFER | u32::from(buffer.id) << abi::IORING_CQE_BUFFER_SHIFT
            }
        }
    }

    /// PROVIDE_BUFFERS: adds `count` consecutive buffers of `length` bytes each. Their ids count up
    /// from `first_id`.
    pub fn provide(
        &mut self,
        group: u16,
        address: UserAddress,
        length: u32,
        first_id: u16,
        count: u32,
    ) -> Result<(), Errno> {
        let buffers = match self.groups.entry(group).or_insert_with(|| BufferGroup::Classic(VecDeque::new())) {
            BufferGroup::Classic(buffers) => buffers,
            BufferGroup::Ring(_) => return Err(Errno::EINVAL),
        };
        buffers.try_reserve(count as usize).map_err(|_| Errno::ENOMEM)?;
        for index in 0..count {
            let address = address.offset(u64::from(index) * u64::from(length));
            buffers.push_back(Classic { id: first_id.wrapping_add(index as u16), address, length });
        }
        Ok(())
    }

    /// REMOVE_BUFFERS: removes up to `count` buffers of a classic group. Returns how many were
    /// removed.
    pub fn remove(&mut self, group: u16, count: u32) -> Result<u32, Errno> {
        match self.groups.get_mut(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Ring(_) => Err(Errno::EINVAL),
            BufferGroup::Classic(buffers) => {
                let removed = (count as usize).min(buffers.len());
                buffers.drain(..removed);
                Ok(removed as u32)
            }
        }
    }

    /// REGISTER_PBUF_RING. The entries lie at `address` in the program's own memory. If it is
    /// `None`, usring makes memory that the program can map.
    pub fn register_ring(
        &mut self,
        group: u16,
        entries: u32,
        address: Option<UserAddress>,
        incremental: bool,
    ) -> Result<(), Errno> {
        if !entries.is_power_of_two() || entries >= ENTRIES_LIMIT {
            return Err(Errno::EINVAL);
        }
        match self.groups.get(&group) {
            Some(BufferGroup::Ring(_)) => return Err(Errno::EEXIST),
            Some(BufferGroup::Classic(buffers)) if !buffers.is_empty() => return Err(Errno::EEXIST),
            _ => {}
        }
        let size = entries as usize * ENTRY_SIZE;
        let memory = match address {
            Some(address) => SharedMemory::of_program(address, size)?,
            None => SharedMemory::new(Mapping::shared(size)?),
        };
        self.registrations += 1;
        let identity = self.registrations;
        let ring = BufferRing { memory: Arc::new(memory), entries, head: 0, incremental, identity };
        self.groups.insert(group, BufferGroup::Ring(ring));
        Ok(())
    }

    /// UNREGISTER_PBUF_RING.
    pub fn unregister_ring(&mut self, group: u16) -> Result<(), Errno> {
        match self.groups.get(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Classic(_) => Err(Errno::EINVAL),
            BufferGroup::Ring(_) => {
                self.groups.remove(&group);
                Ok(())
            }
        }
    }

    /// REGISTER_PBUF_STATUS: returns the head of a buffer ring, which counts the buffers used up.
    pub fn ring_head(&self, group: u16) -> Result<u32, Errno> {
        match self.groups.get(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Classic(_) => Err(Errno::EINVAL),
            BufferGroup::Ring(ring) => Ok(u32::from(ring.head)),
        }
    }

    /// Returns the memory of a buffer ring that the program is to map. `None`: the group is no
    /// buffer ring, or its memory is the program's own.
    pub fn ring_memory(&self, group: u16) -> Option<Arc<SharedMemory>> {
        match self.groups.get(&group)? {
            BufferGroup::Ring(ring) if ring.memory.mapping().is_some() => Some(ring.memory.clone()),
            _ => None,
        }
    }
}

/// The buffers of a request with MSG_WAITALL, which it keeps until all of them are full.
pub(crate) struct Kept {
    many: Many,
    /// The state of the buffer ring ([`BufferRing::place`]) after the buffers were used up. `None`:
    /// the buffers come from a classic group.
    place: Option<(u64, u16)>,
}

impl BufferRing {
    /// Returns the identity and the head of the buffer ring. Both are unchanged as long as no other
    /// request takes buffers of it.
    fn place(&self) -> (u64, u16) {
        (self.identity, self.head)
    }

    /// Reads a value that the program wrote in the ring. `None`: the memory is the program's own,
    /// and the program has unmapped it. Such a ring counts as empty.
    fn read<T: Plain>(&self, offset: usize) -> Option<T> {
        if self.memory.mapping().is_some() {
            let value = self.memory.read(offset);
            fence(Ordering::Acquire);
            return Some(value);
        }
        let value = user_memory::read(UserAddress((self.memory.address() + offset) as u64)).ok();
        // On x86-64 every load is an acquire, so this fence restrains only the compiler.
        fence(Ordering::Acquire);
        value
    }

    /// Writes a value in the ring. If the program has unmapped the memory, nothing is written.
    fn write<T: Plain>(&self, offset: usize, value: T) {
        if self.memory.mapping().is_some() {
            self.memory.write(offset, value);
        } else {
            let _ = user_memory::write(UserAddress((self.memory.address() + offset) as u64), value);
        }
    }

    /// Returns the tail: the index behind the last entry that the program has filled. Pairs with
    /// the program's store-release of the tail.
    #[inline]
    fn tail(&self) -> Option<u16> {
        // Reads the 32-bit word that contains the tail, because that is a single load.
        self.read::<u32>(TAIL_WORD).map(|word| (word >> 16) as u16)
    }

    /// Returns the offset in bytes of the next buffer's entry.
    fn entry(&self) -> usize {
        (u32::from(self.head) & (self.entries - 1)) as usize * ENTRY_SIZE
    }

    /// Uses up `length` bytes of an incremental ring, from the next buffer on. A buffer that is
    /// used up in part stays the next buffer, and its entry then describes the bytes that are left.
    /// Returns whether such a buffer remains.
    fn consume(&mut self, mut length: u32) -> bool {
        if length == 0 {
            return true;
        }
        while length > 0 {
            let entry = self.entry();
            let Some([address, rest]) = self.read::<[u64; 2]>(entry) else { return false };
            let has = rest as u32;
            let used = length.min(has);
            if has != used || used == 0 {
                self.write(entry, address.wrapping_add(u64::from(used)));
                self.write(entry + LENGTH_OFFSET, has - used);
                return true;
            }
            self.write(entry + LENGTH_OFFSET, 0u32);
            self.head = self.head.wrapping_add(1);
            length -= used;
        }
        false
    }

    fn usage_of(&mut self, length: u32) -> Usage {
        if self.consume(length) { Usage::Partial } else { Usage::Whole }
    }

    /// Selects the ring's next buffers that hold at most `most` bytes; 0: only the first buffer.
    /// They stay in the ring. Error: `ENOBUFS` if the ring is empty.
    fn select_many(&mut self, most: u32, into: &mut Vec<IoVector>) -> Result<Many, Errno> {
        let (_, length, first) = self.first().ok_or(Errno::ENOBUFS)?;
        let tail = self.tail().ok_or(Errno::ENOBUFS)?;
        if most != 0 && length == 0 {
            return Err(Errno::ENOBUFS);
        }
        let needed = if most == 0 { 1 } else { most.div_ceil(length).min(MANY_LIMIT) };
        let count = u32::from(tail.wrapping_sub(self.head)).min(self.entries).min(needed);
        let mut many = Many { first, bytes: 0, count: 0, emptied: false, is_cut: false, from_ring: true };
        let mut left = if most == 0 { i32::MAX as u32 } else { most };
        let mut at = self.head;
        for index in 0..count {
            let entry = (u32::from(at) & (self.entries - 1)) as usize * ENTRY_SIZE;
            let Some([address, rest]) = self.read::<[u64; 2]>(entry) else { break };
            let mut length = rest as u32;
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

    /// Uses up the first `bytes` bytes of a selection. Returns whether a part of the last buffer is
    /// left.
    fn use_up(&mut self, bytes: u32, many: &Many) -> bool {
        if self.incremental {
            return self.consume(bytes);
        }
        // With MSG_TRUNC, a truncated message reports its full length, which may exceed the
        // buffers.
        let mut bytes = bytes.min(many.bytes);
        // Buffers of length 0 are used up together with the buffer behind them.
        for _ in 0..self.entries {
            let Some([_, rest]) = self.read::<[u64; 2]>(self.entry()) else { break };
            self.head = self.head.wrapping_add(1);
            let length = rest as u32;
            if length >= bytes {
                break;
            }
            bytes -= length;
        }
        false
    }

    /// Returns the next buffer's address, length and id; `None`: the ring is empty or cannot be
    /// read.
    fn first(&self) -> Option<(UserAddress, u32, u16)> {
        if self.tail()? == self.head {
            return None;
        }
        let [address, rest]: [u64; 2] = self.read(self.entry())?;
        let (length, id) = (rest as u32, (rest >> 32) as u16);
        Some((UserAddress(address), length, id))
    }
}
