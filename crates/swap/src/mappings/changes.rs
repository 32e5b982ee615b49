//! Applies mmap(2), munmap(2), mremap(2), mprotect(2) and related calls to swapped mappings, under
//! the lock that [`Changes`] holds.

use super::{Mappings, write_zeroes};
use crate::address_space::{AddressSpace, ExtentKind};
use alloc::vec::Vec;
use core::ops::Range;
use usring_sys::mapping::{PAGE, unmap};
use usring_sys::mutex::Guard;
use usring_sys::{Errno, UserAddress, user_memory};

/// The manager of a part of the program's addresses: the region, the kernel, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The region: the part is mapped by the program, and paged.
    Pager,
    /// The kernel. It manages memory that was released to it, and all addresses outside the region.
    Kernel,
    /// No owner: the part lies in the region, and the program has mapped nothing there.
    Unmapped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub range: Range<usize>,
    pub owner: Owner,
}

/// The locked mappings. Mappings change only under this lock.
pub struct Changes<'a> {
    pub(super) mappings: &'a Mappings,
    pub(super) space: Guard<'a, AddressSpace>,
}

impl Changes<'_> {
    /// Returns the part of a range that lies in the region.
    fn part_in_region(&self, range: &Range<usize>) -> Range<usize> {
        let region = self.mappings.range();
        let start = range.start.clamp(region.start, region.end);
        start..range.end.clamp(start, region.end)
    }

    /// Splits a range into parts, each with one owner, in order of address.
    pub fn parts(&self, range: &Range<usize>) -> Vec<Part> {
        let within = self.part_in_region(range);
        let mut parts = Vec::new();
        let mut add = |ranges: Vec<Range<usize>>, owner| {
            parts.extend(ranges.into_iter().filter(|range| !range.is_empty()).map(|range| Part { range, owner }));
        };
        add(
            alloc::vec![range.start..within.start.min(range.end), within.end.max(range.start)..range.end],
            Owner::Kernel,
        );
        add(self.space.parts(&within, ExtentKind::Mapped), Owner::Pager);
        add(self.space.parts(&within, ExtentKind::Unmanaged), Owner::Kernel);
        add(self.space.parts(&within, ExtentKind::Leaving), Owner::Unmapped);
        add(self.space.holes(&within), Owner::Unmapped);
        parts.sort_unstable_by_key(|part| part.range.start);
        parts
    }

    /// Returns the address up to which a range is mapped without a hole: the start of the range's
    /// first unmapped part, or its end. A call that changes mappings stops there.
    pub fn mapped_end(&self, range: &Range<usize>) -> usize {
        let hole = self.parts(range).into_iter().find(|part| part.owner == Owner::Unmapped);
        hole.map_or(range.end, |part| part.range.start)
    }

    pub fn is_free(&self, range: &Range<usize>) -> bool {
        self.parts(range).iter().all(|part| part.owner == Owner::Unmapped)
    }

    fn set_in_use(&self, range: &Range<usize>, in_use: bool) {
        self.mappings.region.set_in_use(self.mappings.offsets(range), in_use);
    }

    /// Extends the used part of the region up to `end`, or up to the end of the last mapping if
    /// that address is higher. Errors: `ENOMEM`.
    fn extend_used_part(&self, end: usize) -> Result<(), Errno> {
        self.mappings.region.set_extent(end.max(self.space.end()) - self.mappings.region.as_ptr() as usize)
    }

    /// Makes the used part of the region end where the last mapping ends.
    fn set_extent(&self) {
        // Only an extension can fail. This call extends nothing: the region's used part was at
        // least as large before.
        let _ = self.extend_used_part(0);
    }

    /// Makes a newly allocated range usable. Errors: `ENOMEM`; the range is then free again.
    fn begin(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        self.extend_used_part(range.end).inspect_err(|_| drop(self.space.free(range, ExtentKind::Mapped)))?;
        self.set_in_use(range, true);
        Ok(())
    }

    /// Allocates zeroed memory. `None` if the region has no free range of this length, or if the
    /// kernel has no memory.
    pub fn map(&mut self, length: usize) -> Option<usize> {
        let length = length.checked_next_multiple_of(PAGE)?;
        self.drop_unpinned_parts();
        let start = self.space.take(length)?;
        self.begin(&(start..start + length)).ok()?;
        Some(start)
    }

    /// Carries out munmap(2) of whole pages of the region, some of which may not be mapped. First
    /// unmaps the parts that were released to the kernel. Errors: the kernel's, for such a part.
    /// Then the released parts before it are unmapped, and all other parts stay mapped.
    pub fn unmap(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        self.drop_unpinned_parts();
        let range = self.part_in_region(range);
        for part in self.space.parts(&range, ExtentKind::Unmanaged) {
            self.unmap_released(&part)?;
        }
        for part in self.space.free(&range, ExtentKind::Mapped) {
            self.drop_content(&part);
        }
        self.set_extent();
        Ok(())
    }

    /// Drops the content of a part that was just freed. If a system call has pinned pages of the
    /// part, [`Changes::drop_unpinned_parts`] drops the content later.
    fn drop_content(&mut self, part: &Range<usize>) {
        let idle = self.space.idle_units(part);
        self.set_in_use(&idle, false);
        if self.mappings.region.discard_shared(self.mappings.offsets(&idle)).is_err() {
            // The discard has stopped at a pinned page. Later [`Changes::drop_unpinned_parts`]
            // discards the whole part. For pages that are already discarded, the second discard has
            // no effect.
            self.space.add(part, ExtentKind::Leaving);
        }
    }

    /// Drops the content of parts that the program has unmapped while system calls had pinned them.
    /// Leaves out parts that are still pinned.
    fn drop_unpinned_parts(&mut self) {
        for part in self.space.extents_of(ExtentKind::Leaving) {
            self.space.free(&part, ExtentKind::Leaving);
            self.drop_content(&part);
        }
    }

    /// Unmaps a part that was released to the kernel. The part's units return to the region, except
    /// units in which another mapping lies. Errors: the kernel's; the part then stays released.
    fn unmap_released(&mut self, part: &Range<usize>) -> Result<(), Errno> {
        self.space.free(part, ExtentKind::Unmanaged);
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
            self.space.add(part, ExtentKind::Unmanaged);
        }
        unmapped
    }

    /// Releases the mapped parts of a range to the kernel with their content. Errors: those of
    /// `SwapRegion::release_to_kernel`.
    pub fn release_to_kernel(&mut self, range: &Range<usize>) -> Result<(), Errno> {
        self.drop_unpinned_parts();
        let range = self.part_in_region(range);
        while let Some(part) = self.space.parts(&range, ExtentKind::Mapped).first() {
            let units = self.space.units(part);
            self.mappings.region.release_to_kernel(self.mappings.offsets(&units))?;
            self.note_release(&units, &[]);
        }
        Ok(())
    }

    /// Records that units were released to the kernel. The program keeps their mapped parts and the
    /// ranges `more`, which the kernel now manages. This function unmaps all other pages of the
    /// units.
    fn note_release(&mut self, units: &Range<usize>, more: &[Range<usize>]) {
        for part in self.space.free(units, ExtentKind::Mapped) {
            self.space.add(&part, ExtentKind::Unmanaged);
        }
        for part in more {
            self.space.free(part, ExtentKind::Unmanaged);
            self.space.add(part, ExtentKind::Unmanaged);
        }
        for hole in self.space.holes(units) {
            // The error is ignored: if the kernel does not unmap the hole, it stays mapped, and the
            // program does not use it.
            let _ = unmap(hole.start, hole.len());
        }
        self.set_extent();
    }

    /// Replaces a range by other memory, which `act` maps at the range's addresses and the kernel
    /// manages. Discards the range's content. Errors: `EBUSY` if a system call has pinned a page;
    /// the error of `act`. After an error, the content is not discarded.
    pub fn replace<R>(&mut self, range: &Range<usize>, act: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.drop_unpinned_parts();
        let within = self.part_in_region(range);
        if within.is_empty() {
            return act();
        }
        let units = self.space.units(&within);
        self.extend_used_part(units.end)?;
        // The first and the last unit may extend beyond the range. The pages outside the range are
        // released to the kernel with their content: usring no longer swaps them.
        for edge in [units.start..within.start, within.end..units.end] {
            self.release_to_kernel(&edge)?;
        }
        let answer = self.mappings.region.replace(self.mappings.offsets(&units), act)?;
        self.note_release(&units, &[within]);
        Ok(answer)
    }

    /// Maps zeroed memory over a range, whatever is mapped there. First unmaps the parts of the
    /// range that were released to the kernel. Returns `false` if a unit at an end of the range
    /// also has memory that was released to the kernel: the kernel then has to map the range.
    /// Errors: `ENOMEM`, `EIO`; some content may be lost then.
    pub fn map_over(&mut self, range: &Range<usize>) -> Result<bool, Errno> {
        self.drop_unpinned_parts();
        self.extend_used_part(range.end)?;
        for part in self.space.parts(range, ExtentKind::Unmanaged) {
            self.unmap_released(&part)?;
        }
        if !self.space.parts(&self.space.units(range), ExtentKind::Unmanaged).is_empty() {
            return Ok(false);
        }
        for kind in [ExtentKind::Mapped, ExtentKind::Leaving] {
            self.space.free(range, kind);
        }
        self.space.add(range, ExtentKind::Mapped);
        self.set_in_use(range, true);
        self.mappings.zero(range).map(|()| true)
    }

    /// Carries out mremap(2) of a paged range within the region. `may_move`: whether the call has
    /// MREMAP_MAYMOVE. Returns the range's new start address. Errors, after which the range is
    /// unchanged: `ENOMEM` if there are no free addresses or no memory; `EFAULT` if a page cannot
    /// be read back.
    pub fn remap(&mut self, old: &Range<usize>, length: usize, may_move: bool) -> Result<usize, Errno> {
        if length <= old.len() {
            self.unmap(&(old.start + length..old.end))?;
            return Ok(old.start);
        }
        self.drop_unpinned_parts();
        if self.space.extend(old.end, length - old.len()) {
            let added = old.end..old.start + length;
            self.begin(&added)?;
            // The unit that contains `old.end` may hold content of an earlier mapping after
            // `old.end`. So zeroes are written there.
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
        for part in self.space.free(range, ExtentKind::Mapped) {
            self.drop_content(&part);
        }
        self.set_extent();
    }

    fn move_contents(&self, old: &Range<usize>, new: usize) -> Result<(), Errno> {
        let region = &self.mappings.region;
        if region.page_size() == PAGE {
            return region.move_pages(self.mappings.offsets(old), new - region.as_ptr() as usize);
        }
        // With units larger than a page, the ranges may begin or end within a unit. A slot holds a
        // whole unit, so the content cannot be moved with its slots, and is copied.
        let mut bounce = alloc::vec![0; PAGE];
        for offset in (0..old.len()).step_by(PAGE) {
            user_memory::copy_in(&mut bounce, UserAddress((old.start + offset) as u64))?;
            user_memory::copy_out(UserAddress((new + offset) as u64), &bounce)?;
        }
        Ok(())
    }

    /// Records that the kernel has moved or unmapped those parts of a range that were released to
    /// it.
    pub fn note_released_gone(&mut self, range: &Range<usize>) {
        let range = self.part_in_region(range);
        for part in self.space.parts(&range, ExtentKind::Unmanaged) {
            // The error is ignored: a part that cannot be unmapped stays recorded as memory that
            // the kernel manages (`ExtentKind::Unmanaged`).
            let _ = self.unmap_released(&part);
        }
        self.set_extent();
    }

    /// Records that mremap(2) has extended memory that was released to the kernel into this range.
    pub fn note_released_grown(&mut self, range: &Range<usize>) {
        for hole in self.space.holes(&self.part_in_region(range)) {
            self.space.add(&hole, ExtentKind::Unmanaged);
        }
        self.set_extent();
    }
}
