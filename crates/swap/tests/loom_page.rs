//! Models of a page's word:
//!
//! - A page has one owner at a time. Each owner sees the changes of the previous owner.
//! - No thread misses a release and sleeps for ever.
//! - A pinned page is not evicted.
#![cfg(loom)]

use loom::cell::Cell;
use loom::thread;
use usring_swap::page::{IfPinned, Page, Pinned, State};
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::sync::{Arc, AtomicU32};

/// A page of a region. Only the page's owner may access the slot number.
struct Paged {
    word: AtomicU32,
    slot: Cell<u32>,
}

// SAFETY: only the page's word protects the cell against races. The model tests this protection:
// loom reports every unsynchronized access.
unsafe impl Sync for Paged {}

impl Paged {
    fn new() -> Arc<Self> {
        Arc::new(Paged { word: AtomicU32::new(0), slot: Cell::new(0) })
    }

    fn page(&self) -> Page<'_> {
        Page::new(&self.word)
    }

    /// Becomes the page's owner, whatever the page's state is. Then changes the page's slot number,
    /// and releases the page in the state `next`.
    fn own(&self, next: State) {
        loop {
            match self.page().state() {
                State::Busy => self.page().wait(),
                state => {
                    let Some(taken) = self.page().take(state, IfPinned::Take) else { continue };
                    self.slot.set(self.slot.get() + 1);
                    taken.release(next);
                    return;
                }
            }
        }
    }
}

fn two_owners() {
    loom::model(|| {
        let paged = Paged::new();
        let other = thread::spawn({
            let paged = paged.clone();
            move || paged.own(State::Out)
        });
        paged.own(State::Dirty);
        other.join().unwrap();
        assert_eq!(paged.slot.get(), 2);
    });
}

#[test]
fn page_owners_exclude_each_other_and_waiters_are_woken() {
    two_owners();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_page_released_without_release_ordering_shows_partial_writes() {
    weaken(Edge::Page, Side::Release, two_owners);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_page_taken_without_acquire_ordering_shows_partial_writes() {
    weaken(Edge::Page, Side::Acquire, two_owners);
}

#[test]
fn a_page_is_never_both_pinned_and_evicted() {
    loom::model(|| {
        let paged = Paged::new();
        paged.own(State::Dirty);
        let evictor = thread::spawn({
            let paged = paged.clone();
            move || {
                let taken = paged.page().take(State::Dirty, IfPinned::Refuse);
                let goes = taken.is_some();
                if let Some(taken) = taken {
                    taken.release(State::Out);
                }
                goes
            }
        });
        let pinned = paged.page().pin(true);
        if pinned == Pinned::First {
            assert_eq!(paged.page().state(), State::Dirty);
            assert!(paged.page().unpin());
        }
        let goes = evictor.join().unwrap();
        assert!(goes || pinned == Pinned::First);
    });
}

/// While a thread owns a page, other threads may pin and unpin the page. When the owner releases
/// the page, the number of pins must stay unchanged.
#[test]
fn a_pin_survives_an_owner_that_ignores_pins() {
    loom::model(|| {
        let paged = Paged::new();
        paged.own(State::Clean);
        assert_eq!(paged.page().pin(false), Pinned::First);
        let writer = thread::spawn({
            let paged = paged.clone();
            move || paged.own(State::Dirty)
        });
        let again = paged.page().pin(false);
        if again == Pinned::Again {
            assert!(!paged.page().unpin());
        }
        writer.join().unwrap();
        assert!(paged.page().take(State::Dirty, IfPinned::Refuse).is_none());
        assert!(paged.page().unpin());
    });
}
