//! The ring's table of registered buffers. A buffer is an address range. The memory of a READ_FIXED
//! or WRITE_FIXED must lie within the buffer that the request names. usring does not pin a buffer's
//! pages.

use super::OwnRegistrations;
use crate::devices;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use usring_ring::{Origin, Registrations, SharedBuffer};
use usring_sys::pinning::PinCheck;
use usring_sys::plain::IoVector;
use usring_sys::process_maps::SharedCheck;
use usring_sys::{Errno, UserAddress, user_memory, width};

/// Maximum number of buffers in a table.
const LIMIT: u32 = 1 << 14;
/// Maximum length of one buffer, in bytes.
const LENGTH_LIMIT: u64 = 1 << 30;

/// A buffer of the table. If the buffer has a tag, each request that uses the buffer has a
/// reference to it. So usring finds out when the last of these requests ends, and then posts the
/// tag.
pub(crate) struct RegisteredBuffer {
    address: u64,
    length: u64,
    tag: u64,
    /// The registration that made this buffer: the process that registered it, and a number of that
    /// process's own.
    origin: Origin,
    /// Whether this process has the buffer's memory. `false`: another process has registered memory
    /// that this process does not share.
    is_here: bool,
}

impl RegisteredBuffer {
    /// Returns this process's view of a buffer that another process has registered. This process
    /// cannot use a buffer in private memory of the other process: after the fork(2), each
    /// process has its own copy of that memory.
    fn of_other_process(
        shared: &SharedBuffer,
        own_registrations: &OwnRegistrations,
        check: &mut SharedCheck,
    ) -> RegisteredBuffer {
        let SharedBuffer { origin, address, length, tag } = *shared;
        let is_here = own_registrations.has_memory_of(origin)
            && (own_registrations.is_own(origin) || check.is_shared(address, length));
        RegisteredBuffer { address, length, tag, origin, is_here }
    }
}

/// A request's reference to the registered buffer that it transfers from or to.
#[derive(Default)]
pub(crate) enum BufferReference {
    /// The request uses no registered buffer.
    #[default]
    Nothing,
    /// The request uses a buffer without a tag. usring does not count the requests that use such a
    /// buffer, because it posts nothing after the last of them. A count would cost two locked
    /// instructions per request.
    Untagged,
    /// The request uses this buffer, which has a tag. The tag is posted once the buffer has left
    /// the table and no request holds the buffer.
    Tagged(#[expect(dead_code, reason = "owned so that the requests are counted")] Arc<RegisteredBuffer>),
}

impl BufferReference {
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        !matches!(self, BufferReference::Nothing)
    }

    #[inline(always)]
    pub fn release(&mut self) {
        if matches!(self, BufferReference::Tagged(_)) {
            *self = BufferReference::Nothing;
        } else {
            // `Nothing` and `Untagged` own nothing to drop. With `forget`, the compiler makes no
            // code to drop them.
            core::mem::forget(core::mem::take(self));
        }
    }
}

/// A slot of the table; `None` if it is empty.
type BufferSlot = Option<Arc<RegisteredBuffer>>;

#[derive(Default)]
pub(crate) struct RegisteredBuffers {
    entries: Option<Vec<BufferSlot>>,
    /// Buffers with tags that have left the table, while requests may still use them.
    retired: Vec<Arc<RegisteredBuffer>>,
    /// Memory of the table's buffers that the back ends of `usring run --device` can access. The
    /// buffers of one register call are merged into as few ranges as possible.
    shared: Vec<IoVector>,
    /// Memory that the back ends of `usring run --device` can access although no buffer of the
    /// table lies in it. Requests in flight may use this memory ([`Self::unshare_unused`]).
    unused: Vec<IoVector>,
    /// Memory of `shared` in which the program has registered a buffer again. The program may have
    /// mapped other memory there since the first registration. The back ends then still access the
    /// old memory, until [`Self::unshare_unused`] ends that sharing.
    replaced: Vec<IoVector>,
    /// Origin (process, and number of the registration) of the buffers that the current register
    /// call adds.
    pub origin: Origin,
    /// Whether this process has changed the table of buffers, and other processes do not see the
    /// change yet.
    is_changed: bool,
}

