//! Large memory that several processes map: the content of a RAM disk. usring only copies and
//! zeroes this content, and never interprets it. Several threads or processes may write to one byte
//! at a time. The bytes then hold any mixture of their data, as after concurrent writes to a disk.
//!
//! No reference into the memory is ever made. All copies use the assembler routines of
//! [`crate::user_memory`], in which a fault becomes `EFAULT`. Offsets come from usring, so an
//! offset out of range is a bug and panics.

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, UserAddress, mapping, user_memory, width};
use core::ops::Range;
use linux_raw_sys::general as linux;

/// Size of a cache line, in bytes.
pub const LINE: u64 = 64;

/// A memory file, mapped as a whole. The kernel allocates its pages when they are touched.
#[derive(Debug)]
pub struct BulkMemory {
    address: usize,
    length: usize,
    file: OwnedDescriptor,
}

impl BulkMemory {
    /// Maps the first `length` bytes of a file. The file has at least this length, and is never
    /// made shorter.
    ///
    /// Errors: `ENOMEM` if the process has too few free addresses; those of mmap(2).
    pub fn map(file: OwnedDescriptor, length: u64) -> Result<BulkMemory, Errno> {
        let length = usize::try_from(length).map_err(|_| Errno::ENOMEM)?;
        let address = mapping::map(length, linux::MAP_SHARED | linux::MAP_NORESERVE, Some((file.number(), 0)))?;
        Ok(BulkMemory { address, length, file })
    }

    pub fn file(&self) -> i32 {
        self.file.number()
    }

    #[inline]
    fn at(&self, offset: u64, length: u64) -> *mut u8 {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length as u64);
        assert!(inside, "{length} bytes at {offset} do not lie in memory of {}", self.length);
        (self.address + width::size(offset)) as *mut u8
    }

    /// Prefetches bytes that are about to be copied: the processor translates their addresses and
    /// loads their cache lines in the background. `bytes` is a range of positions relative to
    /// `offset`.
    #[inline]
    pub fn prefetch(&self, offset: u64, bytes: Range<u64>) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = self.at(offset, bytes.end);
        for line in bytes.step_by(width::size(LINE)) {
            // SAFETY: a prefetch changes no memory and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_byte_add(width::size(line)).cast()) };
        }
    }

    /// Copies bytes to the program's memory. After `EFAULT` a part may have been copied.
    #[inline]
    pub fn copy_to_user(&self, offset: u64, to: UserAddress, length: u64) -> Result<(), Errno> {
        let from = self.at(offset, length);
        // SAFETY: 1. The source lies in the mapping, which lives as long as this value. 2. There
        // are no references into it. 3. `copy_from_raw` checks the target.
        unsafe { user_memory::copy_from_raw(to, from, width::size(length)) }
    }

    /// Copies bytes from the program's memory. After `EFAULT` a part may have been copied.
    #[inline]
    pub fn copy_from_user(&self, offset: u64, from: UserAddress, length: u64) -> Result<(), Errno> {
        let to = self.at(offset, length);
        // SAFETY: 1. The target lies in the mapping, which lives as long as this value. 2. There
        // are no references into it. 3. `copy_to_raw` checks the source.
        unsafe { user_memory::copy_to_raw(to, from, width::size(length)) }
    }

    /// Zeroes bytes by writing zeroes.
    pub fn zero(&self, offset: u64, length: u64) {
        let at = self.at(offset, length);
        // SAFETY: the bytes lie in the mapping, and there are no references into it.
        unsafe { user_memory::zero_raw(at, width::size(length)) };
    }

    /// Zeroes bytes by fallocate(2), which frees the pages that lie wholly in the range. This can
    /// take a long time.
    ///
    /// Errors: those of fallocate(2).
    pub fn punch(&self, offset: u64, length: u64) -> Result<(), Errno> {
        self.at(offset, length);
        if length == 0 {
            return Ok(());
        }
        let mode = u64::from(linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE);
        SystemCall::new(linux::__NR_fallocate, [width::word(self.file.number()), mode, offset, length, 0])
            .run()
            .map(drop)
    }
}

impl Drop for BulkMemory {
    fn drop(&mut self) {
        let _ = mapping::unmap(self.address, self.length);
    }
}
