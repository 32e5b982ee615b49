//! A ring's memory, and the words in it that threads access without the ring's lock.

#[cfg(not(loom))]
use crate::backlog;
use crate::backlog::Area;
#[cfg(not(loom))]
use crate::control::{self, Control};
#[cfg(not(loom))]
use crate::journal::{self, Journal};
use crate::layout::{self, Layout};
#[cfg(not(loom))]
use crate::registrations::{self, Registrations};
#[cfg(not(loom))]
use core::ops::Range;
use usring_sys::Errno;
#[cfg(not(loom))]
use usring_sys::UserAddress;
#[cfg(loom)]
use usring_sys::mapping::Mapping;
#[cfg(not(loom))]
use usring_sys::mapping::PAGE;
#[cfg(not(loom))]
use usring_sys::mapping_pool::MappingPool;
use usring_sys::ordering::{Edge, Side};
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, Ordering};
use usring_uapi::io_uring as uapi;

/// Bits of the SQ's flag word, which the application reads.
pub mod flags {
    use usring_uapi::io_uring as uapi;

    /// The SQ thread sleeps; the application must call io_uring_enter(2) with `SQ_WAKEUP`.
    pub const NEED_WAKEUP: u32 = uapi::IORING_SQ_NEED_WAKEUP;
    /// CQEs wait for room in the CQ; the application must call io_uring_enter(2) with `GETEVENTS`.
    pub const CQ_OVERFLOW: u32 = uapi::IORING_SQ_CQ_OVERFLOW;
    /// Task work waits for the submitting thread, which must call io_uring_enter(2) with
    /// `GETEVENTS`.
    pub const TASKRUN: u32 = uapi::IORING_SQ_TASKRUN;
}

/// The memory of a ring and its layout. Clones share the memory.
///
/// The memory has these parts, one behind the other:
///
/// 1. the SQEs;
/// 2. from the next page on, both queues;
/// 3. the words of [`crate::Control`], the journal, the backlog and the registrations.
///
/// fork(2) copies each mapping of a process, so many mappings make it slow. Therefore the rings of
/// a process share few mappings (`POOL`). The SQEs and the queues are adjacent in this memory. So a
/// program that maps them at adjacent addresses gets one mapping for both.
#[derive(Clone)]
pub struct Memory {
    pub(crate) rings: Arc<SharedMemory>,
    pub(crate) sqes: Arc<SharedMemory>,
    /// The memory in which completions are published: the CQ in `rings`, or an AIO context's ring.
    pub(crate) completions: Arc<SharedMemory>,
    pub(crate) layout: Layout,
    /// Memory with the words of [`crate::Control`], and the byte offset of these words in the
    /// memory. The journal follows the words, the backlog follows the journal, and the
    /// registrations follow the backlog.
    #[cfg(not(loom))]
    control: (Arc<SharedMemory>, usize),
}

/// The pool for the memory of rings. If a ring lies in the program's memory
/// (`IORING_SETUP_NO_MMAP`), only the words of [`Control`] and all behind them come from the pool.
#[cfg(not(loom))]
static POOL: MappingPool = MappingPool::new();

/// The pages that replace the program's own memory (`IORING_SETUP_NO_MMAP`). They come from a
/// separate pool. If the memory of several rings is adjacent in the program, the pages that replace
/// it are adjacent in the pool, so the kernel merges their mappings.
#[cfg(not(loom))]
static REPLACEMENTS: MappingPool = MappingPool::new();

/// Returns the byte offset of the words of [`Control`], behind a ring's queues.
#[cfg(not(loom))]
fn control_offset(layout: &Layout) -> usize {
    layout.rings_length().next_multiple_of(control::ALIGNMENT)
}

/// Allocates a ring's memory. Returns it in two parts. The first part has both queues, and behind
/// them the words of [`Control`], the journal, the backlog and the registrations. The second part
/// has the SQEs.
#[cfg(not(loom))]
pub(crate) fn allocate_parts(layout: &Layout) -> Result<(SharedMemory, SharedMemory), Errno> {
    let sqes = layout.sqes_length().next_multiple_of(PAGE);
    let part = POOL.take(sqes + control_offset(layout) + words_length(layout))?;
    Ok((part.memory(sqes..part.range.len()), part.memory(0..sqes)))
}

#[cfg(loom)]
pub(crate) fn allocate_parts(layout: &Layout) -> Result<(SharedMemory, SharedMemory), Errno> {
    let rings = SharedMemory::new(Mapping::shared(layout.rings_length())?);
    Ok((rings, SharedMemory::new(Mapping::shared(layout.sqes_length())?)))
}

/// Returns the total length of the words of [`Control`], the journal, the backlog and the
/// registrations, in bytes. Pages among them that are never written use no memory.
#[cfg(not(loom))]
fn words_length(layout: &Layout) -> usize {
    registrations_offset(layout) + if layout.has_events() { 0 } else { registrations::LENGTH }
}

