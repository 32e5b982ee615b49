//! Loom model of an AIO context's ring: the engine publishes events, and the program reads them
//! from memory. The program sees each event whole and exactly once. The engine overwrites no slot
//! while the program still reads it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p usring-ring --release --test 'loom_*'`
#![cfg(loom)]

use loom::thread;
use usring_ring::{CompletionQueue, Layout, Memory};
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::shared::SharedMemory;
use usring_uapi::Cqe;

/// Makes an AIO context's ring with three slots. One slot stays empty, so there is room for two
/// events.
fn memory() -> Memory {
    let layout = Layout::for_three_slots();
    let lengths = [layout.rings_length(), layout.sqes_length(), layout.events_length()];
    let [rings, sqes, events] = lengths.map(SharedMemory::model);
    Memory::with_events(rings, sqes, events, layout, (0, true))
}

fn cqe(number: u64) -> Cqe {
    Cqe { user_data: number, res: -(number as i32), flags: 0 }
}

/// Sends four events through a ring with room for two. Events that do not fit wait in the backlog.
fn events() {
    loom::model(|| {
        let memory = memory();
        let mut queue = CompletionQueue::new(&memory);
        let engine = thread::spawn(move || {
            for number in 1..=4 {
                queue.post_wide(cqe(number), || [!number, 0]);
                queue.publish();
            }
            queue.flush_overflow();
            queue
        });
        let mut taken = Vec::new();
        taken.extend(memory.next_event());
        taken.extend(memory.next_event());
        let mut queue = engine.join().unwrap();
        while taken.len() < 4 {
            taken.extend(memory.next_event());
            queue.flush_overflow();
        }
        for (event, number) in taken.iter().zip(1..) {
            assert_eq!((event.obj, event.data, event.res), (number, !number, -(number as i64)));
        }
        assert!(memory.next_event().is_none() && !queue.has_overflow());
    });
}

#[test]
fn every_event_is_taken_once_whole_and_in_order() {
    events();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_tail_stored_without_release_shows_an_unwritten_event() {
    weaken(Edge::CqTail, Side::Release, events);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_tail_loaded_without_acquire_shows_an_unwritten_event() {
    weaken(Edge::CqTail, Side::Acquire, events);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_head_stored_without_release_lets_an_event_be_overwritten_while_it_is_copied() {
    weaken(Edge::CqHead, Side::Release, events);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_head_loaded_without_acquire_lets_an_event_be_overwritten_while_it_is_copied() {
    weaken(Edge::CqHead, Side::Acquire, events);
}
