//! Records which addresses of a swap region the program has mapped, and allocates free addresses.
//!
//! An extent is a range of addresses in one state ([`ExtentKind`]).
//! - Adjacent extents of one kind are merged, so the list of extents stays short.
//! - An allocation gets the lowest free range that is large enough, so mappings stay together.
//! - The region pages memory in and evicts it by units. A unit becomes free for allocations only
//!   when no extent lies in it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// The state of a range of addresses. An address that lies in no extent is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Mapped by the program, and paged by the region.
    Mapped,
    /// The program has unmapped the range while a system call had pinned some of its pages. The
    /// addresses become free when the region has dropped these pages.
    Leaving,
    /// Mapped by the program, and managed by the kernel, to which the region has released the
    /// range.
    Unmanaged,
}

#[derive(Clone, Debug)]
pub struct AddressSpace {
    range: Range<usize>,
    unit: usize,
    /// The end address and the kind of each extent, indexed by its start address.
    extents: BTreeMap<usize, (usize, ExtentKind)>,
}

impl AddressSpace {
    /// Makes an allocator for a range of whole units, all of it free.
    pub fn new(range: Range<usize>, unit: usize) -> Self {
        AddressSpace { range, unit, extents: BTreeMap::new() }
    }

    fn round_down(&self, address: usize) -> usize {
        self.range.start + (address - self.range.start) / self.unit * self.unit
    }

    fn round_up(&self, address: usize) -> usize {
        self.range.start + (address - self.range.start).next_multiple_of(self.unit)
    }

    /// Allocates a range of `length` bytes at the lowest free addresses. The range begins at the
    /// start of a unit. `None` if no free range is large enough.
    pub fn take(&mut self, length: usize) -> Option<usize> {
        let mut room = self.range.start;
        for (start, (end, _)) in &self.extents {
            if self.round_down(*start).saturating_sub(room) >= length {
                break;
            }
            room = self.round_up(*end);
        }
        if length == 0 || self.range.end.checked_sub(room)? < length {
            return None;
        }
        self.insert(room, room + length, ExtentKind::Mapped);
        Some(room)
    }

    /// Extends the mapping that ends at `end` by `length` bytes. Returns `false`, without a change,
    /// if the addresses after `end` are not free. The unit that contains `end` may still hold
    /// content of an earlier mapping after `end`, which the caller has to clear.
    pub fn extend(&mut self, end: usize, length: usize) -> bool {
        let Some(stop) = end.checked_add(length).filter(|stop| *stop <= self.range.end) else { return false };
        let wanted = end..self.round_up(stop);
        let is_room = self.is_free(&wanted);
        if is_room && length > 0 {
            self.insert(end, stop, ExtentKind::Mapped);
        }
        is_room
    }

    fn insert(&mut self, mut start: usize, mut end: usize, kind: ExtentKind) {
        if let Some((before, (stop, other))) = self.extents.range(..start).next_back()
            && *stop == start
            && *other == kind
        {
            start = *before;
        }
        if let Some((stop, other)) = self.extents.get(&end).copied()
            && other == kind
        {
            self.extents.remove(&end);
            end = stop;
        }
        self.extents.insert(start, (end, kind));
    }

    /// Returns the parts of a range that are of the kind `kind`, in order of address.
    pub fn parts(&self, range: &Range<usize>, kind: ExtentKind) -> Vec<Range<usize>> {
        let first = self.extents.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let extents = self.extents.range(first..range.end.max(first)).filter(|(_, (_, other))| *other == kind);
        let parts = extents.map(|(start, (end, _))| range.start.max(*start)..range.end.min(*end));
        parts.filter(|part| part.start < part.end).collect()
    }

    /// Returns the parts of a range that belong to no extent, in order of address.
    pub fn holes(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut holes = Vec::new();
        let mut start = range.start;
        let first = self.extents.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        for (extent, (end, _)) in self.extents.range(first..range.end.max(first)) {
            if *extent > start {
                holes.push(start..*extent);
            }
            start = start.max(*end);
        }
        if start < range.end {
            holes.push(start..range.end);
        }
        holes
    }

    /// Returns a range extended to whole units.
    pub fn units(&self, range: &Range<usize>) -> Range<usize> {
        self.round_down(range.start)..self.round_up(range.end)
    }

    pub fn is_free(&self, range: &Range<usize>) -> bool {
        [ExtentKind::Mapped, ExtentKind::Leaving, ExtentKind::Unmanaged]
            .iter()
            .all(|kind| self.parts(range, *kind).is_empty())
    }

    /// Returns the extent of the kind [`ExtentKind::Mapped`] that contains an address. `None` if
    /// there is none.
    pub fn mapped_extent_at(&self, address: usize) -> Option<Range<usize>> {
        let (start, (end, kind)) = self.extents.range(..=address).next_back()?;
        (*kind == ExtentKind::Mapped && address < *end).then_some(*start..*end)
    }

    /// Removes the parts of a range that are of the kind `kind`. Returns these parts, in order of
    /// address.
    pub fn free(&mut self, range: &Range<usize>, kind: ExtentKind) -> Vec<Range<usize>> {
        let parts = self.parts(range, kind);
        for part in &parts {
            let found = self.extents.range(..=part.start).next_back().map(|(start, extent)| (*start, *extent));
            let Some((start, (end, _))) = found else { continue };
            self.extents.remove(&start);
            if start < part.start {
                self.extents.insert(start, (part.start, kind));
            }
            if part.end < end {
                self.extents.insert(part.end, (end, kind));
            }
        }
        parts
    }

