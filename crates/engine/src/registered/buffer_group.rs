//! Provided buffers: groups from which a read takes a buffer when it has data. A group is either
//! classic (PROVIDE_BUFFERS) or a ring in shared memory. That memory is usring's, to be mapped by
//! the program, or the program's own.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use usring_sys::mapping::Mapping;
use usring_sys::plain::{IoVector, Plain};
use usring_sys::shared::SharedMemory;
use usring_sys::{Errno, UserAddress, user_memory};
use usring_uapi::io_uring as abi;

/// Bytes of an entry of a buffer ring (`struct io_uring_buf`).
const ENTRY_SIZE: usize = 16;
/// Offset of a buffer's length in its entry.
const LENGTH_OFFSET: usize = 8;
/// The tail lies in the reserved field of the first entry, the upper half of this word.
const TAIL_WORD: usize = 12;
/// Most buffers of a bundle.
const MANY_LIMIT: u32 = 256;
/// A ring has fewer entries than this.
const ENTRIES_LIMIT: u32 = 1 << 16;

/// A buffer that a request has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectedBuffer {
    pub group: u16,
    pub id: u16,
    pub address: UserAddress,
    /// Bytes that the request may use.
    pub length: u32,
    /// Bytes of the whole buffer. A buffer that goes back to a classic group has this length again.
    pub whole_length: u32,
    /// The buffer comes from a buffer ring.
    pub from_ring: bool,
    pub usage: Usage,
}

/// How much of a buffer a request has used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// All of it.
    Whole,
    /// For an incremental ring: not decided yet. The transfer's length decides when it is done.
    Open,
    /// For an incremental ring: a part of it. The next request gets the rest.
    Partial,
}

/// Several consecutive buffers of a group.
pub(crate) struct Many {
    /// The first buffer's id.
    pub first: u16,
    pub bytes: u32,
    /// The number of buffers.
    pub count: u32,
    /// The group has no buffer beyond these.
    pub emptied: bool,
    /// A buffer did not fit whole into the limit in bytes. The selection ends before it, or cuts it
    /// if it is the first.
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
    /// Index of the next buffer; the engine's. The tail is the program's.
    head: u16,
    /// A transfer uses up as much of a buffer as its length (IOU_PBUF_RING_INC).
    incremental: bool,
    /// Number of this registration. No other ring has ever had it.
    identity: u64,
}

enum BufferGroup {
    Classic(VecDeque<Classic>),
    Ring(BufferRing),
}

#[derive(Default)]
pub(crate) struct BufferGroups {
    groups: BTreeMap<u16, BufferGroup>,
    /// Rings registered so far.
    registrations: u64,
}

impl BufferGroups {
    /// Takes the next buffer of a group. The request may use at most `wanted` bytes of it; 0: all.
    /// `decides` is only called for an incremental ring. It returns whether that many bytes are
    /// used up now, however short the transfer will be.
    ///
    /// Error: `ENOBUFS` if the group or a buffer is missing.
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

    /// Returns whether there is such a group.
    pub fn has(&self, group: u16) -> bool {
        self.groups.contains_key(&group)
    }

    /// Returns whether the group is a ring in shared memory.
    pub fn is_ring(&self, group: u16) -> bool {
        matches!(self.groups.get(&group), Some(BufferGroup::Ring(_)))
    }

    /// Selects the next buffers of a group, with room for `most` bytes; 0: only the first buffer.
    /// The buffers stay in the group until [`BufferGroups::use_up`].
    ///
    /// Errors: `ENOENT` if the group is missing; `ENOBUFS` if it has no buffer.
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

    /// Uses up `bytes` bytes of the last selection; returns whether something is left of the last
    /// buffer.
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

    /// Uses up the whole selection, including buffers of length 0. Returns whether something is
    /// left of the last buffer.
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

    /// Records a selection that has been used up and that a request is still going to fill, piece
    /// by piece.
    pub fn keep(&self, group: u16, many: Many) -> Kept {
        let place = match self.groups.get(&group) {
            Some(BufferGroup::Ring(ring)) => Some(ring.place()),
            _ => None,
        };
        Kept { many, place }
    }

    /// Gives the buffers of a selection back to their group, except those that hold the first
    /// `bytes` bytes. The request has ended without filling them. If other requests have taken
    /// buffers meanwhile, none goes back.
    pub fn give_back_behind(&mut self, group: u16, kept: &Kept, bytes: u32) {
        if let Some(BufferGroup::Ring(ring)) = self.groups.get_mut(&group)
            && kept.place == Some(ring.place())
            && !ring.incremental
        {
            ring.head = ring.head.wrapping_sub(kept.many.count as u16);
            ring.use_up(bytes, &kept.many);
        }
    }