impl RegisteredBuffers {
    /// Returns the number of slots.
    pub fn count(&self) -> usize {
        self.entries.as_ref().map_or(0, Vec::len)
    }

    /// Returns the buffer in slot `index`; `None` if the slot is empty or does not exist.
    pub fn get(&self, index: u16) -> Option<&Arc<RegisteredBuffer>> {
        self.entries.as_ref()?.get(usize::from(index))?.as_ref()
    }

    /// Returns a reference to the buffer in slot `index`, for a request that transfers `length`
    /// bytes at `address`. Error: `EFAULT` if the slot is empty, if the bytes do not lie within the
    /// buffer, or if this process does not have the buffer's memory.
    #[inline]
    pub fn share(&self, index: u16, address: u64, length: u64) -> Result<BufferReference, Errno> {
        let buffer = self.get(index).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
        if !buffer.is_here || address < buffer.address || end > buffer.address + buffer.length {
            return Err(Errno::EFAULT);
        }
        Ok(if buffer.tag == 0 { BufferReference::Untagged } else { BufferReference::Tagged(buffer.clone()) })
    }

    /// Returns a reference to the buffer in slot `index`, for a request that transfers `pieces` of
    /// memory. Error: `EFAULT` if the slot is empty, if a piece is empty or does not lie within the
    /// buffer, or if this process does not have the buffer's memory.
    pub fn share_all(&self, index: u16, pieces: &[IoVector]) -> Result<BufferReference, Errno> {
        let mut held = self.share_empty_part(index)?;
        for piece in pieces {
            if piece.length == 0 {
                return Err(Errno::EFAULT);
            }
            held = self.share(index, piece.base, piece.length)?;
        }
        Ok(held)
    }

    fn share_empty_part(&self, index: u16) -> Result<BufferReference, Errno> {
        self.share(index, self.get(index).ok_or(Errno::EFAULT)?.address, 0)
    }

    pub fn are_registered(&self) -> bool {
        self.entries.is_some()
    }

    /// Ends the access of the devices of `usring run --device` to the memory of the buffers.
    pub fn unshare(&mut self) {
        devices::unshare(&core::mem::take(&mut self.shared));
        self.unshare_unused();
    }

    /// Ends the access of the devices of `usring run --device` to memory in which no buffer of the
    /// table lies, and to memory in whose place the program has mapped other memory. Precondition:
    /// the ring has no request in flight on a device.
    pub fn unshare_unused(&mut self) {
        devices::unshare_replaced(&core::mem::take(&mut self.replaced));
        devices::unshare(&core::mem::take(&mut self.unused));
    }

    /// Shares the memory of the buffers in the slots `changed`, which a register call has just
    /// filled, with the devices of `usring run --device`. A new buffer may lie in memory that is
    /// already shared. The driver then finds out whether the program has mapped other memory there,
    /// and the sharing of the old memory ends once no request can use it.
    fn share_changed(&mut self, changed: Range<usize>) {
        let slots = self.entries.as_deref().unwrap_or_default();
        let added = coalesce(&slots[changed.clone()]);
        let kept = coalesce(slots[..changed.start].iter().chain(&slots[changed.end..]));
        for range in self.shared.drain(..).chain(self.unused.drain(..)).collect::<Vec<_>>() {
            let is_replaced = overlaps(&added, range);
            if is_replaced && !is_among(&self.replaced, range) {
                self.replaced.push(range);
            }
            let is_used = is_replaced || overlaps(&kept, range);
            if is_used { &mut self.shared } else { &mut self.unused }.push(range);
        }
        devices::share(&added);
        let new: Vec<IoVector> = added.into_iter().filter(|range| !is_among(&self.shared, *range)).collect();
        self.shared.extend(new);
    }

    fn set(&mut self, entries: Vec<BufferSlot>) {
        self.entries = Some(entries);
        self.is_changed = true;
    }

