//! Memory regions of which only a part is resident, without privileges and without the system's
//! swap.
//!
//! The region's other pages are on its backing: a file, or a device that usring drives. A thread
//! that touches an evicted page reads that page back itself, by polling.
//!
//! ```
//! use usring::swap::SwapRegion;
//!
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("pages").display().to_string();
//! let mut region = SwapRegion::builder()
//!     .size(64 << 20)
//!     .limit(16 << 20)
//!     .backing(&format!("file:path={path},size=65M,create=on"))?
//!     .build()?;
//! for page in region.as_mut_slice().chunks_mut(4096) {
//!     page[0] = 7;
//! }
//! assert!(region.as_slice().iter().step_by(4096).all(|byte| *byte == 7));
//! assert!(region.statistics().evicted > 0);
//! # Ok(())
//! # }
//! ```
//!
//! # What differs from other memory
//! - **A system call** on memory of a region answers `EFAULT` at an evicted page, or stops there.
//!   Before such a call, bring the memory in with [`SwapRegion::with_resident`] or hold a [`Pin`].
//!   A datagram that is received into an evicted page is lost.
//! - **A forked child** does not have the memory. A child that touches it ends with SIGBUS.
//! - **A page that cannot be read back** raises SIGBUS. usring writes the page's position on the
//!   backing to standard error.
//! - **Signals:** no thread may block SIGBUS or SIGSEGV while a region is used. usring's handlers
//!   of both must stay in place from the first region on. A handler that was installed before still
//!   gets the faults outside of regions.
//! - **Do not use a region** for threads' stacks, for futexes, or for buffers registered with a
//!   ring.

use crate::api::os_error;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
#[cfg(feature = "vhost-user")]
use std::io::Write;
use std::ops::Range;
#[cfg(feature = "vhost-user")]
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "vhost-user")]
use usring_device::driver::{storage, vhost_user::Options};
use usring_swap::Refusal;
pub use usring_swap::{Access, Mechanism, Pin, Statistics};
#[cfg(feature = "vhost-user")]
use usring_vhost_user::VhostUser;

/// Sets the options of a [`SwapRegion`] and makes it.
#[derive(Clone, Default)]
pub struct Builder {
    builder: usring_swap::Builder,
    back_end: Option<BackEnd>,
}

/// The connection to the process that serves the backing, if the backing is a vhost-user device.
#[cfg(feature = "vhost-user")]
type BackEnd = Arc<VhostUser>;
#[cfg(not(feature = "vhost-user"))]
type BackEnd = std::convert::Infallible;

impl Builder {
    /// Sets the size of the region in bytes, rounded up to whole pages.
    pub fn size(self, bytes: usize) -> Self {
        Builder { builder: self.builder.size(bytes), ..self }
    }

    /// Sets how many bytes of the region may be resident: at least 256 KiB (with
    /// [`Mechanism::Protect`], 4 MiB).
    pub fn limit(self, bytes: usize) -> Self {
        Builder { builder: self.builder.limit(bytes), ..self }
    }

    /// Sets where the region's evicted pages go. `text` is a SPEC of `usring run --device`, such as
    /// `file:path=/var/tmp/pages,size=1G,create=on` or `ram:size=1G`. Its option `poll=` sets how a
    /// thread waits for a page.
    ///
    /// - The backing needs room for the whole region, and a file needs 4 KiB more for a header.
    /// - [`Builder::build`] refuses a file, a device or a back end with data that usring did not
    ///   write, unless the text says `overwrite=on`.
    /// - For a device of another process (`vhost-user:socket=…`) this function connects to that
    ///   process. Such a device needs at least three queues.
    ///
    /// Errors: `InvalidInput` with the reason; `NotConnected` with what is wrong with the other
    /// process.
    pub fn backing(self, text: &str) -> io::Result<Self> {
        let builder = self.builder.backing(text);
        connect(builder.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?, text)
    }

