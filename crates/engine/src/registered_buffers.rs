//! The ring's table of registered buffers. usring does not pin their pages: a
//! buffer is an address range that READ_FIXED and WRITE_FIXED are held to.

use crate::complete;
use crate::ring::LockedRing;
use alloc::vec::Vec;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, user_memory};

/// Most buffers of a table.
const LIMIT: u32 = 1 << 14;
/// Longest buffer, in bytes.
const LENGTH_LIMIT: u64 = 1 << 30;

#[derive(Clone, Copy, Default)]
pub(crate) struct RegisteredBuffer {
    pub address: u64,
    /// 0 for an empty slot.
    pub length: u64,
    tag: u64,
}

#[derive(Default)]
pub(crate) struct RegisteredBuffers {
    entries: Option<Vec<RegisteredBuffer>>,
    released: Vec<u64>,
}

impl RegisteredBuffers {
    /// The buffer in a slot that is not empty.
    pub fn get(&self, index: u16) -> Option<&RegisteredBuffer> {
        self.entries.as_ref()?.get(usize::from(index)).filter(|buffer| buffer.length != 0)
    }

    /// Whether a transfer lies inside its buffer.
    #[inline]
    pub fn check(&self, index: u16, address: u64, length: u64) -> Result<(), Errno> {
        let buffer = self.get(index).ok_or(Errno::EFAULT)?;
        let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
        if address < buffer.address || end > buffer.address + buffer.length {
            return Err(Errno::EFAULT);
        }
        Ok(())
    }

    #[inline]
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }
}

/// One member of the program's vector as a slot.
fn read_slot(vector: UserAddress, tags: UserAddress, index: u64) -> Result<RegisteredBuffer, Errno> {
    let tag = if tags.is_null() { 0 } else { user_memory::read::<u64>(tags.offset(8 * index))? };
    if vector.is_null() {
        return if tag == 0 { Ok(RegisteredBuffer::default()) } else { Err(Errno::EINVAL) };
    }
    let member = user_memory::read::<IoVector>(vector.offset(16 * index))?;
    if member.base == 0 {
        // An empty slot has neither length nor tag.
        return if member.length == 0 && tag == 0 { Ok(RegisteredBuffer::default()) } else { Err(Errno::EFAULT) };
    }
    if member.length == 0 || member.length > LENGTH_LIMIT {
        return Err(Errno::EFAULT);
    }
    member.base.checked_add(member.length).ok_or(Errno::EOVERFLOW)?;
    user_memory::probe_writable(UserAddress(member.base), member.length as usize)?;
    Ok(RegisteredBuffer { address: member.base, length: member.length, tag })
}

/// REGISTER_BUFFERS and REGISTER_BUFFERS2.
pub(crate) fn register(
    locked: &mut LockedRing,
    vector: UserAddress,
    tags: UserAddress,
    count: u32,
) -> Result<u32, Errno> {
    if locked.buffers.entries.is_some() {
        return Err(Errno::EBUSY);
    }
    if count == 0 || count > LIMIT {
        return Err(Errno::EINVAL);
    }
    let entries = (0..u64::from(count)).map(|index| read_slot(vector, tags, index)).collect::<Result<Vec<_>, _>>()?;
    locked.buffers.entries = Some(entries);
    Ok(0)
}

/// UNREGISTER_BUFFERS.
pub(crate) fn unregister(locked: &mut LockedRing) -> Result<u32, Errno> {
    let entries = locked.buffers.entries.take().ok_or(Errno::ENXIO)?;
    let tags = entries.iter().map(|buffer| buffer.tag).filter(|&tag| tag != 0);
    locked.buffers.released.extend(tags);
    Ok(0)
}

/// REGISTER_BUFFERS_UPDATE: answers how many slots were changed before the
/// first error.
pub(crate) fn update(
    locked: &mut LockedRing,
    offset: u32,
    vector: UserAddress,
    tags: UserAddress,
    count: u32,
) -> Result<i32, Errno> {
    let size = locked.buffers.entries.as_ref().ok_or(Errno::ENXIO)?.len() as u64;
    if u64::from(offset) + u64::from(count) > size {
        return Err(Errno::EINVAL);
    }
    let mut done = 0;
    for index in 0..u64::from(count) {
        match read_slot(vector, tags, index) {
            Ok(slot) => {
                let Some(entries) = &mut locked.buffers.entries else { break };
                let old = core::mem::replace(&mut entries[offset as usize + index as usize], slot);
                if old.tag != 0 {
                    locked.buffers.released.push(old.tag);
                }
                done += 1;
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Posts the tags of buffers that were taken out.
pub(crate) fn post_released(locked: &mut LockedRing) {
    for tag in core::mem::take(&mut locked.buffers.released) {
        complete::post_tag(locked, tag);
    }
}
