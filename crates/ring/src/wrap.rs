//! Tests of indices that wrap around at 2³². A real queue wraps around only after four billion
//! entries, so these tests start the queues at indices close to 2³². Only code inside this crate
//! can do so.

use crate::application::{CompletionHalf, SubmissionHalf};
use crate::{CompletionQueue, Layout, Memory, SubmissionQueue};
use usring_uapi::{Cqe, Sqe};

/// An index a few entries before the wrap-around.
const START: u32 = u32::MAX - 5;

fn memory() -> Memory {
    Memory::allocate(Layout::new(4, 4, 0)).unwrap()
}

#[test]
fn the_sq_works_when_its_index_wraps_around() {
    let memory = memory();
    let (mut half, mut queue) = (SubmissionHalf::new(&memory), SubmissionQueue::new(&memory));
    half.start_at(START);
    queue.start_at(START);
    for round in 0..5 {
        let sqes = [0, 1, 2, 3].map(|number| Sqe { user_data: 4 * round + number, ..Sqe::default() });
        sqes.iter().for_each(|sqe| half.push(sqe).unwrap());
        assert!(half.is_full() && memory.is_submission_full());
        assert_eq!(queue.pending(), 4);
        sqes.iter().for_each(|sqe| assert_eq!(queue.next(), Some(Ok(*sqe))));
        assert_eq!(queue.next(), None);
        queue.commit();
        assert!(half.is_empty());
    }
}

#[test]
fn the_cq_works_when_its_index_wraps_around() {
    let memory = memory();
    let (mut queue, mut half) = (CompletionQueue::new(&memory), CompletionHalf::new(&memory));
    queue.start_at(START);
    half.start_at(START);
    for round in 0..5 {
        let cqes = [0, 1, 2, 3, 4].map(|number| Cqe { user_data: 5 * round + number, ..Cqe::default() });
        cqes.iter().for_each(|cqe| queue.post(*cqe));
        queue.publish();
        assert_eq!((queue.ready(), memory.ready(), queue.overflow_length()), (4, 4, 1));
        cqes[..4].iter().for_each(|cqe| assert_eq!(half.next(), Some(*cqe)));
        assert_eq!(half.next(), None);
        assert!(queue.flush_overflow() && !queue.has_overflow());
        assert_eq!(half.next(), Some(cqes[4]));
    }
}
