//! Models of the sleep word. They check that a thread which sleeps until there is work is woken
//! when work comes. After a lost wake-up a thread would sleep for ever, which loom reports as a
//! deadlock.
#![cfg(loom)]

use loom::thread;
use std::sync::Arc;
use usring_sys::futex;
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::queue::{Consumer, Entry, Queue, Rest, Urgency, queue};
use usring_sys::sleep::{SleepWord, Sleeper, Wake};
use usring_sys::sleep_place::SleepPlace;
use usring_sys::sync::{AtomicU32, Ordering};

/// A ring, reduced to the words of its waiters and wakers.
struct Ring {
    work: Queue<u32>,
    /// The consumer of `work`, and the number of entries that it has taken.
    consumer: Mutex<(Consumer<u32>, u32)>,
    sleep: SleepWord,
    /// The eventfd in the ring's epoll set. The leader sleeps while this word is 0.
    eventfd: AtomicU32,
}

impl Ring {
    fn new() -> Arc<Ring> {
        let (work, consumer) = queue();
        let consumer = Mutex::new((consumer, 0));
        Arc::new(Ring { work, consumer, sleep: SleepWord::new(), eventfd: AtomicU32::new(0) })
    }

    fn push(&self, value: u32) -> u32 {
        self.work.push(Entry::new(value), Urgency::Lazy).queued
    }

    /// Takes the entries that the consumer can reach. Returns the number of entries taken so far,
    /// and how many more are needed until `needed` entries were taken.
    fn take(&self, needed: u32) -> (u32, u32) {
        let (consumer, taken) = &mut *self.consumer.lock();
        if consumer.begin() {
            while consumer.take().is_some() {
                *taken += 1;
            }
        }
        // An entry is not linked yet. The queue may count only this entry at the next wake-up. So
        // this thread must be woken after 1 entry.
        let missing = if consumer.stop() == Rest::OutOfReach { 1 } else { needed.saturating_sub(*taken) };
        (*taken, missing)
    }

    fn carry_out(&self, wake: Wake) {
        match wake {
            Wake::NoSleeper => {}
            Wake::Futex => self.sleep.wake_futex(),
            Wake::Epoll => {
                self.eventfd.store(1, Ordering::Release);
                futex::wake(&self.eventfd, 1);
            }
        }
    }

    fn work_comes(&self) {
        let queued = self.push(0);
        self.carry_out(self.sleep.wake_target(queued));
    }

    /// Takes entries until `needed` were taken. Sleeps while no entry is queued.
    fn wait_for_entries(&self, kind: Sleeper, needed: u32) {
        loop {
            let (taken, missing) = self.take(needed);
            if taken >= needed {
                return;
            }
            if kind == Sleeper::Epoll {
                self.eventfd.store(0, Ordering::Relaxed);
            }
            let ticket = self.sleep.announce(kind, missing);
            if self.work.is_empty() {
                match kind {
                    Sleeper::Futex => self.sleep.sleep(&ticket, None).unwrap(),
                    Sleeper::Epoll => futex::wait(&self.eventfd, 0, None).unwrap(),
                }
            }
            self.sleep.retract(ticket);
        }
    }

    /// Sleeps until `is_enough` returns `true`, as a waiter in io_uring_enter(2) does.
    fn wait(&self, kind: Sleeper, needed: u32, is_enough: impl Fn() -> bool) {
        while !is_enough() {
            if kind == Sleeper::Epoll {
                // The eventfd is drained before the announcement. After the announcement a waker
                // may already have written the eventfd, and to drain it would lose that wake-up.
                self.eventfd.store(0, Ordering::Relaxed);
            }
            let ticket = self.sleep.announce(kind, needed);
            if !is_enough() {
                match kind {
                    Sleeper::Futex => self.sleep.sleep(&ticket, None).unwrap(),
                    Sleeper::Epoll => futex::wait(&self.eventfd, 0, None).unwrap(),
                }
            }
            self.sleep.retract(ticket);
        }
    }
}

fn spawn(ring: &Arc<Ring>, f: impl FnOnce(&Ring) + 'static) -> thread::JoinHandle<()> {
    let ring = ring.clone();
    thread::spawn(move || f(&ring))
}

/// Runs a model with at most three preemptions in one run, between any two steps. To explore all
/// interleavings of three threads, or of many steps, would take hours. Known bugs of such protocols
/// need two preemptions.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn one_sleeper_one_waker(kind: Sleeper) {
    loom::model(move || {
        let ring = Ring::new();
        let waker = spawn(&ring, Ring::work_comes);
        ring.wait_for_entries(kind, 1);
        waker.join().unwrap();
    });
}

#[test]
fn a_futex_sleeper_is_woken() {
    one_sleeper_one_waker(Sleeper::Futex);
}

