//! What munmap(2), mremap(2), mprotect(2) and their kin do to mappings, by whoever may change
//! them just now.

use super::{Mappings, write_zeroes};
use crate::address_space::{AddressSpace, Kind};
use alloc::vec::Vec;
use core::ops::Range;
use usring_sys::mapping::{PAGE, unmap};
use usring_sys::mutex::Guard;
use usring_sys::{Errno, UserAddress, user_memory};

/// Whose a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The program's, and the pager's.
    Pager,
    /// The kernel's to answer for: memory given to it, and what lies outside the region.
    Kernel,
    Nobody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub range: Range<usize>,
    pub owner: Owner,
}

/// The right to change what is mapped.
pub struct Changes<'a> {
    pub(super) mappings: &'a Mappings,
    pub(super) space: Guard<'a, AddressSpace>,
}

impl Changes<'_> {
    /// What of a range is the region's.
    fn within(&self, range: &Range<usize>) -> Range<usize> {
        let region = self.mappings.range();
        let start = range.start.clamp(region.start, region.end);
        start..range.end.clamp(start, region.end)
    }

    /// A range in parts that are one owner's each, in order.
    pub fn parts(&self, range: &Range<usize>) -> Vec<Part> {
        let within = self.within(range);
        let mut parts = Vec::new();
        let mut add = |ranges: Vec<Range<usize>>, owner| {
            parts.extend(ranges.into_iter().filter(|range| !range.is_empty()).map(|range| Part { range, owner }));
        };
        add(
            alloc::vec![range.start..within.start.min(range.end), within.end.max(range.start)..range.end],
            Owner::Kernel,
        );
        add(self.space.parts(&within, Kind::Mapped), Owner::Pager);
        add(self.space.parts(&within, Kind::Given), Owner::Kernel);
        add(self.space.parts(&within, Kind::Leaving), Owner::Nobody);
        add(self.space.holes(&within), Owner::Nobody);
        parts.sort_unstable_by_key(|part| part.range.start);
        parts
    }

    /// How far from its start on a range is mapped: there a call stops that changes mappings.
    pub fn mapped_end(&self, range: &Range<usize>) -> usize {
        let hole = self.parts(range).into_iter().find(|part| part.owner == Owner::Nobody);
        hole.map_or(range.end, |part| part.range.start)
    }

    pub fn is_free(&self, range: &Range<usize>) -> bool {
        self.parts(range).iter().all(|part| part.owner == Owner::Nobody)
    }

    fn set_in_use(&self, range: &Range<usize>, in_use: bool) {
        self.mappings.region.set_in_use(self.mappings.offsets(range), in_use);
    }

    /// Looks at the addresses up to there, at least. Errors: `ENOMEM`.
    fn reach(&self, end: usize) -> Result<(), Errno> {
        self.mappings.region.set_extent(end.max(self.space.end()) - self.mappings.region.as_ptr() as usize)
    }

    /// Looks no further than it must.
    fn set_extent(&self) {
        // It was this far before.
        let _ = self.reach(0);
    }

    /// Of what was just taken. Errors: `ENOMEM`; then it is given back.
    fn begin(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        self.reach(range.end).inspect_err(|_| drop(self.space.free(range, Kind::Mapped)))?;
        self.set_in_use(range, true);
        Ok(())
    }

    /// Zeroed memory; `None` if there is no room in the region.
    pub fn map(&mut self, length: usize) -> Option<usize> {
        let length = length.checked_next_multiple_of(PAGE)?;
        self.reap();
        let start = self.space.take(length)?;
        self.begin(&(start..start + length)).ok()?;
        Some(start)
    }

    /// munmap(2) of whole pages of the region; what of them is not mapped does not matter. Errors: the
    /// kernel's, where it does not take back what it has; what lies before is unmapped.
    pub fn unmap(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        self.reap();
        let range = self.within(range);
        for part in self.space.parts(&range, Kind::Given) {
            self.unmap_given(&part)?;
        }
        for part in self.space.free(&range, Kind::Mapped) {
            self.vacate(&part);
        }
        self.set_extent();
        Ok(())
    }

    /// Gives up what was just freed. What a system call has of it leaves when that is over.
    fn vacate(&mut self, part: &Range<usize>) {
        let idle = self.space.idle_units(part);
        self.set_in_use(&idle, false);
        if self.mappings.region.discard_shared(self.mappings.offsets(&idle)).is_err() {
            // What is gone already is gone twice.
            self.space.keep(part, Kind::Leaving);
        }
    }

    /// Takes back what system calls had when it was given up.
    fn reap(&mut self) {
        for part in self.space.all(Kind::Leaving) {
            self.space.free(&part, Kind::Leaving);
            self.vacate(&part);
        }
    }

    /// Pages of which nothing is left become the region's again; others of the kernel's, holes.
    fn unmap_given(&mut self, part: &Range<usize>) -> Result<(), Errno> {
        self.space.free(part, Kind::Given);
        let idle = self.space.idle_units(part);
        let mut unmapped = Ok(());
        if !idle.is_empty() {
            self.set_in_use(&idle, false);
            unmapped = self.mappings.region.reclaim(self.mappings.offsets(&idle));
        }
        for rest in [part.start..idle.start.min(part.end), idle.end.max(part.start)..part.end] {
            if !rest.is_empty() && unmapped.is_ok() {
                unmapped = unmap(rest.start, rest.len());
            }
        }
        if unmapped.is_err() {
            self.space.keep(part, Kind::Given);
        }
        unmapped
    }

    /// Has what of a range is mapped hold what it holds, and be the kernel's from now on.
    /// Errors: as `SwapRegion::surrender`.
    pub fn surrender(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        self.reap();
        let range = self.within(range);
        while let Some(part) = self.space.parts(&range, Kind::Mapped).first() {
            let units = self.space.units(part);
            self.mappings.region.surrender(self.mappings.offsets(&units))?;
            self.are_given(&units, &[]);
        }
        Ok(())
    }

    /// Units are the kernel's; of them, what was mapped, and `more`. What is left is a hole of the kernel's.
    fn are_given(&mut self, units: &Range<usize>, more: &[Range<usize>]) {
        for part in self.space.free(units, Kind::Mapped) {
            self.space.keep(&part, Kind::Given);
        }
        for part in more {
            self.space.free(part, Kind::Given);
            self.space.keep(part, Kind::Given);
        }
        for hole in self.space.holes(units) {
            // Where that fails there is memory that nobody was promised.
            let _ = unmap(hole.start, hole.len());
        }
        self.set_extent();
    }

    /// Has the kernel put something in place of all that a range holds, and answers for that. Errors:
    /// `EBUSY` where a system call has some of it; what `act` answers. Then it holds what it held.
    pub fn replace<R>(&mut self, range: &Range<usize>, act: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.reap();
        let within = self.within(range);
        if within.is_empty() {
            return act();
        }
        let units = self.space.units(&within);
        self.reach(units.end)?;
        // What else there is of its first and its last unit.
        for edge in [units.start..within.start, within.end..units.end] {
            self.surrender(&edge)?;
        }
        let answer = self.mappings.region.replace(self.mappings.offsets(&units), act)?;
        self.are_given(&units, &[within]);
        Ok(answer)
    }

    /// mmap(2) of zeroed memory over whatever there is. `false`: it must be the kernel's; nothing has changed
    /// but that this is not paged any more. Errors: `ENOMEM`, `EIO`; a part is lost then.
    pub fn map_over(&mut self, range: &Range<usize>) -> Result<bool, Errno> {
        self.reap();
        self.reach(range.end)?;
        for part in self.space.parts(range, Kind::Given) {
            self.unmap_given(&part)?;
        }
        if !self.space.parts(&self.space.units(range), Kind::Given).is_empty() {
            return Ok(false);
        }
        for kind in [Kind::Mapped, Kind::Leaving] {
            self.space.free(range, kind);
        }
        self.space.keep(range, Kind::Mapped);
        self.set_in_use(range, true);
        self.mappings.zero(range).map(|()| true)
    }

    /// mremap(2) within the region, of a range that is paged. Errors: `ENOMEM` where there is
    /// no room, or no memory; `EFAULT` where a page cannot be read back. Then all is as it was.
    pub fn remap(&mut self, old: &Range<usize>, length: usize, may_move: bool) -> Result<usize, Errno> {
        if length <= old.len() {
            self.unmap(&(old.start + length..old.end))?;
            return Ok(old.start);
        }
        self.reap();
        if self.space.extend(old.end, length - old.len()) {
            let added = old.end..old.start + length;
            self.begin(&added)?;
            // Of its last unit something may be left of what was there.
            let rest = old.end..self.mappings.unit_end(old.end).min(added.end);
            return write_zeroes(&rest).map(|()| old.start).inspect_err(|_| self.give_back(&added));
        }
        let new = if may_move { self.space.take(length) } else { None }.ok_or(Errno::ENOMEM)?;
        self.begin(&(new..new + length))?;
        if let Err(error) = self.move_contents(old, new) {
            self.give_back(&(new..new + length));
            return Err(error);
        }
        self.unmap(old)?;
        Ok(new)
    }

    fn give_back(&mut self, range: &Range<usize>) {
        for part in self.space.free(range, Kind::Mapped) {
            self.vacate(&part);
        }
        self.set_extent();
    }

    fn move_contents(&self, old: &Range<usize>, new: usize) -> Result<(), Errno> {
        let region = &self.mappings.region;
        if region.page_size() == PAGE {
            return region.move_pages(self.mappings.offsets(old), new - region.as_ptr() as usize);
        }
        // Parts of units: as memory.
        let mut bounce = alloc::vec![0; PAGE];
        for offset in (0..old.len()).step_by(PAGE) {
            user_memory::copy_in(&mut bounce, UserAddress((old.start + offset) as u64))?;
            user_memory::copy_out(UserAddress((new + offset) as u64), &bounce)?;
        }
        Ok(())
    }

    /// The kernel has moved away, or unmapped, what it had of a range.
    pub fn is_gone(&mut self, range: &Range<usize>) {
        let range = self.within(range);
        for part in self.space.parts(&range, Kind::Given) {
            // Where the region cannot have it back it stays the kernel's.
            let _ = self.unmap_given(&part);
        }
        self.set_extent();
    }

    /// The kernel has mapped what follows memory that it had.
    pub fn has_grown(&mut self, range: &Range<usize>) {
        for hole in self.space.holes(&self.within(range)) {
            self.space.keep(&hole, Kind::Given);
        }
        self.set_extent();
    }
}
