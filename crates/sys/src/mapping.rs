//! Memory mappings of our own.

use crate::{Errno, SystemCall};
use linux_raw_sys::general as linux;

pub const PAGE: usize = 4096;

/// Anonymous shared memory that lives until it is dropped. Further mappings of
/// the same pages, [`Mapping::duplicate`]d for the program, live on their own.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    length: usize,
}

impl Mapping {
    /// Zeroed pages, shared with children and with duplicates.
    pub fn shared(length: usize) -> Result<Mapping, Errno> {
        let length = length.next_multiple_of(PAGE);
        let flags = linux::MAP_SHARED | linux::MAP_ANONYMOUS;
        map(length, flags).map(|address| Mapping { address, length })
    }

    pub fn address(&self) -> usize {
        self.address
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Maps the same pages once more, `length` bytes from `offset`, at `fixed`
    /// or wherever there is room, and leaves the new mapping to the program.
    pub fn duplicate(&self, offset: usize, length: usize, fixed: Option<usize>) -> Result<usize, Errno> {
        let length = length.next_multiple_of(PAGE);
        if !offset.is_multiple_of(PAGE) || offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(Errno::EINVAL);
        }
        let mut flags = linux::MREMAP_MAYMOVE;
        if fixed.is_some() {
            flags |= linux::MREMAP_FIXED;
        }
        // An old size of zero on a shared mapping maps its pages a second time.
        let source = (self.address + offset) as u64;
        let arguments = [source, 0, length as u64, u64::from(flags), fixed.unwrap_or(0) as u64];
        SystemCall::new(linux::__NR_mremap, arguments).run().map(|address| address as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = unmap(self.address, self.length);
    }
}

/// Private zeroed pages, for allocators and stacks.
pub fn private_pages(length: usize) -> Result<usize, Errno> {
    map(length.next_multiple_of(PAGE), linux::MAP_PRIVATE | linux::MAP_ANONYMOUS)
}

/// munmap(2).
pub fn unmap(address: usize, length: usize) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_munmap, [address as u64, length as u64, 0, 0, 0]).run().map(drop)
}

fn map(length: usize, flags: u32) -> Result<usize, Errno> {
    let protection = u64::from(linux::PROT_READ | linux::PROT_WRITE);
    let arguments = [0, length as u64, protection, u64::from(flags), -1i64 as u64, 0];
    SystemCall::with_six(linux::__NR_mmap, arguments).run().map(|address| address as usize)
}
