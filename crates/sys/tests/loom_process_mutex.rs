//! Models of the mutex that processes share. One or two threads stand for each process. The models
//! check that at most one thread holds the lock. They also check that a thread can acquire the lock
//! of a dead process. In some models two threads of a process hand over work while another process
//! competes for the lock.
#![cfg(loom)]

use loom::thread;
use usring_sys::futex;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::process_mutex::{ProcessMutex, Since, run_unattended};
use usring_sys::queue::{Consumer, Entry, Queue, Urgency, queue};
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, AtomicU32, Ordering};

/// Numbers of two processes, as in the lock's word.
const FIRST: u32 = 2;
const SECOND: u32 = 3;

loom::lazy_static! {
    /// Number of the process that has died; 0 if no process has died.
    static ref DEAD: AtomicU32 = AtomicU32::new(0);
}

fn is_alive(number: u32) -> bool {
    DEAD.load(Ordering::SeqCst) != number
}

/// Memory that two processes share: the word of a lock, and a count that only the lock's holder may
/// access.
#[derive(Clone)]
struct Memory {
    word: Arc<AtomicU32>,
    count: Arc<SharedMemory>,
}

impl Memory {
    fn new() -> Memory {
        Memory { word: Arc::new(AtomicU32::new(0)), count: Arc::new(SharedMemory::model(64)) }
    }

    fn add(&self) {
        self.count.write(0, self.count.read::<u64>(0) + 1);
    }
}

/// One process's view of the lock. Its value counts how often the process has caught up with the
/// other process.
type Lock = ProcessMutex<u32, Arc<AtomicU32>>;

fn first(memory: &Memory) -> Lock {
    ProcessMutex::new(memory.word.clone(), FIRST, is_alive, 0)
}

fn second(memory: &Memory) -> Lock {
    ProcessMutex::join(memory.word.clone(), SECOND, is_alive, 0)
}

fn two_processes_count() {
    loom::model(|| {
        let memory = Memory::new();
        let lock = first(&memory);
        let other = {
            let (memory, lock) = (memory.clone(), second(&memory));
            thread::spawn(move || {
                let guard = lock.lock(|caught_up, _| *caught_up += 1);
                memory.add();
                assert_eq!(*guard, 1, "the process follows another holder");
            })
        };
        {
            let _guard = lock.lock(|caught_up, _| *caught_up += 1);
            memory.add();
        }
        other.join().unwrap();
        let guard = lock.lock(|caught_up, _| *caught_up += 1);
        assert_eq!(memory.count.read::<u64>(0), 2);
        assert!(*guard == 1 || *guard == 2, "the other process was the last holder at least once");
    });
}

#[test]
fn processes_exclude_each_other_and_catch_up() {
    two_processes_count();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_unlock_without_release_shows_another_process_partial_writes() {
    weaken(Edge::Lock, Side::Release, two_processes_count);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_without_acquire_shows_partial_writes_of_another_process() {
    weaken(Edge::Lock, Side::Acquire, two_processes_count);
}

/// The second process dies while it holds the lock. The first process acquires the lock, whether it
/// began to wait before the death or after it.
#[test]
fn the_lock_of_a_dead_process_is_taken() {
    loom::model(|| {
        let memory = Memory::new();
        let lock = first(&memory);
        let other = {
            let (memory, lock) = (memory.clone(), second(&memory));
            thread::spawn(move || {
                std::mem::forget(lock.lock(|_, _| {}));
                memory.add();
                DEAD.store(SECOND, Ordering::SeqCst);
                futex::expire();
            })
        };
        let deaths = |guards: &mut u32, since| *guards += u32::from(since == Since::HolderDied);
        drop(lock.lock(deaths));
        other.join().unwrap();
        let guard = lock.lock(deaths);
        assert_eq!(memory.count.read::<u64>(0), 1);
        drop(guard);
        assert_eq!(*lock.lock(deaths), 1, "the dead holder is noticed once");
    });
}

/// A process waits for the lock while another process, which is alive, holds it. The waiter's sleep
/// ends by its time limit, and it must not take the lock.
#[test]
fn the_lock_of_a_living_process_is_not_taken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let memory = Memory::new();
        let lock = first(&memory);
        let other = {
            let (memory, lock) = (memory.clone(), second(&memory));
            thread::spawn(move || {
                let _guard = lock.lock(|_, _| {});
                memory.add();
                futex::expire();
                // Lets the first process run at a moment at which this process still holds the
                // lock.
                thread::yield_now();
                memory.add();
            })
        };
        let guard = lock.lock(|_, _| {});
        memory.add();
        drop(guard);
        other.join().unwrap();
        let _guard = lock.lock(|_, _| {});
        assert_eq!(memory.count.read::<u64>(0), 3);
    });
}

