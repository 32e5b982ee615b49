//! Memory of ours for data on their way between the kernel and the program's swapped
//! memory, where a call may wait for ever and nothing of that may be kept resident so long.
//! What the kernel does not write to is not there either: waiting costs addresses alone.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::mapping::{private_pages, unmap};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, user_memory};

/// Bytes of one that is used again.
const USUAL: usize = 64 << 10;

/// Some that nobody uses; 0 where there is none.
static SPARE: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

pub struct Bounce {
    address: usize,
    length: usize,
    /// The kernel may look at its content later on.
    lingers: bool,
}

impl Bounce {
    pub fn new(length: u64, lingers: bool) -> Result<Bounce, Errno> {
        let length = (length as usize).max(USUAL);
        let is_usual = length == USUAL && !lingers;
        let spare = if is_usual {
            SPARE.iter().map(|place| place.swap(0, Ordering::Acquire)).find(|it| *it != 0)
        } else {
            None
        };
        let address = spare.map_or_else(|| private_pages(length), Ok)?;
        Ok(Bounce { address, length, lingers })
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

    /// What the program has.
    pub fn fill(&mut self, from: &[IoVector]) -> Result<(), Errno> {
        let mut offset = 0;
        for buffer in from {
            let length = buffer.length as usize;
            user_memory::copy_in(&mut self.bytes()[offset..offset + length], UserAddress(buffer.base))?;
            offset += length;
        }
        Ok(())
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

impl Drop for Bounce {
    fn drop(&mut self) {
        let keep =
            |place: &AtomicUsize| place.compare_exchange(0, self.address, Ordering::Release, Ordering::Relaxed).is_ok();
        if self.length != USUAL || self.lingers || !SPARE.iter().any(keep) {
            let _ = unmap(self.address, self.length);
        }
    }
}
