//! [`SwapRegion`] and its [`Builder`]: the interface of a swap region to Rust programs. `interpose`
//! builds the C interface on [`SwapRegion`]. `pager` has the region's state.

use crate::background::Background;
use crate::backing::{self, Refusal};
use crate::counters::{self, Counter, Counters, Statistics};
use crate::mechanism::{self, MechanismKind, Prepared};
use crate::page::{Pinned, State};
use crate::pager::{Lost, PageAccess, Pager, Parts};
use crate::run;
use crate::store::Store;
use crate::store_queue::StoreQueue;
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

/// Smallest limit on resident memory, in units. It leaves room for the pages that several threads
/// page in at the same time.
pub const LEAST_LIMIT: usize = 64;

/// Maximum number of bytes that are read ahead by default.
const READAHEAD: usize = 128 << 10;
/// Number of store queues for each processor, by default.
const QUEUES: usize = 4;

/// Queue pairs for the region's own threads: one for the evictor, one for the reader.
const OWN_QUEUES: u32 = 2;
/// Minimum queue pairs of a device: one each for the evictor, the reader, and faulting threads.
pub const LEAST_QUEUES: u32 = OWN_QUEUES + 1;

/// How the caller uses memory that it pins or keeps resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The caller only reads the memory.
    Read,
    /// The caller reads and writes the memory.
    Write,
}

/// Makes a [`SwapRegion`].
#[derive(Clone, Default)]
pub struct Builder {
    size: usize,
    limit: usize,
    backing: Backing,
    mechanism: Option<MechanismKind>,
    readahead: Option<usize>,
    queues: Option<usize>,
    supply: Option<Arc<dyn Supply>>,
    address: Option<usize>,
    unknown_threads: bool,
    statistics: Option<CString>,
}

/// The backing store that the builder was given.
#[derive(Clone, Default)]
enum Backing {
    #[default]
    None,
    Text(Spec),
    /// An open device, and the number of bytes before its first slot.
    Open(Arc<Device>, u64),
}

impl Builder {
    /// Sets the size of the region in bytes; it is rounded up to whole pages.
    pub fn size(mut self, bytes: usize) -> Self {
        self.size = bytes;
        self
    }

    /// Sets the limit: how many bytes of the region may be resident at most.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Sets the backing store by a SPEC, in the form of `usring run --device`:
    /// `file:path=/var/tmp/swap,size=1G,create=on`. With `overwrite=on`, a file or device with
    /// other data is accepted, too.
    pub fn backing(mut self, text: &str) -> Result<Self, SpecError> {
        self.backing = Backing::Text(spec::parse(text)?);
        Ok(self)
    }

    /// Sets the source of a vhost-user device's queues. Without it `build` fails (`EOPNOTSUPP`).
    pub fn supply(mut self, supply: Arc<dyn Supply>) -> Self {
        self.supply = Some(supply);
        self
    }

    /// Sets the backing store to an open device, which may be smaller than the region. The caller
    /// guarantees that nothing else uses the device.
    pub fn device(self, device: Arc<Device>) -> Self {
        self.behind_header(device, 0)
    }

    /// Sets the backing store to an open device whose first slot lies after `header` bytes.
    pub(crate) fn behind_header(mut self, device: Arc<Device>, header: u64) -> Self {
        self.backing = Backing::Open(device, header);
        self
    }

    /// Sets the mechanism. Default: the first of [`MechanismKind::BY_ITSELF`] that works here.
    pub fn mechanism(mut self, mechanism: MechanismKind) -> Self {
        self.mechanism = Some(mechanism);
        self
    }

    /// Sets how many bytes are read ahead at most for a thread whose faults are sequential. The
    /// default is 128 KiB; 0 turns read-ahead off.
    pub fn readahead(mut self, bytes: usize) -> Self {
        self.readahead = Some(bytes);
        self
    }

    /// Sets how many threads can fault at once without sharing a queue pair. The default is four
    /// for each processor. A device with fewer queue pairs lowers the number.
    pub fn queues(mut self, queues: usize) -> Self {
        self.queues = Some(queues.max(1));
        self
    }