    /// Selects the mechanism that catches faults. Without this call, [`Builder::build`] selects the
    /// best one that works here.
    pub fn mechanism(self, mechanism: Mechanism) -> Self {
        Builder { builder: self.builder.mechanism(mechanism), ..self }
    }

    /// Sets how many bytes are read ahead for a thread that touches pages in sequence. The default
    /// is 128 KiB. 0 turns reading ahead off.
    pub fn readahead(self, bytes: usize) -> Self {
        Builder { builder: self.builder.readahead(bytes), ..self }
    }

    /// Sets how many threads can fault at the same time without sharing a queue pair of the
    /// backing. The default is four per processor.
    pub fn queues(self, queues: usize) -> Self {
        Builder { builder: self.builder.queues(queues), ..self }
    }

    /// Makes the region.
    ///
    /// Errors:
    /// - `InvalidInput` with the reason: the backing keeps nothing (`null`), cannot be written to,
    ///   holds less than the region, or holds data that usring did not write.
    /// - `ResourceBusy`: another region uses the backing, or it is mounted.
    /// - `EINVAL`: the size is 0, the limit is too small, or there is no backing that can be
    ///   written to in pages.
    /// - `EOPNOTSUPP`: no mechanism works here.
    /// - `ENOMEM`, and the errors of opening the backing and of the selected mechanism.
    pub fn build(self) -> io::Result<SwapRegion> {
        usring_std_threads::prepare();
        let region = self.builder.build().map_err(refused)?;
        Ok(SwapRegion { region, back_end: self.back_end })
    }
}

/// Makes an error whose text is the reason of the refusal.
fn refused(refusal: Refusal) -> io::Error {
    let kind = match refusal {
        Refusal::Failed(error) => return os_error(error),
        Refusal::InUse | Refusal::Mounted => io::ErrorKind::ResourceBusy,
        _ => io::ErrorKind::InvalidInput,
    };
    io::Error::new(kind, refusal)
}

#[cfg(feature = "vhost-user")]
fn connect(builder: usring_swap::Builder, text: &str) -> io::Result<Builder> {
    let spec = usring_device::spec::parse(text);
    if spec.as_ref().is_ok_and(|spec| storage::needs_daemon(spec.device())) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, storage::NOT_FOR_SWAP));
    }
    let options = spec.as_ref().ok().and_then(|spec| Options::of(spec.device()));
    let Some(options) = options else { return Ok(Builder { builder, back_end: None }) };
    // `writeln!` does not panic if standard error is closed, as `eprintln!` would.
    let report = Box::new(|what: std::fmt::Arguments<'_>| drop(writeln!(io::stderr(), "usring: swap: {what}")));
    let back_end = VhostUser::connect(&options, report);
    let back_end = back_end.map_err(|why| io::Error::new(io::ErrorKind::NotConnected, why))?;
    let builder = builder.supply(Arc::from(back_end.supply()));
    Ok(Builder { builder, back_end: Some(Arc::new(back_end)) })
}

#[cfg(not(feature = "vhost-user"))]
fn connect(builder: usring_swap::Builder, _: &str) -> io::Result<Builder> {
    Ok(Builder { builder, back_end: None })
}

/// Memory of which only a part is resident. [The module](self) says how it differs from other
/// memory.
#[derive(Debug)]
pub struct SwapRegion {
    region: usring_swap::SwapRegion,
    /// The connection to the back end. It is kept until the region, which uses it, is dropped.
    back_end: Option<BackEnd>,
}

impl SwapRegion {
    /// Returns a builder. It needs at least a size, a limit and a backing.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the mechanism that the region uses.
    pub fn mechanism(&self) -> Mechanism {
        self.region.mechanism()
    }

    /// Returns the size of a page in bytes: the unit in which memory is paged in and evicted.
    pub fn page_size(&self) -> usize {
        self.region.page_size()
    }

