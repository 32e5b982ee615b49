//! A slot of `poll_table`: one registration in a ring's epoll set, the requests that wait for its
//! events, and the reference that keeps the file open while they wait.

use super::waiters::Waiters;
use crate::registered::registered_files::RegisteredFile;
use crate::request::conditions::{Interest, SharedDuplicate, Tag};
use alloc::sync::{Arc, Weak};

/// The slot of the poll table in which a request waits.
#[derive(Clone, Copy)]
pub(crate) struct AssignedSlot {
    pub tag: Tag,
    /// Whether the epoll set has reported an event since the slot's registration was switched on.
    /// If so, the set reports only new events, not those that are present now.
    pub has_reported: bool,
}

/// The state of a slot's registration in the epoll set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Off,
    /// Reports one event, then is off (EPOLLONESHOT).
    Once,
    /// On, and edge-triggered.
    On,
}

/// A slot's file, and the descriptor that keeps it open.
pub(super) enum SlotFile {
    Free,
    /// usring's duplicate of the program's descriptor number `of`, open while a request waits.
    Duplicate {
        duplicate: Arc<SharedDuplicate>,
        of: i32,
    },
    /// A registered file, which the ring's table of registered files keeps open. `number`: the
    /// descriptor number under which the file is in the epoll set.
    Registered {
        file: Weak<RegisteredFile>,
        number: i32,
    },
}

/// A slot of the poll table. The fields that an event uses lie in one cache line.
#[repr(C, align(64))]
pub(super) struct Slot {
    pub(super) waiters: Waiters,
    pub(super) file: SlotFile,
    /// Changes whenever the slot gets another file, so that a late event of the earlier file is
    /// recognised and ignored.
    pub(super) generation: u32,
    /// Number of rounds so far. A round is the handling of one event. The event wakes the requests
    /// that wait in the slot when the round begins, and not those that begin to wait later.
    pub(super) round: u32,
    pub(super) switch: Switch,
    /// Whether the epoll set has reported an event since `switch` was last turned on.
    pub(super) has_reported: bool,
    /// Whether a round is under way: an event wakes the slot's requests. The slot stays open until
    /// the round ends.
    pub(super) firing: bool,
    /// Whether the last try of a multishot on this file was a guess of `expected` (a try without an
    /// event) and found no data.
    pub(super) had_nothing: bool,
    /// Value of the counter `Expected::time` when the file was last put into the queue of files
    /// that are expected to be ready.
    pub(super) expected: u32,
    pub(super) interest: Interest,
    /// The next slot with a file of this descriptor number, or [`NONE`].
    pub(super) next: u32,
    /// The memory of an earlier file's [`SharedDuplicate`], kept for the next file.
    pub(super) spare: Option<Arc<SharedDuplicate>>,
}

const _: () = assert!(core::mem::offset_of!(Slot, interest) <= 64);

impl Slot {
    /// Removes the slot's file, and returns it. The slot is free then.
    #[inline(always)]
    pub fn take_file(&mut self) -> SlotFile {
        core::mem::replace(&mut self.file, SlotFile::Free)
    }

    pub fn new() -> Self {
        Slot {
            waiters: Waiters::default(),
            file: SlotFile::Free,
            generation: 0,
            round: 0,
            switch: Switch::Off,
            has_reported: false,
            firing: false,
            had_nothing: false,
            expected: 0,
            interest: Interest::default(),
            next: NONE,
            spare: None,
        }
    }

    pub fn number(&self) -> i32 {
        match &self.file {
            SlotFile::Free => -1,
            SlotFile::Duplicate { duplicate, .. } => duplicate.descriptor.number(),
            SlotFile::Registered { number, .. } => *number,
        }
    }
}

/// State of one of the program's descriptor numbers.
#[derive(Clone, Copy)]
pub(super) struct Number {
    /// First of the slots that hold a file of this number, or [`NONE`].
    pub(super) first: u32,
    /// Whether the epoll set still has an entry under the number of usring's duplicate, although
    /// the duplicate is closed.
    pub(super) registered: bool,
    /// Whether any file of this descriptor number was of a kind that takes record locks.
    pub(super) lockable: bool,
}

pub(super) const NONE: u32 = u32::MAX;

pub(super) fn tag_of(index: u32, slot: &Slot) -> Tag {
    u64::from(slot.generation) << 32 | u64::from(index)
}
