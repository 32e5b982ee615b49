//! Models of a cluster's gate and its pages. While a thread maps a page, an eviction by another
//! thread must not unmap the page.
#![cfg(loom)]

use loom::cell::Cell;
use loom::thread;
use usring_swap::gate::Gate;
use usring_swap::page::{IfPinned, Page, State};
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::sync::{Arc, AtomicU32};

/// A cluster of two pages. `mapped` stands for the page table: it records for each page whether the
/// page is mapped.
struct Cluster {
    gate: AtomicU32,
    words: [AtomicU32; 2],
    mapped: [Cell<bool>; 2],
}

// SAFETY: only the gate protects the cells against races. The model tests this protection: loom
// reports every unsynchronized access.
unsafe impl Sync for Cluster {}

impl Cluster {
    fn new() -> Arc<Self> {
        let cluster = Cluster {
            gate: AtomicU32::new(0),
            words: [AtomicU32::new(0), AtomicU32::new(0)],
            mapped: [Cell::new(false), Cell::new(false)],
        };
        cluster.page_in(0);
        Arc::new(cluster)
    }

    fn gate(&self) -> Gate<'_> {
        Gate::new(&self.gate)
    }

    fn page(&self, index: usize) -> Page<'_> {
        Page::new(&self.words[index])
    }

    /// Maps a page, as a thread that serves a page fault does.
    fn page_in(&self, index: usize) {
        let Some(taken) = self.page(index).take(State::Untouched, IfPinned::Take) else { return };
        let _inside = self.gate().enter();
        self.mapped[index].set(true);
        taken.release(State::Dirty);
    }

    /// Evicts pages as the pager does: one step unmaps a range of pages. It contains the pages that
    /// this thread has taken, and pages that are not resident.
    fn evict(&self) {
        let Some(mut claim) = self.gate().claim() else { return };
        let taken = {
            let _shut = claim.shut();
            [0, 1].map(|index| self.page(index).take(State::Dirty, IfPinned::Refuse))
        };
        {
            let _shut = claim.shut();
            for (index, taken) in taken.iter().enumerate() {
                if taken.is_some() || !self.page(index).state().is_resident() {
                    self.mapped[index].set(false);
                }
            }
        }
        for taken in taken.into_iter().flatten() {
            taken.release(State::Out);
        }
    }
}

fn fault_during_eviction() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let cluster = Cluster::new();
        let evictor = thread::spawn({
            let cluster = cluster.clone();
            move || cluster.evict()
        });
        cluster.page_in(1);
        evictor.join().unwrap();
        for index in 0..2 {
            assert_eq!(cluster.page(index).state().is_resident(), cluster.mapped[index].get(), "page {index}");
        }
    });
}

#[test]
fn a_page_faulted_in_during_an_eviction_stays_mapped() {
    fault_during_eviction();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn leaving_the_gate_without_release_shows_the_evictor_a_partial_fault() {
    weaken(Edge::Gate, Side::Release, fault_during_eviction);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn entering_the_gate_without_acquire_shows_a_partial_eviction() {
    weaken(Edge::Gate, Side::Acquire, fault_during_eviction);
}

#[test]
fn only_one_thread_at_a_time_evicts_from_a_cluster() {
    loom::model(|| {
        let gate = Arc::new(AtomicU32::new(0));
        let evicting = Arc::new(AtomicU32::new(0));
        let evict = |gate: &AtomicU32, evicting: &AtomicU32| {
            use usring_sys::sync::Ordering::SeqCst;
            for _ in 0..2 {
                if let Some(_claim) = Gate::new(gate).claim() {
                    assert_eq!(evicting.fetch_add(1, SeqCst), 0);
                    evicting.fetch_sub(1, SeqCst);
                }
            }
        };
        let other = thread::spawn({
            let (gate, evicting) = (gate.clone(), evicting.clone());
            move || evict(&gate, &evicting)
        });
        evict(&gate, &evicting);
        other.join().unwrap();
    });
}
