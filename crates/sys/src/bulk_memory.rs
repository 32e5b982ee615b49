//! Much memory that processes share and nobody looks into: it is only copied
//! from and to, and zeroed. Several threads and processes may copy to the same
//! bytes at the same time; what is there then is their own concern, as on a disk.
//!
//! No reference into it is ever made: all copies are the assembler routines of
//! [`crate::user_memory`], which a fault ends. Offsets are ours, so one that is
//! out of range is a fault of ours and panics.

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, UserAddress, mapping, user_memory};
use core::ops::Range;
use linux_raw_sys::general as linux;

/// Bytes of a line of the processor's cache.
pub const LINE: u64 = 64;

/// The whole of a memory file, mapped. Pages come as they are touched.
#[derive(Debug)]
pub struct BulkMemory {
    address: usize,
    length: usize,
    file: OwnedDescriptor,
}

impl BulkMemory {
    /// Maps the first `length` bytes of a file of at least that length, which nobody makes shorter.
    ///
    /// Errors: `ENOMEM` where there is no room for so many addresses; what mmap(2) answers.
    pub fn map(file: OwnedDescriptor, length: u64) -> Result<BulkMemory, Errno> {
        let length = usize::try_from(length).map_err(|_| Errno::ENOMEM)?;
        let address = mapping::map(length, linux::MAP_SHARED | linux::MAP_NORESERVE, Some((file.number(), 0)))?;
        Ok(BulkMemory { address, length, file })
    }

    pub fn file(&self) -> i32 {
        self.file.number()
    }

    pub fn length(&self) -> u64 {
        self.length as u64
    }

    #[inline]
    fn at(&self, offset: u64, length: u64) -> *mut u8 {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length as u64);
        assert!(inside, "{length} bytes at {offset} do not lie in memory of {}", self.length);
        (self.address + offset as usize) as *mut u8
    }

    /// Says that these bytes, counted from `offset`, are going to be copied soon:
    /// the processor looks their page up and fetches them meanwhile.
    #[inline]
    pub fn prefetch(&self, offset: u64, bytes: Range<u64>) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = self.at(offset, bytes.end);
        for line in bytes.step_by(LINE as usize) {
            // SAFETY: the instruction reads nothing and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_byte_add(line as usize).cast()) };
        }
    }

    /// Copies bytes to the program. After `EFAULT` a part may have been copied.
    #[inline]
    pub fn copy_to_user(&self, offset: u64, to: UserAddress, length: u64) -> Result<(), Errno> {
        let from = self.at(offset, length);
        // SAFETY: 1. The source lies in the mapping, which lives as long as
        // this, and into which there are no references. 2. The target is checked there.
        unsafe { user_memory::copy_from_raw(to, from, length as usize) }
    }

    /// Copies bytes from the program. After `EFAULT` a part may have been copied.
    #[inline]
    pub fn copy_from_user(&self, offset: u64, from: UserAddress, length: u64) -> Result<(), Errno> {
        let to = self.at(offset, length);
        // SAFETY: as in `copy_to_user`, the other way round.
        unsafe { user_memory::copy_to_raw(to, from, length as usize) }
    }

    /// Makes bytes zero by writing them.
    pub fn zero(&self, offset: u64, length: u64) {
        let at = self.at(offset, length);
        // SAFETY: it lies in the mapping, into which there are no references.
        unsafe { user_memory::zero_raw(at, length as usize) };
    }

    /// Makes bytes zero and gives whole pages of them back. May take long.
    ///
    /// Errors: what fallocate(2) answers.
    pub fn punch(&self, offset: u64, length: u64) -> Result<(), Errno> {
        self.at(offset, length);
        if length == 0 {
            return Ok(());
        }
        let mode = u64::from(linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE);
        SystemCall::new(linux::__NR_fallocate, [self.file.number() as u64, mode, offset, length, 0]).run().map(drop)
    }
}

impl Drop for BulkMemory {
    fn drop(&mut self) {
        let _ = mapping::unmap(self.address, self.length);
    }
}
