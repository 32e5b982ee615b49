//! Models of a change that one process of a shared ring asks of another, with each process as a
//! thread. Each of the two processes may die at any of its steps. After a lost wake-up a thread
//! would sleep for ever, which loom reports as a deadlock.
#![cfg(loom)]

use loom::thread;
use usring_ring::change_slot::{Change, ChangeSlot, LENGTH};
use usring_sys::futex;
use usring_sys::process_mutex::{Guard, ProcessMutex, Since};
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, AtomicU32, Ordering};

/// Numbers of the process that asks, of the process that is asked, and of a third process.
const ASKER: u32 = 2;
const TARGET: u32 = 3;
const THIRD: u32 = 4;

const CHANGE: Change = [1, 2, 3, 4, 5];
const ANSWER: i32 = 7;

loom::lazy_static! {
    /// The number of the process that has died; 0: no process has died.
    static ref DEAD: AtomicU32 = AtomicU32::new(0);
}

fn is_alive(number: u32) -> bool {
    DEAD.load(Ordering::SeqCst) != number
}

/// The words of a ring that its processes share.
struct Memory {
    lock: Arc<AtomicU32>,
    slot: Arc<SharedMemory>,
    /// The count of notices. A futex on this word stands for the eventfd that wakes all processes.
    notices: AtomicU32,
}

/// A process's side of the ring.
struct Process {
    memory: Arc<Memory>,
    lock: ProcessMutex<(), Arc<AtomicU32>>,
    slot: ChangeSlot,
}

type Locked<'a> = Guard<'a, (), Arc<AtomicU32>>;

fn memory() -> Arc<Memory> {
    let (lock, slot) = (Arc::new(AtomicU32::new(ASKER)), Arc::new(SharedMemory::model(LENGTH)));
    Arc::new(Memory { lock, slot, notices: AtomicU32::new(0) })
}

impl Process {
    fn new(memory: &Arc<Memory>, number: u32) -> Process {
        let lock = ProcessMutex::join(memory.lock.clone(), number, is_alive, ());
        let slot = ChangeSlot::new(memory.slot.clone(), 0, number);
        Process { memory: memory.clone(), lock, slot }
    }

    /// Takes the lock. If the last holder has died, wakes the other processes, as the last holder
    /// should have done.
    fn lock(&self) -> Locked<'_> {
        self.lock.lock(|(), since| {
            if since == Since::HolderDied {
                self.post_notice();
                self.wake_all();
            }
        })
    }

    fn post_notice(&self) {
        self.memory.notices.fetch_add(1, Ordering::Relaxed);
    }

    fn wake_all(&self) {
        futex::wake_shared(&self.memory.notices, u32::MAX);
    }

    /// Sleeps until there is a new notice, without a time limit.
    fn wait(&self, seen: u32) {
        futex::wait(&self.memory.notices, seen, None).unwrap();
    }

    /// Sleeps until there is a new notice, or until the time limit is over.
    fn wait_a_while(&self, seen: u32) {
        let _ = futex::wait_shared(&self.memory.notices, seen, Some(1));
    }

    fn notices(&self) -> u32 {
        self.memory.notices.load(Ordering::Relaxed)
    }
}

/// The step at which a process dies, with the lock held; `None`: it does not die.
#[derive(Clone, Copy)]
struct Death(Option<u32>);

impl Death {
    /// Returns whether the process `number` dies at this step. If so, records its death.
    fn comes(self, step: u32, number: u32) -> bool {
        let comes = self.0 == Some(step);
        if comes {
            DEAD.store(number, Ordering::SeqCst);
            futex::expire();
        }
        comes
    }
}

/// Last step of each side, before the unlock.
const LAST_STEP: u32 = 2;

/// Asks for the change. The process may die after each step. Returns whether it is still alive.
fn ask(process: &Process, death: Death) -> bool {
    let locked = process.lock();
    assert!(process.slot.is_available(is_alive));
    let steps: [&dyn Fn(); 3] =
        [&|| process.slot.ask(TARGET, CHANGE), &|| process.post_notice(), &|| process.wake_all()];
    for (number, step) in (0..).zip(steps) {
        step();
        if death.comes(number, ASKER) {
            std::mem::forget(locked);
            return false;
        }
    }
    true
}