    /// Publishes the table of buffers for the other processes of the ring. Does so if this process
    /// has changed the table since the last call, or if `all` is true.
    pub fn publish(&mut self, registrations: &Registrations, all: bool) {
        let is_due = core::mem::take(&mut self.is_changed) || all && self.are_registered();
        if !is_due {
            return;
        }
        let shared = |slot: &BufferSlot| {
            let buffer = slot.as_deref()?;
            let RegisteredBuffer { address, length, tag, origin, .. } = *buffer;
            Some(SharedBuffer { origin, address, length, tag })
        };
        let slots = self.entries.as_deref().unwrap_or_default();
        registrations.set_buffers(self.entries.as_ref().map(Vec::len), slots.iter().map(shared));
        registrations.count_change();
    }

    /// Applies the changes that other processes have made to the table of buffers. Posts no tags of
    /// buffers that leave the table.
    pub fn follow(&mut self, registrations: &Registrations, own_registrations: &OwnRegistrations) {
        let mut known = self.entries.take().unwrap_or_default();
        let Some(shared) = registrations.buffers() else { return };
        if shared.is_empty() {
            // The table is too large to be shared. The process that registered the table keeps its
            // buffers. Every other process uses a table without slots.
            let is_own = known.iter().flatten().any(|buffer| own_registrations.is_own(buffer.origin));
            self.entries = Some(if is_own { known } else { Vec::new() });
            return;
        }
        known.resize_with(shared.len(), || None);
        let mut check = SharedCheck::default();
        let follow = |(shared, known): (Option<SharedBuffer>, BufferSlot)| match known {
            known if known.as_ref().map(|known| known.origin) == shared.map(|shared| shared.origin) => known,
            _ => shared
                .map(|shared| Arc::new(RegisteredBuffer::of_other_process(&shared, own_registrations, &mut check))),
        };
        self.entries = Some(shared.into_iter().zip(known).map(follow).collect());
    }

    fn retire(&mut self, slot: BufferSlot) {
        self.retired.extend(slot.filter(|buffer| buffer.tag != 0));
    }

    #[inline]
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Returns the tags to post now: the tags of buffers that have left the table, and that no
    /// request uses any more.
    pub fn take_released(&mut self) -> Vec<u64> {
        let mut tags = Vec::new();
        self.retired.retain(|buffer| {
            let held = Arc::strong_count(buffer) > 1;
            if !held {
                tags.push(buffer.tag);
            }
            held
        });
        tags
    }
}

/// Reads the buffer for one slot from element `index` of the program's arrays: the vectors and the
/// tags.
fn read_slot(
    pins: &mut PinCheck,
    vector: UserAddress,
    tags: UserAddress,
    index: u64,
    origin: Origin,
) -> Result<BufferSlot, Errno> {
    let tag = if tags.is_null() { 0 } else { user_memory::read::<u64>(tags.offset(8 * index))? };
    if vector.is_null() {
        return if tag == 0 { Ok(None) } else { Err(Errno::EINVAL) };
    }
    let member = user_memory::read::<IoVector>(vector.offset(16 * index))?;
    if member.base == 0 {
        // A null address makes an empty slot, for which length and tag must be 0.
        return match (member.length, tag) {
            (0, 0) => Ok(None),
            (0, _) => Err(Errno::EINVAL),
            _ => Err(Errno::EFAULT),
        };
    }
    if member.length == 0 || member.length > LENGTH_LIMIT {
        return Err(Errno::EFAULT);
    }
    member.base.checked_add(member.length).ok_or(Errno::EOVERFLOW)?;
    user_memory::probe_writable(UserAddress(member.base), width::size(member.length))?;
    pins.check(UserAddress(member.base), width::size(member.length))?;
    let (address, length) = (member.base, member.length);
    Ok(Some(Arc::new(RegisteredBuffer { address, length, tag, origin, is_here: true })))
}

