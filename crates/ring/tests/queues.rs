//! Tests of both queues. In some tests, the engine's and the application's half of a queue use each
//! other. In others, the program overwrites its ring.
#![cfg(not(loom))]

use std::sync::atomic::Ordering;
use usring_ring::application::{CompletionHalf, Full, SubmissionHalf};
use usring_ring::{CompletionQueue, Dropped, Layout, Memory, SubmissionQueue, flags};
use usring_uapi::io_uring::{IORING_SETUP_CQE32, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128};
use usring_uapi::{Cqe, Sqe};

fn memory(sq_entries: u32, cq_entries: u32, setup_flags: u32) -> Memory {
    Memory::allocate(Layout::new(sq_entries, cq_entries, setup_flags)).unwrap()
}

fn sqe(number: u64) -> Sqe {
    Sqe { opcode: number as u8, fd: -(number as i32), user_data: number, pad2: !number, ..Sqe::default() }
}

fn cqe(number: u64) -> Cqe {
    Cqe { user_data: number, res: -(number as i32), flags: number as u32 ^ 5 }
}

fn submission(entries: u32, setup_flags: u32) -> (SubmissionHalf, SubmissionQueue, Memory) {
    let memory = memory(entries, 2 * entries, setup_flags);
    (SubmissionHalf::new(&memory), SubmissionQueue::new(&memory), memory)
}

fn completion(entries: u32, setup_flags: u32) -> (CompletionQueue, CompletionHalf, Memory) {
    let memory = memory(1, entries, setup_flags);
    (CompletionQueue::new(&memory), CompletionHalf::new(&memory), memory)
}

/// Consumes and returns all entries of a batch.
fn take(queue: &mut SubmissionQueue) -> Vec<Result<Sqe, Dropped>> {
    queue.pending();
    let taken = std::iter::from_fn(|| queue.next()).collect();
    queue.commit();
    taken
}

fn pop(half: &mut CompletionHalf) -> Vec<u64> {
    std::iter::from_fn(|| half.next()).map(|cqe| cqe.user_data).collect()
}

/// Overwrites a word of the ring, at an offset that io_uring_setup(2) reported.
fn scribble(memory: &Memory, offset: u32, value: u32) {
    memory.rings().word(offset as usize).store(value, Ordering::Relaxed);
}

#[test]
fn sqes_arrive_whole_and_in_order_over_many_wraps() {
    for setup_flags in [0, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128] {
        let (mut half, mut queue, _) = submission(8, setup_flags);
        let mut number = 0;
        for batch in (1..=8).cycle().take(50) {
            let pushed: Vec<_> = (number..number + batch).map(sqe).collect();
            pushed.iter().for_each(|sqe| half.push(sqe).unwrap());
            assert_eq!(queue.pending(), batch as u32);
            assert_eq!(take(&mut queue), pushed.into_iter().map(Ok).collect::<Vec<_>>());
            assert!(half.is_empty());
            number += batch;
        }
    }
}

#[test]
fn a_full_sq_takes_no_sqe_until_its_slots_are_released() {
    let (mut half, mut queue, memory) = submission(2, 0);
    half.push(&sqe(1)).unwrap();
    half.push(&sqe(2)).unwrap();
    assert!(half.is_full() && memory.is_submission_full());
    assert_eq!(half.push(&sqe(3)), Err(Full));
    assert_eq!(queue.pending(), 2);
    assert_eq!(queue.next(), Some(Ok(sqe(1))));
    assert_eq!(half.push(&sqe(3)), Err(Full), "the slot of the SQE is not released yet");
    queue.commit();
    assert!(!memory.is_submission_full());
    half.push(&sqe(3)).unwrap();
    assert_eq!(queue.next(), Some(Ok(sqe(2))));
    assert_eq!(queue.next(), None, "an SQE pushed meanwhile belongs to the next batch");
    assert_eq!(queue.pending(), 1);
    assert_eq!(queue.next(), Some(Ok(sqe(3))));
}

