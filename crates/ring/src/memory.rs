//! A ring's memory, and the words of it that any thread may touch without the
//! ring's lock.

use crate::layout::{self, Layout};
use usring_sys::Errno;
#[cfg(not(loom))]
use usring_sys::UserAddress;
use usring_sys::mapping::Mapping;
use usring_sys::ordering::{Edge, Side};
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, Ordering};
use usring_uapi::io_uring as uapi;

/// Bits of the SQ's flag word, which the application reads.
pub mod flags {
    use usring_uapi::io_uring as uapi;

    /// The SQ thread sleeps: enter with `SQ_WAKEUP`.
    pub const NEED_WAKEUP: u32 = uapi::IORING_SQ_NEED_WAKEUP;
    /// CQEs wait for room: enter with `GETEVENTS`.
    pub const CQ_OVERFLOW: u32 = uapi::IORING_SQ_CQ_OVERFLOW;
    /// Task work waits for this thread: enter with `GETEVENTS`.
    pub const TASKRUN: u32 = uapi::IORING_SQ_TASKRUN;
}

/// The mappings of a ring with their layout. Clones share the memory.
#[derive(Clone)]
pub struct Memory {
    pub(crate) rings: Arc<SharedMemory>,
    pub(crate) sqes: Arc<SharedMemory>,
    /// Where completions are published: the CQ in `rings`, or an AIO context's ring.
    pub(crate) completions: Arc<SharedMemory>,
    pub(crate) layout: Layout,
}

impl Memory {
    /// New mappings of ours.
    pub fn allocate(layout: Layout) -> Result<Memory, Errno> {
        let rings = SharedMemory::new(Mapping::shared(layout.rings_length())?);
        let sqes = SharedMemory::new(Mapping::shared(layout.sqes_length())?);
        Ok(Memory::new(rings, sqes, layout))
    }

    /// Memory that the program brings along (`IORING_SETUP_NO_MMAP`).
    #[cfg(not(loom))]
    pub fn of_program(rings: UserAddress, sqes: UserAddress, layout: Layout) -> Result<Memory, Errno> {
        let rings = SharedMemory::in_place_of(rings, layout.rings_length())?;
        let sqes = SharedMemory::in_place_of(sqes, layout.sqes_length())?;
        Ok(Memory::new(rings, sqes, layout))
    }

    /// Memory of whatever kind, at least as long as the layout says. Heads,
    /// tails, counters and flags are set to zero, sizes and masks filled in.
    pub fn new(rings: SharedMemory, sqes: SharedMemory, layout: Layout) -> Memory {
        assert!(rings.length() >= layout.rings_length() && sqes.length() >= layout.sqes_length());
        let rings = Arc::new(rings);
        Memory::with_completions(rings.clone(), sqes, rings, layout)
    }

    pub(crate) fn with_completions(
        rings: Arc<SharedMemory>,
        sqes: SharedMemory,
        completions: Arc<SharedMemory>,
        layout: Layout,
    ) -> Memory {
        let memory = Memory { rings, sqes: Arc::new(sqes), completions, layout };
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
            memory.rings.word(offset).store(value, Ordering::Relaxed);
        }
        memory
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory of both queues.
    pub fn rings(&self) -> &SharedMemory {
        &self.rings
    }

    /// The memory of the SQEs.
    pub fn sqes(&self) -> &SharedMemory {
        &self.sqes
    }

    /// Sets bits of the SQ's flag word; see [`flags`]. A full barrier stands
    /// between this and whatever the caller looks at next, so that a program
    /// that stores first and reads the flags then is not overlooked.
    #[inline]
    pub fn set_flag(&self, bits: u32) {
        self.rings.header_word(layout::SQ_FLAGS).fetch_or(bits, Ordering::Relaxed);
        Edge::NeedWakeup.barrier_beside_rmw(Side::Sleeper);
    }

    #[inline]
    pub fn clear_flag(&self, bits: u32) {
        self.rings.header_word(layout::SQ_FLAGS).fetch_and(!bits, Ordering::Relaxed);
    }

    /// The SQ's flag word.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.rings.header_word(layout::SQ_FLAGS).load(Ordering::Relaxed)
    }

    /// CQEs that the application has not consumed yet, as its memory says.
    #[inline]
    pub fn ready(&self) -> u32 {
        if self.layout.has_events() {
            return self.ready_events();
        }
        let tail = self.rings.header_word(layout::CQ_TAIL).load(Ordering::Acquire);
        tail.wrapping_sub(self.rings.header_word(layout::CQ_HEAD).load(Edge::CqHead.acquire()))
            .min(self.layout.cq_entries)
    }

    /// Whether the SQ has no room, as its memory says (`SQ_WAIT`).
    #[inline]
    pub fn is_submission_full(&self) -> bool {
        self.submitted() >= self.layout.sq_entries
    }

    /// SQEs that were pushed and not consumed, as the memory says; for who
    /// does not hold the ring's lock.
    #[inline]
    pub fn submitted(&self) -> u32 {
        let head = self.rings.header_word(layout::SQ_HEAD).load(Ordering::Relaxed);
        self.rings.header_word(layout::SQ_TAIL).load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Whether the application has asked for no eventfd notifications.
    #[inline]
    pub fn is_eventfd_disabled(&self) -> bool {
        self.rings.header_word(layout::CQ_FLAGS).load(Ordering::Relaxed) & uapi::IORING_CQ_EVENTFD_DISABLED != 0
    }
}
