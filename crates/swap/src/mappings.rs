//! The swapped anonymous memory of an unmodified program. Its mappings are allocated in one region.
//! All addresses of this region lie in [`WINDOW`], so two comparisons recognise them.
//!
//! - A pager cannot provide some things: another protection, a lock, another mapping. If the
//!   program wants one of them for a part of the memory, usring releases this part to the kernel,
//!   at its addresses. The part returns to the region when the program unmaps it.
//! - [`Changes`] gives mmap(2) and related calls the results that the kernel gives. The program may
//!   unmap memory while a system call of another thread uses it. The memory is then freed by the
//!   first change of the mappings after that system call has returned.

mod changes;

pub use changes::{Changes, Owner, Part};

use crate::address_space::{AddressSpace, ExtentKind};
use crate::backing::{Backing, Refusal};
use crate::mechanism;
use crate::region::{self, Access, SwapRegion};
use crate::text::SwapText;
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use usring_device::control::{Control, RemoteSupply};
use usring_device::{Device, OwnSupply, Supply};
use usring_sys::descriptor::HeldDescriptor;
use usring_sys::mapping::PAGE;
use usring_sys::mutex::Mutex;
use usring_sys::{Errno, UserAddress, user_memory, width};

/// The range of addresses for swapped memory, far from all addresses that Linux, loaders and
/// runtimes choose. All processes use this range, so a constant seccomp filter can recognise its
/// addresses.
pub const WINDOW: Range<usize> = 0x2000_0000_0000..0x2100_0000_0000;

/// Smallest limit in bytes on resident memory. Even with this limit, the pages that system calls
/// pin are only a small part of the resident memory.
pub const LEAST_LIMIT: usize = 4 << 20;
/// Maximum number of bytes that usring pins at a time for one read or write call. If the call is
/// larger, usring carries it out in several transfers.
const MOST_PINNED: usize = 1 << 20;
/// Smallest value of the option `min` (the smallest mapping that is swapped), in bytes.
pub const LEAST_MINIMUM: usize = 128 << 10;

/// Factor for the size of the region's address range. The range is this many times as large as the
/// store's capacity plus the limit on resident memory. So large free ranges remain despite
/// fragmentation.
const ADDRESSES_PER_BYTE: usize = 4;
const ALIGNED: usize = 2 << 20;

/// The options of a program's swapped memory. They come from the launcher or from the environment.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// The parsed text of `--swap`. [`Mappings`] ignores its field `minimum`. Instead, the caller
    /// passes only mappings of at least that length to [`Mappings`].
    pub text: &'a SwapText,
    /// File in which the process has its counters (`counters::run`).
    pub statistics: Option<&'a CStr>,
    /// Path of the launcher's socket, if the store is on a vhost-user back end.
    pub socket: Option<&'a [u8]>,
}

/// Returns the length in bytes of the address range of a region. `capacity`: the bytes of the
/// backing store. `limit`: the limit on resident memory in bytes.
fn addresses(capacity: u64, limit: usize) -> usize {
    let held = width::size(capacity).saturating_add(limit);
    held.saturating_mul(ADDRESSES_PER_BYTE).min(WINDOW.len() / 2).next_multiple_of(ALIGNED)
}

/// Returns the minimum size of a store and the minimum limit for a mechanism, in bytes. Both depend
/// on the mechanism's unit. The unit depends on `capacity` (bytes of the intended store) and
/// `limit` (the intended limit in bytes).
pub fn minimum_sizes(capacity: u64, limit: usize, mechanism: mechanism::MechanismKind) -> (u64, usize) {
    let unit = mechanism.unit(addresses(capacity, limit));
    (unit as u64, (unit * region::LEAST_LIMIT).max(LEAST_LIMIT))
}

/// Maximum number of pages of the region that may be pinned at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinLimit {
    /// Any number of pages. Used for calls that need only a few pages each.
    None,
    /// Half of the pages that the limit on resident memory allows.
    HalfOfMemory,
}

pub struct Mappings {
    pub(crate) region: SwapRegion,
    pub(crate) space: Mutex<AddressSpace>,
    /// The lock on the backing store's file, which this process shares with its forked children.
    pub(crate) claim: Option<HeldDescriptor>,
    /// Whether the kernel copies the memory to every forked child. It then also copies it to a
    /// child that gets no copy of the evicted pages (`crate::inheritance`).
    pub(crate) exposed: AtomicBool,
}

static ZEROES: [u8; PAGE] = [0; PAGE];

impl Mappings {
    /// Opens the backing store and makes this process its only user. The store may still hold pages
    /// of an earlier run, which are ignored.
    pub fn open(options: &Options) -> Result<Self, Refusal> {
        let Backing { device, claim, header, .. } = Backing::open(&options.text.spec, supply(options.socket)?)?;
        let mappings = Mappings::behind_header(device, header, options)?;
        Ok(Mappings { claim, ..mappings })
    }

    /// Sets up swapped memory on an open device that has no other user. Ignores the name of the
    /// store in `options`.
    pub fn on(device: Arc<Device>, options: &Options) -> Result<Self, Refusal> {
        Self::behind_header(device, 0, options)
    }