    /// Returns the address of the first byte. Several threads may use the memory at the same time,
    /// as with any memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// Returns the size of the region in bytes.
    pub fn size(&self) -> usize {
        self.region.size()
    }

    /// Returns the whole region.
    pub fn as_slice(&self) -> &[u8] {
        self.region.as_slice()
    }

    /// Returns the whole region for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.region.as_mut_slice()
    }

    /// Changes the limit to `bytes`. If the new limit is lower, the call returns after enough pages
    /// were evicted.
    ///
    /// Errors:
    /// - `EINVAL`: the limit is too small.
    /// - `ENOSPC`: the backing has no room for the pages that must be evicted.
    /// - `EBUSY`: too many pages are pinned.
    /// - The backing's error, if writing a page fails.
    pub fn set_limit(&self, bytes: usize) -> io::Result<()> {
        self.region.set_limit(bytes).map_err(os_error)
    }

    /// Sets how threads wait for pages from now on: `interrupt`, `classic` (polling), `hybrid`, or
    /// `hybrid:` and a time. Returns `false` if `policy` is none of these.
    pub fn set_policy(&self, policy: &str) -> bool {
        self.region.set_policy(policy)
    }

    /// Pages in a range of bytes and keeps it resident until the returned pin is dropped, so that
    /// system calls can use it.
    ///
    /// Errors: `EINVAL` if the range is not within the region; `ENOMEM` if more than half of the
    /// limit would be pinned; `EIO` if a page cannot be read back.
    pub fn pin(&self, range: Range<usize>, access: Access) -> io::Result<Pin<'_>> {
        self.region.pin(range, access).map_err(os_error)
    }

    /// Calls `work` with a range of the region's memory, which stays resident during the call.
    /// Errors: those of [`SwapRegion::pin`].
    pub fn with_resident<R>(
        &mut self,
        range: Range<usize>,
        access: Access,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> io::Result<R> {
        self.region.with_resident(range, access, work).map_err(os_error)
    }

    /// Drops the content of whole pages. Afterwards the pages read as zeroes, and take neither
    /// memory nor room in the backing.
    ///
    /// Errors: `EINVAL` if the range is not whole pages of the region; `EBUSY` if a page is pinned.
    pub fn discard(&mut self, range: Range<usize>) -> io::Result<()> {
        self.region.discard(range).map_err(os_error)
    }

    /// Returns the region's counters.
    pub fn statistics(&self) -> Statistics {
        self.region.statistics()
    }
}

/// A global allocator that puts blocks of at least a given size into a region:
///
/// ```
/// use usring::swap::{SwapAllocator, SwapRegion};
///
/// #[global_allocator]
/// static ALLOCATOR: SwapAllocator = SwapAllocator::new(1 << 20);
///
/// # fn main() -> std::io::Result<()> {
/// let backing = SwapRegion::builder().backing("ram:size=256M")?;
/// ALLOCATOR.open(backing.size(256 << 20).limit(16 << 20).build()?)?;
/// let large = vec![1u8; 64 << 20];
/// assert!(ALLOCATOR.contains(large.as_ptr()));
/// assert!(large.iter().all(|byte| *byte == 1));
/// # Ok(())
/// # }
/// ```
/// The system's allocator serves smaller blocks, all blocks before [`SwapAllocator::open`], and
/// blocks for which the region has no room. Before a system call uses a large block, pin the block
/// by [`SwapAllocator::with_resident`]. Only half of the limit can be pinned, so a program that
/// reads files into larger blocks reads them piece by piece.
pub struct SwapAllocator {
    least: usize,
    /// Address of the region's first byte; 0 until [`SwapAllocator::open`].
    start: AtomicUsize,
    arena: OnceLock<(usring_swap::Arena, Option<BackEnd>)>,
}

impl SwapAllocator {
    /// Makes an allocator that will put blocks of at least `least` bytes into the region.
    pub const fn new(least: usize) -> Self {
        SwapAllocator { least, start: AtomicUsize::new(0), arena: OnceLock::new() }
    }

