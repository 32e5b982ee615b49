//! Models of the mutex. They check mutual exclusion with sleeping threads. They also check the
//! hand-over of work: a thread that finds the mutex locked leaves its work to the holder.
#![cfg(loom)]

use loom::thread;
use usring_sys::mutex::Mutex;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::queue::{Consumer, Entry, Queue, Urgency, queue};
use usring_sys::sync::{Arc, AtomicBool, Ordering};

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

/// To explore all interleavings of three threads would take hours. So the model has only two
/// preemptions, between any two steps. They are enough for two threads to sleep on the mutex and to
/// be woken one after the other.
#[test]
fn both_of_two_sleepers_are_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| count(3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_unlock_without_release_shows_the_next_holder_partial_writes() {
    weaken(Edge::Lock, Side::Release, two_threads_count);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_without_acquire_shows_partial_writes_of_the_last_holder() {
    weaken(Edge::Lock, Side::Acquire, two_threads_count);
}

/// A ring, reduced to its lock and its task work.
struct Ring {
    state: Mutex<State>,
    work: Queue<()>,
}

struct State {
    consumer: Consumer<()>,
    done: u32,
}

impl Ring {
    fn new() -> Arc<Ring> {
        let (work, consumer) = queue();
        Arc::new(Ring { state: Mutex::new(State { consumer, done: 0 }), work })
    }

    /// Acts as a thread that has work for the ring: acquires the lock, does the work, and checks
    /// for work again after each unlock. Ends when there is no work, or when another thread holds
    /// the lock.
    fn run(&self) {
        while let Some(mut state) = self.state.try_lock() {
            state.consumer.begin();
            while state.consumer.take().is_some() {
                state.done += 1;
            }
            drop(state);
            if self.work.is_empty() {
                return;
            }
        }
    }

    fn bring(&self) {
        let _ = self.work.push(Entry::new(()), Urgency::Urgent);
        self.run();
    }
}

fn work_comes_while_the_lock_is_held() {
    loom::model(|| {
        let ring = Ring::new();
        let worker = {
            let ring = ring.clone();
            thread::spawn(move || ring.bring())
        };
        ring.run();
        worker.join().unwrap();
        assert_eq!(ring.state.lock().done, 1, "work was left behind the lock");
    });
}

#[test]
fn work_is_done_by_the_thread_that_takes_or_releases_the_lock() {
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

/// A thread publishes work while another thread is in the middle of a push. So the ring's driver
/// cannot reach the work. It does not wait for the unfinished push, and all work must be done
/// nevertheless.
#[test]
fn work_that_the_driver_cannot_reach_is_done_by_its_publisher() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let ring = Ring::new();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.bring())
        };
        ring.bring();
        other.join().unwrap();
        assert_eq!(ring.state.lock().done, 2, "work was left behind the lock");
    });
}

/// A ring in idle watching. The ring watcher then watches the ring's files, so a driver that
/// unlocks arms no poll for them. The watcher may end idle watching at any time. The watcher then
/// drives the ring itself, unless another thread does.
struct RingOnRound {
    /// Whether a poll for the ring's files is armed.
    state: Mutex<bool>,
    on_round: AtomicBool,
    must_be_driven: AtomicBool,
}

impl RingOnRound {
    /// Acts as a driver just before it unlocks: arms the poll, unless the ring is in idle watching.
    fn take_over(&self, watched: &mut bool) {
        *watched |= !self.on_round.load(Ordering::SeqCst);
    }

    fn run_if_unattended(&self) {
        while self.must_be_driven.load(Ordering::Relaxed) {
            let Some(mut state) = self.state.try_lock() else { return };
            self.must_be_driven.swap(false, Ordering::SeqCst);
            self.take_over(&mut state);
        }
    }

    fn drive(&self) {
        let mut state = self.state.lock();
        self.take_over(&mut state);
        drop(state);
        self.run_if_unattended();
    }

    fn strike_off(&self) {
        self.on_round.store(false, Ordering::SeqCst);
        self.must_be_driven.store(true, Ordering::SeqCst);
        self.run_if_unattended();
    }
}

fn a_driver_leaves_while_the_ring_is_removed_from_idle_watching() {
    loom::model(|| {
        let ring = Arc::new(RingOnRound {
            state: Mutex::new(false),
            on_round: AtomicBool::new(true),
            must_be_driven: AtomicBool::new(false),
        });
        let watcher = {
            let ring = ring.clone();
            thread::spawn(move || ring.strike_off())
        };
        ring.drive();
        watcher.join().unwrap();
        assert!(*ring.state.lock(), "a ring that was struck off is watched by no thread");
    });
}

#[test]
fn a_ring_removed_from_idle_watching_is_watched() {
    a_driver_leaves_while_the_ring_is_removed_from_idle_watching();
}

#[test]
#[should_panic(expected = "a ring that was struck off is watched by no thread")]
fn an_unlock_without_barrier_leaves_a_ring_unwatched() {
    weaken(Edge::HandOver, Side::Sleeper, a_driver_leaves_while_the_ring_is_removed_from_idle_watching);
}
