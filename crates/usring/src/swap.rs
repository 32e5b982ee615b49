//! Memory larger than what of it may be resident, without privileges and without
//! swap of the system's: the pages of a region go to a file or a device of
//! usring's, and the thread that touches one that is out reads it back itself,
//! by polling.
//!
//! ```
//! use usring::swap::SwapRegion;
//!
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("pages").display().to_string();
//! # std::fs::File::create(&path)?;
//! let mut region = SwapRegion::builder()
//!     .size(64 << 20)
//!     .limit(16 << 20)
//!     .backing(&format!("file:path={path},size=65M"))?
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
//! - **A system call** that is given memory of a region answers `EFAULT` where a page
//!   is out (or does a part): lend it by [`SwapRegion::with_resident`] or hold a
//!   [`Pin`]. A datagram that is received into such a page is lost.
//! - **A forked child** does not have the memory; a touch ends it with SIGBUS.
//! - **A page that cannot be read back** is a SIGBUS, and standard error names its slot.
//! - SIGBUS and SIGSEGV may not be blocked while a region is used, nor their
//!   handlers taken away after the first region was made (a handler that was
//!   there before goes on getting what is not a region's).
//! - Memory of a region is no good for threads' stacks, futexes, or buffers that a
//!   ring has registered.

use crate::api::{os_error, process};
#[cfg(feature = "vhost-user")]
use crate::control::vhost_user::VhostUser;
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
use usring_device::driver::vhost_user::Options;
use usring_swap::Refusal;
pub use usring_swap::{Access, Mechanism, Pin, Statistics};

/// Makes a [`SwapRegion`].
#[derive(Clone, Default)]
pub struct Builder {
    builder: usring_swap::Builder,
    back_end: Option<BackEnd>,
}

/// Whoever serves the backing, if that is another process.
#[cfg(feature = "vhost-user")]
type BackEnd = Arc<VhostUser>;
#[cfg(not(feature = "vhost-user"))]
type BackEnd = std::convert::Infallible;

impl Builder {
    /// Bytes of the region; rounded up to whole pages.
    pub fn size(self, bytes: usize) -> Self {
        Builder { builder: self.builder.size(bytes), ..self }
    }

    /// Most bytes of it that are resident; 256 KiB at least (with
    /// [`Mechanism::Protect`], 4 MiB).
    pub fn limit(self, bytes: usize) -> Self {
        Builder { builder: self.builder.limit(bytes), ..self }
    }

    /// Where its pages go, as `usring run --device` takes it:
    /// `file:path=/var/tmp/pages,size=1G`, `ram:size=1G`. `poll=` says how a
    /// page is waited for. It has room for the region, and a file for a header of 4 KiB besides. A file, a device or a back end that holds data which usring did not
    /// write is refused by [`Builder::build`], unless the text says `overwrite=on`. A device of another process
    /// (`vhost-user:socket=…`) is connected to here, and has to have three queues
    /// at least.
    ///
    /// Errors: `InvalidInput` with the reason; `NotConnected` with what is wrong with the other
    /// process.
    pub fn backing(self, text: &str) -> io::Result<Self> {
        let builder = self.builder.backing(text);
        connect(builder.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?, text)
    }

    /// Which mechanism, instead of the best that works here.
    pub fn mechanism(self, mechanism: Mechanism) -> Self {
        Builder { builder: self.builder.mechanism(mechanism), ..self }
    }

    /// Most bytes that are read ahead of a thread whose faults follow each
    /// other (128 KiB unless said); 0: none.
    pub fn readahead(self, bytes: usize) -> Self {
        Builder { builder: self.builder.readahead(bytes), ..self }
    }

    /// How many threads fault at the same time without waiting for each other's
    /// queue pair: four for each processor, unless said.
    pub fn lanes(self, lanes: usize) -> Self {
        Builder { builder: self.builder.lanes(lanes), ..self }
    }

    /// Makes the region.
    ///
    /// Errors: `InvalidInput` with the reason, where the backing keeps nothing (`null`), cannot
    /// be written to, holds less than the region, or holds somebody's data; `ResourceBusy` where another
    /// region has it, or it is mounted; `EINVAL` where the size is 0, the limit too small, or there is no backing
    /// that can be written to in pages; `EOPNOTSUPP` where no mechanism works here; what
    /// opening the backing, or the mechanism that was asked for, answers; `ENOMEM`.
    pub fn build(self) -> io::Result<SwapRegion> {
        process::prepare_threads();
        let region = self.builder.build().map_err(refused)?;
        Ok(SwapRegion { region, back_end: self.back_end })
    }
}

/// With the reason.
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
    let options = spec.as_ref().ok().and_then(|spec| Options::of(spec.device()));
    let Some(options) = options else { return Ok(Builder { builder, back_end: None }) };
    // A closed standard error is no reason to end.
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

/// Memory of which only a part is resident; see [the module](self).
#[derive(Debug)]
pub struct SwapRegion {
    region: usring_swap::SwapRegion,
    /// Goes after it.
    back_end: Option<BackEnd>,
}

impl SwapRegion {
    /// What is needed at least: a size, a limit, a backing.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// By which it works.
    pub fn mechanism(&self) -> Mechanism {
        self.region.mechanism()
    }

    /// Bytes that come and go together.
    pub fn page_size(&self) -> usize {
        self.region.page_size()
    }