/// Waits until another process asks this process for the change, and makes the change. This process
/// may die before each step, and after the last step.
fn make_change(process: &Process, death: Death) {
    loop {
        let seen = process.notices();
        let locked = process.lock();
        let Some(change) = process.slot.requested_change() else {
            drop(locked);
            process.wait(seen);
            continue;
        };
        assert_eq!(change, CHANGE);
        let steps: [&dyn Fn(); 3] =
            [&|| process.slot.answer(ANSWER), &|| process.post_notice(), &|| process.wake_all()];
        for (number, step) in (0..).zip(steps) {
            if death.comes(number, TARGET) {
                return std::mem::forget(locked);
            }
            step();
        }
        if death.comes(LAST_STEP + 1, TARGET) {
            std::mem::forget(locked);
        }
        return;
    }
}

/// Waits for the answer. Returns `None` if the asked process has died before it answered.
fn answer(process: &Process) -> Option<i32> {
    loop {
        let seen = process.notices();
        let locked = process.lock();
        let answer = process.slot.answered();
        if answer.is_some() || !is_alive(TARGET) {
            assert!(!process.slot.free());
            return answer;
        }
        drop(locked);
        process.wait_a_while(seen);
    }
}

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// In this model no sleep ends by its time limit. So both processes depend on the wake-ups.
#[test]
fn a_change_is_made_and_answered() {
    bounded(|| {
        let memory = memory();
        let asked = {
            let process = Process::new(&memory, TARGET);
            thread::spawn(move || make_change(&process, Death(None)))
        };
        let asker = Process::new(&memory, ASKER);
        assert!(ask(&asker, Death(None)));
        assert_eq!(answer(&asker), Some(ANSWER));
        asked.join().unwrap();
    });
}

#[test]
fn a_process_that_dies_at_any_step_of_its_answer_leaves_the_asker_waiting_for_nothing() {
    for step in 0..=LAST_STEP + 1 {
        bounded(move || {
            let memory = memory();
            let asked = {
                let process = Process::new(&memory, TARGET);
                thread::spawn(move || make_change(&process, Death(Some(step))))
            };
            let asker = Process::new(&memory, ASKER);
            assert!(ask(&asker, Death(None)));
            assert_eq!(answer(&asker), (step > 0).then_some(ANSWER));
            asked.join().unwrap();
        });
    }
}

/// The asking process dies at `step`. Then a third process acquires the lock by calling `lock`.
fn the_asker_dies(step: u32, lock: fn(&Process) -> Locked) {
    bounded(move || {
        let memory = memory();
        let asked = {
            let process = Process::new(&memory, TARGET);
            thread::spawn(move || make_change(&process, Death(None)))
        };
        assert!(!ask(&Process::new(&memory, ASKER), Death(Some(step))));
        let third = Process::new(&memory, THIRD);
        let locked = lock(&third);
        assert!(third.slot.is_available(is_alive), "the slot of a dead process is free");
        drop(locked);
        asked.join().unwrap();
    });
}

#[test]
fn the_next_holder_calls_the_processes_that_a_dead_one_has_asked() {
    for step in 0..=LAST_STEP {
        the_asker_dies(step, Process::lock);
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_holder_that_wakes_no_process_after_a_dead_one_leaves_the_asked_process_asleep() {
    the_asker_dies(0, |third| third.lock.lock(|(), _| {}));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_notice_without_a_wake_up_leaves_the_asked_process_asleep() {
    the_asker_dies(1, |third| third.lock.lock(|(), _| {}));
}

/// Two processes ask at the same time. Each gets the slot in the end.
#[test]
fn a_process_that_waits_for_the_slot_is_called_when_it_is_free() {
    bounded(|| {
        let memory = memory();
        let other = {
            let process = Process::new(&memory, THIRD);
            thread::spawn(move || use_slot(&process))
        };
        use_slot(&Process::new(&memory, ASKER));
        other.join().unwrap();
    });
}

/// Waits until the slot is available, and asks for a change. Then releases the ring's lock,
/// acquires it again, and frees the slot.
fn use_slot(process: &Process) {
    loop {
        let seen = process.notices();
        let locked = process.lock();
        if process.slot.is_available(is_alive) {
            process.slot.ask(TARGET, CHANGE);
            break;
        }
        drop(locked);
        process.wait(seen);
    }
    let _locked = process.lock();
    if process.slot.free() {
        process.post_notice();
        process.wake_all();
    }
}