    /// Prepares the region of an unmodified program, which may touch the region inside libc's
    /// malloc. The region lies at `address`, a multiple of 2 MiB where nothing is mapped. Its
    /// counters are in the file `statistics` (`counters::run`). libc does not know its threads.
    pub(crate) fn beneath_program(mut self, address: usize, statistics: Option<CString>) -> Self {
        (self.address, self.unknown_threads, self.statistics) = (Some(address), true, statistics);
        self
    }

    /// Makes the region. The content in its backing store is lost when the region is dropped: only
    /// the region knows which slot belongs to which page.
    ///
    /// Errors:
    /// - [`Refusal`]: the store cannot be used, or has no room for all of the region.
    /// - `EINVAL`: no backing store is set, the size is 0, the limit is below 64 pages, or the
    ///   device cannot be written in pages.
    /// - `EOPNOTSUPP`: no mechanism works here.
    /// - `ENOMEM`; the error of opening the device, its queue pairs, or the chosen mechanism.
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
        let queues = self.queues.unwrap_or_else(|| QUEUES * processor::count() as usize);
        let queues = queues.min(device.geometry().queues.saturating_sub(OWN_QUEUES).max(1) as usize);
        // The queues of the evictor and of the reader are opened first, because the store may open
        // all remaining queue pairs of the device.
        let evictor = StoreQueue::new(&device, unit)?;
        let reader = StoreQueue::new(&device, run::MOST * unit)?;
        let store = Store::new(device, header, unit, queues, self.unknown_threads)?;
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

    fn prepare(&self) -> Result<(MechanismKind, usize, Prepared), Errno> {
        if self.size == 0 {
            return Err(Errno::EINVAL);
        }
        let prepare = |kind: MechanismKind| {
            let unit = kind.unit(self.size);
            let length = self.size.checked_next_multiple_of(unit).ok_or(Errno::ENOMEM)?;
            Ok((kind, unit, mechanism::prepare(kind, length, self.address)?))
        };
        match self.mechanism {
            Some(kind) => prepare(kind),
            None => {
                let mut failed = Errno::EOPNOTSUPP;
                for kind in MechanismKind::BY_ITSELF {
                    match prepare(kind) {
                        Ok(prepared) => return Ok(prepared),
                        // The user can free memory, but cannot add a mechanism to the kernel. So
                        // `ENOMEM` is reported in preference to other errors.
                        Err(Errno::ENOMEM) => failed = Errno::ENOMEM,
                        Err(_) => {}
                    }
                }
                Err(failed)
            }
        }
    }
}

/// Returns counters in a part of `file`. If that fails, returns counters in this process's memory.
pub(crate) fn counters_in(file: Option<&CStr>) -> Result<Counters, Errno> {
    file.and_then(counters::run::take).map_or_else(Counters::new, Ok)
}

/// Memory of which only a part is resident.
///
/// A program uses a region like any memory: an evicted page comes back when a thread touches it.
/// Three things differ:
/// - **System calls** do not page memory in, except with the mechanism `compat`. They return
///   `EFAULT`, or transfer only a part. [`SwapRegion::with_resident`] and [`SwapRegion::pin`] keep
///   memory resident for them.
/// - **A forked child** does not have the memory: touching it ends the child.
/// - **A page that cannot be read back** raises SIGBUS, as a mapped file does. A message on
///   standard error names its slot in the backing store.
///
/// A region does not grow. Make it as large as it may become: pages that were never touched take
/// neither memory nor room on the device.
///
/// Use [`SwapRegion::discard`] for content that is no longer needed, not MADV_DONTNEED.
/// MADV_DONTNEED does not free slots, and an evicted page comes back with its content.
/// MADV_DONTNEED on a page that is just being evicted may end the process.
///
/// Threads that touch the memory must not block SIGBUS or SIGSEGV. The program must not replace the
/// handlers of these signals.
pub struct SwapRegion {
    window: Window,
    /// Number of pages that are pinned at least once.
    pinned: AtomicUsize,
    registration: Option<Registration>,
    background: Background,
    /// The polling policy of the device. `None` if the region did not open the device itself.
    policy: Option<PolicyWord>,
    /// The store's file or block device, locked against other processes. `None`: it has no path.
    claim: Option<HeldDescriptor>,
    pub(crate) pager: Arc<Pager>,
}