#[test]
fn an_sqe_may_be_overwritten_once_its_slot_is_released() {
    let (mut half, mut queue, memory) = submission(1, 0);
    half.push(&sqe(1)).unwrap();
    queue.pending();
    let taken = queue.next().unwrap().unwrap();
    queue.commit();
    memory.sqes().write(0, sqe(99));
    assert_eq!(taken, sqe(1));
}

#[test]
fn the_index_array_selects_the_sqe_and_a_bad_index_counts_as_dropped() {
    let (mut half, mut queue, memory) = submission(4, 0);
    let array = memory.layout().sq_offsets(0).array;
    (0..4).for_each(|number| half.push(&sqe(number)).unwrap());
    for (slot, index) in [3, 4, 0, u32::MAX].into_iter().enumerate() {
        scribble(&memory, array + 4 * slot as u32, index);
    }
    assert_eq!(take(&mut queue), [Ok(sqe(3)), Err(Dropped), Ok(sqe(0)), Err(Dropped)]);
    assert_eq!(half.dropped(), 2);
    assert!(half.is_empty(), "the slots of dropped entries are released");
}

#[test]
fn an_invalid_sq_tail_yields_no_more_sqes_than_the_sq_holds() {
    let (_, mut queue, memory) = submission(4, IORING_SETUP_NO_SQARRAY);
    let tail = memory.layout().sq_offsets(0).tail;
    for nonsense in [5, 1000, 1 << 31, u32::MAX] {
        scribble(&memory, tail, nonsense);
        assert_eq!(queue.pending(), 4);
    }
    assert_eq!(take(&mut queue).len(), 4);
}

#[test]
fn an_sq_head_that_the_program_overwrites_is_ignored() {
    let (mut half, mut queue, memory) = submission(4, 0);
    half.push(&sqe(1)).unwrap();
    scribble(&memory, memory.layout().sq_offsets(0).head, 77);
    assert_eq!(take(&mut queue), [Ok(sqe(1))]);
    assert!(half.is_empty(), "the queue has stored its own head again");
}

#[test]
fn a_batch_published_early_keeps_its_last_cqe_for_the_end() {
    let (mut queue, mut half, _) = completion(8, 0);
    queue.publish_early();
    (1..=3).for_each(|number| queue.post(cqe(number)));
    queue.publish_early();
    assert_eq!(half.len(), 2);
    assert_eq!((half.next(), half.next(), half.next()), (Some(cqe(1)), Some(cqe(2)), None));
    queue.publish_early();
    assert_eq!(half.len(), 0);
    assert!(queue.publish(), "the batch is reported although the program has seen some of its CQEs");
    assert_eq!(half.next(), Some(cqe(3)));
    queue.publish_early();
    assert!(!queue.publish() && !queue.has_unannounced(), "the tail never moves back");
}

#[test]
fn wide_sqes_carry_their_second_half() {
    let (mut half, mut queue, _) = submission(2, IORING_SETUP_SQE128);
    for number in 0..5 {
        half.fill_wide(&sqe(number), [number; 8]).unwrap();
        half.publish();
        assert_eq!(queue.pending(), 1);
        assert_eq!(queue.next(), Some(Ok(sqe(number))));
        assert_eq!(queue.extension(), Some([number; 8]));
        queue.commit();
    }
    assert_eq!(submission(2, 0).1.extension(), None);
}

#[test]
fn need_wakeup_is_set_before_a_sleep_unless_there_is_work() {
    let (mut half, mut queue, memory) = submission(2, 0);
    assert!(!half.needs_wakeup());
    assert!(queue.prepare_sleep(), "the SQ is empty");
    assert!(half.needs_wakeup());
    queue.end_sleep();
    assert!(!half.needs_wakeup());
    half.push(&sqe(1)).unwrap();
    assert!(!queue.prepare_sleep(), "an SQE was pushed");
    assert_eq!(queue.next(), Some(Ok(sqe(1))));
    queue.set_flag(flags::TASKRUN);
    queue.end_sleep();
    assert_eq!(memory.flags(), flags::TASKRUN, "end_sleep clears no other flag");
    assert!(half.has_task_work());
    queue.clear_flag(flags::TASKRUN);
    assert!(!half.has_task_work());
}

