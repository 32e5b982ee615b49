//! Provided buffers: groups of buffers. A request takes a buffer from a group when it is tried, and
//! not when it is submitted. The buffers of a classic group come from PROVIDE_BUFFERS. The buffers
//! of a buffer ring (REGISTER_PBUF_RING) are entries in shared memory. Either usring makes this
//! memory for the program to map, or it is the program's own memory.

use super::OwnRegistrations;
use super::buffer_ring::{BufferRing, ENTRY_SIZE};
use super::classic_buffers::ClassicBuffers;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_ring::{GroupSlot, Origin, ProvidedBuffer, Registrations, SharedGroup};
use usring_sys::mapping::Mapping;
use usring_sys::plain::IoVector;
use usring_sys::shared::SharedMemory;
use usring_sys::{Errno, UserAddress, width};
use usring_uapi::io_uring as abi;

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
    /// Bytes of the whole buffer. If the request returns the buffer unused, a classic group gets
    /// the buffer back with this length.
    pub whole_length: u32,
    /// The buffer comes from a buffer ring.
    pub from_ring: bool,
    pub usage: Usage,
}

impl SelectedBuffer {
    /// Returns the flags of a CQE that names the buffer.
    pub fn cqe_flags(&self) -> u32 {
        let more = if self.usage == Usage::Partial { abi::IORING_CQE_F_BUF_MORE } else { 0 };
        more | abi::IORING_CQE_F_BUFFER | u32::from(self.id) << abi::IORING_CQE_BUFFER_SHIFT
    }
}

/// How much of its buffer a request has used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// The whole buffer.
    Whole,
    /// Not known until the transfer is done. The buffer is of an incremental ring
    /// (IOU_PBUF_RING_INC), and the transfer uses up only as many bytes as it moves.
    Open,
    /// Only the first bytes of the buffer, which is of an incremental ring (IOU_PBUF_RING_INC). The
    /// next request gets the rest of the buffer.
    Partial,
}

/// A selection of several consecutive buffers of a group, for a bundle.
pub(crate) struct SelectedBuffers {
    /// Id of the first selected buffer.
    pub first: u16,
    pub bytes: u32,
    /// Number of selected buffers.
    pub count: u32,
    /// The group has no buffer after the selected ones.
    pub emptied: bool,
    /// Whether the selection's limit has cut it short: a buffer was longer than the bytes that were
    /// left of the limit. If it was the first buffer, the selection contains a part of that buffer.
    /// Otherwise the selection ends before that buffer.
    pub is_cut: bool,
    pub from_ring: bool,
}

enum BufferGroup {
    Classic(ClassicBuffers),
    Ring(BufferRing),
}

#[derive(Default)]
pub(crate) struct BufferGroups {
    groups: BTreeMap<u16, BufferGroup>,
    /// The registrations that all processes of the ring see. `None` until a second process uses the
    /// ring.
    published: Option<Registrations>,
}

