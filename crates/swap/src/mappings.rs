//! The anonymous memory of a program that knows nothing of it: what it maps is given
//! out of one region, at addresses that are told apart from all others by two
//! comparisons ([`WINDOW`]).
//!
//! The words are mmap(2)'s. Nothing here makes a promise that the kernel does not: what
//! is unmapped or thrown away while a system call of another thread uses it leaves when
//! that call is over.

use crate::address_space::{AddressSpace, Kind};
use crate::mechanism;
use crate::region::{self, Access, SwapRegion};
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use usring_device::control::{Control, RemoteSupply};
use usring_device::{Device, OwnSupply, PolicyWord, Spec, Supply, spec};
use usring_sys::descriptor::HeldDescriptor;
use usring_sys::mapping::PAGE;
use usring_sys::mutex::Mutex;
use usring_sys::{Errno, UserAddress, file, user_memory};

/// Where such memory lies: far from all places that Linux, loaders and runtimes choose by
/// themselves, and the same in every process, so that a filter can know it.
pub const WINDOW: Range<usize> = 0x2000_0000_0000..0x2100_0000_0000;

/// Least limit: what system calls pin is a small part of it.
pub const LEAST_LIMIT: usize = 4 << 20;
/// Most bytes that a transfer pins at a time.
const MOST_PINNED: usize = 1 << 20;
/// Least size of a mapping that can be asked for.
pub const LEAST_MINIMUM: usize = 128 << 10;

/// Addresses for each byte that can be held, so that there is room between holes.
const ROOM: usize = 4;
const ALIGNED: usize = 2 << 20;

/// What the launcher says.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    pub backing: &'a str,
    pub limit: usize,
    /// Bytes of the smallest mapping that is given out of it; the caller's to keep.
    pub minimum: usize,
    pub mechanism: Option<mechanism::Kind>,
    /// File to count in.
    pub statistics: Option<&'a CStr>,
    /// Path of the socket of who is connected to the back end, if there is one.
    pub socket: Option<&'a [u8]>,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Another process's pages go there.
    InUse,
    Failed(Errno),
}

impl From<Errno> for Obstacle {
    fn from(error: Errno) -> Self {
        Obstacle::Failed(error)
    }
}

/// Of a program, with a store of so many bytes.
fn addresses(capacity: u64, limit: usize) -> usize {
    let held = (capacity as usize).saturating_add(limit);
    held.saturating_mul(ROOM).min(WINDOW.len() / 2).next_multiple_of(ALIGNED)
}

/// The least store and the least limit with which a mechanism works, where these are wanted.
pub fn least(capacity: u64, limit: usize, mechanism: mechanism::Kind) -> (u64, usize) {
    let unit = mechanism.unit(addresses(capacity, limit));
    (unit as u64, (unit * region::LEAST_LIMIT).max(LEAST_LIMIT))
}

/// How many pages may be pinned at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pins {
    /// What many calls need a little of, for as long as they last: as many as that takes.
    Needed,
    /// Half of the limit.
    Fitting,
}

pub struct Mappings {
    pub(crate) region: SwapRegion,
    pub(crate) space: Mutex<AddressSpace>,
    /// Says that the backing store is this process's, and its children's.
    pub(crate) claim: Option<HeldDescriptor>,
}

static ZEROES: [u8; PAGE] = [0; PAGE];

impl Mappings {
    /// Opens the backing store, which holds what its last user had put there and is this
    /// process's alone from now on.
    pub fn open(options: &Options) -> Result<Self, Obstacle> {
        let spec = spec::parse(options.backing).map_err(|_| Errno::EINVAL)?;
        let policy: &'static PolicyWord = Box::leak(Box::new(PolicyWord::new(spec.policy())));
        let driver = spec.open(supply(options.socket)?)?;
        let claim = claim(&spec)?;
        let size = addresses(driver.geometry().size, options.limit);
        let device = Arc::new(Device::new(driver, policy, true));
        let mut builder = SwapRegion::builder().size(size).limit(options.limit).device(device);
        if let Some(mechanism) = options.mechanism {
            builder = builder.mechanism(mechanism);
        }
        let region = builder.beneath_program(WINDOW.start, options.statistics.map(CString::from)).build()?;
        region.set_extent(0)?;
        let range = region.as_ptr() as usize..region.as_ptr() as usize + region.size();
        let space = Mutex::new(AddressSpace::new(range, region.page_size()));
        Ok(Mappings { region, space, claim })
    }

    pub fn region(&self) -> &SwapRegion {
        &self.region
    }

    /// Bytes that a transfer should pin at a time, whole pages; and what of a single call fits at all.
    pub fn most_pinned(&self) -> (usize, usize) {
        let limit = self.region.limit() * self.region.page_size();
        ((limit / 16).min(MOST_PINNED) / PAGE * PAGE, limit / 2)
    }

    fn offsets(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.region.as_ptr() as usize;
        range.start - start..range.end - start
    }