#[test]
fn cqes_arrive_whole_and_in_order_over_many_wraps() {
    let (mut queue, mut half, memory) = completion(8, 0);
    let mut number = 0;
    for batch in (1..=8).cycle().take(50) {
        (number..number + batch).for_each(|number| queue.post(cqe(number)));
        assert_eq!(half.next(), None, "a CQE shows only after publish");
        assert_eq!(queue.ready(), 0);
        queue.publish();
        assert_eq!((queue.ready(), memory.ready(), half.len()), (batch as u32, batch as u32, batch as u32));
        assert_eq!(queue.is_full(), batch == 8);
        (number..number + batch).for_each(|number| assert_eq!(half.next(), Some(cqe(number))));
        assert_eq!(half.next(), None);
        number += batch;
    }
}

#[test]
fn cqes_that_do_not_fit_wait_in_order_in_the_backlog() {
    let (mut queue, mut half, memory) = completion(2, 0);
    (0..7).for_each(|number| queue.post(cqe(number)));
    queue.publish();
    assert_eq!((queue.ready(), queue.overflow_length()), (2, 5));
    assert_eq!(memory.flags(), flags::CQ_OVERFLOW);
    assert_eq!(half.lost(), 0, "CQEs in the backlog are not lost");
    assert!(!queue.flush_overflow(), "no room");
    assert_eq!(pop(&mut half), [0, 1]);
    assert!(queue.is_full() && !queue.try_post(cqe(6)), "free slots are reserved for the backlog");
    queue.post(cqe(7));
    assert_eq!(pop(&mut half), [], "a new CQE goes behind the backlog");
    assert!(queue.flush_overflow() && queue.has_overflow());
    assert_eq!(pop(&mut half), [2, 3]);
    assert_eq!(half.next(), None);
    assert!(queue.flush_overflow() && queue.has_overflow());
    assert_eq!(half.next(), Some(cqe(4)));
    assert!(queue.flush_overflow() && queue.has_overflow());
    assert_eq!(pop(&mut half), [5, 6]);
    assert!(memory.flags() & flags::CQ_OVERFLOW != 0 && queue.has_overflow());
    assert!(queue.flush_overflow() && !queue.has_overflow());
    assert_eq!(memory.flags(), 0);
    assert!(!queue.flush_overflow(), "the backlog is empty");
    assert_eq!(pop(&mut half), [7]);
    queue.post(cqe(8));
    queue.publish();
    assert_eq!(pop(&mut half), [8], "without a backlog a CQE goes to the CQ");
}

#[test]
fn try_post_is_refused_without_a_free_slot_or_behind_a_backlog() {
    let (mut queue, mut half, _) = completion(1, 0);
    assert!(queue.try_post(cqe(1)));
    assert!(!queue.try_post(cqe(2)));
    assert!(queue.is_full() && queue.room() == 0 && !queue.has_overflow());
    queue.publish();
    assert_eq!(pop(&mut half), [1]);
    assert!(queue.try_post(cqe(3)), "the program made room");
    queue.post(cqe(4));
    queue.publish();
    assert_eq!(pop(&mut half), [3]);
    assert!(!queue.try_post(cqe(5)), "the new CQE would overtake the backlog");
}

#[test]
fn wide_cqes_carry_their_second_half_also_through_the_backlog() {
    let (mut queue, mut half, _) = completion(2, IORING_SETUP_CQE32);
    for number in 0..3 {
        queue.post_wide(cqe(number), || [number, !number]);
    }
    queue.post(cqe(3));
    queue.publish();
    for number in 0..3 {
        assert_eq!(half.next_wide(), Some((cqe(number), [number, !number])));
        queue.flush_overflow();
    }
    assert_eq!(half.next_wide(), Some((cqe(3), [0, 0])), "no extension of an earlier CQE is left");
}

