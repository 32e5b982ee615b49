//! The state of a page, in one word that whoever touches the page agrees on.
//!
//! ```text
//!            ┌── first touch ──►┐                  ┌──► Clean ──┐
//! Untouched ─┤                  ├──► Busy ─────────┤            ├──► Busy ──► Out
//!            └◄── holds zeroes ─┘    (somebody's)  └──► Dirty ──┘
//! ```
//! `Busy` is the only state in which anything about the page changes, and it
//! belongs to one thread: who took the page out of another state by
//! compare-and-swap. That thread alone may map or unmap it, reads and writes
//! the page's slot number, and leaves by [`Taken::release`]. All others wait for
//! the word.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–2 | state | as above |
//! | 3 | `waited` | somebody sleeps until the page is no longer busy |
//! | 8–31 | pins | how often it must not go out; only ever put on a resident page |

use usring_sys::futex;
use usring_sys::ordering::Edge;
use usring_sys::sync::{AtomicU32, Ordering, relax};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Holds zeroes, and takes no memory and no slot.
    Untouched,
    /// In its slot, and nowhere else.
    Out,
    /// Some thread's.
    Busy,
    /// In memory, as it is in its slot; cannot be written to.
    Clean,
    /// In memory alone.
    Dirty,
    /// Not paged any more: what lies there is the kernel's (`crate::surrender`).
    Given,
}

const STATE: u32 = 7;
/// Busy, and untouched before that; or in memory. (All else that is busy has `bits_of(State::Busy)`.)
const BUSY_UNTOUCHED: u32 = 6;
const BUSY_RESIDENT: u32 = 7;
const WAITED: u32 = 1 << 3;
const ONE_PIN: u32 = 1 << 8;

/// How often a busy page is looked at before its user sleeps: about as long as
/// putting a page in place takes.
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };

fn state_of(word: u32) -> State {
    match word & STATE {
        0 => State::Untouched,
        1 => State::Out,
        3 => State::Clean,
        4 => State::Dirty,
        5 => State::Given,
        _ => State::Busy,
    }
}

const fn bits_of(state: State) -> u32 {
    match state {
        State::Untouched => 0,
        State::Out => 1,
        State::Busy => 2,
        State::Clean => 3,
        State::Dirty => 4,
        State::Given => 5,
    }
}

impl State {
    /// Whether dropping it would lose something.
    pub fn has_memory(self) -> bool {
        self.is_resident() || self == State::Given
    }

    pub fn is_resident(self) -> bool {
        matches!(self, State::Clean | State::Dirty)
    }
}

/// Whether pins keep a page from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pins {
    /// It stays in memory.
    Ignored,
    /// It goes out.
    Respected,
}

/// One page's word.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a>(&'a AtomicU32);

/// A busy page, in its owner's hand.
#[derive(Debug)]
#[must_use = "everybody who wants the page waits for its release"]
pub struct Taken<'a> {
    page: Page<'a>,
    before: State,
}

impl<'a> Page<'a> {
    pub fn new(word: &'a AtomicU32) -> Self {
        Page(word)
    }

    #[inline]
    pub fn state(&self) -> State {
        state_of(self.0.load(Ordering::Relaxed))
    }

    /// What a page is whose cluster's gate is shut. If it has an owner, that is who has shut the
    /// gate; or it waits outside, and the page is out, or was never touched.
    pub fn at_rest(&self) -> State {
        let word = self.0.load(Ordering::Relaxed);
        match word & STATE {
            BUSY_UNTOUCHED => State::Untouched,
            // Whether it was clean, its owner knows.
            BUSY_RESIDENT => State::Dirty,
            _ if state_of(word) == State::Busy => State::Out,
            _ => state_of(word),
        }
    }

    /// Makes a page that nobody knows of yet what another one is at rest; but clean it is not, nor
    /// pinned: who has pinned that one does not know of this one.
    pub fn copy_at_rest(&self, other: Page) {
        let state = match other.at_rest() {
            State::Clean => State::Dirty,
            state => state,
        };
        self.0.store(bits_of(state), Ordering::Relaxed);
    }

    pub fn is_pinned(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= ONE_PIN
    }

    /// Takes the page if it is in this state.
    #[inline]
    pub fn take(&self, from: State, pins: Pins) -> Option<Taken<'a>> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if state_of(word) != from || from == State::Busy || (pins == Pins::Respected && word >= ONE_PIN) {
                return None;
            }
            let busy = match from {
                State::Untouched => BUSY_UNTOUCHED,
                State::Clean | State::Dirty => BUSY_RESIDENT,
                _ => bits_of(State::Busy),
            };
            let busy = word & !STATE | busy;
            match self.0.compare_exchange_weak(word, busy, Edge::Page.acquire(), Ordering::Relaxed) {
                Ok(_) => return Some(Taken { page: *self, before: from }),
                Err(now) => word = now,
            }
        }
    }

    /// Waits while the page is somebody's.
    pub fn wait(&self) {
        for _ in 0..SPINS {
            if self.state() != State::Busy {
                return;
            }
            relax();
        }
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if state_of(word) != State::Busy {
                return;
            }
            let waited = word | WAITED;
            if word == waited || self.0.compare_exchange(word, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                let _ = futex::wait(self.0, waited, None);
            }
        }
    }

    /// Keeps the page in memory from now on, if it is there; one that is to be
    /// written to has to be dirty.
    pub fn pin(&self, write: bool) -> Pinned {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let state = state_of(word);
            if !state.is_resident() || (write && state != State::Dirty) {
                return Pinned::No(state);
            }
            let Some(more) = word.checked_add(ONE_PIN) else { return Pinned::TooOften };
            match self.0.compare_exchange_weak(word, more, Edge::Page.acquire(), Ordering::Relaxed) {
                Ok(_) if word < ONE_PIN => return Pinned::First,
                Ok(_) => return Pinned::Again,
                Err(now) => word = now,
            }
        }
    }

    /// Takes a pin back. `true` if it was the last.
    pub fn unpin(&self) -> bool {
        let before = self.0.fetch_sub(ONE_PIN, Edge::Page.release());
        assert!(before >= ONE_PIN, "who unpins has pinned");
        before < 2 * ONE_PIN
    }
}

/// What came of pinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    First,
    Again,
    /// It is not there, or not writable.
    No(State),
    TooOften,
}

impl Taken<'_> {
    /// The state out of which it was taken.
    #[inline]
    pub fn before(&self) -> State {
        self.before
    }

    /// Gives the page back, to whoever comes next.
    #[inline]
    pub fn release(self, state: State) {
        let word = self.page.0;
        let mut busy = word.load(Ordering::Relaxed);
        loop {
            let next = busy & !(STATE | WAITED) | bits_of(state);
            match word.compare_exchange_weak(busy, next, Edge::Page.release(), Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => busy = now,
            }
        }
        if busy & WAITED != 0 {
            futex::wake(word, u32::MAX);
        }
    }
}
