//! Sizes and offsets in a ring's memory.
//!
//! A program reads the offsets from `io_uring_params`. Some programs assume the kernel's layout
//! instead, so the layout must equal the kernel's:
//!
//! - One mapping serves both queues: heads, tails and flags in the first 64 bytes, then the CQEs,
//!   then the SQ's index array (unless `NO_SQARRAY`).
//! - The SQEs have a mapping of their own.

use core::mem::{offset_of, size_of};
use usring_sys::Errno;
use usring_sys::mapping::PAGE;
use usring_sys::width;
use usring_uapi::aio::{AioRing, IoEvent};
use usring_uapi::io_uring as uapi;

/// Maximum number of SQEs of a ring.
pub const ENTRIES_MAX: u32 = 32768;
/// Maximum number of CQEs of a ring.
pub const COMPLETION_ENTRIES_MAX: u32 = 2 * ENTRIES_MAX;

pub(crate) const SQ_HEAD: usize = 0;
pub(crate) const SQ_TAIL: usize = 4;
pub(crate) const CQ_HEAD: usize = 8;
pub(crate) const CQ_TAIL: usize = 12;
pub(crate) const SQ_MASK: usize = 16;
pub(crate) const CQ_MASK: usize = 20;
pub(crate) const SQ_ENTRIES: usize = 24;
pub(crate) const CQ_ENTRIES: usize = 28;
pub(crate) const SQ_DROPPED: usize = 32;
pub(crate) const SQ_FLAGS: usize = 36;
pub(crate) const CQ_FLAGS: usize = 40;
pub(crate) const CQ_OVERFLOW: usize = 44;
pub(crate) const CQES: usize = 64;

/// Offset of the first event in an AIO context's ring, and the size of an event, in bytes.
pub(crate) const EVENTS: usize = size_of::<AioRing>();
pub(crate) const EVENT: usize = size_of::<IoEvent>();

// An AIO context's ring has its head and tail at the offsets of a CQ's head and tail.
const _: () = assert!(offset_of!(AioRing, head) == CQ_HEAD && offset_of!(AioRing, tail) == CQ_TAIL);

/// Maximum number of events in an AIO context's ring (`fs/aio.c`: overflow checks).
const EVENTS_MAX: u32 = 0x1000_0000 / width::count(EVENT);

/// Bytes of a cache line. The kernel aligns the SQ's index array to a cache line.
const LINE: usize = 64;

/// Sizes and offsets of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub sq_entries: u32,
    pub cq_entries: u32,
    /// Binary logarithm of the bytes per SQE (64, or 128 with `SQE128`).
    pub(crate) sqe_shift: u32,
    /// Binary logarithm of the bytes per CQE (16, or 32 with `CQE32`).
    pub(crate) cqe_shift: u32,
    /// Byte offset of the SQ's index array; `None` with `NO_SQARRAY`.
    pub(crate) array: Option<usize>,
    /// Number of slots of the AIO context's ring that serves as the CQ; 0 for an io_uring CQ.
    pub(crate) event_slots: u32,
}

impl Layout {
    /// Returns the layout of a ring with these numbers of entries. Both numbers are powers of two,
    /// and come from [`entries`]. `flags` are those of io_uring_setup(2).
    pub fn new(sq_entries: u32, cq_entries: u32, flags: u32) -> Layout {
        assert!(sq_entries.is_power_of_two() && sq_entries <= ENTRIES_MAX);
        assert!(cq_entries.is_power_of_two() && cq_entries <= COMPLETION_ENTRIES_MAX);
        let wide_cqe = u32::from(flags & uapi::IORING_SETUP_CQE32 != 0);
        let mut layout = Layout {
            sq_entries,
            cq_entries,
            sqe_shift: 6 + u32::from(flags & uapi::IORING_SETUP_SQE128 != 0),
            cqe_shift: 4 + wide_cqe,
            array: None,
            event_slots: 0,
        };
        if flags & uapi::IORING_SETUP_NO_SQARRAY == 0 {
            layout.array = Some(layout.end_of_cqes());
        }
        layout
    }

    /// Returns the layout of a ring whose CQ is an AIO context's ring for `requests` concurrent
    /// requests. The number of slots is that of the kernel on a machine with `processors`
    /// processors. One slot always stays empty. The SQ of such a ring is never used.
    ///
    /// Error: `EINVAL` if `requests` exceeds the kernel's limit.
    pub fn for_events(requests: u32, processors: u32) -> Result<Layout, Errno> {
        let wanted = requests.max(processors * 4).checked_mul(2).filter(|wanted| *wanted <= EVENTS_MAX);
        let wanted = wanted.ok_or(Errno::EINVAL)? as usize + 2;
        let length = (EVENTS + wanted * EVENT).next_multiple_of(PAGE);
        let slots = width::count((length - EVENTS) / EVENT);
        let mut layout = Layout::new(1, 1, uapi::IORING_SETUP_NO_SQARRAY);
        (layout.cq_entries, layout.event_slots) = (slots - 1, slots);
        Ok(layout)
    }