    fn behind_header(device: Arc<Device>, header: u64, options: &Options) -> Result<Self, Refusal> {
        let size = addresses(device.geometry().size - header, options.text.limit);
        let mut builder = SwapRegion::builder().size(size).limit(options.text.limit).behind_header(device, header);
        if let Some(mechanism) = options.text.mechanism {
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

    /// Returns two numbers of bytes, both whole pages. A transfer should pin at most the first
    /// number at once. One system call can pin at most the second number.
    pub fn most_pinned(&self) -> (usize, usize) {
        let limit = self.region.limit() * self.region.page_size();
        ((limit / 16).min(MOST_PINNED) / PAGE * PAGE, limit / 2)
    }

    /// Returns the end address of the unit in which a mapping with the end address `end` ends.
    fn unit_end(&self, end: usize) -> usize {
        let base = self.region.as_ptr() as usize;
        base + (end - base).next_multiple_of(self.region.page_size())
    }

    fn offsets(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.region.as_ptr() as usize;
        range.start - start..range.end - start
    }

    /// Locks the mappings, so that the caller can change them.
    pub fn change(&self) -> Changes<'_> {
        Changes { mappings: self, space: self.space.lock() }
    }

    /// Returns the addresses of the mapped extent that contains an address. `None` if there is
    /// none.
    pub fn around(&self, address: usize) -> Option<Range<usize>> {
        self.space.lock().mapped_extent_at(address)
    }

    /// Fills mapped memory with zeroes. Discards the whole units of `part`. Writes zeroes to units
    /// that are pinned, and to the units that `part` covers only partly.
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

    /// Returns whether the page at an address of the region is resident.
    pub fn is_resident(&self, address: usize) -> bool {
        self.region.is_resident(address - self.region.as_ptr() as usize)
    }

    /// Pins the mapped parts of a range. Calls `keep` with each part, which the caller has to unpin
    /// later. Skips parts that are released to the kernel or not mapped. Errors: those of
    /// [`SwapRegion::pin`].
    pub fn pin(
        &self,
        range: &Range<usize>,
        access: Access,
        limit: PinLimit,
        mut keep: impl FnMut(Range<usize>),
    ) -> Result<(), Errno> {
        let most = match limit {
            PinLimit::None => usize::MAX,
            PinLimit::HalfOfMemory => self.region.limit() / 2,
        };
        let mut start = range.start;
        while let Some(part) = self.first_mapped_part(&(start..range.end)) {
            match self.region.pin_among(self.offsets(&part), access, most) {
                Ok(pin) => core::mem::forget(pin),
                // Another thread is unmapping a page of the part, or is releasing it to the kernel.
                // That thread holds the mappings' lock, for which the next attempt waits.
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

    /// Returns the first mapped part of a range; `None` if nothing in the range is mapped.
    fn first_mapped_part(&self, range: &Range<usize>) -> Option<Range<usize>> {
        if range.is_empty() {
            return None;
        }
        let space = self.space.lock();
        space.mapped_extent_at(range.start).map_or_else(
            || space.parts(range, ExtentKind::Mapped).into_iter().next(),
            |around| Some(range.start..range.end.min(around.end)),
        )
    }

    /// Returns whether a part that was just pinned is still mapped. If not, unpins the part, and
    /// drops the content that was paged in for the pin. So no later mapping finds this content.
    fn is_still_mapped(&self, part: &Range<usize>) -> bool {
        let space = self.space.lock();
        if space.mapped_extent_at(part.start).is_some_and(|around| part.end <= around.end) {
            return true;
        }
        self.unpin(part);
        for unit in part.clone().step_by(self.region.page_size()) {
            // A pin of another call makes the discard fail. Then the content stays until a later
            // change of the mappings discards it.
            let _ = self.region.discard_shared(self.offsets(&space.idle_units(&(unit..unit + 1))));
        }
        false
    }

    pub fn unpin(&self, range: &Range<usize>) {
        let _ = self.region.unpin(self.offsets(range));
    }

    pub fn range(&self) -> Range<usize> {
        let start = self.region.as_ptr() as usize;
        start..start + self.region.size()
    }

    /// Returns the extents that the program has mapped, without those that were released to the
    /// kernel.
    pub fn mapped(&self) -> Vec<Range<usize>> {
        self.space.lock().extents_of(ExtentKind::Mapped)
    }
}

fn write_zeroes(range: &Range<usize>) -> Result<(), Errno> {
    range.clone().step_by(PAGE).try_for_each(|start| {
        let length = (range.end - start).min(PAGE);
        user_memory::copy_out(UserAddress(start as u64), &ZEROES[..length])
    })
}

/// Returns the source of a device's queues. With a socket, the source is the launcher, which lends
/// the vhost-user back end to this process alone.
fn supply(socket: Option<&[u8]>) -> Result<Box<dyn Supply>, Refusal> {
    let Some(socket) = socket else { return Ok(Box::new(OwnSupply)) };
    match RemoteSupply::of_swap(Control::at(socket)) {
        Ok(supply) => Ok(Box::new(supply)),
        Err(Errno::EBUSY) => Err(Refusal::InUse),
        Err(error) => Err(error.into()),
    }
}