    /// Its first byte. Several threads may use the memory at the same time, as
    /// any memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.region.size()
    }

    /// All of it.
    pub fn as_slice(&self) -> &[u8] {
        self.region.as_slice()
    }

    /// All of it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.region.as_mut_slice()
    }

    /// Changes the limit; a lower one is kept when this returns.
    ///
    /// Errors: `EINVAL` where it is too small; `ENOSPC` where the backing has no room for
    /// what has to go; `EBUSY` where too much is pinned; what the backing answers.
    pub fn set_limit(&self, bytes: usize) -> io::Result<()> {
        self.region.set_limit(bytes).map_err(os_error)
    }

    /// How pages are waited for from now on: `interrupt`, `classic` (polling), `hybrid`, or
    /// `hybrid:` and a time. `false` if it is none of these.
    pub fn set_policy(&self, policy: &str) -> bool {
        self.region.set_policy(policy)
    }

    /// Brings a range of bytes in and keeps it resident until the pin is
    /// dropped: for system calls.
    ///
    /// Errors: `EINVAL` where it is not within the region; `ENOMEM` where more than half of
    /// the limit would be pinned; `EIO` where a page cannot be read back.
    pub fn pin(&self, range: Range<usize>, access: Access) -> io::Result<Pin<'_>> {
        self.region.pin(range, access).map_err(os_error)
    }

    /// Gives `work` a part of the memory, all of which stays resident meanwhile.
    /// Errors: as [`SwapRegion::pin`].
    pub fn with_resident<R>(
        &mut self,
        range: Range<usize>,
        access: Access,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> io::Result<R> {
        self.region.with_resident(range, access, work).map_err(os_error)
    }

    /// The content of whole pages is no longer wanted: they hold zeroes from now on,
    /// and take neither memory nor room in the backing.
    ///
    /// Errors: `EINVAL` where the range is not whole pages of the region; `EBUSY` where one
    /// is pinned.
    pub fn discard(&mut self, range: Range<usize>) -> io::Result<()> {
        self.region.discard(range).map_err(os_error)
    }

    /// What has happened to it.
    pub fn statistics(&self) -> Statistics {
        self.region.statistics()
    }
}

/// The program's allocator, with blocks of some size and more in a region:
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
/// What is smaller, and everything before [`SwapAllocator::open`] or beyond the region's size, is
/// the system's. A large block may not be given to a system call unpinned
/// ([`SwapAllocator::with_resident`]): so a program that reads files into large vectors
/// reads them in smaller pieces.
pub struct SwapAllocator {
    least: usize,
    /// Of the region, once there is one.
    start: AtomicUsize,
    arena: OnceLock<(usring_swap::Arena, Option<BackEnd>)>,
}

impl SwapAllocator {
    /// Blocks of at least so many bytes will be in the region.
    pub const fn new(least: usize) -> Self {
        SwapAllocator { least, start: AtomicUsize::new(0), arena: OnceLock::new() }
    }

    /// From now on large blocks come from this region. Errors: `EBUSY` if there is one
    /// already.
    pub fn open(&self, region: SwapRegion) -> io::Result<()> {
        let start = region.as_ptr() as usize;
        let arena = usring_swap::Arena::new(region.region).map_err(os_error)?;
        self.arena.set((arena, region.back_end)).map_err(|_| io::Error::from(io::ErrorKind::ResourceBusy))?;
        self.start.store(start, Ordering::Release);
        Ok(())
    }

    /// The region's, if there is one.
    fn arena(&self) -> Option<&usring_swap::Arena> {
        if self.start.load(Ordering::Acquire) == 0 { None } else { self.arena.get().map(|(arena, _)| arena) }
    }

    /// Whether memory is the region's.
    pub fn contains<T: ?Sized>(&self, memory: *const T) -> bool {
        self.arena().is_some_and(|arena| arena.contains(memory.cast::<u8>() as usize))
    }

    /// Keeps memory resident while `work` runs, if it is the region's: for
    /// system calls. Errors: as [`SwapRegion::pin`].
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

    /// What has happened to the region, if there is one.
    pub fn statistics(&self) -> Option<Statistics> {
        self.arena().map(|arena| arena.region().statistics())
    }

    fn allocate(&self, layout: Layout) -> Option<(usize, bool)> {
        if layout.size() < self.least { None } else { self.arena()?.allocate(layout.size(), layout.align()) }
    }
}

// SAFETY: 1. A block is the arena's, which hands out no byte twice, or the
// system's. 2. Which of the two an address is its range tells, for good.
unsafe impl GlobalAlloc for SwapAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout) {
            Some((address, _)) => address as *mut u8,
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout) {
            Some((address, true)) => address as *mut u8,
            Some((address, false)) => {
                let block = address as *mut u8;
                // SAFETY: a block of at least this size, nobody else's.
                unsafe { block.write_bytes(0, layout.size()) };
                block
            }
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.arena().filter(|arena| arena.contains(block as usize)) {
            Some(arena) => arena.free(block as usize),
            // SAFETY: the caller's promise, and it is not the arena's.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let is_arenas = self.arena().is_some_and(|arena| arena.contains(block as usize));
        if !is_arenas && (size < self.least || self.arena().is_none()) {
            // SAFETY: the caller's promise; it is the system's and stays so.
            return unsafe { System.realloc(block, layout, size) };
        }
        if is_arenas && self.arena().is_some_and(|arena| (size..2 * size).contains(&arena.size_of(block as usize))) {
            return block;
        }
        // SAFETY: 1. The caller promises that the size is good for this alignment.
        // 2. The new block is as large as what is copied, and is not the old one.
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
