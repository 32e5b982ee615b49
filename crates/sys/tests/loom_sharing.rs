//! Models of a second process that begins to use a ring, with each process's threads as threads. No
//! wake-up is lost between the processes: a lost one is a thread that sleeps for ever, which loom
//! reports as a deadlock.
#![cfg(loom)]

use loom::thread;
use usring_sys::futex;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::process_mutex::{Guard, ProcessMutex, run_unattended};
use usring_sys::queue::{Entry, Queue, Taker, Urgency, queue};
use usring_sys::sharing::SharingWord;
use usring_sys::sleep::{SleepWord, Sleeper, Wake};
use usring_sys::sync::{Arc, AtomicU32, Ordering};

/// The numbers of the process that made the ring, and of the child that begins to use it.
const CREATOR: u32 = 2;
const CHILD: u32 = 3;

/// The words of a ring that its processes share.
struct Memory {
    lock: Arc<AtomicU32>,
    sharing: SharingWord,
    sleep: SleepWord,
    /// CQEs in the CQ.
    completed: AtomicU32,
}

/// An eventfd in an epoll set, edge-triggered.
struct Event(AtomicU32);

impl Event {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        futex::wake(&self.0, 1);
    }

    /// Sleeps until there was a signal after the one that was `seen` last.
    fn wait(&self, seen: &mut u32) {
        futex::wait(&self.0, *seen, None).unwrap();
        *seen = self.0.load(Ordering::Acquire);
    }
}

/// A process's side of the ring.
struct Ring {
    memory: Arc<Memory>,
    state: ProcessMutex<Taker<()>, Arc<AtomicU32>>,
    work: Queue<()>,
    /// The wake eventfd in the epoll set of this process.
    wake_event: Event,
    is_adopted: bool,
}

type Locked<'a> = Guard<'a, Taker<()>, Arc<AtomicU32>>;

fn memory() -> Arc<Memory> {
    let words = [(); 2].map(|()| AtomicU32::new(0));
    let [lock, completed] = words;
    Arc::new(Memory { lock: Arc::new(lock), sharing: SharingWord::model(), sleep: SleepWord::new(), completed })
}

impl Ring {
    fn of(memory: &Arc<Memory>, number: u32) -> Arc<Ring> {
        let (work, taker) = queue();
        let is_adopted = number != CREATOR;
        let word = memory.lock.clone();
        let state = match is_adopted {
            true => ProcessMutex::join(word, number, |_| true, taker),
            false => ProcessMutex::new(word, number, |_| true, taker),
        };
        let wake_event = Event(AtomicU32::new(0));
        let ring = Arc::new(Ring { memory: memory.clone(), state, work, wake_event, is_adopted });
        // Never dropped: when loom has reported a deadlock, a drop of the list would panic again.
        core::mem::forget(ring.clone());
        ring
    }

    fn lock(&self) -> Locked<'_> {
        self.state.lock(|_, _| {})
    }

    fn wake_one(&self) -> bool {
        match self.memory.sleep.wake_target_after_rmw(u32::MAX) {
            Wake::Nobody => return false,
            Wake::Futex => self.memory.sleep.wake_futex(),
            // A process reaches only the leader of its own.
            Wake::Epoll => self.wake_event.signal(),
        }
        true
    }

    /// Completes the work on the list, and releases the lock. Wakes all waiters for `completed`
    /// requests besides those of the list.
    fn complete(&self, mut taker: Locked<'_>, completed: u32) {
        let mut completed = completed;
        taker.begin();
        while taker.take().is_some() {
            completed += 1;
        }
        self.memory.completed.fetch_add(completed, Ordering::Relaxed);
        drop(taker);
        while completed > 0 && self.wake_one() {}
    }

    fn run_if_unattended(&self) {
        let try_lock = || self.state.try_lock(|_, _| {});
        run_unattended(|| !self.work.is_empty(), try_lock, || Some(self.lock()), |taker| self.complete(taker, 0));
    }

    /// Brings finished work, as a worker does.
    fn bring(&self) {
        let _ = self.work.push(Entry::new(()), Urgency::Urgent);
        if !self.memory.sharing.leave_to_waiter(|| self.wake_one()) {
            self.run_if_unattended();
        }
    }

    /// Waits until there are `wanted` CQEs, as a waiter in enter does that watches files.
    fn wait(&self, wanted: u32) {
        self.wait_with(wanted, !self.is_adopted);
    }

    /// `may_lead`: the ring has an epoll set, in this process.
    fn wait_with(&self, wanted: u32, may_lead: bool) {
        let Memory { sharing, sleep, completed, .. } = &*self.memory;
        let mut seen = 0;
        loop {
            self.complete(self.lock(), 0);
            let locked = self.lock();
            if completed.load(Ordering::Relaxed) >= wanted {
                drop(locked);
                return self.run_if_unattended();
            }
            let leads = may_lead && sharing.lead(sleep);
            let ticket = sleep.announce(if leads { Sleeper::Epoll } else { Sleeper::Futex }, 1);
            drop(locked);
            match leads {
                _ if !self.work.is_empty() => {}
                true => self.wake_event.wait(&mut seen),
                false => sleep.sleep(&ticket, None).unwrap(),
            }
            let _ = sleep.retract(ticket);
            if leads {
                let locked = self.lock();
                let successor = sleep.resign();
                drop(locked);
                if successor == Wake::Futex {
                    sleep.wake_futex();
                }
            }
        }
    }
}

