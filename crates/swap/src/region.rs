//! A region as a program has it.

use crate::background::Background;
use crate::backing::{self, Refusal};
use crate::counters::{self, Counter, Counters, Statistics};
use crate::lane::Lane;
use crate::mechanism::{self, Kind, Prepared};
use crate::page::{Pinned, State};
use crate::pager::{Lost, Pager, Parts, Touch};
use crate::run;
use crate::store::Store;
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::sync::Arc;
use core::ffi::CStr;
use core::fmt;
use core::ops::Range;
use usring_device::{Device, OwnSupply, PolicyWord, PollPolicy, Spec, SpecError, Supply, spec};
use usring_sys::descriptor::HeldDescriptor;
use usring_sys::page_fault::{self, Registration};
use usring_sys::paged_memory::Window;
use usring_sys::sync::{AtomicUsize, Ordering};
use usring_sys::{Errno, processor, thread, user_memory};

/// Least limit in units: a few clusters, so that what one thread evicts is not
/// what another brings in.
pub const LEAST_LIMIT: usize = 64;

/// Bytes read ahead, unless something else is asked for.
const READAHEAD: usize = 128 << 10;
/// Lanes for each processor, unless something else is asked for.
const LANES: usize = 4;

/// Queue pairs of the evictor and of the reader.
const OWN_QUEUES: u32 = 2;
/// With one for those who fault.
pub const LEAST_QUEUES: u32 = OWN_QUEUES + 1;

/// What is to be done with memory that is kept resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is read and written.
    Write,
}

/// Makes a [`SwapRegion`].
#[derive(Clone, Default)]
pub struct Builder {
    size: usize,
    limit: usize,
    backing: Backing,
    mechanism: Option<Kind>,
    readahead: Option<usize>,
    lanes: Option<usize>,
    supply: Option<Arc<dyn Supply>>,
    address: Option<usize>,
    unknown_threads: bool,
    statistics: Option<CString>,
}

/// Where pages go.
#[derive(Clone, Default)]
enum Backing {
    #[default]
    None,
    Text(Spec),
    /// A device, and the bytes in front of its first slot.
    Open(Arc<Device>, u64),
}

impl Builder {
    /// Bytes of the region; rounded up to whole pages.
    pub fn size(mut self, bytes: usize) -> Self {
        self.size = bytes;
        self
    }

    /// Most bytes of it that are resident.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Where its pages go, as `usring run --device` takes it:
    /// `file:path=/var/tmp/swap,size=1G`. `overwrite=on` has a file or device taken that holds
    /// data of somebody's.
    pub fn backing(mut self, text: &str) -> Result<Self, SpecError> {
        self.backing = Backing::Text(spec::parse(text)?);
        Ok(self)
    }

    /// What the device in words needs of another process: a back end's queues.
    pub fn supply(mut self, supply: Arc<dyn Supply>) -> Self {
        self.supply = Some(supply);
        self
    }

    /// A device that is open, instead of one in words. Its owner vouches that nothing else uses
    /// it; it may be smaller than the region.
    pub fn device(self, device: Arc<Device>) -> Self {
        self.behind_header(device, 0)
    }

    /// A device that is open, with its first slot behind so many bytes.
    pub(crate) fn behind_header(mut self, device: Arc<Device>, header: u64) -> Self {
        self.backing = Backing::Open(device, header);
        self
    }

    /// Which mechanism, instead of the best that works here.
    pub fn mechanism(mut self, mechanism: Kind) -> Self {
        self.mechanism = Some(mechanism);
        self
    }

    /// Most bytes that are read ahead of a thread whose faults follow each
    /// other (128 KiB unless said); 0: none.
    pub fn readahead(mut self, bytes: usize) -> Self {
        self.readahead = Some(bytes);
        self
    }