impl SwapRegion {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Registers the pager for faults. Starts the evictor and, if read-ahead is on, the reader.
    pub(crate) fn start(
        window: Window,
        pager: Pager,
        [evictor, reader]: [StoreQueue; 2],
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

    pub fn mechanism(&self) -> MechanismKind {
        self.pager.kind
    }

    /// Returns the size of the region's pages (its units) in bytes.
    pub fn page_size(&self) -> usize {
        self.pager.unit()
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.pager.memory.address() as *mut u8
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.pager.memory.length()
    }

    pub fn as_slice(&self) -> &[u8] {
        self.window.as_slice()
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.window.as_mut_slice()
    }

    /// Sets the device's polling policy. `policy`: a value of the option `poll=`. Returns `false`
    /// for any other text, or if the region did not open the device itself.
    pub fn set_policy(&self, policy: &str) -> bool {
        match (self.policy, PollPolicy::parse(policy)) {
            (Some(word), Some(policy)) => {
                word.set(policy);
                true
            }
            _ => false,
        }
    }

    /// Changes the limit. If the new limit is lower, evicts pages before it returns.
    ///
    /// Errors: `EINVAL` for less than 64 units; `ENOSPC` if the backing store is full; `EBUSY` if
    /// too many pages are pinned; the device's errors.
    pub fn set_limit(&self, bytes: usize) -> Result<(), Errno> {
        let limit = bytes / self.pager.unit();
        if limit < LEAST_LIMIT {
            return Err(Errno::EINVAL);
        }
        let _closed = thread::close_signals();
        self.pager.limit.set(limit);
        self.pager.evict_down_to(limit)
    }

    /// Returns the limit in units of the region.
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

    /// Pages a range of bytes in and keeps it resident until the result is dropped. Evicted pages
    /// are read by requests of up to 128 KiB; the calling thread sleeps meanwhile.
    ///
    /// Errors: `EINVAL` for a range outside the region; `ENOMEM` if more than half of the limit
    /// would be pinned; `EIO` if a page cannot be read back.
    pub fn pin(&self, range: Range<usize>, access: Access) -> Result<Pin<'_>, Errno> {
        self.pin_among(range, access, self.pager.limit.get() / 2)
    }

