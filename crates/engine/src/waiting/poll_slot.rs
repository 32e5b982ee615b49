//! A slot of `poll_table`: one registration in a ring's epoll set, the requests that wait behind
//! it, and what keeps its file open meanwhile.

use super::waiters::Waiters;
use crate::registered::registered_files::RegisteredFile;
use crate::request::conditions::{Interest, SharedHold, Tag};
use alloc::sync::{Arc, Weak};

/// The slot of the poll table that a request was given.
#[derive(Clone, Copy)]
pub(crate) struct AssignedSlot {
    pub tag: Tag,
    /// The set has reported an event since the registration was switched on. From then on it
    /// reports only new events, not those that are already there.
    pub has_reported: bool,
}

/// State of a slot's registration in the epoll set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Off,
    /// On until the next event.
    Once,
    /// Edge-triggered.
    On,
}

/// The owner of the descriptor that keeps a waited-for file open.
pub(super) enum Home {
    Free,
    /// usring's duplicate of the program's number `of`, held as long as a request waits.
    Duplicate {
        hold: Arc<SharedHold>,
        of: i32,
    },
    /// The table of registered files holds the file; `number` is that of the registration.
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
    /// Changes with the slot's file, so that an event of an earlier file is recognised.
    pub(super) generation: u32,
    /// Counts events. An event calls only the requests that began to wait in an earlier round.
    pub(super) round: u32,
    pub(super) switch: Switch,
    /// The set has reported an event since `switch` was last turned on.
    pub(super) has_reported: bool,
    /// Its waiters are being called, so the slot must not be closed now.
    pub(super) firing: bool,
    /// When the file was last tried without an event, it was not ready.
    pub(super) had_nothing: bool,
    /// Time at which the file was last queued among those expected to be ready.
    pub(super) expected: u32,
    pub(super) interest: Interest,
    /// The next slot with a file of the same number.
    pub(super) next: u32,
    /// The hold of an earlier file; its memory is used again.
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

/// Facts about one of the program's descriptor numbers.
#[derive(Clone, Copy)]
pub(super) struct Number {
    /// First of the slots that hold a file of this number.
    pub(super) first: u32,
    /// The set still has a registration under the number of this number's duplicate, although the
    /// duplicate is closed.
    pub(super) registered: bool,
    /// One of its files was of a kind that takes record locks.
    pub(super) lockable: bool,
}

pub(super) const NONE: u32 = u32::MAX;

pub(super) fn tag_of(index: u32, slot: &Slot) -> Tag {
    u64::from(slot.generation) << 32 | u64::from(index)
}