    /// Adds an extent of the kind `kind`. The range must not overlap another extent.
    pub fn add(&mut self, range: &Range<usize>, kind: ExtentKind) {
        self.insert(range.start, range.end, kind);
    }

    /// Returns the units that became free when the caller freed this range of addresses. If another
    /// extent still lies in the first or the last unit of the range, leaves that unit out.
    pub fn idle_units(&self, range: &Range<usize>) -> Range<usize> {
        let (mut start, mut end) = (self.round_down(range.start), self.round_up(range.end));
        let is_idle = |unit: usize| self.is_free(&(unit..unit + self.unit));
        if start < end && !is_idle(start) {
            start += self.unit;
        }
        if start < end && !is_idle(end - self.unit) {
            end -= self.unit;
        }
        start..end
    }

    /// Returns all extents of the kind `kind`, in order of address.
    pub fn extents_of(&self, kind: ExtentKind) -> Vec<Range<usize>> {
        self.parts(&self.range.clone(), kind)
    }

    /// Returns the end address of the last extent.
    pub fn end(&self) -> usize {
        self.extents.last_key_value().map_or(self.range.start, |(_, (end, _))| *end)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is meant")]
mod tests {
    use super::*;

    fn space(unit: usize) -> AddressSpace {
        AddressSpace::new(1000..2000, unit)
    }

    #[test]
    fn the_lowest_free_addresses_are_allocated_first() {
        let mut space = space(10);
        assert_eq!(space.take(100), Some(1000));
        assert_eq!(space.take(50), Some(1100));
        assert_eq!(space.take(30), Some(1150));
        assert_eq!(space.free(&(1100..1150), ExtentKind::Mapped), [1100..1150]);
        assert_eq!(space.take(60), Some(1180), "60 bytes do not fit into the hole of 50");
        assert_eq!(space.take(50), Some(1100));
        assert_eq!(space.extents_of(ExtentKind::Mapped), [1000..1240], "adjacent extents are merged");
        assert_eq!(space.take(761), None);
        assert_eq!(space.take(760), Some(1240));
        assert_eq!(space.take(1), None);
    }

    #[test]
    fn part_of_an_extent_is_freed_from_its_middle() {
        let mut space = space(10);
        space.take(300);
        assert_eq!(space.free(&(1100..1200), ExtentKind::Mapped), [1100..1200]);
        assert_eq!(space.extents_of(ExtentKind::Mapped), [1000..1100, 1200..1300]);
        assert_eq!(space.mapped_extent_at(1250), Some(1200..1300));
        assert_eq!(space.mapped_extent_at(1150), None);
        assert_eq!(space.free(&(900..2000), ExtentKind::Mapped), [1000..1100, 1200..1300]);
        assert_eq!(space.end(), 1000);
    }

    #[test]
    fn an_extent_grows_into_the_free_addresses_behind_it() {
        let mut space = space(10);
        space.take(100);
        assert!(space.extend(1100, 50));
        assert_eq!(space.mapped_extent_at(1000), Some(1000..1150));
        space.take(10);
        assert!(!space.extend(1150, 10), "the addresses behind the extent are allocated");
        assert_eq!(space.extents_of(ExtentKind::Mapped), [1000..1160]);
    }

    #[test]
    fn a_unit_is_reused_once_all_of_it_is_free() {
        let mut space = space(100);
        assert_eq!(space.take(150), Some(1000));
        assert_eq!(space.take(10), Some(1200));
        space.free(&(1000..1120), ExtentKind::Mapped);
        assert_eq!(space.idle_units(&(1000..1120)), 1000..1100);
        assert_eq!(space.take(101), Some(1300));
        assert_eq!(space.take(100), Some(1000));
        space.free(&(1120..1150), ExtentKind::Mapped);
        assert_eq!(space.idle_units(&(1120..1150)), 1100..1200);
    }

    #[test]
    fn holes_are_addresses_outside_every_extent() {
        let mut space = space(10);
        space.take(300);
        space.free(&(1100..1200), ExtentKind::Mapped);
        space.add(&(1150..1160), ExtentKind::Unmanaged);
        assert_eq!(space.holes(&(1000..1400)), [1100..1150, 1160..1200, 1300..1400]);
        assert_eq!(space.holes(&(1120..1130)), [1120..1130]);
        assert_eq!(space.holes(&(1050..1155)), [1100..1150]);
        assert_eq!(space.holes(&(1000..1100)), []);
        assert_eq!(space.units(&(1001..1002)), 1000..1010);
    }

    #[test]
    fn a_leaving_extent_is_neither_mapped_nor_free() {
        let mut space = space(10);
        space.take(20);
        for part in space.free(&(1000..1010), ExtentKind::Mapped) {
            space.add(&part, ExtentKind::Leaving);
        }
        assert_eq!(space.mapped_extent_at(1005), None);
        assert_eq!(space.idle_units(&(1000..1010)), 1010..1010);
        assert_eq!(space.take(10), Some(1020));
        space.free(&(1000..1010), ExtentKind::Leaving);
        assert_eq!(space.take(10), Some(1000));
    }
}
