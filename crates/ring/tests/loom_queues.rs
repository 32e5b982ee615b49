//! Loom models of the two halves of each queue. The reader sees each entry whole and exactly once.
//! The writer overwrites no slot while the reader still reads it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p usring-ring --release --test 'loom_*'`
#![cfg(loom)]

use loom::thread;
use usring_ring::application::{CompletionHalf, SubmissionHalf};
use usring_ring::{CompletionQueue, Layout, Memory, SubmissionQueue, flags};
use usring_sys::mutex::Mutex;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::shared::SharedMemory;
use usring_sys::sync::Arc;
use usring_uapi::io_uring::{IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128};
use usring_uapi::{Cqe, Sqe};

fn memory(entries: u32, cq_entries: u32, flags: u32) -> Memory {
    let layout = Layout::new(entries, cq_entries, flags);
    let [rings, sqes] = [layout.rings_length(), layout.sqes_length()].map(SharedMemory::model);
    Memory::new(rings, sqes, layout)
}

fn sqe(number: u64) -> Sqe {
    Sqe { user_data: number, addr3: !number, ..Sqe::default() }
}

fn cqe(number: u64) -> Cqe {
    Cqe { user_data: number, res: -(number as i32), flags: 0 }
}

/// Sends two SQEs through an SQ with one slot, so that the slot is used again.
fn submission(setup_flags: u32) {
    loom::model(move || {
        let memory = memory(1, 2, setup_flags);
        let mut queue = SubmissionQueue::new(&memory);
        let mut half = SubmissionHalf::new(&memory);
        let application = thread::spawn(move || {
            half.push(&sqe(1)).unwrap();
            let second = half.push(&sqe(2)).is_ok();
            if second { 2 } else { 1 }
        });
        let mut taken = Vec::new();
        let mut take = |queue: &mut SubmissionQueue| {
            queue.pending();
            while let Some(entry) = queue.next() {
                taken.push(entry.unwrap());
            }
            queue.commit();
        };
        take(&mut queue);
        take(&mut queue);
        let pushed = application.join().unwrap();
        take(&mut queue);
        let expected: Vec<_> = (1..=pushed).map(sqe).collect();
        assert_eq!(taken, expected);
    });
}

#[test]
fn every_sqe_is_taken_once_and_whole() {
    submission(0);
    submission(IORING_SETUP_NO_SQARRAY);
    submission(IORING_SETUP_NO_SQARRAY | IORING_SETUP_SQE128);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_tail_stored_without_release_shows_an_unwritten_sqe() {
    weaken(Edge::SqTail, Side::Release, || submission(0));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_tail_loaded_without_acquire_shows_an_unwritten_sqe() {
    weaken(Edge::SqTail, Side::Acquire, || submission(0));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_head_stored_without_release_lets_an_sqe_be_overwritten_while_it_is_copied() {
    weaken(Edge::SqHead, Side::Release, || submission(0));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_head_loaded_without_acquire_lets_an_sqe_be_overwritten_while_it_is_copied() {
    weaken(Edge::SqHead, Side::Acquire, || submission(0));
}

/// Sends three CQEs through a CQ with one slot; CQEs that do not fit go to the backlog.
fn completion() {
    loom::model(|| {
        let memory = memory(1, 1, IORING_SETUP_NO_SQARRAY);
        let mut queue = CompletionQueue::new(&memory);
        let mut half = CompletionHalf::new(&memory);
        let engine = thread::spawn(move || {
            for number in 1..=3 {
                queue.post(cqe(number));
                queue.publish();
            }
            queue.flush_overflow();
            queue
        });
        let mut popped = Vec::new();
        popped.extend(half.next());
        popped.extend(half.next());
        let mut queue = engine.join().unwrap();
        while popped.len() < 3 {
            popped.extend(half.next());
            queue.flush_overflow();
        }
        assert_eq!(popped, [cqe(1), cqe(2), cqe(3)]);
        assert!(!queue.has_overflow() && memory.flags() & flags::CQ_OVERFLOW == 0);
    });
}

#[test]
fn every_cqe_is_popped_once_whole_and_in_order() {
    completion();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_tail_stored_without_release_shows_an_unwritten_cqe() {
    weaken(Edge::CqTail, Side::Release, completion);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_tail_loaded_without_acquire_shows_an_unwritten_cqe() {
    weaken(Edge::CqTail, Side::Acquire, completion);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_head_stored_without_release_lets_a_cqe_be_overwritten_while_it_is_copied() {
    weaken(Edge::CqHead, Side::Release, completion);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_head_loaded_without_acquire_lets_a_cqe_be_overwritten_while_it_is_copied() {
    weaken(Edge::CqHead, Side::Acquire, completion);
}

/// Two threads post CQEs under a lock. The main thread flushes the backlog, as io_uring_enter(2)
/// does.
#[test]
fn no_cqe_of_two_posters_is_lost() {
    loom::model(|| {
        let memory = memory(1, 1, IORING_SETUP_NO_SQARRAY);
        let queue = Arc::new(Mutex::new(CompletionQueue::new(&memory)));
        let mut half = CompletionHalf::new(&memory);
        let post = |queue: &Mutex<CompletionQueue>, number| {
            let mut queue = queue.lock();
            queue.post(cqe(number));
            queue.publish();
        };
        let other = {
            let queue = queue.clone();
            thread::spawn(move || post(&queue, 1))
        };
        post(&queue, 2);
        other.join().unwrap();
        let mut popped = Vec::new();
        while let Some(cqe) = half.next() {
            popped.push(cqe.user_data);
            queue.lock().flush_overflow();
        }
        popped.sort();
        assert_eq!(popped, [1, 2]);
    });
}
