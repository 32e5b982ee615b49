//! Memory of ours for data on their way between the kernel and the program's swapped
//! memory, where a call may wait for ever and nothing of that may be kept resident so long.
//! What the kernel does not write to is not there either: waiting costs addresses alone.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::mapping::{PAGE, offered_pages, private_pages, reserve, unmap};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, user_memory};

/// Bytes of one that is used again.
const USUAL: usize = 64 << 10;

/// Some that nobody uses; 0 where there is none.
static SPARE: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// What it is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Filled,
    /// As [`Use::Filled`], and the kernel may look at its content after the call.
    Lingers,
    /// Room for as much as comes.
    Offered,
    /// The kernel refuses it for its length, and could not read it.
    Refused,
}

pub struct Bounce {
    address: usize,
    length: usize,
    is_usual: bool,
}

impl Bounce {
    pub fn new(length: u64, its_use: Use) -> Result<Bounce, Errno> {
        let length = (length as usize).max(USUAL);
        let is_usual = length == USUAL && matches!(its_use, Use::Filled | Use::Offered);
        let spare = if is_usual {
            SPARE.iter().map(|place| place.swap(0, Ordering::Acquire)).find(|it| *it != 0)
        } else {
            None
        };
        let map = match its_use {
            Use::Filled | Use::Lingers => private_pages,
            Use::Offered => offered_pages,
            Use::Refused => reserve,
        };
        let address = spare.map_or_else(|| map(length), Ok)?;
        Ok(Bounce { address, length, is_usual })
    }

    /// The same lengths, here.
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
        // SAFETY: 1. So many bytes are mapped there and are this value's alone. 2. The
        // kernel does not use them now: it has not been asked yet, or has answered.
        unsafe { core::slice::from_raw_parts_mut(self.address as *mut u8, self.length) }
    }

    /// What the program has, as far as it can be read: says how many bytes.
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

    /// Hands so many bytes, from this offset on, to the program.
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

/// Copies as many whole pages as can be read, the first from within; says how many bytes.
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

impl Drop for Bounce {
    fn drop(&mut self) {
        let keep =
            |place: &AtomicUsize| place.compare_exchange(0, self.address, Ordering::Release, Ordering::Relaxed).is_ok();
        if !self.is_usual || !SPARE.iter().any(keep) {
            let _ = unmap(self.address, self.length);
        }
    }
}
