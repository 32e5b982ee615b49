//! Loom models of two sleeps at an SQ. The other user of the SQ has to end the sleep:
//! - `NEED_WAKEUP`: the SQ thread sleeps when it finds no entry. The application pushes an SQE,
//!   reads the flag, and calls io_uring_enter(2) only if the flag is set.
//! - `SQ_WAIT`: the application sleeps until the SQ has room.
//!
//! If a wake-up is lost, the sleeper sleeps for ever, which loom reports as a deadlock.
#![cfg(loom)]

use loom::thread;
use usring_ring::application::SubmissionHalf;
use usring_ring::{Layout, Memory, SubmissionQueue};
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::shared::SharedMemory;
use usring_sys::sleep::{SleepWord, Sleeper, Wake};
use usring_sys::sync::Arc;
use usring_uapi::Sqe;
use usring_uapi::io_uring::IORING_SETUP_NO_SQARRAY;

fn memory() -> Memory {
    let layout = Layout::new(2, 4, IORING_SETUP_NO_SQARRAY);
    let [rings, sqes] = [layout.rings_length(), layout.sqes_length()].map(SharedMemory::model);
    Memory::new(rings, sqes, layout)
}

/// Consumes `count` SQEs in all from the queues, and sleeps whenever all queues are empty.
fn sq_thread(mut queues: Vec<SubmissionQueue>, sleep: &SleepWord, count: u32) {
    let mut taken = 0;
    loop {
        for queue in &mut queues {
            queue.pending();
            while let Some(entry) = queue.next() {
                entry.unwrap();
                taken += 1;
            }
            queue.commit();
        }
        if taken == count {
            return;
        }
        let ticket = sleep.announce(Sleeper::Futex, 1);
        if queues.iter_mut().all(SubmissionQueue::prepare_sleep) {
            sleep.sleep(&ticket, None).unwrap();
        }
        sleep.retract(ticket);
        queues.iter().for_each(SubmissionQueue::end_sleep);
    }
}

/// Pushes an SQE. If `NEED_WAKEUP` is set, wakes the SQ thread as io_uring_enter(2) with
/// `SQ_WAKEUP` does.
fn push(half: &mut SubmissionHalf, sleep: &SleepWord) {
    half.push(&Sqe::default()).unwrap();
    if half.needs_wakeup() && sleep.wake_target(u32::MAX) == Wake::Futex {
        sleep.wake_futex();
    }
}

/// Runs a model with a bounded number of preemptions. To explore all interleavings would take
/// hours.
fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn one_ring() {
    bounded(3, || {
        let memory = memory();
        let sleep = Arc::new(SleepWord::new());
        let thread = {
            let (queue, sleep) = (SubmissionQueue::new(&memory), sleep.clone());
            thread::spawn(move || sq_thread(vec![queue], &sleep, 2))
        };
        let mut half = SubmissionHalf::new(&memory);
        push(&mut half, &sleep);
        push(&mut half, &sleep);
        thread.join().unwrap();
    });
}

#[test]
fn an_sq_thread_wakes_for_every_push() {
    one_ring();
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_sq_thread_that_reads_the_tail_too_early_sleeps_for_ever() {
    weaken(Edge::NeedWakeup, Side::Sleeper, one_ring);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_submitter_that_reads_the_flag_too_early_does_not_wake_the_sq_thread() {
    weaken(Edge::NeedWakeup, Side::Waker, one_ring);
}

#[test]
fn an_sq_thread_of_two_rings_wakes_for_both() {
    bounded(2, || {
        let memories = [memory(), memory()];
        let sleep = Arc::new(SleepWord::new());
        let applications = memories.clone().map(|memory| {
            let sleep = sleep.clone();
            thread::spawn(move || push(&mut SubmissionHalf::new(&memory), &sleep))
        });
        sq_thread(memories.iter().map(SubmissionQueue::new).collect(), &sleep, 2);
        applications.into_iter().for_each(|application| application.join().unwrap());
    });
}

/// Models io_uring_enter(2) with `SQ_WAIT`: a program whose SQ is full sleeps until the SQ thread
/// releases slots.
fn a_program_waits_for_sq_space() {
    bounded(3, || {
        let memory = memory();
        let room = Arc::new(SleepWord::new());
        let mut half = SubmissionHalf::new(&memory);
        while half.push(&Sqe::default()).is_ok() {}
        let thread = {
            let (mut queue, room) = (SubmissionQueue::new(&memory), room.clone());
            thread::spawn(move || {
                assert_eq!(queue.pending(), 2);
                for _ in 0..2 {
                    queue.next().unwrap().unwrap();
                    queue.commit();
                    if room.wake_target(u32::MAX) == Wake::Futex {
                        room.wake_futex();
                    }
                }
            })
        };
        for _ in 0..2 {
            while memory.is_submission_full() {
                let ticket = room.announce(Sleeper::Futex, 1);
                if memory.is_submission_full() {
                    room.sleep(&ticket, None).unwrap();
                }
                room.retract(ticket);
            }
            half.push(&Sqe::default()).unwrap();
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_program_that_waits_for_sq_space_is_woken() {
    a_program_waits_for_sq_space();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_program_that_reads_the_head_too_early_waits_for_ever() {
    weaken(Edge::Sleep, Side::Sleeper, a_program_waits_for_sq_space);
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_sq_thread_that_checks_for_waiters_too_early_does_not_wake_them() {
    weaken(Edge::Sleep, Side::Waker, a_program_waits_for_sq_space);
}