    /// Gives an unused buffer back to its group, where it is the next to be taken.
    pub fn give_back(&mut self, buffer: Option<SelectedBuffer>) {
        let Some(SelectedBuffer { group, id, address, whole_length, from_ring, .. }) = buffer else { return };
        match self.groups.get_mut(&group) {
            Some(BufferGroup::Classic(buffers)) if !from_ring => {
                buffers.push_front(Classic { id, address, length: whole_length });
            }
            // A buffer of an incremental ring is not taken at the selection, or is already used up.
            Some(BufferGroup::Ring(ring)) if from_ring && !ring.incremental => ring.head = ring.head.wrapping_sub(1),
            _ => {}
        }
    }

    /// Notes that a transfer of `length` bytes was made with a buffer. Matters for an incremental
    /// ring, which then keeps the rest of the buffer.
    pub fn used(&mut self, buffer: &mut SelectedBuffer, length: u32) {
        if buffer.usage != Usage::Open {
            return;
        }
        buffer.usage = match self.groups.get_mut(&buffer.group) {
            Some(BufferGroup::Ring(ring)) if ring.incremental => ring.usage_of(length),
            _ => Usage::Whole,
        };
    }

    /// Returns the CQE flags that name the buffer that a request has used. The buffer is the
    /// program's from then on.
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

    /// PROVIDE_BUFFERS: adds `count` consecutive buffers of `length` bytes, numbered from
    /// `first_id`.
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

    /// REMOVE_BUFFERS: removes up to `count` buffers; returns how many there were.
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

    /// REGISTER_PBUF_RING: uses the program's own memory at `address`, or, if that is null, memory
    /// of usring's for the program to map.
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

    /// REGISTER_PBUF_STATUS: returns how many buffers of a ring have been used.
    pub fn ring_head(&self, group: u16) -> Result<u32, Errno> {
        match self.groups.get(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Classic(_) => Err(Errno::EINVAL),
            BufferGroup::Ring(ring) => Ok(u32::from(ring.head)),
        }
    }

    /// Returns the memory of a buffer ring for the program to map. `None`: there is no such ring,
    /// or its memory is the program's own.
    pub fn ring_memory(&self, group: u16) -> Option<Arc<SharedMemory>> {
        match self.groups.get(&group)? {
            BufferGroup::Ring(ring) if ring.memory.mapping().is_some() => Some(ring.memory.clone()),
            _ => None,
        }
    }
}

/// Buffers that a request keeps until it has received as many bytes as they can hold (MSG_WAITALL).
pub(crate) struct Kept {
    many: Many,
    /// The identity of the buffer ring that the buffers come from, and its head when they were
    /// kept. `None`: they come from no buffer ring.
    place: Option<(u64, u16)>,
}

impl BufferRing {
    /// Returns the ring's identity and its head.
    fn place(&self) -> (u64, u16) {
        (self.identity, self.head)
    }

    /// Reads what the program wrote. The program's own memory may be gone by now: a ring that
    /// cannot be read holds no buffers.
    fn read<T: Plain>(&self, offset: usize) -> Option<T> {
        if self.memory.mapping().is_some() {
            let value = self.memory.read(offset);
            fence(Ordering::Acquire);
            return Some(value);
        }
        let value = user_memory::read(UserAddress((self.memory.address() + offset) as u64)).ok();
        // On x86-64 every load is an acquire; this fence binds the compiler.
        fence(Ordering::Acquire);
        value
    }

    /// Writes where the program reads; a write to memory that is gone has no effect.
    fn write<T: Plain>(&self, offset: usize, value: T) {
        if self.memory.mapping().is_some() {
            self.memory.write(offset, value);
        } else {
            let _ = user_memory::write(UserAddress((self.memory.address() + offset) as u64), value);
        }
    }

    /// Returns the tail, up to which the program has filled the ring. Partner: the program's
    /// release of the tail after it wrote entries.
    #[inline]
    fn tail(&self) -> Option<u16> {
        // Reads the whole word, because that is one load.
        self.read::<u32>(TAIL_WORD).map(|word| (word >> 16) as u16)
    }

    /// Returns the offset of the next buffer's entry.
    fn entry(&self) -> usize {
        (u32::from(self.head) & (self.entries - 1)) as usize * ENTRY_SIZE
    }

    /// Uses up `length` bytes of an incremental ring, beginning with the next buffer. A buffer that
    /// is only partly used stays the next one, and its entry then describes the rest. Returns
    /// whether such a rest is left.
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

    /// See [`BufferGroups::select_many`].
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

    /// See [`BufferGroups::use_up`].
    fn use_up(&mut self, bytes: u32, many: &Many) -> bool {
        if self.incremental {
            return self.consume(bytes);
        }
        // A message that was cut off may report its full length (MSG_TRUNC).
        let mut bytes = bytes.min(many.bytes);
        // A buffer of length 0 is used up together with the buffer behind it.
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

    /// Returns the next buffer's address, length and id; `None`: the ring is empty.
    fn first(&self) -> Option<(UserAddress, u32, u16)> {
        if self.tail()? == self.head {
            return None;
        }
        let [address, rest]: [u64; 2] = self.read(self.entry())?;
        let (length, id) = (rest as u32, (rest >> 32) as u16);
        Some((UserAddress(address), length, id))
    }
}
