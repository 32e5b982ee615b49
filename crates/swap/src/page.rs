//! The state of a page of a region, in one word. By this word all threads agree on the page's
//! owner.
//!
//! ```text
//!             ┌── first touch ──►┐                  ┌──► Clean ──┐
//!  Untouched ─┤                  ├──► Busy ─────────┤            ├──► Busy ──► Out
//!             └◄── holds zeroes ─┘  (has an owner)  └──► Dirty ──┘
//! ```
//! Invariants:
//! - A page changes only while it is `Busy`, and a busy page has one owner: the thread that took it
//!   out of another state by compare-and-swap.
//! - The owner alone maps and unmaps the page, and reads and writes its slot number.
//! - The owner ends the state `Busy` by [`TakenPage::release`]. Threads that need the page wait
//!   until its word changes.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–2 | state | the states above |
//! | 3 | `waited` | a thread sleeps until the page is no longer busy |
//! | 8–31 | pins | number of pins; a pinned page is resident and is not evicted |

use usring_sys::futex;
use usring_sys::ordering::Edge;
use usring_sys::sync::{AtomicU32, Ordering, relax};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not in memory and without a slot; holds zeroes.
    Untouched,
    /// Evicted: the content is in the page's slot only.
    Out,
    /// One thread owns the page and is changing it.
    Busy,
    /// The page is in memory and in its slot, with equal content. It is write-protected.
    Clean,
    /// In memory only.
    Dirty,
    /// usring no longer pages the page. The kernel manages the memory that is mapped at its address
    /// (`crate::unmanaged`).
    Unmanaged,
}

const STATE: u32 = 7;
/// State bits of a busy page that was `Untouched` before.
const BUSY_UNTOUCHED: u32 = 6;
/// State bits of a busy page that was `Clean` or `Dirty` before. A busy page that was `Out` or
/// `Unmanaged` before has the bits of `State::Busy`.
const BUSY_RESIDENT: u32 = 7;
const WAITED: u32 = 1 << 3;
const ONE_PIN: u32 = 1 << 8;

/// How often a thread polls a busy page before it sleeps. The polls take about as long as it takes
/// to map a page with its content.
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };

fn state_of(word: u32) -> State {
    match word & STATE {
        0 => State::Untouched,
        1 => State::Out,
        3 => State::Clean,
        4 => State::Dirty,
        5 => State::Unmanaged,
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
        State::Unmanaged => 5,
    }
}

impl State {
    /// Returns whether the page has memory. If the page stays while pages around it are evicted,
    /// the eviction must not drop that memory.
    pub fn has_memory(self) -> bool {
        self.is_resident() || self == State::Unmanaged
    }

    pub fn is_resident(self) -> bool {
        matches!(self, State::Clean | State::Dirty)
    }
}

/// Whether a thread becomes a page's owner even if the page is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfPinned {
    /// Pinned pages may be taken. For a thread whose work leaves the page's memory in place.
    Take,
    /// Pinned pages may not be taken. For a thread that evicts or discards the page.
    Refuse,
}

/// One page's word.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a>(&'a AtomicU32);

/// A busy page, as its owner sees it. Other threads wait until the owner releases the page.
#[derive(Debug)]
#[must_use = "everybody who wants the page waits for its release"]
pub struct TakenPage<'a> {
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

    /// Returns the state of a page that is not busy. For a busy page, returns the state that the
    /// page had before its owner took it. The caller guarantees that the gate of the page's cluster
    /// is shut. So the owner of a busy page is one of these:
    /// - The thread that shut the gate. If the page was clean, this function returns dirty.
    /// - A thread that waits at the gate to page the page in. The page is not in memory.
    pub fn at_rest(&self) -> State {
        let word = self.0.load(Ordering::Relaxed);
        match word & STATE {
            BUSY_UNTOUCHED => State::Untouched,
            // The word does not show whether the page was clean before, so the page counts as
            // dirty.
            BUSY_RESIDENT => State::Dirty,
            _ if state_of(word) == State::Busy => State::Out,
            _ => state_of(word),
        }
    }

    /// Copies the state of `other` into this page, which no thread uses yet. The gate of the
    /// cluster of `other` is shut. A clean page becomes dirty in the copy. The copy is never
    /// pinned, because pins belong to the original page.
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

    /// Makes the calling thread the page's owner. Returns `None` if the page is not in the state
    /// `from`. Also returns `None` if the page is pinned and `if_pinned` refuses pinned pages.
    #[inline]
    pub fn take(&self, from: State, if_pinned: IfPinned) -> Option<TakenPage<'a>> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if state_of(word) != from || from == State::Busy || (if_pinned == IfPinned::Refuse && word >= ONE_PIN) {
                return None;
            }
            let busy = match from {
                State::Untouched => BUSY_UNTOUCHED,
                State::Clean | State::Dirty => BUSY_RESIDENT,
                _ => bits_of(State::Busy),
            };
            let busy = word & !STATE | busy;
            match self.0.compare_exchange_weak(word, busy, Edge::Page.acquire(), Ordering::Relaxed) {
                Ok(_) => return Some(TakenPage { page: *self, before: from }),
                Err(now) => word = now,
            }
        }
    }

    /// Waits while the page is busy.
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

    /// Adds a pin to the page. The page must be resident. If `write` is set, it must be dirty.
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

    /// Removes a pin. Returns whether it was the page's last pin.
    pub fn unpin(&self) -> bool {
        let before = self.0.fetch_sub(ONE_PIN, Edge::Page.release());
        assert!(before >= ONE_PIN, "a page is unpinned only after a pin");
        before < 2 * ONE_PIN
    }
}

/// Result of [`Page::pin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    First,
    Again,
    /// No pin was added. Either the page is not resident, or `write` was set and the page is not
    /// dirty. The field is the page's state.
    No(State),
    TooOften,
}

impl TakenPage<'_> {
    /// Returns the state that the page had before it was taken.
    #[inline]
    pub fn before(&self) -> State {
        self.before
    }

    /// Ends the caller's ownership of the page: puts the page into `state`, and wakes the threads
    /// that wait for it.
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
