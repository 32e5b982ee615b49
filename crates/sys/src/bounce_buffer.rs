//! Bounce buffers: usring's memory for data on its way between the kernel and the program's swapped
//! memory. They serve system calls that may wait for ever: the program's pages cannot stay pinned
//! for that time. A buffer's page takes up memory only after the first write to it. So a receive
//! that still waits for data takes up address space, but no memory.

use crate::mapping::{PAGE, offered_pages, private_pages, reserve, unmap};
use crate::plain::IoVector;
use crate::{Errno, UserAddress, user_memory, width};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Least length of a bounce buffer, in bytes. Bounce buffers of this length are kept after their
/// use, and used again.
const LEAST_LENGTH: usize = 64 << 10;

/// Addresses of unused buffers of [`LEAST_LENGTH`] bytes; 0 in a free element.
static SPARE: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// How the kernel uses a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Filled,
    /// The kernel reads the program's data from the bounce buffer, possibly even after the system
    /// call has returned.
    Lingers,
    /// The kernel writes to the bounce buffer, and may fill only a part of it.
    Offered,
    /// The program's data is longer than Linux permits: the kernel refuses the call and does not
    /// access the bounce buffer.
    Refused,
}

pub struct BounceBuffer {
    address: usize,
    length: usize,
    is_reusable: bool,
}

impl BounceBuffer {
    pub fn new(length: u64, purpose: Purpose) -> Result<BounceBuffer, Errno> {
        let length = width::size(length).max(LEAST_LENGTH);
        let is_reusable = length == LEAST_LENGTH && matches!(purpose, Purpose::Filled | Purpose::Offered);
        let spare = if is_reusable {
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
        Ok(BounceBuffer { address, length, is_reusable })
    }

    /// Returns vectors in this bounce buffer, one after the other. Each has the length of a vector
    /// of `buffers`.
    pub fn vectors_for(&self, buffers: &[IoVector]) -> Vec<IoVector> {
        let mut base = self.address as u64;
        let place = |buffer: &IoVector| {
            let place = IoVector { base, length: buffer.length };
            base += buffer.length;
            place
        };
        buffers.iter().map(place).collect()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: 1. `length` bytes are mapped at `address`, and belong to this value alone. 2. The
        // kernel does not use them now: the system call was not made yet, or has returned.
        unsafe { core::slice::from_raw_parts_mut(self.address as *mut u8, self.length) }
    }

    /// Copies the program's data from the vectors `from` into the bounce buffer. Stops at the first
    /// page that cannot be read. Returns the number of bytes copied.
    pub fn fill(&mut self, from: &[IoVector]) -> u64 {
        let mut offset = 0;
        for buffer in from {
            let length = width::size(buffer.length);
            let to = &mut self.bytes()[offset..offset + length];
            if user_memory::copy_in(to, UserAddress(buffer.base)).is_err() {
                return (offset + copy_pages(to, buffer.base)) as u64;
            }
            offset += length;
        }
        offset as u64
    }

    /// Copies `bytes` bytes from `offset` of the bounce buffer to the program's buffers `to`.
    /// Errors: `EFAULT`.
    pub fn copy_out(&mut self, mut offset: usize, to: &[IoVector], bytes: u64) -> Result<(), Errno> {
        let mut left = bytes;
        for buffer in to {
            let length = width::size(buffer.length.min(left));
            user_memory::copy_out(UserAddress(buffer.base), &self.bytes()[offset..offset + length])?;
            offset += length;
            left -= length as u64;
        }
        Ok(())
    }
}

/// Copies the program's memory at `from` page by page. Stops at the first page that cannot be read.
/// Returns the number of bytes copied.
fn copy_pages(to: &mut [u8], from: u64) -> usize {
    let mut copied = 0;
    while copied < to.len() {
        let base = from + copied as u64;
        let part = (PAGE - width::size(base) % PAGE).min(to.len() - copied);
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
        if !self.is_reusable || !SPARE.iter().any(keep) {
            let _ = unmap(self.address, self.length);
        }
    }
}
