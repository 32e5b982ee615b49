//! A slot of `poll_table`: one registration in a ring's epoll set, the requests that wait behind
//! it, and what keeps its file open meanwhile.

use super::waiters::Waiters;
use crate::registered::registered_files::RegisteredFile;
use crate::request::conditions::{Interest, SharedHold, Tag};
use alloc::sync::{Arc, Weak};

/// The slot to which a request was admitted.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub tag: Tag,
    /// The set has reported an event since the registration was switched on. From then on it
    /// reports only new events, not what is already there.
    pub has_reported: bool,
}

/// State of a registration in the epoll set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Off,
    /// On until the next event.
    Once,
    /// Edge-triggered.
    On,
}

/// The hold that keeps a waited-for file open.
pub(super) enum Home {
    Free,
    /// usring's duplicate of the number `of`, held as long as a request waits.
    Duplicate {
        hold: Arc<SharedHold>,
        of: i32,
    },
    /// The table of registered files; `number` is the registration's.
    Registered {
        file: Weak<RegisteredFile>,
        number: i32,
    },
}

/// The fields that an event touches lie in one cache line.
#[repr(C, align(64))]
pub(super) struct Slot {
    pub(super) waiters: Waiters,
    pub(super) home: Home,
    /// Distinguishes an event of an earlier file from one of this file.
    pub(super) generation: u32,
    /// Counts events. A request that began to wait in this round is not called by it.
    pub(super) round: u32,
    pub(super) switch: Switch,
    /// The set has reported an event since `switch` was last turned on.
    pub(super) has_reported: bool,
    /// Its waiters are being called; the slot is not closed meanwhile.
    pub(super) firing: bool,
    /// At its last try without an event the file was not ready.
    pub(super) had_nothing: bool,
    /// Time at which its file was last put among those expected to be ready.
    pub(super) expected: u32,
    pub(super) interest: Interest,
    /// The next slot of the same number.
    pub(super) next: u32,
    /// The hold of an earlier file, kept for reuse.
    pub(super) spare: Option<Arc<SharedHold>>,
}

const _: () = assert!(core::mem::offset_of!(Slot, interest) <= 64);

impl Slot {
    pub fn new() -> Self {
        Slot {
            waiters: Waiters::default(),
            home: Home::Free,
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
        match &self.home {
            Home::Free => -1,
            Home::Duplicate { hold, .. } => hold.descriptor.number(),
            Home::Registered { number, .. } => *number,
        }
    }
}

/// Record of one of the program's numbers.
#[derive(Clone, Copy)]
pub(super) struct Number {
    /// First of the slots that hold a file of this number.
    pub(super) first: u32,
    /// A registration under the settled number of its duplicate has been left in the set.
    pub(super) registered: bool,
    /// One of its files was of a kind that takes record locks.
    pub(super) lockable: bool,
}

pub(super) const NONE: u32 = u32::MAX;

pub(super) fn tag_of(index: u32, slot: &Slot) -> Tag {
    u64::from(slot.generation) << 32 | u64::from(index)
}
