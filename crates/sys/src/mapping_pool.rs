//! Shared memory of many objects in few mappings. fork(2) copies each mapping of a process. If each
//! object had its own mapping, fork(2) would take longer with each object.
//!
//! - A pool hands out parts of a mapping in ascending order. When the mapping is full, the pool
//!   makes another mapping of twice the length. If the process has no room for that (RLIMIT_AS,
//!   mlockall(2)), the new mapping has one part.
//! - No part is handed out twice, because a forked child may still use it. So a part consists of
//!   zero bytes.
//! - A mapping is unmapped when the last of its parts is dropped. Until then it also keeps the
//!   memory of parts that are no longer used. `LONGEST_MAPPING` limits the length of a mapping.
//! - A forked child begins with empty pools, so parent and child never get one part. The child
//!   inherits only the parts that were handed out. The rest of a mapping is not inherited
//!   (MADV_DONTFORK), so the child has no memory from which its parent will take parts. (A child
//!   that another thread forks just before that madvise(2) has the whole mapping.)

use crate::Errno;
use crate::mapping::{Mapping, PAGE};
use crate::mutex::Mutex;
use crate::per_process::PerProcess;
use crate::shared::SharedMemory;
use alloc::sync::{Arc, Weak};
use core::ops::Range;

/// Greatest length of a mapping that several objects share, in bytes.
const LONGEST_MAPPING: usize = 4 << 20;
/// Greatest length of an object that shares a mapping, in bytes. A longer object gets its own
/// mapping.
const LONGEST_PART: usize = LONGEST_MAPPING / 8;

/// A pool of shared memory.
pub struct MappingPool(PerProcess<Mutex<Current>>);

/// The mapping from which the pool hands out parts, and the number of bytes handed out so far.
#[derive(Default)]
struct Current {
    mapping: Weak<Mapping>,
    used: usize,
}

/// A part of a pool's mapping.
pub struct Part {
    pub mapping: Arc<Mapping>,
    /// The part's bytes in the mapping: whole pages.
    pub range: Range<usize>,
}

impl Part {
    /// Returns some pages of this part of a pool's mapping, as shared memory.
    pub fn memory(&self, pages: Range<usize>) -> SharedMemory {
        assert!(pages.end <= self.range.len(), "the pages lie in the part");
        SharedMemory::part_of(&self.mapping, self.in_mapping(pages))
    }

    /// Converts a range of byte offsets in this part to offsets in the pool's mapping.
    pub fn in_mapping(&self, pages: Range<usize>) -> Range<usize> {
        self.range.start + pages.start..self.range.start + pages.end
    }
}

impl Default for MappingPool {
    fn default() -> Self {
        Self::new()
    }
}

impl MappingPool {
    pub const fn new() -> Self {
        MappingPool(PerProcess::new())
    }

    /// Returns `length` zero bytes of shared memory, rounded up to whole pages.
    ///
    /// Errors: those of [`Mapping::shared`] and [`Mapping::set_inherited`].
    pub fn take(&self, length: usize) -> Result<Part, Errno> {
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
        if length > LONGEST_PART {
            return Ok(Part { mapping: Arc::new(Mapping::shared(length)?), range: 0..length });
        }
        let mut current = self.0.get_or_make(Mutex::default).lock();
        let known = current.mapping.upgrade();
        let mapping = match &known {
            Some(mapping) if length <= mapping.length() - current.used => mapping.clone(),
            _ => {
                let grown = known.map_or(0, |full| (2 * full.length()).min(LONGEST_MAPPING));
                let fresh = Arc::new(unused(grown.max(length)).or_else(|_| unused(length))?);
                *current = Current { mapping: Arc::downgrade(&fresh), used: 0 };
                fresh
            }
        };
        let range = current.used..current.used + length;
        mapping.set_inherited(range.clone(), true)?;
        current.used = range.end;
        Ok(Part { mapping, range })
    }
}

/// Makes a mapping that forked children do not inherit.
fn unused(length: usize) -> Result<Mapping, Errno> {
    let mapping = Mapping::shared(length)?;
    mapping.set_inherited(0..mapping.length(), false)?;
    Ok(mapping)
}
