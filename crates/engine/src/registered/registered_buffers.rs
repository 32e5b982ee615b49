//! The ring's table of registered buffers. usring does not pin their pages. A buffer is an address
//! range, and READ_FIXED and WRITE_FIXED must stay within it.

use crate::devices;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use usring_sys::pinning::PinCheck;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, user_memory};

/// Most buffers of a table.
const LIMIT: u32 = 1 << 14;
/// Longest buffer, in bytes.
const LENGTH_LIMIT: u64 = 1 << 30;

/// A buffer of the table. Requests under way hold it, too, if it has a tag.
pub(crate) struct RegisteredBuffer {
    address: u64,
    length: u64,
    tag: u64,
}

/// A request's hold on the registered buffer that it transfers from or to.
#[derive(Default)]
pub(crate) enum BufferHold {
    /// The request transfers to or from no registered buffer.
    #[default]
    Nothing,
    /// The transfer lies in a buffer without a tag. Its holders need not be counted, because
    /// nothing is posted after the last one. Counting would cost two locked instructions per
    /// request.
    Untagged,
    /// The transfer lies in this tagged buffer. The tag is posted once no request holds the buffer
    /// any more.
    Tagged(#[expect(dead_code, reason = "owned to be counted")] Arc<RegisteredBuffer>),
}

impl BufferHold {
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        !matches!(self, BufferHold::Nothing)
    }

    #[inline(always)]
    pub fn release(&mut self) {
        if matches!(self, BufferHold::Tagged(_)) {
            *self = BufferHold::Nothing;
        } else {
            // The value owns nothing. `forget` spares the code that the compiler makes for a drop.
            core::mem::forget(core::mem::take(self));
        }
    }
}

/// A slot: a buffer, or nothing.
type BufferSlot = Option<Arc<RegisteredBuffer>>;

#[derive(Default)]
pub(crate) struct RegisteredBuffers {
    entries: Option<Vec<BufferSlot>>,
    /// Tagged buffers that were taken out and that requests may still hold.
    retired: Vec<Arc<RegisteredBuffer>>,
    /// Memory that the ring has offered to the run's devices, in as few parts as possible.
    shared: Vec<IoVector>,
}

impl RegisteredBuffers {
    /// Returns the buffer in a slot, unless the slot is empty.
    pub fn get(&self, index: u16) -> Option<&Arc<RegisteredBuffer>> {
        self.entries.as_ref()?.get(usize::from(index))?.as_ref()
    }

    /// Returns a hold on the buffer in slot `index`, for a transfer of `length` bytes at `address`.
    /// Error: `EFAULT` if the transfer does not lie within the buffer.
    #[inline]
    pub fn share(&self, index: u16, address: u64, length: u64) -> Result<BufferHold, Errno> {
        let buffer = self.get(index).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
        if address < buffer.address || end > buffer.address + buffer.length {
            return Err(Errno::EFAULT);
        }
        Ok(if buffer.tag == 0 { BufferHold::Untagged } else { BufferHold::Tagged(buffer.clone()) })
    }

    /// Returns a hold on the buffer in slot `index`, for a transfer of many pieces. Error: `EFAULT`
    /// if a piece does not lie within the buffer.
    pub fn share_all(&self, index: u16, pieces: &[IoVector]) -> Result<BufferHold, Errno> {
        let mut held = self.share_nothing(index)?;
        for piece in pieces {
            if piece.length == 0 {
                return Err(Errno::EFAULT);
            }
            held = self.share(index, piece.base, piece.length)?;
        }
        Ok(held)
    }

    fn share_nothing(&self, index: u16) -> Result<BufferHold, Errno> {
        self.share(index, self.get(index).ok_or(Errno::EFAULT)?.address, 0)
    }

    pub fn are_registered(&self) -> bool {
        self.entries.is_some()
    }

    /// Ends the sharing of the memory with the run's devices.
    pub fn unshare(&mut self) {
        devices::unshare(&core::mem::take(&mut self.shared));
    }

    fn retire(&mut self, slot: BufferSlot) {
        self.retired.extend(slot.filter(|buffer| buffer.tag != 0));
    }

