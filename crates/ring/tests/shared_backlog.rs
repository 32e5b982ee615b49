//! Tests of a CQ that two processes fill, each by its own [`CompletionQueue`]. Only one process at
//! a time uses the CQ, as under the ring's lock.
#![cfg(not(loom))]

use usring_ring::application::CompletionHalf;
use usring_ring::{CompletionQueue, Layout, Memory, flags};
use usring_uapi::Cqe;
use usring_uapi::io_uring::IORING_SETUP_CQE32;

/// How many CQEs the shared area of a backlog holds, if the ring is small.
const AREA: u64 = 1024;

fn cqe(number: u64) -> Cqe {
    Cqe { user_data: number, res: -(number as i32), flags: number as u32 }
}

/// Makes a ring with 2 CQEs. Returns the engine's half of the CQ for each of two processes, the
/// program's half, and the ring's memory.
fn ring(setup_flags: u32) -> (CompletionQueue, CompletionQueue, CompletionHalf, Memory) {
    let memory = Memory::allocate(Layout::new(2, 2, setup_flags)).unwrap();
    let queue = || CompletionQueue::new(&memory);
    (queue(), queue(), CompletionHalf::new(&memory), memory.clone())
}

fn post(queue: &mut CompletionQueue, numbers: impl IntoIterator<Item = u64>) {
    queue.catch_up();
    numbers.into_iter().for_each(|number| queue.post(cqe(number)));
    queue.publish();
}

/// Reaps all CQEs. Between two CQEs, the process of `queue` moves CQEs from the backlog to the CQ.
fn reap(queue: &mut CompletionQueue, half: &mut CompletionHalf) -> Vec<Cqe> {
    let mut reaped = Vec::new();
    loop {
        let before = reaped.len();
        reaped.extend(core::iter::from_fn(|| half.next()));
        queue.catch_up();
        queue.flush_overflow();
        if reaped.len() == before && half.is_empty() {
            return reaped;
        }
    }
}

fn numbered(numbers: impl IntoIterator<Item = u64>) -> Vec<Cqe> {
    numbers.into_iter().map(cqe).collect()
}

#[test]
fn a_process_moves_the_backlog_of_a_dead_one() {
    let (mut first, mut second, mut half, memory) = ring(0);
    post(&mut first, 1..=9);
    drop(first);
    assert_eq!(memory.flags(), flags::CQ_OVERFLOW);
    assert_eq!(reap(&mut second, &mut half), numbered(1..=9));
    assert_eq!(memory.flags(), 0);
    post(&mut second, [10]);
    assert_eq!(half.next(), Some(cqe(10)));
}

#[test]
fn cqes_of_two_processes_keep_their_order_in_the_backlog() {
    let (mut first, mut second, mut half, _) = ring(0);
    for round in 0..1000 {
        post(&mut first, [6 * round, 6 * round + 1, 6 * round + 2]);
        post(&mut second, [6 * round + 3, 6 * round + 4]);
        post(&mut first, [6 * round + 5]);
        let by = if round % 2 == 0 { &mut first } else { &mut second };
        assert_eq!(reap(by, &mut half), numbered(6 * round..6 * round + 6));
    }
}

#[test]
fn a_second_process_carries_on_the_extensions_of_wide_cqes() {
    let (mut first, mut second, mut half, _) = ring(IORING_SETUP_CQE32);
    (0..4).for_each(|number| first.post_wide(cqe(number), || [number, !number]));
    first.publish();
    for number in 0..4 {
        assert_eq!(half.next_wide(), Some((cqe(number), [number, !number])));
        second.catch_up();
        second.flush_overflow();
    }
    assert_eq!(half.next_wide(), None);
}

#[test]
fn a_process_that_dies_leaves_what_is_in_its_backlog_and_no_half_batch() {
    let (mut first, mut second, mut half, _) = ring(0);
    // This CQE is posted and never published. It fits into the CQ, so it is not in the backlog.
    first.catch_up();
    first.post(cqe(1));
    assert_eq!(reap(&mut second, &mut half), []);
    // Two CQEs fit into the CQ. The third goes to the backlog, and this publishes the two CQEs.
    first.catch_up();
    (2..=4).for_each(|number| first.post(cqe(number)));
    assert_eq!(reap(&mut second, &mut half), numbered(2..=4));
}

#[test]
fn cqes_beyond_the_shared_area_are_kept_in_order_by_their_process() {
    let (mut first, mut second, mut half, memory) = ring(0);
    let count = 3 * AREA;
    post(&mut first, 0..count);
    assert!(first.has_overflow_alone());
    let mut reaped = Vec::new();
    while reaped.len() < count as usize {
        // Both processes move CQEs from the backlog's shared area to the CQ. The first process also
        // moves CQEs from its own memory to the shared area, as soon as the area has room.
        reaped.extend(core::iter::from_fn(|| half.next()));
        second.catch_up();
        second.flush_overflow();
        reaped.extend(core::iter::from_fn(|| half.next()));
        first.catch_up();
        first.flush_overflow();
    }
    assert_eq!(reaped, numbered(0..count));
    assert!(!first.has_overflow_alone() && !first.has_overflow());
    assert_eq!((memory.flags(), half.lost()), (0, 0));
}

#[test]
fn a_process_shows_what_it_alone_has_when_another_has_emptied_the_area() {
    let (mut first, mut second, mut half, memory) = ring(0);
    post(&mut first, 0..AREA + 3);
    assert_eq!(reap(&mut second, &mut half), numbered(0..AREA + 2));
    assert_eq!(memory.flags(), 0, "the second process sees an empty area");
    first.catch_up();
    assert_eq!(memory.flags(), flags::CQ_OVERFLOW);
    assert_eq!(reap(&mut second, &mut half), numbered([AREA + 2]));
}

#[test]
fn publishing_early_with_a_backlog_takes_no_cqe_back() {
    let (mut first, mut second, mut half, _) = ring(0);
    (1..=3).for_each(|number| first.post(cqe(number)));
    first.publish_early();
    assert_eq!(reap(&mut second, &mut half), numbered(1..=3));
}

#[test]
fn an_overwritten_cq_tail_harms_only_the_ring_itself() {
    let (mut first, mut second, mut half, memory) = ring(0);
    let tail = memory.layout().cq_offsets(0).tail as usize;
    for nonsense in [5, 1 << 20, 1 << 31, u32::MAX] {
        post(&mut first, 0..9);
        memory.rings().word(tail).store(nonsense, std::sync::atomic::Ordering::Relaxed);
        second.catch_up();
        second.flush_overflow();
        post(&mut second, 0..9);
        let _ = half.next();
    }
}
