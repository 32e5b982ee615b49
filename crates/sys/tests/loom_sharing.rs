//! Models of a second process that begins to use a ring. One or more threads stand for each
//! process. The models check that no wake-up between the processes is lost: otherwise a thread
//! would sleep for ever, which loom reports as a deadlock.
#![cfg(loom)]

use loom::thread;
use usring_sys::futex;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::process_mutex::{Guard, ProcessMutex, run_unattended};
use usring_sys::queue::{Consumer, Entry, Queue, Urgency, queue};
use usring_sys::sharing::SharingWord;
use usring_sys::sleep::{SleepWord, Sleeper, Wake};
use usring_sys::sync::{Arc, AtomicU32, Ordering};

/// Numbers of two processes: the process that made the ring, and a child that begins to use it.
const CREATOR: u32 = 2;
const CHILD: u32 = 3;

/// The words of a ring that its processes share.
struct Memory {
    lock: Arc<AtomicU32>,
    sharing: SharingWord,
    sleep: SleepWord,
    /// Number of CQEs in the CQ.
    completed: AtomicU32,
}

/// An edge-triggered eventfd in an epoll set. The value counts signals.
struct Event(AtomicU32);

impl Event {
    fn signal(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        futex::wake(&self.0, 1);
    }

    /// Sleeps until the number of signals differs from `seen`. Updates `seen`.
    fn wait(&self, seen: &mut u32) {
        futex::wait(&self.0, *seen, None).unwrap();
        *seen = self.0.load(Ordering::Acquire);
    }
}

/// One process's view of a ring.
struct Ring {
    memory: Arc<Memory>,
    state: ProcessMutex<Consumer<()>, Arc<AtomicU32>>,
    work: Queue<()>,
    /// The eventfd that wakes the thread of this process that sleeps in the epoll set.
    wake_event: Event,
    is_adopted: bool,
}

type Locked<'a> = Guard<'a, Consumer<()>, Arc<AtomicU32>>;

fn memory() -> Arc<Memory> {
    let words = [(); 2].map(|()| AtomicU32::new(0));
    let [lock, completed] = words;
    Arc::new(Memory { lock: Arc::new(lock), sharing: SharingWord::model(), sleep: SleepWord::new(), completed })
}

impl Ring {
    fn of(memory: &Arc<Memory>, number: u32) -> Arc<Ring> {
        let (work, consumer) = queue();
        let is_adopted = number != CREATOR;
        let word = memory.lock.clone();
        let state = match is_adopted {
            true => ProcessMutex::join(word, number, |_| true, consumer),
            false => ProcessMutex::new(word, number, |_| true, consumer),
        };
        let wake_event = Event(AtomicU32::new(0));
        let ring = Arc::new(Ring { memory: memory.clone(), state, work, wake_event, is_adopted });
        // The ring is never dropped. After loom has reported a deadlock, the drop of the list would
        // panic again.
        core::mem::forget(ring.clone());
        ring
    }

    fn lock(&self) -> Locked<'_> {
        self.state.lock(|_, _| {})
    }

    fn wake_target(&self) -> bool {
        match self.memory.sleep.wake_target_after_rmw(u32::MAX) {
            Wake::NoSleeper => return false,
            Wake::Futex => self.memory.sleep.wake_futex(),
            // The claimed leader belongs to this process: a thread can claim no leader of another
            // process.
            Wake::Epoll => self.wake_event.signal(),
        }
        true
    }

    /// Completes all requests on the task-work list, and `completed` requests more. Releases the
    /// lock. If any request was completed, wakes all waiters.
    fn complete(&self, mut consumer: Locked<'_>, completed: u32) {
        let mut completed = completed;
        consumer.begin();
        while consumer.take().is_some() {
            completed += 1;
        }
        self.memory.completed.fetch_add(completed, Ordering::Relaxed);
        drop(consumer);
        while completed > 0 && self.wake_target() {}
    }

    fn run_if_unattended(&self) {
        let try_lock = || self.state.try_lock(|_, _| {});
        run_unattended(|| !self.work.is_empty(), try_lock, || Some(self.lock()), |consumer| self.complete(consumer, 0));
    }

    /// Publishes a finished request, as a worker does.
    fn publish_finished(&self) {
        let _ = self.work.push(Entry::new(()), Urgency::Urgent);
        if !self.memory.sharing.leave_to_waiter(|| self.wake_target()) {
            self.run_if_unattended();
        }
    }

    /// Waits until there are `wanted` CQEs, as a thread in io_uring_enter(2) does. In the process
    /// that made the ring, the waiter may become leader.
    fn wait(&self, wanted: u32) {
        self.wait_with(wanted, !self.is_adopted);
    }

    /// Waits until there are `wanted` CQEs. `may_lead`: whether the waiter may become leader.
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
            let leads = may_lead && sharing.try_lead(sleep);
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