    /// How many threads fault at the same time without waiting for each other's
    /// queue pair: four for each processor, unless said.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = Some(lanes.max(1));
        self
    }

    /// At this address, a multiple of 2 MiB where nothing is mapped, counting in this file (`counters::run`), and with threads that
    /// libc does not know: for memory of a program that knows nothing of it, which may ask
    /// for some from inside libc's malloc.
    pub(crate) fn beneath_program(mut self, address: usize, statistics: Option<CString>) -> Self {
        (self.address, self.unknown_threads, self.statistics) = (Some(address), true, statistics);
        self
    }

    /// Makes the region. What the backing store holds when the region is gone is of no use.
    ///
    /// Errors: what a store is refused for ([`Refusal`]), which has room for all of the region;
    /// `EINVAL` where the size is 0, the limit less than 64 pages, or the
    /// device cannot be written to in pages; `EOPNOTSUPP` where no mechanism works here;
    /// what opening the device, its queue pairs, or the mechanism that was asked
    /// for answers; `ENOMEM`.
    pub fn build(self) -> Result<SwapRegion, Refusal> {
        user_memory::install_fault_handler();
        let backing::Backing { device, policy, claim, header } = self.open()?;
        let (kind, unit, prepared) = self.prepare()?;
        let Prepared { window, mechanism, events } = prepared;
        if matches!(self.backing, Backing::Text(_)) {
            let (needed, found) = (header + window.memory().length() as u64, device.geometry().size);
            if found < needed {
                return Err(Refusal::TooSmall { needed, found });
            }
        }
        if self.address.is_none() {
            mechanism.extend(window.memory().length())?;
        }
        let limit = self.limit / unit;
        if limit < LEAST_LIMIT {
            return Err(Errno::EINVAL.into());
        }
        let lanes = self.lanes.unwrap_or_else(|| LANES * processor::count() as usize);
        let lanes = lanes.min(device.geometry().queues.saturating_sub(OWN_QUEUES).max(1) as usize);
        // The evictor's and the reader's own come first: the device may have no
        // more queue pairs than the store takes.
        let evictor = Lane::new(&device, unit)?;
        let reader = Lane::new(&device, run::MOST * unit)?;
        let store = Store::new(device, header, unit, lanes, self.unknown_threads)?;
        let memory = window.memory().clone();
        let readahead = self.readahead.unwrap_or(READAHEAD) / unit;
        let counters = counters_in(self.statistics.as_deref())?;
        let unused = self.unknown_threads;
        let pager = Pager::new(Parts { kind, memory, mechanism, store, limit, readahead, counters, unused })?;
        let mut region = SwapRegion::start(window, pager, [evictor, reader], self.unknown_threads)?;
        region.policy = policy;
        region.claim = claim;
        if let Some(events) = events {
            region.background.serve(events)?;
        }
        Ok(region)
    }

    fn open(&self) -> Result<backing::Backing, Refusal> {
        match &self.backing {
            Backing::None => Err(Errno::EINVAL.into()),
            Backing::Open(device, header) => {
                Ok(backing::Backing { device: device.clone(), policy: None, claim: None, header: *header })
            }
            Backing::Text(spec) => {
                let supply: Box<dyn Supply> = match &self.supply {
                    Some(supply) => Box::new(supply.clone()),
                    None => Box::new(OwnSupply),
                };
                backing::Backing::open(spec, supply)
            }
        }
    }

    fn prepare(&self) -> Result<(Kind, usize, Prepared), Errno> {
        if self.size == 0 {
            return Err(Errno::EINVAL);
        }
        let prepare = |kind: Kind| {
            let unit = kind.unit(self.size);
            let length = self.size.checked_next_multiple_of(unit).ok_or(Errno::ENOMEM)?;
            Ok((kind, unit, mechanism::prepare(kind, length, self.address)?))
        };
        match self.mechanism {
            Some(kind) => prepare(kind),
            None => {
                let mut failed = Errno::EOPNOTSUPP;
                for kind in Kind::BY_ITSELF {
                    match prepare(kind) {
                        Ok(prepared) => return Ok(prepared),
                        // Of memory there would be more elsewhere, of mechanisms not.
                        Err(Errno::ENOMEM) => failed = Errno::ENOMEM,
                        Err(_) => {}
                    }
                }
                Err(failed)
            }
        }
    }
}

/// Those of the run, or of this process alone.
pub(crate) fn counters_in(file: Option<&CStr>) -> Result<Counters, Errno> {
    file.and_then(counters::run::take).map_or_else(Counters::new, Ok)
}