    /// Errors: `ENOMEM` where more is in use than before.
    fn set_extent(&self, space: &AddressSpace) -> Result<(), Errno> {
        self.region.set_extent(space.end() - self.region.as_ptr() as usize)
    }

    /// Zeroed memory; `None` if there is no room in the region.
    pub fn map(&self, length: usize) -> Option<usize> {
        let length = length.checked_next_multiple_of(PAGE)?;
        let mut space = self.space.lock();
        self.reap(&mut space);
        let start = space.take(length)?;
        if self.set_extent(&space).is_err() {
            space.free(&(start..start + length), Kind::Mapped);
            return None;
        }
        Some(start)
    }

    /// Whether all of a range was given and not taken back.
    pub fn has(&self, range: &Range<usize>) -> bool {
        self.space.lock().has(range)
    }

    /// The mapped neighbourhood of an address.
    pub fn around(&self, address: usize) -> Option<Range<usize>> {
        self.space.lock().around(address)
    }

    /// munmap(2) of whole pages; what of them is not mapped does not matter.
    pub fn unmap(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut space = self.space.lock();
        self.reap(&mut space);
        self.unmap_in(&mut space, range)
    }

    fn unmap_in(&self, space: &mut AddressSpace, range: &Range<usize>) -> Result<(), Errno> {
        for part in space.free(range, Kind::Mapped) {
            let idle = space.idle_units(&part);
            if let Err(error) = self.region.discard_shared(self.offsets(&idle)) {
                // A system call has some of it; what is gone already is gone twice.
                space.keep(&part, Kind::Leaving);
                if error != Errno::EBUSY {
                    return Err(error);
                }
            }
        }
        self.set_extent(space)
    }

    /// Takes back what system calls had when it was given up.
    fn reap(&self, space: &mut AddressSpace) {
        for part in space.all(Kind::Leaving) {
            space.free(&part, Kind::Leaving);
            let idle = space.idle_units(&part);
            if self.region.discard_shared(self.offsets(&idle)).is_err() {
                space.keep(&part, Kind::Leaving);
            }
        }
    }

