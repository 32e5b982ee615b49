//! A model of the ring to which the kernel's AIO writes completions. The model checks that usring
//! reads each event once, and completely written. It also checks that the kernel writes to no slot
//! while usring reads the slot.
//!
//! The kernel's half follows `fs/aio.c`. If the head shows that there is room, the kernel writes an
//! event, executes a write barrier, and writes the tail.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p usring-sys --release --test 'loom_*'`
#![cfg(loom)]

use loom::thread;
use std::mem::{offset_of, size_of};
use usring_sys::kernel_aio::CompletionRing;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, Ordering};
use usring_uapi::aio::{AIO_RING_MAGIC, AioRing, IoEvent};

const ENTRIES: u32 = 2;

fn event(number: u64) -> IoEvent {
    IoEvent { data: number, obj: !number, res: number as i64, res2: 0 }
}

/// Writes a completion as the kernel does. Returns whether the ring had room for it.
fn complete(memory: &SharedMemory, number: u64) -> bool {
    let tail = memory.word(offset_of!(AioRing, tail));
    let head = memory.word(offset_of!(AioRing, head));
    let at = tail.load(Ordering::Relaxed);
    let next = (at + 1) % ENTRIES;
    if next == head.load(Ordering::Acquire) {
        return false;
    }
    memory.write(size_of::<AioRing>() + at as usize * size_of::<IoEvent>(), event(number));
    tail.store(next, Ordering::Release);
    true
}

/// Passes up to three events through a ring of two slots, which holds only one event at a time. So
/// the slot of the first event is used a second time.
fn completions() {
    loom::model(|| {
        let length = size_of::<AioRing>() + ENTRIES as usize * size_of::<IoEvent>();
        let memory = SharedMemory::model(length);
        let header_length = size_of::<AioRing>() as u32;
        memory.write(0, AioRing { nr: ENTRIES, magic: AIO_RING_MAGIC, header_length, ..AioRing::default() });
        let memory = Arc::new(memory);
        let mut ring = CompletionRing::new(Arc::clone(&memory)).expect("the header has the magic number");
        assert!(complete(&memory, 0));
        let kernel = thread::spawn(move || (1..=2).take_while(|number| complete(&memory, *number)).count() as u64);
        let mut taken = Vec::new();
        let mut take = |ring: &mut CompletionRing| {
            while let Some(event) = ring.take() {
                taken.push(event);
            }
            ring.publish_head();
        };
        take(&mut ring);
        take(&mut ring);
        let written = kernel.join().unwrap();
        take(&mut ring);
        let expected: Vec<_> = (0..=written).map(event).collect();
        assert_eq!(taken, expected);
    });
}

#[test]
fn every_event_is_taken_once_and_whole() {
    completions();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_tail_read_without_acquire_shows_an_unwritten_event() {
    weaken(Edge::AioTail, Side::Acquire, completions);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_head_stored_without_release_frees_an_event_that_is_still_read() {
    weaken(Edge::AioHead, Side::Release, completions);
}