/// Memory of which only a part is resident.
///
/// It is used as any memory is; what a thread touches that is out comes back
/// before its next instruction. Three things differ:
/// - **A system call** does not bring pages back (but with the mechanism `compat`): it
///   answers `EFAULT`, or a part. What it is given is kept resident by
///   [`SwapRegion::with_resident`] or [`SwapRegion::pin`].
/// - **A forked child** does not have the memory: touching it ends the child.
/// - **A page that cannot be read back** is a SIGBUS, as of a file that is mapped;
///   standard error says which slot.
///
/// It does not grow: it is made as large as it may become, as what was never touched takes
/// neither memory nor room on the device.
///
/// What is no longer wanted is given up by [`SwapRegion::discard`]. MADV_DONTNEED knows nothing of
/// slots: a page that is out comes back as it was, and one that goes out at that
/// moment may end the process.
///
/// Signals: SIGBUS and SIGSEGV must not be blocked by a thread that touches it, and
/// who takes their handlers away takes the pages along.
pub struct SwapRegion {
    window: Window,
    /// Pages that are pinned at least once.
    pinned: AtomicUsize,
    registration: Option<Registration>,
    background: Background,
    /// The device's, where the region opened it.
    policy: Option<&'static PolicyWord>,
    /// Keeps other regions from the backing store, where this one opened it.
    claim: Option<HeldDescriptor>,
    pub(crate) pager: Arc<Pager>,
}

impl SwapRegion {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Has touches of the memory served by a pager, and its threads work, by these lanes.
    pub(crate) fn start(
        window: Window,
        pager: Pager,
        [evictor, reader]: [Lane; 2],
        unknown_threads: bool,
    ) -> Result<Self, Errno> {
        let pager = Arc::new(pager);
        let range = pager.memory.address()..pager.memory.address() + pager.memory.length();
        let registration = page_fault::register(range, pager.clone()).ok_or(Errno::ENOMEM)?;
        let background = Background::new(pager.clone(), unknown_threads);
        let region = SwapRegion {
            window,
            pinned: AtomicUsize::new(0),
            registration: Some(registration),
            background,
            policy: None,
            claim: None,
            pager,
        };
        region.background.spawn("usring-evictor", move |pager| pager.evict_in_background(evictor))?;
        if region.pager.streams.most() > 0 {
            region.background.spawn("usring-reader", move |pager| pager.read_ahead(reader))?;
        }
        Ok(region)
    }

    pub fn mechanism(&self) -> Kind {
        self.pager.kind
    }

    /// Bytes that come and go together.
    pub fn page_size(&self) -> usize {
        self.pager.unit()
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.pager.memory.address() as *mut u8
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.pager.memory.length()
    }

    pub fn as_slice(&self) -> &[u8] {
        self.window.as_slice()
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.window.as_mut_slice()
    }

    /// How pages are waited for from now on, in the words of `poll=`. `false`
    /// if it is none, or the device's owner has the policy.
    pub fn set_policy(&self, policy: &str) -> bool {
        match (self.policy, PollPolicy::parse(policy)) {
            (Some(word), Some(policy)) => {
                word.set(policy);
                true
            }
            _ => false,
        }
    }

    /// Where its pages go.
    pub fn device(&self) -> &Arc<Device> {
        self.pager.store.device()
    }

    /// Changes the limit; a lower one is kept when this returns.
    ///
    /// Errors: `EINVAL` where it is less than 64 pages; `ENOSPC` where the backing store has no
    /// room for what has to go; `EBUSY` where too much is pinned; what the device answers.
    pub fn set_limit(&self, bytes: usize) -> Result<(), Errno> {
        let limit = bytes / self.pager.unit();
        if limit < LEAST_LIMIT {
            return Err(Errno::EINVAL);
        }
        let _closed = thread::close_signals();
        self.pager.limit.set(limit);
        self.pager.evict_down_to(limit)
    }

    /// In units.
    pub(crate) fn limit(&self) -> usize {
        self.pager.limit.get()
    }

    fn pages(&self, range: &Range<usize>) -> Result<Range<usize>, Errno> {
        if range.start > range.end || range.end > self.size() {
            return Err(Errno::EINVAL);
        }
        let unit = self.pager.unit();
        Ok(range.start / unit..range.end.div_ceil(unit))
    }