/// Returns the offset of the registrations from the first word of [`Control`], in bytes.
#[cfg(not(loom))]
fn registrations_offset(layout: &Layout) -> usize {
    let others = control::LENGTH + journal::length(layout) + backlog::length(layout);
    others.next_multiple_of(registrations::ALIGNMENT)
}

impl Memory {
    /// Allocates new memory.
    pub fn allocate(layout: Layout) -> Result<Memory, Errno> {
        let (rings, sqes) = allocate_parts(&layout)?;
        Ok(Memory::new(rings, sqes, layout))
    }

    /// Makes a ring in memory of the program (`IORING_SETUP_NO_MMAP`). Replaces that memory by
    /// pages that usring and the program share. Addresses and contents stay unchanged. So the ring
    /// continues to work even if the program unmaps or replaces its own mapping. (The kernel pins
    /// the program's pages for this.) Pages that cannot be replaced (huge pages) are used as they
    /// are.
    ///
    /// Errors: `EFAULT` and `EINVAL`, those of [`SharedMemory::of_program`]; `ENOMEM`.
    #[cfg(not(loom))]
    pub fn of_program(rings: UserAddress, sqes: UserAddress, layout: Layout) -> Result<Memory, Errno> {
        let sqes_end = layout.sqes_length().next_multiple_of(PAGE);
        let rings_end = sqes_end + layout.rings_length().next_multiple_of(PAGE);
        let lent_rings = SharedMemory::of_program(rings, rings_end - sqes_end)?;
        let lent_sqes = SharedMemory::of_program(sqes, layout.sqes_length())?;
        // The program's memory has no room for the words of [`Control`], so they come from the
        // pool.
        let words = POOL.take(words_length(&layout))?;
        let words = words.memory(0..words.range.len());
        let pages = REPLACEMENTS.take(rings_end)?;
        let part = |lent, address, range: Range<usize>| match pages
            .mapping
            .replace(pages.in_mapping(range.clone()), address)
        {
            Ok(()) => pages.memory(range),
            Err(_) => lent,
        };
        let sqes = part(lent_sqes, sqes, 0..sqes_end);
        let rings = Arc::new(part(lent_rings, rings, sqes_end..rings_end));
        Ok(Memory::of_parts(rings.clone(), sqes, rings, layout, (Arc::new(words), 0)))
    }

    /// Makes a ring in shared memory of any kind. `sqes` must be as long as `layout` requires.
    /// Behind the queues, `rings` must also have room for the words of [`Control`] and all behind
    /// them. Sets heads, tails, counters and flags to zero, and stores the sizes and masks.
    pub fn new(rings: SharedMemory, sqes: SharedMemory, layout: Layout) -> Memory {
        let rings = Arc::new(rings);
        Memory::with_completions(rings.clone(), sqes, rings, layout)
    }

    #[cfg(not(loom))]
    pub(crate) fn with_completions(
        rings: Arc<SharedMemory>,
        sqes: SharedMemory,
        completions: Arc<SharedMemory>,
        layout: Layout,
    ) -> Memory {
        let control = (rings.clone(), control_offset(&layout));
        Memory::of_parts(rings, sqes, completions, layout, control)
    }

    #[cfg(loom)]
    pub(crate) fn with_completions(
        rings: Arc<SharedMemory>,
        sqes: SharedMemory,
        completions: Arc<SharedMemory>,
        layout: Layout,
    ) -> Memory {
        let memory = Memory { rings, sqes: Arc::new(sqes), completions, layout };
        memory.begin();
        memory
    }

    #[cfg(not(loom))]
    fn of_parts(
        rings: Arc<SharedMemory>,
        sqes: SharedMemory,
        completions: Arc<SharedMemory>,
        layout: Layout,
        control: (Arc<SharedMemory>, usize),
    ) -> Memory {
        assert!(rings.length() >= layout.rings_length() && sqes.length() >= layout.sqes_length());
        let memory = Memory { rings, sqes: Arc::new(sqes), completions, layout, control };
        memory.begin();
        memory
    }

    /// Sets heads, tails, counters and flags to zero, and stores the sizes and masks.
    fn begin(&self) {
        let layout = &self.layout;
        let words = [
            (layout::SQ_HEAD, 0),
            (layout::SQ_TAIL, 0),
            (layout::CQ_HEAD, 0),
            (layout::CQ_TAIL, 0),
            (layout::SQ_MASK, layout.sq_entries - 1),
            (layout::CQ_MASK, layout.cq_entries - 1),
            (layout::SQ_ENTRIES, layout.sq_entries),
            (layout::CQ_ENTRIES, layout.cq_entries),
            (layout::SQ_DROPPED, 0),
            (layout::SQ_FLAGS, 0),
            (layout::CQ_FLAGS, 0),
            (layout::CQ_OVERFLOW, 0),
        ];
        for (offset, value) in words {
            self.rings.word(offset).store(value, Ordering::Relaxed);
        }
    }

