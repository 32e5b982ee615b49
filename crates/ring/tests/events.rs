//! Tests of an AIO context's ring that serves as a CQ. In some tests the program consumes events,
//! in others it overwrites the header.
#![cfg(not(loom))]

use std::sync::atomic::Ordering;
use usring_ring::{CompletionQueue, Layout, Memory};
use usring_sys::{Errno, UserAddress};
use usring_uapi::Cqe;
use usring_uapi::aio::{AIO_RING_MAGIC, AioRing, IoEvent};

const HEAD: usize = 8;
const TAIL: usize = 12;

fn memory(requests: u32) -> Memory {
    Memory::for_events(Layout::for_events(requests, 2).unwrap(), 7, true).unwrap()
}

fn post(queue: &mut CompletionQueue, number: u64) {
    queue.post_wide(Cqe { user_data: number, res: -(number as i32), flags: 5 }, || [!number, 9]);
}

fn assert_is(event: IoEvent, number: u64) {
    assert_eq!(event, IoEvent { data: !number, obj: number, res: -(number as i64), res2: 0 });
}

#[test]
fn an_aio_ring_has_the_slot_count_of_the_kernels_ring() {
    for (requests, slots) in [(1, 127), (62, 127), (63, 255), (128, 383), (1000, 2047)] {
        let header: AioRing = memory(requests).events().read(0);
        assert_eq!((header.nr, header.id, header.magic, header.header_length), (slots, 7, AIO_RING_MAGIC, 32));
    }
    assert_eq!(Layout::for_events(4_194_305, 2), Err(Errno::EINVAL));
    assert_eq!(Layout::for_events(u32::MAX, 2), Err(Errno::EINVAL));
}

#[test]
fn events_arrive_whole_and_in_order_over_many_wraps() {
    let memory = memory(1);
    let mut queue = CompletionQueue::new(&memory);
    let mut number = 0;
    for batch in (1..=126).cycle().take(300) {
        for index in 0..batch {
            post(&mut queue, number + index);
        }
        assert_eq!(queue.ready(), 0, "an event shows only after publish");
        queue.publish();
        assert_eq!((queue.ready(), memory.ready()), (batch as u32, batch as u32));
        for index in 0..batch {
            assert_is(memory.next_event().unwrap(), number + index);
        }
        assert!(memory.next_event().is_none());
        assert_eq!(queue.room(), 126);
        number += batch;
    }
}

#[test]
fn several_events_are_copied_out_across_the_end_of_the_ring() {
    let memory = memory(1);
    let mut queue = CompletionQueue::new(&memory);
    let mut events = [IoEvent::default(); 126];
    let to = UserAddress(events.as_mut_ptr() as u64);
    for number in 0..100 {
        post(&mut queue, number);
    }
    queue.publish();
    assert_eq!(memory.take_events(to, 90), Ok(90));
    for number in 100..200 {
        post(&mut queue, number);
    }
    queue.publish();
    assert_eq!(memory.take_events(to, 200), Ok(110));
    for (event, number) in events[..110].iter().zip(90..) {
        assert_is(*event, number);
    }
    assert_eq!(memory.take_events(to, 1), Ok(0));
}

#[test]
fn an_event_that_the_program_has_removed_is_not_ready() {
    let memory = memory(1);
    let mut queue = CompletionQueue::new(&memory);
    post(&mut queue, 1);
    queue.publish();
    memory.events().word(TAIL).store(0, Ordering::Relaxed);
    assert_eq!((queue.ready(), memory.ready()), (0, 0));
    assert!(memory.next_event().is_none());
    post(&mut queue, 2);
    queue.publish();
    assert_eq!(queue.ready(), 2, "the next event shows both, as in the kernel");
}

#[test]
fn events_that_cannot_be_copied_out_stay_in_the_ring() {
    let memory = memory(1);
    let mut queue = CompletionQueue::new(&memory);
    (0..3).for_each(|number| post(&mut queue, number));
    queue.publish();
    assert_eq!(memory.take_events(UserAddress(u64::MAX - 64), 3), Err(Errno::EFAULT));
    assert_eq!(memory.ready(), 3);
}

#[test]
fn events_without_a_free_slot_wait_in_the_backlog() {
    let memory = memory(1);
    let mut queue = CompletionQueue::new(&memory);
    for number in 0..130 {
        post(&mut queue, number);
    }
    queue.publish();
    assert_eq!((queue.ready(), queue.overflow_length()), (126, 4));
    for number in 0..130 {
        assert_is(memory.next_event().unwrap(), number);
        queue.flush_overflow();
    }
    assert!(!queue.has_overflow());
}

/// The head may have any value. Even then no slot outside the ring is accessed, and no count
/// exceeds the number of slots.
#[test]
fn an_overwritten_head_harms_only_the_program() {
    let memory = memory(1);
    let mut queue = CompletionQueue::new(&memory);
    for head in [126, 127, 128, 4711, u32::MAX, 0x8000_0000, 1] {
        memory.events().word(HEAD).store(head, Ordering::Relaxed);
        post(&mut queue, 1);
        queue.publish();
        assert!(queue.ready() <= 126 && memory.ready() <= 126);
        assert!(queue.room() <= 126);
        while memory.next_event().is_some() {}
        queue.flush_overflow();
    }
    post(&mut queue, 42);
    queue.publish();
    assert_is(memory.next_event().unwrap(), 42);
}
