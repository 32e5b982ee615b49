//! The anonymous memory of a program that knows nothing of it: what it maps is given
//! out of one region, at addresses that are told apart from all others by two
//! comparisons ([`WINDOW`]).
//!
//! What a pager cannot give (another protection, a lock, something else mapped there) the kernel does, in
//! place: such parts are the program's as others are, and come back when they are unmapped.
//!
//! The words are mmap(2)'s. Nothing here makes a promise that the kernel does not: what
//! is unmapped or thrown away while a system call of another thread uses it leaves when
//! that call is over.

mod changes;

pub use changes::{Changes, Owner, Part};

use crate::address_space::{AddressSpace, Kind};
use crate::backing::{Backing, Refusal};
use crate::mechanism;
use crate::region::{self, Access, SwapRegion};
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use usring_device::control::{Control, RemoteSupply};
use usring_device::{Device, OwnSupply, Supply, spec};
use usring_sys::descriptor::HeldDescriptor;
use usring_sys::mapping::PAGE;
use usring_sys::mutex::Mutex;
use usring_sys::{Errno, UserAddress, user_memory};

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
    /// A child would have the memory without knowing of it (`crate::heritage`).
    pub(crate) exposed: AtomicBool,
}

static ZEROES: [u8; PAGE] = [0; PAGE];

impl Mappings {
    /// Opens the backing store, which holds what its last user had put there and is this
    /// process's alone from now on.
    pub fn open(options: &Options) -> Result<Self, Refusal> {
        let spec = spec::parse(options.backing).map_err(|_| Errno::EINVAL)?;
        let Backing { device, claim, header, .. } = Backing::open(&spec, supply(options.socket)?)?;
        let mappings = Mappings::behind_header(device, header, options)?;
        Ok(Mappings { claim, ..mappings })
    }

    /// On a device that is open, and nobody else's; `backing` is not looked at.
    pub fn on(device: Arc<Device>, options: &Options) -> Result<Self, Refusal> {
        Self::behind_header(device, 0, options)
    }

    fn behind_header(device: Arc<Device>, header: u64, options: &Options) -> Result<Self, Refusal> {
        let size = addresses(device.geometry().size - header, options.limit);
        let mut builder = SwapRegion::builder().size(size).limit(options.limit).behind_header(device, header);
        if let Some(mechanism) = options.mechanism {
            builder = builder.mechanism(mechanism);
        }
        let region = builder.beneath_program(WINDOW.start, options.statistics.map(CString::from)).build()?;
        region.set_extent(0)?;
        let range = region.as_ptr() as usize..region.as_ptr() as usize + region.size();
        let space = Mutex::new(AddressSpace::new(range, region.page_size()));
        Ok(Mappings { region, space, claim: None, exposed: AtomicBool::new(false) })
    }

    pub fn region(&self) -> &SwapRegion {
        &self.region
    }

    /// Bytes that a transfer should pin at a time, whole pages; and what of a single call fits at all.
    pub fn most_pinned(&self) -> (usize, usize) {
        let limit = self.region.limit() * self.region.page_size();
        ((limit / 16).min(MOST_PINNED) / PAGE * PAGE, limit / 2)
    }

    /// Where the unit ends in which a mapping ends.
    fn unit_end(&self, end: usize) -> usize {
        let base = self.region.as_ptr() as usize;
        base + (end - base).next_multiple_of(self.region.page_size())
    }

    fn offsets(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.region.as_ptr() as usize;
        range.start - start..range.end - start
    }

    /// Changes what is mapped; nobody else does meanwhile.
    pub fn change(&self) -> Changes<'_> {
        Changes { mappings: self, space: self.space.lock() }
    }

    /// The mapped neighbourhood of an address.
    pub fn around(&self, address: usize) -> Option<Range<usize>> {
        self.space.lock().around(address)
    }

    /// Has mapped memory hold zeroes from now on.
    pub fn zero(&self, part: &Range<usize>) -> Result<(), Errno> {
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

    /// Whether the page at an address of ours is in memory.
    pub fn is_resident(&self, address: usize) -> bool {
        self.region.is_resident(address - self.region.as_ptr() as usize)
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

    /// What is mapped and paged now.
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
fn supply(socket: Option<&[u8]>) -> Result<Box<dyn Supply>, Refusal> {
    let Some(socket) = socket else { return Ok(Box::new(OwnSupply)) };
    match RemoteSupply::of_swap(Control::at(socket)) {
        Ok(supply) => Ok(Box::new(supply)),
        Err(Errno::EBUSY) => Err(Refusal::InUse),
        Err(error) => Err(error.into()),
    }
}