#[test]
fn an_overwritten_cq_head_keeps_the_counts_within_the_cq() {
    let (mut queue, _, memory) = completion(4, 0);
    let head = memory.layout().cq_offsets(0).head;
    for nonsense in [5, 1000, 1 << 31, u32::MAX] {
        scribble(&memory, head, nonsense);
        (0..9).for_each(|number| queue.post(cqe(number)));
        queue.publish();
        assert!(queue.ready() <= 4 && memory.ready() <= 4 && queue.room() <= 4);
        queue.flush_overflow();
    }
    assert!(queue.has_overflow());
}

#[test]
fn a_program_on_another_thread_gets_every_cqe_of_every_sqe() {
    const COUNT: u64 = 100_000;
    let memory = memory(16, 32, 0);
    std::thread::scope(|scope| {
        let memory = &memory;
        scope.spawn(move || {
            let (mut sq, mut cq) = (SubmissionQueue::new(memory), CompletionQueue::new(memory));
            let mut done = 0;
            while done < COUNT {
                for sqe in take(&mut sq) {
                    cq.post(Cqe { user_data: sqe.unwrap().user_data, ..Cqe::default() });
                    done += 1;
                }
                cq.publish();
            }
            while cq.has_overflow() {
                cq.flush_overflow();
                std::thread::yield_now();
            }
        });
        let (mut sq, mut cq) = (SubmissionHalf::new(memory), CompletionHalf::new(memory));
        let (mut pushed, mut popped) = (0, 0);
        while popped < COUNT {
            while pushed < COUNT && sq.push(&sqe(pushed)).is_ok() {
                pushed += 1;
            }
            while let Some(cqe) = cq.next() {
                assert_eq!(cqe.user_data, popped);
                popped += 1;
            }
        }
    });
}

/// A CQE counts as unannounced if it is in the CQ and not published, or if it has gone to the
/// backlog since the last call of `take_growth`.
#[test]
fn unpublished_cqes_and_backlog_growth_are_tracked() {
    let (mut queue, _half, _memory) = completion(2, 0);
    assert!(!queue.has_unannounced() && !queue.take_growth());
    queue.post(cqe(0));
    assert!(queue.has_unannounced());
    assert!(queue.publish() && !queue.has_unannounced());
    queue.post(cqe(1));
    queue.post(cqe(2));
    assert!(queue.publish() && queue.has_unannounced(), "one CQE is in the backlog");
    assert!(queue.take_growth() && !queue.has_unannounced());
    assert!(!queue.take_growth(), "the growth was already reported");
    assert!(!queue.publish() && queue.has_overflow());
}

#[test]
fn the_sq_flags_show_overflow_and_task_work_to_the_program() {
    let memory = memory(2, 2, 0);
    let (mut half, mut queue) = (SubmissionHalf::new(&memory), CompletionQueue::new(&memory));
    let mut completions = CompletionHalf::new(&memory);
    assert!(half.is_empty() && !half.has_overflow() && !half.has_task_work());
    half.push(&sqe(1)).unwrap();
    assert!(!half.is_empty());
    (0..3).for_each(|number| queue.post(cqe(number)));
    queue.publish();
    assert!(half.has_overflow() && !half.has_task_work());
    assert_eq!(pop(&mut completions), [0, 1]);
    assert!(queue.flush_overflow() && !half.has_overflow());
    memory.set_flag(flags::TASKRUN);
    assert!(half.has_task_work() && !half.has_overflow());
    scribble(&memory, memory.layout().cq_offsets(0).overflow, 7);
    assert_eq!(completions.lost(), 7);
}

#[test]
fn is_full_and_tail_follow_the_posted_cqes() {
    let (mut queue, mut half, _memory) = completion(2, 0);
    for number in 0..2 {
        assert!(!queue.is_full());
        assert_eq!(queue.tail(), number);
        queue.post(cqe(u64::from(number)));
    }
    assert!(queue.publish() && queue.is_full());
    assert_eq!(pop(&mut half), [0, 1]);
    assert!(!queue.is_full(), "the program has made room");
    (2..5).for_each(|number| queue.post(cqe(number)));
    assert_eq!(queue.tail(), 4, "the tail does not count the backlog");
}