/// Three threads compete for the lock. One belongs to a process that dies as soon as it holds the
/// lock. The other two threads acquire the lock nevertheless.
#[test]
fn a_waiter_that_dies_takes_no_wake_up_along() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let memory = Memory::new();
        let lock = Arc::new(first(&memory));
        let waiter = {
            let lock = lock.clone();
            thread::spawn(move || drop(lock.lock(|_, _| {})))
        };
        let dying = {
            let lock = second(&memory);
            thread::spawn(move || {
                std::mem::forget(lock.lock(|_, _| {}));
                DEAD.store(SECOND, Ordering::SeqCst);
                futex::expire();
            })
        };
        drop(lock.lock(|_, _| {}));
        waiter.join().unwrap();
        dying.join().unwrap();
    });
}

/// A ring of the first process, reduced to its lock and its task work.
struct Ring {
    state: ProcessMutex<State, Arc<AtomicU32>>,
    work: Queue<()>,
}

struct State {
    consumer: Consumer<()>,
    done: u32,
}

impl Ring {
    fn new(memory: &Memory) -> Arc<Ring> {
        let (work, consumer) = queue();
        let state = ProcessMutex::new(memory.word.clone(), FIRST, is_alive, State { consumer, done: 0 });
        Arc::new(Ring { state, work })
    }

    /// Acts as a driver of the ring. Checks for work again after each unlock. Waits for the lock
    /// only if another process holds it.
    fn run(&self) {
        let try_lock = || self.state.try_lock(|_, _| {});
        let wait = || Some(self.state.lock(|_, _| {}));
        run_unattended(
            || !self.work.is_empty(),
            try_lock,
            wait,
            |mut state| {
                state.consumer.begin();
                while state.consumer.take().is_some() {
                    state.done += 1;
                }
            },
        );
    }

    fn bring(&self) {
        let _ = self.work.push(Entry::new(()), Urgency::Urgent);
        self.run();
    }

    /// Acts as a thread that needs the ring's lock for another purpose: acquires and releases it,
    /// and checks for work after the unlock.
    fn drive(&self) {
        drop(self.state.lock(|_, _| {}));
        self.run();
    }
}

/// Calls `here` while another thread publishes work. Checks that afterwards `done` pieces of work
/// are done.
fn beside_a_worker(here: fn(&Ring), done: u32) {
    loom::model(move || {
        let memory = Memory::new();
        let ring = Ring::new(&memory);
        let worker = {
            let ring = ring.clone();
            thread::spawn(move || ring.bring())
        };
        here(&ring);
        worker.join().unwrap();
        assert_eq!(ring.state.lock(|_, _| {}).done, done, "work was left behind the lock");
    });
}

fn work_comes_while_the_lock_is_held() {
    beside_a_worker(Ring::drive, 1);
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

/// A thread publishes work while another thread does earlier work. The other thread then does both.
#[test]
fn work_of_two_threads_is_done() {
    beside_a_worker(Ring::bring, 2);
}

#[test]
fn work_is_done_although_another_process_has_the_lock() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let memory = Memory::new();
        let ring = Ring::new(&memory);
        let other = {
            let lock = second(&memory);
            thread::spawn(move || drop(lock.lock(|_, _| {})))
        };
        ring.bring();
        other.join().unwrap();
        assert_eq!(ring.state.lock(|_, _| {}).done, 1, "work was left behind the lock");
    });
}