    /// Returns the words that the engines of all processes of the ring share.
    #[cfg(not(loom))]
    pub fn control(&self) -> Control {
        Control::new(&self.control.0, self.control.1)
    }

    /// Returns the view of the ring's journal for the process with the number `own`.
    #[cfg(not(loom))]
    pub fn journal(&self, own: u32) -> Journal {
        let (memory, control) = &self.control;
        Journal::new(memory.clone(), control + control::LENGTH, &self.layout, own)
    }

    /// Returns the view of what processes have registered with the ring; `None` for an AIO context.
    #[cfg(not(loom))]
    pub fn registrations(&self) -> Option<Registrations> {
        let (memory, control) = &self.control;
        let start = control + registrations_offset(&self.layout);
        (!self.layout.has_events()).then(|| Registrations::new(memory.clone(), start))
    }

    /// Returns the area of the ring's backlog that all processes share.
    #[cfg(not(loom))]
    pub(crate) fn backlog_area(&self) -> Option<Area> {
        let (memory, control) = &self.control;
        let start = control + control::LENGTH + journal::length(&self.layout);
        Area::new(memory.clone(), start, &self.layout)
    }

    /// Returns `None`: loom models have one process.
    #[cfg(loom)]
    pub(crate) fn backlog_area(&self) -> Option<Area> {
        None
    }

    /// Returns the parts of the ring's memory: the SQEs, the queues, and the memory with the words
    /// of [`Control`]. The last two may be one piece of memory.
    #[cfg(not(loom))]
    pub fn parts(&self) -> [&SharedMemory; 3] {
        [&self.sqes, &self.rings, &self.control.0]
    }

    /// Returns whether a forked child shares this memory with its parent, instead of getting a
    /// copy.
    #[cfg(not(loom))]
    pub fn is_inherited_by_children(&self) -> bool {
        self.rings.mapping().is_some() && self.sqes.mapping().is_some()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the shared memory of both queues.
    pub fn rings(&self) -> &SharedMemory {
        &self.rings
    }

    /// Returns the shared memory of the SQEs.
    pub fn sqes(&self) -> &SharedMemory {
        &self.sqes
    }

    /// Sets bits of the SQ's flag word; see [`flags`]. A full barrier separates this store from the
    /// caller's next load. The program stores the SQ's tail, executes a full barrier and reads the
    /// flags. So the program sees the flag, or the caller sees the new entry.
    #[inline]
    pub fn set_flag(&self, bits: u32) {
        self.rings.header_word(layout::SQ_FLAGS).fetch_or(bits, Ordering::Relaxed);
        Edge::NeedWakeup.barrier_beside_rmw(Side::Sleeper);
    }

    #[inline]
    pub fn clear_flag(&self, bits: u32) {
        self.rings.header_word(layout::SQ_FLAGS).fetch_and(!bits, Ordering::Relaxed);
    }

    /// Returns the SQ's flag word.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.rings.header_word(layout::SQ_FLAGS).load(Ordering::Relaxed)
    }

    /// Returns the number of CQEs that the application has not consumed. Reads the shared words, so
    /// the caller needs no lock.
    #[inline]
    pub fn ready(&self) -> u32 {
        if self.layout.has_events() {
            return self.ready_events();
        }
        let tail = self.rings.header_word(layout::CQ_TAIL).load(Ordering::Acquire);
        tail.wrapping_sub(self.rings.header_word(layout::CQ_HEAD).load(Edge::CqHead.acquire()))
            .min(self.layout.cq_entries)
    }

    /// Returns whether the SQ has no room, for a thread that waits for room (`SQ_WAIT`). Reads the
    /// shared words, so the caller needs no lock.
    #[inline]
    pub fn is_submission_full(&self) -> bool {
        self.submitted() >= self.layout.sq_entries
    }

    /// Returns the number of SQEs that were pushed and not consumed. Reads the shared words, so the
    /// caller needs no lock.
    #[inline]
    pub fn submitted(&self) -> u32 {
        let head = self.rings.header_word(layout::SQ_HEAD).load(Ordering::Relaxed);
        self.rings.header_word(layout::SQ_TAIL).load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Returns whether fewer CQEs were published than SQEs were taken. If so, requests are in
    /// flight, or some requests have ended without a CQE. Reads the shared words, so the caller
    /// needs no lock.
    pub fn has_fewer_cqes_than_requests(&self) -> bool {
        let taken = self.rings.header_word(layout::SQ_HEAD).load(Ordering::Relaxed);
        let published = self.rings.header_word(layout::CQ_TAIL).load(Ordering::Relaxed);
        taken.wrapping_sub(published).cast_signed() > 0
    }

    /// Returns whether the application has switched eventfd notifications off.
    #[inline]
    pub fn is_eventfd_disabled(&self) -> bool {
        self.rings.header_word(layout::CQ_FLAGS).load(Ordering::Relaxed) & uapi::IORING_CQ_EVENTFD_DISABLED != 0
    }
}