#[test]
fn a_leader_is_woken() {
    one_sleeper_one_waker(Sleeper::Epoll);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_without_barrier_sleeps_for_ever() {
    weaken(Edge::Sleep, Side::Sleeper, || one_sleeper_one_waker(Sleeper::Futex));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_leader_without_barrier_sleeps_for_ever() {
    weaken(Edge::Sleep, Side::Sleeper, || one_sleeper_one_waker(Sleeper::Epoll));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waker_without_barrier_leaves_the_sleeper_asleep_for_ever() {
    weaken(Edge::Sleep, Side::Waker, || one_sleeper_one_waker(Sleeper::Futex));
}

/// A process publishes work and claims the sleeper. It dies before it wakes the sleeper. Then
/// another process wakes the sleeper by `wake`.
fn a_waker_dies(wake: fn(&Ring)) {
    bounded(move || {
        let ring = Ring::new();
        let dying = spawn(&ring, |ring| {
            let queued = ring.push(0);
            let _ = ring.sleep.wake_target(queued);
        });
        let survivor = spawn(&ring, move |ring| {
            dying.join().unwrap();
            wake(ring);
        });
        ring.wait_for_entries(Sleeper::Futex, 1);
        survivor.join().unwrap();
    });
}

#[test]
fn wake_all_futex_wakes_a_sleeper_whose_waker_died() {
    a_waker_dies(|ring| ring.sleep.wake_all_futex());
}

#[test]
#[should_panic(expected = "deadlock")]
fn waking_one_target_leaves_a_sleeper_whose_waker_died_asleep() {
    a_waker_dies(|ring| ring.carry_out(ring.sleep.wake_target(u32::MAX)));
}

#[test]
fn a_sleeper_that_needs_two_entries_is_woken_by_the_second_waker() {
    bounded(|| {
        let ring = Ring::new();
        let wakers = [spawn(&ring, Ring::work_comes), spawn(&ring, Ring::work_comes)];
        ring.wait_for_entries(Sleeper::Futex, 2);
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    });
}

/// The waker passes a number to `wake_target`, which alone decides whether the sleeper is woken.
/// The number of entries in the list does not matter.
#[test]
fn a_sleeper_that_needs_two_cqes_is_woken_by_the_second_post() {
    loom::model(|| {
        let ring = Ring::new();
        let tail = Arc::new(AtomicU32::new(0));
        let posts = tail.clone();
        let poster = spawn(&ring, move |ring| {
            for ready in 1..=2 {
                posts.store(ready, Ordering::Release);
                ring.carry_out(ring.sleep.wake_target(ready));
            }
        });
        ring.wait(Sleeper::Futex, 2, || tail.load(Ordering::Acquire) >= 2);
        poster.join().unwrap();
    });
}

#[test]
fn a_completion_wakes_both_the_leader_and_a_futex_sleeper() {
    bounded(|| {
        let ring = Ring::new();
        let ready = Arc::new(AtomicU32::new(0));
        let sleepers = [Sleeper::Epoll, Sleeper::Futex].map(|kind| {
            let ready = ready.clone();
            spawn(&ring, move |ring| ring.wait(kind, 1, || ready.load(Ordering::Acquire) != 0))
        });
        ready.store(1, Ordering::Release);
        loop {
            match ring.sleep.wake_target(1) {
                Wake::NoSleeper => break,
                wake => ring.carry_out(wake),
            }
        }
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
}

#[test]
fn an_announcement_is_claimed_by_only_one_of_two_wakers() {
    loom::model(|| {
        let ring = Ring::new();
        let ticket = ring.sleep.announce(Sleeper::Futex, 1);
        let woken = Arc::new(AtomicU32::new(0));
        let claim = |ring: &Ring, woken: &AtomicU32| {
            if ring.sleep.wake_target(1) != Wake::NoSleeper {
                woken.fetch_add(1, Ordering::Relaxed);
            }
        };
        let other = {
            let woken = woken.clone();
            spawn(&ring, move |ring| claim(ring, &woken))
        };
        claim(&ring, &woken);
        other.join().unwrap();
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert!(ring.sleep.retract(ticket));
    });
}

/// A waker claims a sleeper just when the sleeper's time limit ends its sleep. The waker leaves its
/// work to the sleeper, which must do the work.
fn a_sleeper_times_out(kind: Sleeper) {
    loom::model(move || {
        let ring = Ring::new();
        let waker = spawn(&ring, |ring| {
            let queued = ring.push(0);
            if ring.sleep.wake_target(queued) == Wake::NoSleeper {
                assert_eq!(ring.take(1).0, 1, "no other thread has done the work");
            }
        });
        let ticket = ring.sleep.announce(kind, 1);
        if ring.sleep.retract(ticket) {
            assert_eq!(ring.take(1).0, 1, "the claimed sleeper sees no work");
        }
        waker.join().unwrap();
        assert_eq!(ring.consumer.lock().1, 1, "no thread did the work");
        assert_eq!(ring.sleep.wake_target(1), Wake::NoSleeper);
    });
}

#[test]
fn work_for_a_sleeper_that_times_out_is_done_by_it_or_its_waker() {
    a_sleeper_times_out(Sleeper::Futex);
    a_sleeper_times_out(Sleeper::Epoll);
}

/// Two threads sleep, and there are two wake-ups. One sleeper retracts its announcement before or
/// after the first wake-up. The other sleeper may announce itself again between the wake-ups. This
/// second announcement must stay valid.
#[test]
fn an_announcement_outlives_the_retraction_of_another() {
    bounded(|| {
        let ring = Ring::new();
        let impatient = ring.sleep.announce(Sleeper::Futex, 1);
        let sleeper = spawn(&ring, |ring| ring.wait_for_entries(Sleeper::Futex, 2));
        let waker = spawn(&ring, |ring| {
            ring.work_comes();
            ring.work_comes();
        });
        ring.sleep.retract(impatient);
        sleeper.join().unwrap();
        waker.join().unwrap();
    });
}

#[test]
fn a_sleeper_becomes_leader_when_the_leader_resigns() {
    loom::model(|| {
        let ring = Ring::new();
        assert!(ring.sleep.try_lead());
        let follower = spawn(&ring, |ring| {
            while !ring.sleep.try_lead() {
                let ticket = ring.sleep.announce(Sleeper::Futex, 1);
                if ticket.is_led() {
                    ring.sleep.sleep(&ticket, None).unwrap();
                }
                ring.sleep.retract(ticket);
            }
        });
        ring.carry_out(ring.sleep.resign());
        follower.join().unwrap();
    });
}

/// A ring with its lock, its task work and a waiter: all parts of the protocol together.
struct Engine {
    ring: Arc<Ring>,
    lock: Mutex<()>,
    completed: AtomicU32,
}

impl Engine {
    /// Runs task work under the ring's lock, and wakes waiters for the completions. After the
    /// unlock, checks for work again. If there is work and the lock is free, runs that work, too.
    fn run(&self, guard: Option<Guard<()>>) {
        let mut guard = guard;
        while let Some(held) = guard {
            let before = self.completed.load(Ordering::Relaxed);
            let done = self.ring.take(1).0 - before;
            let completed = self.completed.fetch_add(done, Ordering::Release) + done;
            drop(held);
            if done > 0 {
                self.ring.carry_out(self.ring.sleep.wake_target_after_rmw(completed));
            }
            guard = if self.ring.work.is_empty() { None } else { self.lock.try_lock() };
        }
    }

    fn completes(&self) {
        let queued = self.ring.push(0);
        match self.ring.sleep.wake_target_after_rmw(queued) {
            Wake::NoSleeper => self.run(self.lock.try_lock()),
            wake => self.ring.carry_out(wake),
        }
    }

    fn waits(&self) {
        loop {
            self.run(Some(self.lock.lock()));
            if self.completed.load(Ordering::Acquire) > 0 {
                return;
            }
            let ticket = self.ring.sleep.announce(Sleeper::Futex, 1);
            if self.completed.load(Ordering::Acquire) == 0 && self.ring.work.is_empty() {
                self.ring.sleep.sleep(&ticket, None).unwrap();
            }
            self.ring.sleep.retract(ticket);
        }
    }
}

fn a_worker_completes_for_a_waiter() {
    bounded(|| {
        let engine = Arc::new(Engine { ring: Ring::new(), lock: Mutex::new(()), completed: AtomicU32::new(0) });
        let worker = {
            let engine = engine.clone();
            thread::spawn(move || engine.completes())
        };
        engine.waits();
        worker.join().unwrap();
    });
}

#[test]
fn a_waiter_sees_its_completion_whichever_thread_runs_the_work() {
    a_worker_completes_for_a_waiter();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waiter_without_barrier_sleeps_although_its_work_is_queued() {
    weaken(Edge::Sleep, Side::Sleeper, a_worker_completes_for_a_waiter);
}

/// A leader sleeps on an AIO context until the context has two completions. Meanwhile there is
/// other work for the leader. If the leader records the context before it announces its sleep, the
/// waker finds the context.
fn a_leader_sleeps_on_completions(notes_place_first: bool) {
    bounded(move || {
        let ring = Ring::new();
        let places = Arc::new(SleepPlace::<Arc<AtomicU32>>::new());
        let context = Arc::new(AtomicU32::new(0));
        let waker = {
            let (ring, places) = (ring.clone(), places.clone());
            thread::spawn(move || {
                let queued = ring.push(0);
                if ring.sleep.wake_target(queued) == Wake::Epoll {
                    places.wake(|context, count| {
                        context.fetch_add(count, Ordering::AcqRel);
                        futex::wake(context, 1);
                    });
                }
            })
        };
        while ring.take(1).0 < 1 {
            if notes_place_first {
                places.begin(context.clone(), 2);
            }
            let ticket = ring.sleep.announce(Sleeper::Epoll, 1);
            if !notes_place_first {
                places.begin(context.clone(), 2);
            }
            if ring.work.is_empty() {
                futex::wait(&context, 0, None).unwrap();
            }
            ring.sleep.retract(ticket);
            places.end();
        }
        waker.join().unwrap();
    });
}

#[test]
fn a_leader_that_sleeps_on_completions_is_woken_for_other_work() {
    a_leader_sleeps_on_completions(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_leader_that_notes_its_sleeping_place_too_late_sleeps_for_ever() {
    a_leader_sleeps_on_completions(false);
}
