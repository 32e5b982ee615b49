//! Models of the lock: mutual exclusion with sleepers, and the hand-over of
//! work between a holder and a thread that finds the lock taken.
#![cfg(loom)]

use loom::cell::Cell;
use loom::thread;
use usring_sys::mutex::Mutex;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::queue::{Entry, Queue};
use usring_sys::sync::Arc;

fn count(threads: u32) {
    let counter = Arc::new(Mutex::new(0));
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let counter = counter.clone();
            thread::spawn(move || *counter.lock() += 1)
        })
        .collect();
    *counter.lock() += 1;
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(*counter.lock(), threads);
}

fn two_threads_count() {
    loom::model(|| count(2));
}

#[test]
fn holders_exclude_each_other_and_a_sleeper_is_woken() {
    two_threads_count();
}

/// All orders of three would take hours; two preemptions at any two places are
/// enough to have two sleepers and a hand-over between them.
#[test]
fn every_one_of_two_sleepers_is_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| count(3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_unlock_without_release_lets_the_next_holder_see_half_of_it() {
    weaken(Edge::Lock, Side::Release, two_threads_count);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_without_acquire_sees_half_of_what_the_last_holder_did() {
    weaken(Edge::Lock, Side::Acquire, two_threads_count);
}

/// A ring, reduced to its lock and its task work.
struct Ring {
    done: Mutex<Cell<u32>>,
    work: Queue<()>,
}

impl Ring {
    /// What a holder does: the work, and after letting go once more, until it
    /// sees none or somebody else holds the lock.
    fn run(&self) {
        while let Some(done) = self.done.try_lock() {
            done.set(done.get() + self.work.take_all().len() as u32);
            drop(done);
            if self.work.is_empty() {
                return;
            }
        }
    }
}

fn work_comes_while_the_lock_is_held() {
    loom::model(|| {
        let ring = Arc::new(Ring { done: Mutex::new(Cell::new(0)), work: Queue::new() });
        let worker = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.work.push(Entry::new(()));
                ring.run();
            })
        };
        ring.run();
        worker.join().unwrap();
        assert!(ring.work.is_empty(), "work was left behind the lock");
        assert_eq!(ring.done.lock().get(), 1);
    });
}

#[test]
fn work_is_done_by_who_gets_the_lock_or_by_who_lets_it_go() {
    work_comes_while_the_lock_is_held();
}

#[test]
#[should_panic(expected = "work was left behind the lock")]
fn an_unlock_without_barrier_leaves_work_behind() {
    weaken(Edge::HandOver, Side::Sleeper, work_comes_while_the_lock_is_held);
}

#[test]
#[should_panic(expected = "work was left behind the lock")]
fn a_try_lock_without_barrier_leaves_work_behind() {
    weaken(Edge::HandOver, Side::Waker, work_comes_while_the_lock_is_held);
}
