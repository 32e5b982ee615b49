//! A place of `poll_table`: one registration in a ring's epoll set, who waits
//! behind it, and what keeps its file open meanwhile.

use super::fast_poll::Purpose;
use crate::registered_files::RegisteredFile;
use crate::request::RequestEntry;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::epoll::Epoll;

/// What the requests behind one registration have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    /// EPOLL* events; error and hang-up are always reported too.
    pub events: u32,
    /// Stays after an event.
    pub multishot: bool,
}

/// A duplicate that requests share while they wait for one file; those that go
/// on to a worker take their share with them.
pub(crate) struct SharedHold {
    pub(super) descriptor: HeldDescriptor,
    /// Whose waiters share it.
    pub(super) tag: Tag,
}

/// The event data of a registration: its slot, and the slot's generation above.
pub(crate) type Tag = u64;

/// Where a request has been let in.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub tag: Tag,
    /// The registration was switched on before: it tells of events to come and
    /// not of what is there.
    pub was_on: bool,
}

pub(super) struct Waiter {
    pub request: RequestEntry,
    pub purpose: Purpose,
    pub(super) turn: Turn,
    /// The file's round in which it began to wait.
    pub(super) round: u32,
}

/// What a request that waits is waiting for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// An event.
    Over,
    /// Its next turn, whether there is an event or not.
    Due,
}

/// State of a registration in the epoll set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    Off,
    /// Until its next event.
    Once,
    /// Edge-triggered.
    On,
}

/// What keeps a waited-for file open.
pub(super) enum Home {
    Free,
    /// Our duplicate of this number, as long as somebody waits.
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

pub(super) struct Slot {
    /// Tells an event of an earlier file from one of this.
    pub(super) generation: u32,
    pub(super) home: Home,
    pub(super) interest: Interest,
    pub(super) switch: Switch,
    /// Its waiters are being called: it is not closed meanwhile.
    pub(super) firing: bool,
    /// Counts events; who began to wait in this round is not called by it.
    pub(super) round: u32,
    pub(super) waiters: VecDeque<Waiter>,
    /// The next one of the same number.
    pub(super) next: u32,
    /// When its file was last put among those that are expected to be ready.
    pub(super) expected: u32,
    /// The hold of an earlier file, to be filled again.
    pub(super) spare: Option<Arc<SharedHold>>,
}

impl Slot {
    pub fn new() -> Self {
        Slot {
            generation: 0,
            home: Home::Free,
            interest: Interest::default(),
            switch: Switch::Off,
            firing: false,
            round: 0,
            waiters: VecDeque::new(),
            next: NONE,
            expected: 0,
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

/// What is remembered of a number of the program's.
#[derive(Clone, Copy)]
pub(super) struct Number {
    /// First of the slots that hold a file of this number.
    pub(super) first: u32,
    /// A registration under the settled number of its duplicate has been left
    /// in the set.
    pub(super) registered: bool,
    /// One of its files was of a kind that takes record locks.
    pub(super) lockable: bool,
}

pub(super) const NONE: u32 = u32::MAX;

/// A registered file's place in the epoll set. It goes before the file's number
/// does: close(2) alone would leave it there while the program has the file
/// open.
pub(crate) struct Registration {
    pub(super) set: Arc<Epoll>,
    pub(super) number: i32,
    /// For any but the first: an epoll set takes each number once.
    pub(super) _own: Option<OwnedDescriptor>,
    pub(super) interest: Interest,
    pub(super) tag: Tag,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = self.set.delete(self.number);
    }
}

pub(super) fn tag_of(index: u32, slot: &Slot) -> Tag {
    u64::from(slot.generation) << 32 | u64::from(index)
}