/// REGISTER_BUFFERS and REGISTER_BUFFERS2: makes the table from the program's arrays of vectors and
/// of tags.
pub(crate) fn register(
    buffers: &mut RegisteredBuffers,
    vector: UserAddress,
    tags: UserAddress,
    count: u32,
) -> Result<u32, Errno> {
    if buffers.entries.is_some() {
        return Err(Errno::EBUSY);
    }
    if count == 0 || count > LIMIT {
        return Err(Errno::EINVAL);
    }
    let mut entries = Vec::new();
    entries.try_reserve_exact(count as usize).map_err(|_| Errno::ENOMEM)?;
    let mut pins = PinCheck::default();
    for index in 0..u64::from(count) {
        entries.push(read_slot(&mut pins, vector, tags, index, buffers.origin)?);
    }
    buffers.set(entries);
    if devices::are_any() {
        buffers.share_changed(0..count as usize);
    }
    Ok(0)
}

/// Returns the memory of the buffers as sorted ranges, in which buffers that touch or overlap are
/// merged. The ranges must be few, because a device's back end can map only few ranges.
fn coalesce<'a>(slots: impl IntoIterator<Item = &'a BufferSlot>) -> Vec<IoVector> {
    let range_of = |buffer: &Arc<RegisteredBuffer>| IoVector { base: buffer.address, length: buffer.length };
    let mut parts: Vec<IoVector> = slots.into_iter().flatten().map(range_of).collect();
    parts.sort_unstable_by_key(|part| part.base);
    let mut whole: Vec<IoVector> = Vec::new();
    for part in parts {
        match whole.last_mut() {
            Some(last) if part.base <= last.base + last.length => {
                last.length = last.length.max(part.base + part.length - last.base);
            }
            _ => whole.push(part),
        }
    }
    whole
}

/// Returns whether `range` overlaps one of `ranges`, which are sorted and disjoint.
fn overlaps(ranges: &[IoVector], range: IoVector) -> bool {
    let after = ranges.partition_point(|other| other.base + other.length <= range.base);
    ranges.get(after).is_some_and(|other| other.base < range.base + range.length)
}

fn is_among(ranges: &[IoVector], range: IoVector) -> bool {
    ranges.iter().any(|other| (other.base, other.length) == (range.base, range.length))
}

/// The slots that CLONE_BUFFERS copies from another ring's table, and the slots that get the
/// copies.
pub(crate) struct Part {
    pub from: u32,
    pub to: u32,
    /// Number of slots; 0: the whole table.
    pub count: u32,
}

impl Part {
    /// Returns the slots to copy out of a table of `size` slots.
    fn slots_within(&self, size: usize) -> Result<Range<usize>, Errno> {
        if self.count == 0 && (self.from != 0 || self.to != 0) {
            return Err(Errno::EINVAL);
        }
        let count = if self.count == 0 { size } else { self.count as usize };
        if count > size {
            return Err(Errno::EINVAL);
        }
        let end = self.from as usize + count;
        if end > size || self.to.checked_add(width::count(count)).is_none() {
            return Err(Errno::EOVERFLOW);
        }
        if self.to as usize + count > LIMIT as usize { Err(Errno::EINVAL) } else { Ok(self.from as usize..end) }
    }
}

/// CLONE_BUFFERS on the source ring: returns copies of the buffers. The copies have no tags.
pub(crate) fn copy_slots(source: &RegisteredBuffers, part: &Part) -> Result<Vec<BufferSlot>, Errno> {
    let entries = source.entries.as_ref().ok_or(Errno::ENXIO)?;
    let copy = |buffer: &Arc<RegisteredBuffer>| {
        let RegisteredBuffer { address, length, is_here, .. } = **buffer;
        Arc::new(RegisteredBuffer { address, length, tag: 0, origin: Origin::default(), is_here })
    };
    Ok(entries[part.slots_within(entries.len())?].iter().map(|slot| slot.as_ref().map(copy)).collect())
}

/// CLONE_BUFFERS on the destination ring: puts the copies into the ring's table, from slot `to` on.
/// Enlarges the table if necessary.
pub(crate) fn install_copies(buffers: &mut RegisteredBuffers, copies: Vec<BufferSlot>, to: u32) -> u32 {
    let mut entries = buffers.entries.take().unwrap_or_default();
    let first = to as usize;
    let end = first + copies.len();
    if entries.len() < end {
        entries.resize_with(end, || None);
    }
    for (slot, copy) in entries[first..].iter_mut().zip(copies) {
        let copy =
            copy.and_then(Arc::into_inner).map(|copy| Arc::new(RegisteredBuffer { origin: buffers.origin, ..copy }));
        let old = core::mem::replace(slot, copy);
        buffers.retire(old);
    }
    buffers.set(entries);
    if devices::are_any() {
        buffers.share_changed(first..end);
    }
    0
}