impl BufferGroups {
    /// Takes the next buffer of a group. The request may use the first `wanted` bytes of the
    /// buffer, or the whole buffer if `wanted` is 0. `decides` is called only for an incremental
    /// ring (IOU_PBUF_RING_INC). If `decides` returns `true`, the bytes of the request count as
    /// used up now, even if the transfer turns out to be shorter.
    ///
    /// Error: `ENOBUFS` if there is no such group, or no buffer in it.
    pub fn select(&mut self, group: u16, wanted: u32, decides: impl FnOnce() -> bool) -> Result<SelectedBuffer, Errno> {
        let bound = |length: u32| if wanted == 0 { length } else { length.min(wanted) };
        match self.groups.get_mut(&group).ok_or(Errno::ENOBUFS)? {
            BufferGroup::Classic(buffers) => {
                let ProvidedBuffer { id, address, length } = buffers.pop_front().ok_or(Errno::ENOBUFS)?;
                let address = UserAddress(address);
                let (whole_length, usage) = (length, Usage::Whole);
                Ok(SelectedBuffer { group, id, address, length: bound(length), whole_length, from_ring: false, usage })
            }
            BufferGroup::Ring(ring) => {
                let (address, whole_length, id) = ring.next_buffer().ok_or(Errno::ENOBUFS)?;
                let length = bound(whole_length);
                let usage = if !ring.incremental {
                    ring.advance(1);
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

    /// Selects consecutive buffers of a group that hold at most `most` bytes. If `most` is 0, or if
    /// the group is classic, selects only the first buffer. The buffers stay in the group until the
    /// caller uses them up ([`BufferGroups::use_up`]).
    ///
    /// Errors: `ENOENT` if there is no such group; `ENOBUFS` if there is no buffer in it.
    pub fn select_many(&mut self, group: u16, most: u32, into: &mut Vec<IoVector>) -> Result<SelectedBuffers, Errno> {
        match self.groups.get_mut(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Classic(buffers) => {
                let ProvidedBuffer { id, address, length } = buffers.front().ok_or(Errno::ENOBUFS)?;
                let length = if most == 0 { length } else { length.min(most) };
                into.push(IoVector { base: address, length: u64::from(length) });
                let emptied = buffers.len() == 1;
                Ok(SelectedBuffers { first: id, bytes: length, count: 1, emptied, is_cut: false, from_ring: false })
            }
            BufferGroup::Ring(ring) => ring.select_many(most, into),
        }
    }

    /// Uses up the first `bytes` bytes of a selection of buffers. Returns whether a part of the
    /// last buffer is left.
    pub fn use_up(&mut self, group: u16, many: &SelectedBuffers, bytes: u32) -> bool {
        match self.groups.get_mut(&group) {
            Some(BufferGroup::Ring(ring)) if many.from_ring => ring.use_up(bytes, many),
            Some(BufferGroup::Classic(buffers)) if !many.from_ring => {
                buffers.pop_front();
                false
            }
            _ => false,
        }
    }

    /// Uses up all buffers of a selection, including buffers of length 0. Returns whether a part of
    /// the last buffer is left.
    pub fn use_up_all(&mut self, group: u16, many: &SelectedBuffers) -> bool {
        if let Some(BufferGroup::Ring(ring)) = self.groups.get_mut(&group)
            && many.from_ring
            && !ring.incremental
        {
            ring.advance(width::short(many.count.into()));
            return false;
        }
        self.use_up(group, many, many.bytes)
    }

    /// Makes the record of a used-up selection, for a request that fills its buffers in several
    /// steps.
    pub fn record_wait_all(&self, group: u16, many: SelectedBuffers) -> WaitAllBuffers {
        let position = match self.groups.get(&group) {
            Some(BufferGroup::Ring(ring)) => Some(ring.position()),
            _ => None,
        };
        WaitAllBuffers { many, position }
    }

    /// Called when a request completes. Returns the request's unfilled buffers to their buffer
    /// ring: all but those with the first `bytes` bytes. Does nothing for an incremental ring, or
    /// if other requests have taken buffers since the selection.
    pub fn return_unfilled(&mut self, group: u16, wait_all: &WaitAllBuffers, bytes: u32) {
        if let Some(BufferGroup::Ring(ring)) = self.groups.get_mut(&group)
            && wait_all.position == Some(ring.position())
            && !ring.incremental
        {
            ring.go_back(width::short(wait_all.many.count.into()));
            ring.use_up(bytes, &wait_all.many);
        }
    }

    /// Returns an unused buffer to its group, as the group's next buffer.
    pub fn give_back(&mut self, buffer: Option<SelectedBuffer>) {
        let Some(SelectedBuffer { group, id, address, whole_length, from_ring, .. }) = buffer else { return };
        match self.groups.get_mut(&group) {
            Some(BufferGroup::Classic(buffers)) if !from_ring => {
                buffers.push_front(ProvidedBuffer { id, address: address.0, length: whole_length });
            }
            // A request does not return a buffer to an incremental ring: the buffer is still in the
            // ring, or is used up.
            Some(BufferGroup::Ring(ring)) if from_ring && !ring.incremental => ring.go_back(1),
            _ => {}
        }
    }

    /// Notes that a request has transferred `length` bytes of its buffer. If the buffer is of an
    /// incremental ring (IOU_PBUF_RING_INC), the rest of the buffer stays in the ring.
    pub fn used(&mut self, buffer: &mut SelectedBuffer, length: u32) {
        if buffer.usage != Usage::Open {
            return;
        }
        buffer.usage = match self.groups.get_mut(&buffer.group) {
            Some(BufferGroup::Ring(ring)) if ring.incremental => ring.usage_of(length),
            _ => Usage::Whole,
        };
    }

    /// Returns the CQE flags that name the buffer that a request has used. Removes the buffer from
    /// the request, because the program owns the buffer from now on.
    #[inline]
    pub fn flags_of(&mut self, buffer: &mut Option<SelectedBuffer>) -> u32 {
        match buffer.take() {
            None => 0,
            Some(buffer) => buffer.cqe_flags(),
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
        if !self.has(group) {
            self.groups.insert(group, BufferGroup::Classic(ClassicBuffers::Own(VecDeque::new())));
            self.publish_group(group);
        }
        let Some(BufferGroup::Classic(buffers)) = self.groups.get_mut(&group) else { return Err(Errno::EINVAL) };
        let new = (0..count).map(|index| ProvidedBuffer {
            id: first_id.wrapping_add(width::short(index.into())),
            address: address.offset(u64::from(index) * u64::from(length)).0,
            length,
        });
        buffers.extend(count as usize, new)
    }

    /// REMOVE_BUFFERS: removes up to `count` buffers of a classic group. Returns how many were
    /// removed.
    pub fn remove(&mut self, group: u16, count: u32) -> Result<u32, Errno> {
        match self.groups.get_mut(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Ring(_) => Err(Errno::EINVAL),
            BufferGroup::Classic(buffers) => {
                let removed = (count as usize).min(buffers.len());
                for _ in 0..removed {
                    buffers.pop_front();
                }
                Ok(width::count(removed))
            }
        }
    }

    /// REGISTER_PBUF_RING. `address`: where the entries lie in the program's own memory. `None`:
    /// usring makes memory that the program can map.
    pub fn register_ring(
        &mut self,
        group: u16,
        entries: u32,
        address: Option<UserAddress>,
        incremental: bool,
        origin: Origin,
    ) -> Result<(), Errno> {
        if !entries.is_power_of_two() || entries >= ENTRIES_LIMIT {
            return Err(Errno::EINVAL);
        }
        match self.groups.get(&group) {
            Some(BufferGroup::Ring(_)) => return Err(Errno::EEXIST),
            Some(BufferGroup::Classic(buffers)) if buffers.front().is_some() => return Err(Errno::EEXIST),
            _ => {}
        }
        let size = entries as usize * ENTRY_SIZE;
        let memory = match address {
            Some(address) => SharedMemory::of_program(address, size)?,
            None => SharedMemory::new(Mapping::shared(size)?),
        };
        let ring = BufferRing::new(memory, entries, incremental, origin);
        self.groups.insert(group, BufferGroup::Ring(ring));
        self.publish_group(group);
        Ok(())
    }

    /// UNREGISTER_PBUF_RING.
    pub fn unregister_ring(&mut self, group: u16) -> Result<(), Errno> {
        match self.groups.get(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Classic(_) => Err(Errno::EINVAL),
            BufferGroup::Ring(_) => {
                self.groups.remove(&group);
                if let Some(registrations) = &self.published
                    && let Some((slot, _)) = registrations.find_group(group)
                {
                    registrations.remove_group(slot);
                    registrations.count_change();
                }
                Ok(())
            }
        }
    }

    /// REGISTER_PBUF_STATUS: returns the head of a buffer ring, which counts the buffers used up.
    pub fn ring_head(&self, group: u16) -> Result<u32, Errno> {
        match self.groups.get(&group).ok_or(Errno::ENOENT)? {
            BufferGroup::Classic(_) => Err(Errno::EINVAL),
            BufferGroup::Ring(ring) => Ok(u32::from(ring.head())),
        }
    }

    /// Returns the memory that usring has made for a buffer ring, for the program to map. `None`:
    /// the group is no buffer ring, or the memory is the program's own.
    pub fn ring_memory(&self, group: u16) -> Option<Arc<SharedMemory>> {
        match self.groups.get(&group)? {
            BufferGroup::Ring(ring) => ring.memory_to_map().cloned(),
            BufferGroup::Classic(_) => None,
        }
    }
}

/// Groups that all processes of a ring share.
impl BufferGroups {
    /// Publishes all present and future groups for the other processes of the ring.
    pub fn publish(&mut self, registrations: &Registrations) {
        self.published = Some(registrations.clone());
        let groups: Vec<u16> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|group| self.publish_group(group));
    }

    /// Publishes a group for the other processes. If too many groups are published, this group
    /// stays private to this process.
    fn publish_group(&mut self, id: u16) {
        let Some(registrations) = &self.published else { return };
        match self.groups.get_mut(&id) {
            Some(BufferGroup::Ring(ring)) => ring.publish(registrations, id),
            Some(BufferGroup::Classic(buffers)) => {
                let slot = registrations.enter_group(id, SharedGroup::Classic, 0);
                if let Some(slot) = slot.filter(|_| !buffers.publish(registrations, id)) {
                    registrations.remove_group(slot);
                }
            }
            None => {}
        }
        registrations.count_change();
    }

    /// Adds the groups that other processes have made, and removes those that they have removed.
    pub fn follow(&mut self, registrations: &Registrations, own_registrations: &OwnRegistrations) {
        let known = core::mem::take(&mut self.groups);
        let is_own = |group: &BufferGroup| match group {
            BufferGroup::Ring(ring) => !ring.is_published(),
            BufferGroup::Classic(buffers) => matches!(buffers, ClassicBuffers::Own(_)),
        };
        let (mut own, mut shared): (BTreeMap<_, _>, BTreeMap<_, _>) =
            known.into_iter().partition(|(_, group)| is_own(group));
        for (slot, id, group) in registrations.groups() {
            let group = follow_one(registrations, own_registrations, slot, id, group, shared.remove(&id));
            own.insert(id, group);
        }
        self.groups = own;
    }
}

/// Returns this process's view of a buffer group that the ring's processes share. `known`: this
/// process's earlier view of the group with this id.
fn follow_one(
    registrations: &Registrations,
    own_registrations: &OwnRegistrations,
    slot: GroupSlot,
    id: u16,
    group: SharedGroup,
    known: Option<BufferGroup>,
) -> BufferGroup {
    match (group, known) {
        (SharedGroup::Classic, _) => BufferGroup::Classic(ClassicBuffers::Shared(registrations.clone(), id)),
        (SharedGroup::Ring(shared), Some(BufferGroup::Ring(known))) if known.is_described_by(&shared) => {
            BufferGroup::Ring(known)
        }
        (SharedGroup::Ring(shared), _) => {
            let has_memory = own_registrations.has_memory_of(shared.origin);
            BufferGroup::Ring(BufferRing::shared(registrations, slot, shared, has_memory))
        }
    }
}

/// The buffers of a request with MSG_WAITALL. The request keeps them until all of them are full.
pub(crate) struct WaitAllBuffers {
    many: SelectedBuffers,
    /// The identity and the head of the buffer ring ([`BufferRing::position`]) after the buffers
    /// were used up. `None`: the buffers come from a classic group.
    position: Option<(Origin, u16)>,
}