    /// Puts large blocks into `region` from now on. Errors: `ResourceBusy` if the allocator already
    /// has a region.
    pub fn open(&self, region: SwapRegion) -> io::Result<()> {
        let start = region.as_ptr() as usize;
        let arena = usring_swap::Arena::new(region.region).map_err(os_error)?;
        self.arena.set((arena, region.back_end)).map_err(|_| io::Error::from(io::ErrorKind::ResourceBusy))?;
        self.start.store(start, Ordering::Release);
        Ok(())
    }

    /// Returns the region's arena, which allocates the blocks. `None` before
    /// [`SwapAllocator::open`].
    fn arena(&self) -> Option<&usring_swap::Arena> {
        if self.start.load(Ordering::Acquire) == 0 { None } else { self.arena.get().map(|(arena, _)| arena) }
    }

    /// Returns whether `memory` is in the region.
    pub fn contains<T: ?Sized>(&self, memory: *const T) -> bool {
        self.arena().is_some_and(|arena| arena.contains(memory.cast::<u8>() as usize))
    }

    /// Calls `work` with `memory`. If the memory is in the region, it stays resident during the
    /// call. Errors: those of [`SwapRegion::pin`].
    pub fn with_resident<R>(&self, memory: &mut [u8], work: impl FnOnce(&mut [u8]) -> R) -> io::Result<R> {
        let start = self.start.load(Ordering::Acquire);
        let address = memory.as_ptr() as usize;
        let pin = match self.arena().filter(|arena| arena.contains(address)) {
            Some(arena) => {
                let first = address - start;
                Some(arena.region().pin(first..first + memory.len(), Access::Write).map_err(os_error)?)
            }
            None => None,
        };
        let result = work(memory);
        drop(pin);
        Ok(result)
    }

    /// Returns the region's counters. `None` before [`SwapAllocator::open`].
    pub fn statistics(&self) -> Option<Statistics> {
        self.arena().map(|arena| arena.region().statistics())
    }

    fn allocate(&self, layout: Layout) -> Option<(usize, bool)> {
        if layout.size() < self.least { None } else { self.arena()?.allocate(layout.size(), layout.align()) }
    }
}

// SAFETY: 1. A block comes from the arena, which allocates no byte twice, or from the system's
// allocator. 2. A block's address says which of the two made it, because a region's range never
// changes.
unsafe impl GlobalAlloc for SwapAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout) {
            Some((address, _)) => address as *mut u8,
            // SAFETY: the caller of `alloc` makes the promises that the system's allocator needs
            // for this layout.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout) {
            Some((address, true)) => address as *mut u8,
            Some((address, false)) => {
                let block = address as *mut u8;
                // SAFETY: the block has at least this size, and no other thread has its address
                // yet.
                unsafe { block.write_bytes(0, layout.size()) };
                block
            }
            // SAFETY: the caller of `alloc_zeroed` makes the promises that `alloc` asks for.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.arena().filter(|arena| arena.contains(block as usize)) {
            Some(arena) => arena.free(block as usize),
            // SAFETY: the block is not in the arena, so the system's allocator made it. The caller
            // promises that `layout` is the block's.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let is_arenas = self.arena().is_some_and(|arena| arena.contains(block as usize));
        if !is_arenas && (size < self.least || self.arena().is_none()) {
            // SAFETY: the system's allocator made the block. The caller promises that `layout` is
            // the block's and that the size is valid.
            return unsafe { System.realloc(block, layout, size) };
        }
        if is_arenas && self.arena().is_some_and(|arena| (size..2 * size).contains(&arena.size_of(block as usize))) {
            return block;
        }
        // SAFETY: 1. The caller promises that the size is valid for this alignment. 2. The new
        // block has room for the copied bytes and does not overlap the old block.
        unsafe {
            let fresh = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !fresh.is_null() {
                fresh.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            fresh
        }
    }
}