    /// Brings a range of bytes in and keeps it resident until the pin is dropped. What is
    /// out is read by requests of up to 128 KiB, not polled for.
    ///
    /// Errors: `EINVAL` where it is not within the region; `ENOMEM` where more than half of
    /// the limit would be pinned; `EIO` where a page cannot be read back.
    pub fn pin(&self, range: Range<usize>, access: Access) -> Result<Pin<'_>, Errno> {
        self.pin_among(range, access, self.pager.limit.get() / 2)
    }

    /// The same where up to so many pages may be pinned by then.
    pub(crate) fn pin_among(&self, range: Range<usize>, access: Access, most: usize) -> Result<Pin<'_>, Errno> {
        let pages = self.pages(&range)?;
        let mut pin = Pin { region: self, pages: pages.start..pages.start };
        for page in pages.clone() {
            self.pin_first(page..pages.end, access == Access::Write, most)?;
            pin.pages.end = page + 1;
        }
        Ok(pin)
    }

    /// Pins the first of some pages, and may bring in those that follow it, too.
    fn pin_first(&self, pages: Range<usize>, write: bool, most: usize) -> Result<(), Errno> {
        let index = pages.start;
        let touch = Touch { write, present: true, place: page_fault::place() };
        loop {
            match self.pager.page(index).pin(write) {
                Pinned::Again => return Ok(()),
                Pinned::First => {
                    if self.pinned.fetch_add(1, Ordering::Relaxed) < most {
                        return Ok(());
                    }
                    self.unpin_page(index);
                    return Err(Errno::ENOMEM);
                }
                Pinned::TooOften => return Err(Errno::ENOMEM),
                Pinned::No(State::Given) => return Err(Errno::ENXIO),
                Pinned::No(_) => {
                    // A handler could touch the page that this thread has.
                    let _closed = thread::close_signals();
                    if self.pager.bring_in_together(pages.clone(), touch) {
                        continue;
                    }
                    self.pager.bring_in(index, touch).map_err(|lost| {
                        if lost == Lost::UNUSED {
                            return Errno::ENXIO;
                        }
                        self.pager.complain(index, lost);
                        Errno::EIO
                    })?;
                }
            }
        }
    }

    /// Takes back a [`Pin`] of this range that was forgotten: for languages that cannot
    /// hold one. Errors: `EINVAL` where it is not within the region.
    ///
    /// # Panics
    /// If there was none.
    pub fn unpin(&self, range: Range<usize>) -> Result<(), Errno> {
        self.pages(&range)?.for_each(|page| self.unpin_page(page));
        Ok(())
    }

    fn unpin_page(&self, index: usize) {
        if self.pager.page(index).unpin() {
            self.pinned.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives `work` a part of the memory, all of which stays resident meanwhile:
    /// for system calls, which do not bring pages back. Errors: as [`SwapRegion::pin`].
    pub fn with_resident<R>(
        &mut self,
        range: Range<usize>,
        access: Access,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Errno> {
        // Not in a `Pin`, which would borrow the whole.
        let pages = self.pages(&range)?;
        let pin = self.pin(range.clone(), access)?;
        core::mem::forget(pin);
        let result = work(&mut self.window.as_mut_slice()[range]);
        pages.for_each(|page| self.unpin_page(page));
        Ok(result)
    }

    /// The content of whole pages is no longer wanted: they hold zeroes from now
    /// on, and take neither memory nor slots.
    ///
    /// Errors: `EINVAL` where the range is not whole pages of the region; `EBUSY` where one
    /// is pinned (those before it are gone).
    pub fn discard(&mut self, range: Range<usize>) -> Result<(), Errno> {
        self.discard_shared(range)
    }

    /// The same while others may use the region; what they write to the range
    /// meanwhile may be there afterwards, or not.
    pub fn discard_shared(&self, range: Range<usize>) -> Result<(), Errno> {
        let unit = self.pager.unit();
        let pages = self.pages(&range)?;
        if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
            return Err(Errno::EINVAL);
        }
        let _closed = thread::close_signals();
        self.pager.discard(pages)
    }

    /// Has whole pages hold what they hold, and be the kernel's from now on: they count to no
    /// limit, and whatever is done to them is the caller's and the kernel's affair.
    ///
    /// Errors: `EBUSY` where one is pinned, or the kernel's already; `EIO`; `ENOMEM`. Then nothing has changed.
    pub(crate) fn surrender(&self, range: Range<usize>) -> Result<(), Errno> {
        self.pager.surrender(self.pages(&range)?)
    }

    /// Who is asked, in a forked child, to have what it inherited served.
    pub fn set_heir(&self, heir: &'static fn() -> bool) {
        self.pager.set_heir(heir);
    }

    /// The same without what they hold, if `act` puts something in their place; some may be the kernel's
    /// already. Errors: `EBUSY` where one is pinned; what `act` answers. Then nothing has changed.
    pub(crate) fn replace<R>(&self, range: Range<usize>, act: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.pager.replace(self.pages(&range)?, act)
    }

    /// Takes pages back from the kernel; they hold zeroes. Errors: `ENOMEM`, `EINVAL` where one is not the
    /// kernel's.
    pub(crate) fn reclaim(&self, range: Range<usize>) -> Result<(), Errno> {
        self.pager.reclaim(self.pages(&range)?)
    }

    /// Whether the page at an offset is in memory.
    pub(crate) fn is_resident(&self, offset: usize) -> bool {
        self.pager.page(offset / self.pager.unit()).state().is_resident()
    }

    /// Only so many bytes from the start are in use: eviction looks no further, and touches behind
    /// what was ever in use are not served. For one thread at a time.
    ///
    /// Errors: `ENOMEM`; then nothing has changed.
    pub(crate) fn set_extent(&self, bytes: usize) -> Result<(), Errno> {
        self.pager.mechanism.extend(bytes)?;
        self.pager.set_extent(bytes.div_ceil(self.pager.unit()));
        Ok(())
    }

    /// Whether touches of whole pages are touches of memory: where that is not so yet (`beneath_program`), or no
    /// longer, when they are given up.
    pub(crate) fn set_in_use(&self, range: Range<usize>, in_use: bool) {
        let unit = self.pager.unit();
        self.pager.set_in_use(range.start / unit..range.end.div_ceil(unit), in_use);
    }

    /// Has the content of whole pages move to others that hold nothing; what nobody has
    /// in memory moves without coming in, what is pinned stays as well. Errors: `ENOMEM`; then all is as it was.
    pub(crate) fn move_pages(&self, from: Range<usize>, to: usize) -> Result<(), Errno> {
        let unit = self.pager.unit();
        self.pager.move_pages(self.pages(&from)?, to / unit)
    }

    pub fn statistics(&self) -> Statistics {
        let pager = &*self.pager;
        let sum = |counter| pager.counters.sum(counter);
        Statistics {
            pages: pager.pages() as u64,
            page_size: pager.unit() as u64,
            limit: pager.limit.get() as u64,
            resident: pager.limit.resident() as u64,
            peak: pager.counters.peak(),
            pinned: self.pinned.load(Ordering::Relaxed) as u64,
            slots: u64::from(pager.store.slots.count()),
            slots_taken: pager.store.slots.taken() as u64,
            first_touches: sum(Counter::FirstTouches),
            swap_ins: sum(Counter::SwapIns),
            write_faults: sum(Counter::WriteFaults),
            late_faults: sum(Counter::LateFaults),
            read_ahead: sum(Counter::ReadAhead),
            evicted: sum(Counter::Evicted),
            written: sum(Counter::Written),
            write_requests: sum(Counter::WriteRequests),
            direct_evictions: sum(Counter::DirectEvictions),
            read_errors: sum(Counter::ReadErrors),
            write_errors: sum(Counter::WriteErrors),
            over_limit: sum(Counter::OverLimit),
        }
    }
}

impl Drop for SwapRegion {
    fn drop(&mut self) {
        let registration = self.registration.take();
        if self.pager.memory.is_ours() {
            self.background.stop();
        } else if let Some(registration) = registration {
            // A child's copy: it has neither the threads nor the memory.
            registration.forget();
        }
    }
}

impl fmt::Debug for SwapRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapRegion")
            .field("mechanism", &self.mechanism())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// Pages that stay resident until this is dropped.
#[must_use = "the pages may go when this is dropped"]
#[derive(Debug)]
pub struct Pin<'a> {
    region: &'a SwapRegion,
    pages: Range<usize>,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pages.clone().for_each(|page| self.region.unpin_page(page));
    }
}