    /// Pins a range of bytes, which stays resident until the result is dropped. Errors: those of
    /// [`SwapRegion::pin`], but `ENOMEM` only if more than `most` pages of the region would be
    /// pinned. `ENXIO` if a page is released to the kernel, or the program has not mapped it.
    pub(crate) fn pin_among(&self, range: Range<usize>, access: Access, most: usize) -> Result<Pin<'_>, Errno> {
        let pages = self.pages(&range)?;
        let mut pin = Pin { region: self, pages: pages.start..pages.start };
        for page in pages.clone() {
            self.pin_first(page..pages.end, access == Access::Write, most)?;
            pin.pages.end = page + 1;
        }
        Ok(pin)
    }

    /// Pins the first page of `pages`. The request that pages it in may page in later pages, too.
    fn pin_first(&self, pages: Range<usize>, write: bool, most: usize) -> Result<(), Errno> {
        let index = pages.start;
        let access = PageAccess { write, present: true, fault_slot: page_fault::fault_slot() };
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
                Pinned::No(State::Unmanaged) => return Err(Errno::ENXIO),
                Pinned::No(_) => {
                    // Signals are blocked: a handler that touches a page may wait for this thread.
                    let _closed = thread::close_signals();
                    if self.pager.page_in_range(pages.clone(), access) {
                        continue;
                    }
                    self.pager.page_in(index, access).map_err(|lost| {
                        if lost == Lost::UNUSED {
                            return Errno::ENXIO;
                        }
                        self.pager.report_lost(index, lost);
                        Errno::EIO
                    })?;
                }
            }
        }
    }

    /// Unpins a range whose [`Pin`] was forgotten, for languages that cannot store a `Pin`. Errors:
    /// `EINVAL` for a range outside the region.
    ///
    /// # Panics
    /// If a page of the range is not pinned.
    pub fn unpin(&self, range: Range<usize>) -> Result<(), Errno> {
        self.pages(&range)?.for_each(|page| self.unpin_page(page));
        Ok(())
    }

    fn unpin_page(&self, index: usize) {
        if self.pager.page(index).unpin() {
            self.pinned.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Calls `work` with a part of the memory, which stays resident during the call. Use this for
    /// system calls, which do not page memory in. Errors: those of [`SwapRegion::pin`].
    pub fn with_resident<R>(
        &mut self,
        range: Range<usize>,
        access: Access,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Errno> {
        // A `Pin` would keep the region borrowed, but `work` changes its memory.
        let pages = self.pages(&range)?;
        let pin = self.pin(range.clone(), access)?;
        core::mem::forget(pin);
        let result = work(&mut self.window.as_mut_slice()[range]);
        pages.for_each(|page| self.unpin_page(page));
        Ok(result)
    }

    /// Drops the content of whole pages. The pages then hold zeroes, and take neither memory nor
    /// slots.
    ///
    /// Errors: `EINVAL` for a range that is not whole pages of the region; `EBUSY` at a pinned page
    /// (the pages before it are dropped).
    pub fn discard(&mut self, range: Range<usize>) -> Result<(), Errno> {
        self.discard_shared(range)
    }

    /// Drops the content of whole pages while other threads may use the region. A concurrent write
    /// to the range may be dropped or kept. Errors: those of [`SwapRegion::discard`].
    pub fn discard_shared(&self, range: Range<usize>) -> Result<(), Errno> {
        let unit = self.pager.unit();
        let pages = self.pages(&range)?;
        if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
            return Err(Errno::EINVAL);
        }
        let _closed = thread::close_signals();
        self.pager.discard(pages)
    }

    /// Releases whole pages to the kernel with their content. Ordinary memory of the kernel takes
    /// their place. The region's limit no longer counts the pages.
    ///
    /// Errors, after which the pages stay in the region: `EBUSY` if a page is pinned or released
    /// already; `EIO`; `ENOMEM`.
    pub(crate) fn release_to_kernel(&self, range: Range<usize>) -> Result<(), Errno> {
        self.pager.release_to_kernel(self.pages(&range)?)
    }

    /// Sets the function that a forked child calls at its first touch of inherited memory.
    pub fn set_first_touch(&self, first_touch: &'static fn() -> bool) {
        self.pager.set_first_touch(first_touch);
    }

    /// Releases whole pages to the kernel, and discards their content. `act` maps something else
    /// there. Some pages may already be released. Errors, after which no further page is released:
    /// `EBUSY` if a page is pinned; the error of `act`.
    pub(crate) fn replace<R>(&self, range: Range<usize>, act: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.pager.replace(self.pages(&range)?, act)
    }

    /// Takes pages back that were released to the kernel. They then hold zeroes. Errors: `ENOMEM`;
    /// `EINVAL` for a page that was not released.
    pub(crate) fn reclaim(&self, range: Range<usize>) -> Result<(), Errno> {
        self.pager.reclaim(self.pages(&range)?)
    }

    /// Returns whether the page at an offset is resident.
    pub(crate) fn is_resident(&self, offset: usize) -> bool {
        self.pager.page(offset / self.pager.unit()).state().is_resident()
    }

    /// Declares that only the first `bytes` bytes of the region are in use. Pages after them are
    /// not evicted. Page faults beyond the largest extent ever set are not handled. Only one thread
    /// may call this at a time. Error, after which the extent is unchanged: `ENOMEM`.
    pub(crate) fn set_extent(&self, bytes: usize) -> Result<(), Errno> {
        self.pager.mechanism.extend(bytes)?;
        self.pager.set_extent(bytes.div_ceil(self.pager.unit()));
        Ok(())
    }

    /// Records which whole pages the program has mapped, for a region made by `beneath_program`. A
    /// touch of a page that is not mapped raises SIGSEGV.
    pub(crate) fn set_in_use(&self, range: Range<usize>, in_use: bool) {
        let unit = self.pager.unit();
        self.pager.set_in_use(range.start / unit..range.end.div_ceil(unit), in_use);
    }

    /// Moves the content of whole pages to pages that hold nothing, from offset `to` on. An evicted
    /// page moves without being read. A pinned page is copied, and stays. Errors, after which
    /// nothing has moved: `EBUSY` for a page that was released to the kernel; the kernel's.
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
            // A forked child has neither the region's threads nor its memory to unregister.
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

/// A range of pages that stays resident until this value is dropped.
#[must_use = "the pages may be evicted once this is dropped"]
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