/// Runs a model with a bounded number of preemptions; all interleavings would take hours.
fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Bits of the ring watcher's eventfd in the model.
const A_WAITER_LEADS: u32 = 1;
const END: u32 = 2;

/// A waiter of the ring's creator begins to sleep, and leads if the ring is not shared. A child
/// begins to use the ring, and completes a request.
fn a_child_begins_beside_a_leader() {
    bounded(3, || {
        let memory = memory();
        let creator = Ring::of(&memory, CREATOR);
        let watcher_event = Arc::new(AtomicU32::new(0));
        let watcher = {
            let (ring, event) = (creator.clone(), watcher_event.clone());
            thread::spawn(move || {
                futex::wait(&event, 0, None).unwrap();
                let called = event.load(Ordering::Acquire) & A_WAITER_LEADS != 0;
                if called && ring.memory.sharing.has_late_leader(&ring.memory.sleep) {
                    ring.wake_event.signal();
                }
            })
        };
        let child = {
            let (ring, event) = (Ring::of(&memory, CHILD), watcher_event.clone());
            thread::spawn(move || {
                let is_led = ring.memory.sharing.join(&ring.memory.sleep);
                event.store(if is_led { A_WAITER_LEADS } else { END }, Ordering::Release);
                futex::wake_shared(&event, 1);
                ring.complete(ring.lock(), 1);
            })
        };
        creator.wait(1);
        watcher.join().unwrap();
        child.join().unwrap();
    });
}

#[test]
fn a_leader_is_woken_by_the_completion_of_a_process_that_begins() {
    a_child_begins_beside_a_leader();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_leader_that_looks_without_barrier_sleeps_through_another_processes_completion() {
    weaken(Edge::Share, Side::Sleeper, a_child_begins_beside_a_leader);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_process_that_looks_without_barrier_leaves_the_leader_asleep() {
    weaken(Edge::Share, Side::Waker, a_child_begins_beside_a_leader);
}

/// A worker of the ring's creator brings work. A child begins to use the ring, and waits for the
/// completion.
#[test]
fn a_process_that_begins_is_woken_for_the_work_of_another_process() {
    bounded(3, || {
        let memory = memory();
        let creator = Ring::of(&memory, CREATOR);
        let worker = {
            let ring = creator.clone();
            thread::spawn(move || ring.bring())
        };
        let child = Ring::of(&memory, CHILD);
        assert!(!child.memory.sharing.join(&child.memory.sleep));
        child.wait(1);
        worker.join().unwrap();
    });
}

/// As before, and a waiter of the creator waits for the work, too. Whichever waiter the worker
/// claims, both see the completion.
#[test]
fn waiters_of_both_processes_are_woken_for_the_work_of_one() {
    bounded(2, || {
        let memory = memory();
        let creator = Ring::of(&memory, CREATOR);
        let waiter = {
            let ring = creator.clone();
            thread::spawn(move || ring.wait(1))
        };
        let child = {
            let (ring, creator) = (Ring::of(&memory, CHILD), creator.clone());
            thread::spawn(move || {
                if ring.memory.sharing.join(&ring.memory.sleep)
                    && creator.memory.sharing.has_late_leader(&creator.memory.sleep)
                {
                    creator.wake_event.signal();
                }
                ring.wait(1);
            })
        };
        creator.bring();
        waiter.join().unwrap();
        child.join().unwrap();
    });
}

/// A waiter of the creator gives up leading, because a child has begun. With that it claims the
/// announcement of another waiter, which began before there was an epoll set, and wakes it.
#[test]
fn a_waiter_that_gives_up_leading_leaves_no_sleeper_without_announcement() {
    bounded(3, || {
        let memory = memory();
        let creator = Ring::of(&memory, CREATOR);
        let waiter = {
            let ring = creator.clone();
            thread::spawn(move || ring.wait_with(1, false))
        };
        let child = {
            let ring = Ring::of(&memory, CHILD);
            thread::spawn(move || _ = ring.memory.sharing.join(&ring.memory.sleep))
        };
        let locked = creator.lock();
        if memory.sharing.lead(&memory.sleep) && memory.sleep.resign() == Wake::Futex {
            memory.sleep.wake_futex();
        }
        creator.complete(locked, 1);
        waiter.join().unwrap();
        child.join().unwrap();
    });
}