    #[inline]
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Takes the tags that are to be posted: those of removed buffers that no request holds any
    /// more.
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

/// Reads one member of the program's vector as a slot.
fn read_slot(pins: &mut PinCheck, vector: UserAddress, tags: UserAddress, index: u64) -> Result<BufferSlot, Errno> {
    let tag = if tags.is_null() { 0 } else { user_memory::read::<u64>(tags.offset(8 * index))? };
    if vector.is_null() {
        return if tag == 0 { Ok(None) } else { Err(Errno::EINVAL) };
    }
    let member = user_memory::read::<IoVector>(vector.offset(16 * index))?;
    if member.base == 0 {
        // An address of null means an empty slot, which must have neither length nor tag.
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
    user_memory::probe_writable(UserAddress(member.base), member.length as usize)?;
    pins.check(UserAddress(member.base), member.length as usize)?;
    Ok(Some(Arc::new(RegisteredBuffer { address: member.base, length: member.length, tag })))
}

/// REGISTER_BUFFERS and REGISTER_BUFFERS2.
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
        entries.push(read_slot(&mut pins, vector, tags, index)?);
    }
    if devices::are_any() {
        buffers.shared = coalesce(&entries);
        devices::share(&buffers.shared);
    }
    buffers.entries = Some(entries);
    Ok(0)
}

/// Returns the buffers' memory in as few parts as possible, because a back end has room for few.
fn coalesce(slots: &[BufferSlot]) -> Vec<IoVector> {
    let mut parts: Vec<IoVector> =
        slots.iter().flatten().map(|buffer| IoVector { base: buffer.address, length: buffer.length }).collect();
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

/// The part of another ring's table that CLONE_BUFFERS copies, and its destination.
pub(crate) struct Part {
    pub from: u32,
    pub to: u32,
    /// Number of slots; 0: the whole table.
    pub count: u32,
}

impl Part {
    /// Returns the slots that this part means in a table of `size` slots.
    fn within(&self, size: usize) -> Result<Range<usize>, Errno> {
        if self.count == 0 && (self.from != 0 || self.to != 0) {
            return Err(Errno::EINVAL);
        }
        let count = if self.count == 0 { size } else { self.count as usize };
        if count > size {
            return Err(Errno::EINVAL);
        }
        let end = self.from as usize + count;
        if end > size || self.to.checked_add(count as u32).is_none() {
            return Err(Errno::EOVERFLOW);
        }
        if self.to as usize + count > LIMIT as usize { Err(Errno::EINVAL) } else { Ok(self.from as usize..end) }
    }
}

/// CLONE_BUFFERS on the source: returns the buffers to copy. The copies have no tags.
pub(crate) fn copies(source: &RegisteredBuffers, part: &Part) -> Result<Vec<BufferSlot>, Errno> {
    let entries = source.entries.as_ref().ok_or(Errno::ENXIO)?;
    let copy = |buffer: &Arc<RegisteredBuffer>| {
        Arc::new(RegisteredBuffer { address: buffer.address, length: buffer.length, tag: 0 })
    };
    Ok(entries[part.within(entries.len())?].iter().map(|slot| slot.as_ref().map(copy)).collect())
}

/// CLONE_BUFFERS on the destination: puts the buffers into this ring's table, which grows with
/// them.
pub(crate) fn adopt(buffers: &mut RegisteredBuffers, copies: Vec<BufferSlot>, to: u32) -> u32 {
    let mut entries = buffers.entries.take().unwrap_or_default();
    let first = to as usize;
    if entries.len() < first + copies.len() {
        entries.resize_with(first + copies.len(), || None);
    }
    for (slot, copy) in entries[first..].iter_mut().zip(copies) {
        let old = core::mem::replace(slot, copy);
        buffers.retire(old);
    }
    if devices::are_any() {
        let shared = coalesce(&entries);
        devices::share(&shared);
        devices::unshare(&core::mem::replace(&mut buffers.shared, shared));
    }
    buffers.entries = Some(entries);
    0
}

/// UNREGISTER_BUFFERS.
pub(crate) fn unregister(buffers: &mut RegisteredBuffers) -> Result<u32, Errno> {
    let entries = buffers.entries.take().ok_or(Errno::ENXIO)?;
    buffers.unshare();
    entries.into_iter().for_each(|slot| buffers.retire(slot));
    Ok(0)
}

/// REGISTER_BUFFERS_UPDATE: returns how many slots were changed before the first error.
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
    let mut done = 0;
    let mut pins = PinCheck::default();
    for index in 0..u64::from(count) {
        match read_slot(&mut pins, vector, tags, index) {
            Ok(slot) => {
                let Some(entries) = &mut buffers.entries else { break };
                let old = core::mem::replace(&mut entries[offset as usize + index as usize], slot);
                buffers.retire(old);
                done += 1;
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