    /// The range holds zeroes from now on. Errors: `ENOMEM` where not all of it is mapped,
    /// as madvise(2) has it: what is, was discarded.
    pub fn discard(&self, range: &Range<usize>) -> Result<(), Errno> {
        let parts = {
            let space = self.space.lock();
            space.parts(range, Kind::Mapped)
        };
        for part in &parts {
            self.zero(part)?;
        }
        if parts == [range.clone()] { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Where the unit ends in which a mapping ends.
    fn unit_end(&self, end: usize) -> usize {
        let base = self.region.as_ptr() as usize;
        base + (end - base).next_multiple_of(self.region.page_size())
    }

    fn zero(&self, part: &Range<usize>) -> Result<(), Errno> {
        let unit = self.region.page_size();
        let base = self.region.as_ptr() as usize;
        let start = base + (part.start - base).next_multiple_of(unit);
        let end = base + (part.end - base) / unit * unit;
        if start >= end {
            return write_zeroes(part);
        }
        write_zeroes(&(part.start..start))?;
        write_zeroes(&(end..part.end))?;
        match self.region.discard_shared(self.offsets(&(start..end))) {
            Err(Errno::EBUSY) => (start..end).step_by(unit).try_for_each(|page| {
                let page = page..page + unit;
                match self.region.discard_shared(self.offsets(&page)) {
                    Err(Errno::EBUSY) => write_zeroes(&page),
                    other => other,
                }
            }),
            other => other,
        }
    }

    /// mremap(2) within the region. Errors: `EFAULT` where the old range is not one
    /// mapping; `ENOMEM` where there is no room.
    pub fn remap(&self, old: &Range<usize>, length: usize, may_move: bool) -> Result<usize, Errno> {
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
        let mut space = self.space.lock();
        if !space.has(old) {
            return Err(Errno::EFAULT);
        }
        if length <= old.len() {
            self.unmap_in(&mut space, &(old.start + length..old.end))?;
            return Ok(old.start);
        }
        self.reap(&mut space);
        if space.extend(old.end, length - old.len()) {
            let added = old.end..old.start + length;
            self.set_extent(&space).inspect_err(|_| drop(space.free(&added, Kind::Mapped)))?;
            write_zeroes(&(old.end..self.unit_end(old.end).min(old.start + length)))?;
            return Ok(old.start);
        }
        let new = if may_move { space.take(length) } else { None }.ok_or(Errno::ENOMEM)?;
        self.set_extent(&space).inspect_err(|_| drop(space.free(&(new..new + length), Kind::Mapped)))?;
        match self.move_contents(old, new) {
            // What is pinned leaves later.
            Ok(()) | Err(Errno::EBUSY) => {}
            Err(error) => {
                // Nothing of the old mapping may be lost: both stay, and share the loss.
                return Err(error);
            }
        }
        self.unmap_in(&mut space, old)?;
        Ok(new)
    }

    fn move_contents(&self, old: &Range<usize>, new: usize) -> Result<(), Errno> {
        let unit = self.region.page_size();
        let base = self.region.as_ptr() as usize;
        if unit == PAGE {
            return self.region.move_pages(self.offsets(old), new - base);
        }
        // Parts of units: as memory.
        let mut bounce = alloc::vec![0; PAGE];
        for offset in (0..old.len()).step_by(PAGE) {
            user_memory::copy_in(&mut bounce, UserAddress((old.start + offset) as u64))?;
            user_memory::copy_out(UserAddress((new + offset) as u64), &bounce)?;
        }
        Ok(())
    }

    /// Has what of a range is mapped hold what it holds, and be the kernel's from now on.
    /// Errors: as `SwapRegion::surrender`.
    pub fn surrender(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut space = self.space.lock();
        for part in space.parts(range, Kind::Mapped) {
            self.region.surrender(self.offsets(&part))?;
            space.free(&part, Kind::Mapped);
            space.keep(&part, Kind::Given);
        }
        Ok(())
    }

    /// Whether all of a range is the kernel's.
    pub fn is_given(&self, range: &Range<usize>) -> bool {
        self.space.lock().parts(range, Kind::Given) == [range.clone()]
    }

    /// What of a range is the kernel's.
    pub fn given(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        self.space.lock().parts(range, Kind::Given)
    }

    /// Brings what of a range is mapped in and keeps it there until each part that `keep`
    /// was given is unpinned; the rest is the kernel's, or nobody's. Errors: as [`SwapRegion::pin`].
    pub fn pin(
        &self,
        range: &Range<usize>,
        access: Access,
        pins: Pins,
        mut keep: impl FnMut(Range<usize>),
    ) -> Result<(), Errno> {
        let most = match pins {
            Pins::Needed => usize::MAX,
            Pins::Fitting => self.region.limit() / 2,
        };
        let mut start = range.start;
        while let Some(part) = self.first(&(start..range.end)) {
            match self.region.pin_among(self.offsets(&part), access, most) {
                Ok(pin) => core::mem::forget(pin),
                // A part of it has just become the kernel's: another look waits until it has.
                Err(Errno::ENXIO) => continue,
                Err(error) => return Err(error),
            }
            if self.is_still_mapped(&part) {
                start = part.end;
                keep(part);
            }
        }
        Ok(())
    }

    /// The first part of a range that is mapped.
    fn first(&self, range: &Range<usize>) -> Option<Range<usize>> {
        if range.is_empty() {
            return None;
        }
        let space = self.space.lock();
        space.around(range.start).map_or_else(
            || space.parts(range, Kind::Mapped).into_iter().next(),
            |around| Some(range.start..range.end.min(around.end)),
        )
    }

    /// Whether what was just pinned has not been unmapped meanwhile; or it is not pinned
    /// any more, and holds nothing that a later mapping would find.
    fn is_still_mapped(&self, part: &Range<usize>) -> bool {
        let space = self.space.lock();
        if space.around(part.start).is_some_and(|around| part.end <= around.end) {
            return true;
        }
        self.unpin(part);
        for unit in part.clone().step_by(self.region.page_size()) {
            // Another call may have it: it is thrown away with that.
            let _ = self.region.discard_shared(self.offsets(&space.idle_units(&(unit..unit + 1))));
        }
        false
    }

    pub fn unpin(&self, range: &Range<usize>) {
        let _ = self.region.unpin(self.offsets(range));
    }

    /// The addresses that the region has.
    pub fn range(&self) -> Range<usize> {
        let start = self.region.as_ptr() as usize;
        start..start + self.region.size()
    }

    /// What is mapped now.
    pub fn mapped(&self) -> Vec<Range<usize>> {
        self.space.lock().all(Kind::Mapped)
    }
}

fn write_zeroes(range: &Range<usize>) -> Result<(), Errno> {
    range.clone().step_by(PAGE).try_for_each(|start| {
        let length = (range.end - start).min(PAGE);
        user_memory::copy_out(UserAddress(start as u64), &ZEROES[..length])
    })
}

/// What the device needs of who is connected to its back end, which is this process's alone then.
fn supply(socket: Option<&[u8]>) -> Result<Box<dyn Supply>, Obstacle> {
    let Some(socket) = socket else { return Ok(Box::new(OwnSupply)) };
    match RemoteSupply::of_swap(Control::at(socket)) {
        Ok(supply) => Ok(Box::new(supply)),
        Err(Errno::EBUSY) => Err(Obstacle::InUse),
        Err(error) => Err(Obstacle::Failed(error)),
    }
}

/// Has the file of a device for this process alone. (Memory is this process's anyway.)
fn claim(spec: &Spec) -> Result<Option<HeldDescriptor>, Obstacle> {
    let Some(path) = spec.device().text("path") else { return Ok(None) };
    let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
    const READ_WRITE: u32 = 2;
    let opened = file::open(&path, READ_WRITE)?;
    match file::claim(opened.number()) {
        Ok(()) => Ok(Some(opened)),
        Err(Errno::EAGAIN) => Err(Obstacle::InUse),
        Err(error) => Err(Obstacle::Failed(error)),
    }
}
