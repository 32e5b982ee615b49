//! Where everything lies in a ring's memory. Programs learn it from
//! `io_uring_params`, but enough of them assume what the kernel does that it
//! has to be the kernel's own layout.
//!
//! One mapping serves both queues: heads, tails and flags in the first 64
//! bytes, then the CQEs, then the SQ's index array (unless `NO_SQARRAY`). The
//! SQEs have a mapping of their own.

use core::mem::{offset_of, size_of};
use usring_sys::Errno;
use usring_sys::mapping::PAGE;
use usring_uapi::aio::{AioRing, IoEvent};
use usring_uapi::io_uring as uapi;

/// Most SQEs that a ring can have.
pub const ENTRIES_MAX: u32 = 32768;
/// Most CQEs that a ring can have.
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

/// Where an AIO context's ring has its first event, and bytes of each.
pub(crate) const EVENTS: usize = size_of::<AioRing>();
pub(crate) const EVENT: usize = size_of::<IoEvent>();

// Its head and tail stand where those of a CQ do.
const _: () = assert!(offset_of!(AioRing, head) == CQ_HEAD && offset_of!(AioRing, tail) == CQ_TAIL);

/// Most events of an AIO context's ring (`fs/aio.c`: overflow checks).
const EVENTS_MAX: u32 = 0x1000_0000 / EVENT as u32;

/// The kernel starts the index array on a cache line.
const LINE: usize = 64;

/// Sizes and offsets of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub sq_entries: u32,
    pub cq_entries: u32,
    /// Bytes from one SQE to the next, as a shift: 64, or 128 with `SQE128`.
    pub(crate) sqe_shift: u32,
    /// Bytes from one CQE to the next, as a shift: 16, or 32 with `CQE32`.
    pub(crate) cqe_shift: u32,
    /// Where the SQ's index array is, if there is one.
    pub(crate) array: Option<usize>,
    /// Slots of the AIO context's ring that is the CQ; 0 for a CQ of io_uring.
    pub(crate) event_slots: u32,
}

impl Layout {
    /// The layout of a ring of this many entries, both powers of two as
    /// [`entries`] gives them. `flags` are those of io_uring_setup(2).
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

    /// The layout of a ring whose CQ is an AIO context's ring, made for
    /// `requests` at a time on a machine of so many processors: as many slots as
    /// the kernel makes of them, of which one always stays empty. Its SQ is
    /// never used.
    ///
    /// Error: `EINVAL` for more than any context has.
    pub fn for_events(requests: u32, processors: u32) -> Result<Layout, Errno> {
        let wanted = requests.max(processors * 4).checked_mul(2).filter(|wanted| *wanted <= EVENTS_MAX);
        let wanted = wanted.ok_or(Errno::EINVAL)? as usize + 2;
        let length = (EVENTS + wanted * EVENT).next_multiple_of(PAGE);
        let slots = ((length - EVENTS) / EVENT) as u32;
        let mut layout = Layout::new(1, 1, uapi::IORING_SETUP_NO_SQARRAY);
        (layout.cq_entries, layout.event_slots) = (slots - 1, slots);
        Ok(layout)
    }

    /// For models, which can go through no more than a few: a ring of three slots.
    #[cfg(loom)]
    pub fn for_three_slots() -> Layout {
        Layout { cq_entries: 2, event_slots: 3, ..Layout::new(1, 1, uapi::IORING_SETUP_NO_SQARRAY) }
    }

    /// Whether completions are an AIO context's events instead of CQEs.
    #[inline(always)]
    pub fn has_events(&self) -> bool {
        self.event_slots != 0
    }

    /// Length of the mapping of the events.
    pub fn events_length(&self) -> usize {
        EVENTS + self.event_slots as usize * EVENT
    }

    /// The kernel doubles the header too when CQEs are wide; some program may
    /// count on the room.
    fn end_of_cqes(&self) -> usize {
        let narrow = CQES + 16 * self.cq_entries as usize;
        (narrow << (self.cqe_shift - 4)).next_multiple_of(LINE)
    }

    /// Length of the mapping of both queues.
    pub fn rings_length(&self) -> usize {
        if self.has_events() {
            return CQES;
        }
        self.end_of_cqes() + if self.array.is_some() { 4 * self.sq_entries as usize } else { 0 }
    }

    /// Length of the mapping of the SQEs.
    pub fn sqes_length(&self) -> usize {
        (self.sq_entries as usize) << self.sqe_shift
    }

    /// Whether SQEs take 128 bytes.
    pub fn has_wide_sqes(&self) -> bool {
        self.sqe_shift > 6
    }

    /// Whether CQEs take 32 bytes.
    pub fn has_wide_cqes(&self) -> bool {
        self.cqe_shift > 4
    }

    /// What io_uring_setup(2) answers in `sq_off`; `user_addr` is the
    /// program's own and stays as it is.
    pub fn sq_offsets(&self, user_addr: u64) -> uapi::io_sqring_offsets {
        uapi::io_sqring_offsets {
            head: SQ_HEAD as u32,
            tail: SQ_TAIL as u32,
            ring_mask: SQ_MASK as u32,
            ring_entries: SQ_ENTRIES as u32,
            flags: SQ_FLAGS as u32,
            dropped: SQ_DROPPED as u32,
            array: self.array.unwrap_or(0) as u32,
            resv1: 0,
            user_addr,
        }
    }

    /// What io_uring_setup(2) answers in `cq_off`.
    pub fn cq_offsets(&self, user_addr: u64) -> uapi::io_cqring_offsets {
        uapi::io_cqring_offsets {
            head: CQ_HEAD as u32,
            tail: CQ_TAIL as u32,
            ring_mask: CQ_MASK as u32,
            ring_entries: CQ_ENTRIES as u32,
            overflow: CQ_OVERFLOW as u32,
            cqes: CQES as u32,
            flags: CQ_FLAGS as u32,
            resv1: 0,
            user_addr,
        }
    }
}

/// How many entries the SQ and the CQ get: what io_uring_setup(2) makes of
/// `requested`, of `params.cq_entries` and of the flags.
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