    /// Returns the layout of an AIO context's ring with three slots, for loom models, which can
    /// explore only small rings.
    #[cfg(loom)]
    pub fn for_three_slots() -> Layout {
        Layout { cq_entries: 2, event_slots: 3, ..Layout::new(1, 1, uapi::IORING_SETUP_NO_SQARRAY) }
    }

    /// Returns whether completions are an AIO context's events instead of CQEs.
    #[inline(always)]
    pub fn has_events(&self) -> bool {
        self.event_slots != 0
    }

    /// Returns the length of the events' mapping, in bytes.
    pub fn events_length(&self) -> usize {
        EVENTS + self.event_slots as usize * EVENT
    }

    /// Returns the byte offset after the CQEs, rounded up to a cache line. With `CQE32` the kernel
    /// also doubles the length of the header (the [`CQES`] bytes before the CQEs). Programs may
    /// depend on the kernel's offset, so this function computes it in the kernel's way.
    fn end_of_cqes(&self) -> usize {
        let narrow = CQES + 16 * self.cq_entries as usize;
        (narrow << (self.cqe_shift - 4)).next_multiple_of(LINE)
    }

    /// Returns the length of the mapping of both queues, in bytes.
    pub fn rings_length(&self) -> usize {
        if self.has_events() {
            return CQES;
        }
        self.end_of_cqes() + if self.array.is_some() { 4 * self.sq_entries as usize } else { 0 }
    }

    /// Returns the length of the mapping of the SQEs, in bytes.
    pub fn sqes_length(&self) -> usize {
        (self.sq_entries as usize) << self.sqe_shift
    }

    /// Returns whether an SQE takes 128 bytes.
    pub fn has_wide_sqes(&self) -> bool {
        self.sqe_shift > 6
    }

    /// Returns whether a CQE takes 32 bytes.
    pub fn has_wide_cqes(&self) -> bool {
        self.cqe_shift > 4
    }

    /// Returns the `sq_off` that io_uring_setup(2) reports. `user_addr` is the program's value and
    /// is returned unchanged.
    pub fn sq_offsets(&self, user_addr: u64) -> uapi::io_sqring_offsets {
        uapi::io_sqring_offsets {
            head: width::count(SQ_HEAD),
            tail: width::count(SQ_TAIL),
            ring_mask: width::count(SQ_MASK),
            ring_entries: width::count(SQ_ENTRIES),
            flags: width::count(SQ_FLAGS),
            dropped: width::count(SQ_DROPPED),
            array: width::count(self.array.unwrap_or(0)),
            resv1: 0,
            user_addr,
        }
    }

    /// Returns the `cq_off` that io_uring_setup(2) reports. `user_addr` is the program's value and
    /// is returned unchanged.
    pub fn cq_offsets(&self, user_addr: u64) -> uapi::io_cqring_offsets {
        uapi::io_cqring_offsets {
            head: width::count(CQ_HEAD),
            tail: width::count(CQ_TAIL),
            ring_mask: width::count(CQ_MASK),
            ring_entries: width::count(CQ_ENTRIES),
            overflow: width::count(CQ_OVERFLOW),
            cqes: width::count(CQES),
            flags: width::count(CQ_FLAGS),
            resv1: 0,
            user_addr,
        }
    }
}

/// Computes the numbers of SQ and CQ entries as io_uring_setup(2) does. `requested` and
/// `cq_requested` (`params.cq_entries`) are the program's values. Error: `EINVAL` for zero entries,
/// for too many without `CLAMP`, or for a CQ smaller than the SQ.
pub fn entries(requested: u32, cq_requested: u32, flags: u32) -> Result<(u32, u32), Errno> {
    let clamp = flags & uapi::IORING_SETUP_CLAMP != 0;
    let sq_entries = bounded(requested, ENTRIES_MAX, clamp)?;
    if flags & uapi::IORING_SETUP_CQSIZE == 0 {
        return Ok((sq_entries, 2 * sq_entries));
    }
    let cq_entries = bounded(cq_requested, COMPLETION_ENTRIES_MAX, clamp)?;
    if cq_entries < sq_entries { Err(Errno::EINVAL) } else { Ok((sq_entries, cq_entries)) }
}

fn bounded(requested: u32, most: u32, clamp: bool) -> Result<u32, Errno> {
    match requested {
        0 => Err(Errno::EINVAL),
        number if number <= most => Ok(number.next_power_of_two()),
        _ if clamp => Ok(most),
        _ => Err(Errno::EINVAL),
    }
}