/// Runs a model with a bounded number of preemptions. To explore all interleavings would take
/// hours.
fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Values of the ring watcher's eventfd in the model.
const A_WAITER_LEADS: u32 = 1;
const NO_WAITER_LEADS: u32 = 2;

/// A waiter of the ring's creator begins to sleep. Concurrently a child begins to use the ring,
/// which makes the ring shared, and completes a request. The waiter is a leader only if it began
/// before the ring was shared. Whether it is a leader or not, it has to wake.
fn a_child_begins_beside_a_leader() {
    bounded(3, || {
        let memory = memory();
        let creator = Ring::of(&memory, CREATOR);
        let watcher_event = Arc::new(AtomicU32::new(0));
        let watcher = {
            let (ring, event) = (creator.clone(), watcher_event.clone());
            thread::spawn(move || {
                futex::wait(&event, 0, None).unwrap();
                let has_leader = event.load(Ordering::Acquire) & A_WAITER_LEADS != 0;
                if has_leader && ring.memory.sharing.has_late_leader(&ring.memory.sleep) {
                    ring.wake_event.signal();
                }
            })
        };
        let child = {
            let (ring, event) = (Ring::of(&memory, CHILD), watcher_event.clone());
            thread::spawn(move || {
                let is_led = ring.memory.sharing.join(&ring.memory.sleep);
                event.store(if is_led { A_WAITER_LEADS } else { NO_WAITER_LEADS }, Ordering::Release);
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

/// A worker of the ring's creator publishes a finished request. Concurrently a child begins to use
/// the ring, and waits for the request's completion. The child must be woken for it.
#[test]
fn a_process_that_begins_is_woken_for_the_work_of_another_process() {
    bounded(3, || {
        let memory = memory();
        let creator = Ring::of(&memory, CREATOR);
        let worker = {
            let ring = creator.clone();
            thread::spawn(move || ring.publish_finished())
        };
        let child = Ring::of(&memory, CHILD);
        assert!(!child.memory.sharing.join(&child.memory.sleep));
        child.wait(1);
        worker.join().unwrap();
    });
}

/// While a child begins to use the ring, two waiters wait for one completion: one belongs to the
/// ring's creator, the other to the child. The thread that publishes the finished request wakes
/// only one waiter. Both waiters see the completion nevertheless.
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
        creator.publish_finished();
        waiter.join().unwrap();
        child.join().unwrap();
    });
}

/// A waiter of the creator calls `try_lead`, and resigns because a child has begun to use the ring.
/// The resignation claims the announcement of another waiter of this process. So the resigning
/// thread must wake that waiter.
fn a_waiter_gives_up_leading(lead: fn(&SharingWord, &SleepWord) -> bool) {
    bounded(3, move || {
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
        if lead(&memory.sharing, &memory.sleep) && memory.sleep.resign() == Wake::Futex {
            memory.sleep.wake_futex();
        }
        creator.complete(locked, 1);
        waiter.join().unwrap();
        child.join().unwrap();
    });
}

#[test]
fn a_waiter_that_gives_up_leading_leaves_no_sleeper_without_announcement() {
    a_waiter_gives_up_leading(SharingWord::try_lead);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waiter_that_resigns_without_a_wake_up_takes_the_announcement_of_a_sleeper_along() {
    a_waiter_gives_up_leading(|sharing, sleep| {
        if sharing.is_shared() || !sleep.try_lead() {
            return false;
        }
        Edge::Share.barrier_beside_rmw(Side::Sleeper);
        let stays = !sharing.is_shared();
        if !stays {
            let _ = sleep.resign();
        }
        stays
    });
}

/// The creator begins to poll the ring's descriptor. Meanwhile a child begins to use the ring, and
/// publishes two CQEs. The descriptor becomes readable, whatever the order of these steps is. When
/// the child gets the lock from another process, it finds the mark of the poller.
fn a_process_begins_to_poll_while_a_child_publishes() {
    bounded(3, || {
        let memory = memory();
        let creator = Ring::of(&memory, CREATOR);
        let words = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let [polled, readable] = words;
        let child = {
            let (ring, polled, readable) = (Ring::of(&memory, CHILD), polled.clone(), readable.clone());
            thread::spawn(move || {
                let _ = ring.memory.sharing.join(&ring.memory.sleep);
                let mut is_polled = false;
                for _ in 0..2 {
                    let _locked = ring.state.lock(|_, _| is_polled = polled.load(Ordering::Relaxed) != 0);
                    ring.memory.completed.fetch_add(1, Ordering::Release);
                    if is_polled {
                        readable.store(1, Ordering::Relaxed);
                    }
                }
            })
        };
        polled.swap(1, Ordering::SeqCst);
        Edge::Share.barrier_beside_rmw(Side::Sleeper);
        if memory.sharing.is_shared() {
            let _locked = creator.lock();
            if memory.completed.load(Ordering::Relaxed) != 0 {
                readable.store(1, Ordering::Relaxed);
            }
        } else if memory.completed.load(Ordering::Acquire) != 0 {
            readable.store(1, Ordering::Relaxed);
        }
        child.join().unwrap();
        assert_eq!(readable.load(Ordering::Relaxed), 1, "no process made the descriptor readable");
    });
}

#[test]
fn a_descriptor_that_a_process_begins_to_poll_becomes_readable() {
    a_process_begins_to_poll_while_a_child_publishes();
}

#[test]
#[should_panic(expected = "no process made the descriptor readable")]
fn a_poller_that_looks_without_barrier_misses_the_cqes_of_a_child() {
    weaken(Edge::Share, Side::Sleeper, a_process_begins_to_poll_while_a_child_publishes);
}

/// The process that made a ring registers something while a child begins to use the ring. Either
/// that process publishes the registration, or the child waits until it is published.
fn a_process_registers_while_a_child_begins() {
    bounded(3, || {
        let (memory, private) = (memory(), Arc::new(AtomicU32::new(0)));
        let maker = {
            let (memory, private) = (memory.clone(), private.clone());
            thread::spawn(move || !memory.sharing.keep_private(&private))
        };
        let _ = memory.sharing.join(&memory.sleep);
        let waits = private.load(Ordering::Acquire) != 0;
        let publishes = maker.join().unwrap();
        assert!(publishes || waits, "the child does not see what the maker has registered");
    });
}

#[test]
fn a_child_that_begins_sees_what_the_maker_registers_or_waits_for_it() {
    a_process_registers_while_a_child_begins();
}

#[test]
#[should_panic(expected = "does not see what the maker has registered")]
fn a_maker_that_looks_without_barrier_hides_what_it_registers() {
    weaken(Edge::Share, Side::Sleeper, a_process_registers_while_a_child_begins);
}

#[test]
#[should_panic(expected = "does not see what the maker has registered")]
fn a_child_that_looks_without_barrier_misses_what_the_maker_registers() {
    weaken(Edge::Share, Side::Waker, a_process_registers_while_a_child_begins);
}
