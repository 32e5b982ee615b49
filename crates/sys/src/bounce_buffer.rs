//! Bounce buffers: usring's memory for data on its way between the kernel and the program's swapped
//! memory. They serve calls that may wait for ever, during which no page may stay pinned. The
//! kernel allocates only the pages that it writes to, so a waiting call costs only addresses.

use crate::mapping::{PAGE, offered_pages, private_pages, reserve, unmap};
use crate::plain::IoVector;
use crate::{Errno, UserAddress, user_memory};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a buffer that is kept for later use.
const USUAL: usize = 64 << 10;

/// Unused buffers; 0 means none.
static SPARE: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// The purpose of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Filled,
    /// As [`Purpose::Filled`], but the kernel may read the content after the call.
    Lingers,
    /// Room for as much as the kernel returns.
    Offered,
    /// The kernel refuses the call for its length. The buffer need not be readable.
    Refused,
}

pub struct BounceBuffer {
    address: usize,
    length: usize,
    is_usual: bool,
}

impl BounceBuffer {
    pub fn new(length: u64, purpose: Purpose) -> Result<BounceBuffer, Errno> {
        let length = (length as usize).max(USUAL);
        let is_usual = length == USUAL && matches!(purpose, Purpose::Filled | Purpose::Offered);
        let spare = if is_usual {
            SPARE.iter().map(|place| place.swap(0, Ordering::Acquire)).find(|it| *it != 0)
        } else {
            None
        };
        let map = match purpose {
            Purpose::Filled | Purpose::Lingers => private_pages,
            Purpose::Offered => offered_pages,
            Purpose::Refused => reserve,
        };
        let address = spare.map_or_else(|| map(length), Ok)?;
        Ok(BounceBuffer { address, length, is_usual })
    }

    /// Returns buffers of the same lengths in this memory.
    pub fn stand_in(&self, buffers: &[IoVector]) -> Vec<IoVector> {
        let mut base = self.address as u64;
        let place = |buffer: &IoVector| {
            let place = IoVector { base, length: buffer.length };
            base += buffer.length;
            place
        };
        buffers.iter().map(place).collect()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: 1. `length` bytes are mapped there and belong to this value alone. 2. The kernel
        // does not use them now: the call was not made yet, or has returned.
        unsafe { core::slice::from_raw_parts_mut(self.address as *mut u8, self.length) }
    }

    /// Copies the program's data in, as far as it can be read; returns how many bytes.
    pub fn fill(&mut self, from: &[IoVector]) -> u64 {
        let mut offset = 0;
        for buffer in from {
            let length = buffer.length as usize;
            let to = &mut self.bytes()[offset..offset + length];
            if user_memory::copy_in(to, UserAddress(buffer.base)).is_err() {
                return (offset + copy_pages(to, buffer.base)) as u64;
            }
            offset += length;
        }
        offset as u64
    }

    /// Copies `bytes` bytes, from this offset on, to the program's buffers. Errors: `EFAULT`.
    pub fn empty(&mut self, mut offset: usize, to: &[IoVector], bytes: u64) -> Result<(), Errno> {
        let mut left = bytes;
        for buffer in to {
            let length = buffer.length.min(left) as usize;
            user_memory::copy_out(UserAddress(buffer.base), &self.bytes()[offset..offset + length])?;
            offset += length;
            left -= length as u64;
        }
        Ok(())
    }
}

/// Copies whole pages as far as they can be read; the first page may be partial. Returns how many
/// bytes.
fn copy_pages(to: &mut [u8], from: u64) -> usize {
    let mut copied = 0;
    while copied < to.len() {
        let base = from + copied as u64;
        let part = (PAGE - base as usize % PAGE).min(to.len() - copied);
        if user_memory::copy_in(&mut to[copied..copied + part], UserAddress(base)).is_err() {
            break;
        }
        copied += part;
    }
    copied
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        let keep =
            |place: &AtomicUsize| place.compare_exchange(0, self.address, Ordering::Release, Ordering::Relaxed).is_ok();
        if !self.is_usual || !SPARE.iter().any(keep) {
            let _ = unmap(self.address, self.length);
        }
    }
}