/// UNREGISTER_BUFFERS: removes the table.
pub(crate) fn unregister(buffers: &mut RegisteredBuffers) -> Result<u32, Errno> {
    let entries = buffers.entries.take().ok_or(Errno::ENXIO)?;
    buffers.is_changed = true;
    let shared = core::mem::take(&mut buffers.shared);
    buffers.unused.extend(shared);
    entries.into_iter().for_each(|slot| buffers.retire(slot));
    Ok(0)
}

/// REGISTER_BUFFERS_UPDATE: replaces the slots of the table from `offset` on. Returns how many
/// slots were replaced before the first error.
pub(crate) fn update(
    buffers: &mut RegisteredBuffers,
    offset: u32,
    vector: UserAddress,
    tags: UserAddress,
    count: u32,
) -> Result<i32, Errno> {
    let size = buffers.entries.as_ref().ok_or(Errno::ENXIO)?.len() as u64;
    let end = offset.checked_add(count).ok_or(Errno::EOVERFLOW)?;
    if u64::from(end) > size {
        return Err(Errno::EINVAL);
    }
    let mut done = 0u32;
    let mut pins = PinCheck::default();
    buffers.is_changed = true;
    for index in 0..u64::from(count) {
        match read_slot(&mut pins, vector, tags, index, buffers.origin) {
            Ok(slot) => {
                let Some(entries) = &mut buffers.entries else { break };
                let old = core::mem::replace(&mut entries[offset as usize + width::size(index)], slot);
                buffers.retire(old);
                done += 1;
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    if devices::are_any() {
        buffers.share_changed(offset as usize..offset as usize + done as usize);
    }
    Ok(done.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(address: u64, length: u64) -> BufferSlot {
        let (tag, origin) = (0, Origin::default());
        Some(Arc::new(RegisteredBuffer { address, length, tag, origin, is_here: true }))
    }

    fn ranges(list: &[IoVector]) -> Vec<(u64, u64)> {
        list.iter().map(|range| (range.base, range.length)).collect()
    }

    #[test]
    fn only_memory_that_no_buffer_of_the_table_needs_becomes_unused() {
        let mut buffers = RegisteredBuffers::default();
        buffers.set(Vec::from([slot(0x1000, 0x1000), slot(0x2000, 0x1000), slot(0x9000, 0x1000)]));
        buffers.share_changed(0..3);
        assert_eq!(ranges(&buffers.shared), [(0x1000, 0x2000), (0x9000, 0x1000)]);
        let mut replace = |index: usize, new| {
            buffers.entries.as_mut().unwrap()[index] = new;
            buffers.share_changed(index..index + 1);
            (ranges(&buffers.shared), ranges(&buffers.unused))
        };
        // The range (0x1000, 0x2000) stays shared, because the buffer of slot 1 lies in it.
        let (shared, unused) = replace(0, slot(0x20000, 0x1000));
        assert_eq!((&shared[..], unused.len()), (&[(0x1000, 0x2000), (0x9000, 0x1000), (0x20000, 0x1000)][..], 0));
        let (shared, unused) = replace(1, None);
        assert_eq!((&shared[..], &unused[..]), (&[(0x9000, 0x1000), (0x20000, 0x1000)][..], &[(0x1000, 0x2000)][..]));
        // The new buffer lies in the unused memory, which is therefore in use again.
        let (shared, unused) = replace(1, slot(0x2800, 0x1000));
        assert_eq!((&shared[2..], unused.len()), (&[(0x1000, 0x2000), (0x2800, 0x1000)][..], 0));
        // An update with an equal buffer changes nothing.
        let (shared, unused) = replace(1, slot(0x2800, 0x1000));
        assert_eq!((shared.len(), unused.len()), (4, 0));
        assert_eq!(ranges(&buffers.replaced), [(0x1000, 0x2000), (0x2800, 0x1000)]);
    }
}
