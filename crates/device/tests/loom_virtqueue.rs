//! Models of a virtqueue and of a change of the back end. They show three properties: each side
//! sees complete entries, a sleeping side gets its notification, and a new back end finds
//! consistent rings.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p usring-device --release --test 'loom_*'`
#![cfg(loom)]

use loom::thread;
use usring_device::driver::vhost_user::generation;
use usring_device::virtqueue::{Descriptor, QueueLayout, VirtQueue};
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, Ordering};

/// Offsets in the memory of the models: a queue of two descriptors (`PLACES`), the device's result,
/// and the two words of `generation`.
const PLACES: QueueLayout = QueueLayout { descriptors: 0, available: 32, used: 44, size: 2 };
const ANSWER: usize = 80;
const GENERATION: usize = 88;
const READY: usize = 92;

fn queue() -> (Arc<SharedMemory>, VirtQueue) {
    let memory = Arc::new(SharedMemory::model(96));
    let queue = VirtQueue::new(memory.clone(), PLACES, true);
    (memory, queue)
}

/// The device's half of the queue, as far as the models need it.
struct Back {
    memory: Arc<SharedMemory>,
}

impl Back {
    fn available(&self) -> u16 {
        self.memory.half_word(PLACES.available_index()).load(Edge::AvailableIndex.acquire())
    }

    fn head(&self, index: u16) -> u16 {
        self.memory.half_word(PLACES.available + 4 + 2 * usize::from(index % 2)).load(Ordering::Relaxed)
    }

    fn descriptor(&self, head: u16) -> [u64; 2] {
        self.memory.read(PLACES.descriptors + 16 * usize::from(head))
    }

    fn complete(&self, index: u16, head: u16) {
        self.memory.write(ANSWER, u64::from(head) + 1);
        self.memory.write(PLACES.used + 4 + 8 * usize::from(index % 2), u64::from(head));
        self.memory.half_word(PLACES.used_index()).store(index + 1, Edge::UsedIndex.release());
    }

    /// Asks for a notification when the available index moves past `index`. Returns whether the
    /// available index is still `index`.
    fn sleep(&self, index: u16) -> bool {
        self.memory.half_word(PLACES.used + 4 + 16).store(index, Ordering::Relaxed);
        Edge::AvailableEvent.barrier(Side::Sleeper);
        self.available() == index
    }

    /// Returns whether the driver wants an interrupt at the first completion.
    fn wakes(&self) -> bool {
        Edge::UsedEvent.barrier(Side::Waker);
        self.memory.half_word(PLACES.available + 4 + 4).load(Ordering::Relaxed) == 0
    }
}

fn there_and_back() {
    loom::model(|| {
        let (memory, mut queue) = queue();
        let back = Back { memory: memory.clone() };
        let device = thread::spawn(move || {
            if back.available() == 1 {
                let head = back.head(0);
                let [address, rest] = back.descriptor(head);
                assert_eq!((address, rest as u32), (77, 8));
                back.complete(0, head);
            }
        });
        queue.set_descriptor(0, Descriptor::writable(77, 8));
        queue.add(0);
        let _ = queue.publish();
        if let Some(head) = queue.take() {
            assert_eq!((head, memory.read::<u64>(ANSWER)), (0, 1));
        }
        device.join().unwrap();
    });
}

#[test]
fn a_request_and_its_result_are_seen_whole() {
    there_and_back();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_available_index_stored_without_release_shows_unwritten_descriptors() {
    weaken(Edge::AvailableIndex, Side::Release, there_and_back);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_used_index_loaded_without_acquire_shows_an_unwritten_result() {
    weaken(Edge::UsedIndex, Side::Acquire, there_and_back);
}

fn kick() {
    loom::model(|| {
        let (memory, mut queue) = queue();
        // Sets the available event to an index that the driver does not reach. So the driver
        // notifies the device only if the device asks for it.
        memory.half_word(PLACES.used + 4 + 16).store(0x8000, Ordering::Relaxed);
        let back = Back { memory };
        let device = thread::spawn(move || back.sleep(0));
        queue.add(0);
        let is_notified = queue.publish();
        let asleep = device.join().unwrap();
        assert!(is_notified || !asleep, "the device sleeps beside a request");
    });
}

#[test]
fn a_sleeping_device_is_notified() {
    kick();
}

#[test]
#[should_panic(expected = "the device sleeps beside a request")]
fn without_the_drivers_barrier_the_device_sleeps_through_a_request() {
    weaken(Edge::AvailableEvent, Side::Waker, kick);
}

fn interrupt() {
    loom::model(|| {
        let (memory, mut queue) = queue();
        queue.add(0);
        let _ = queue.publish();
        let back = Back { memory };
        let device = thread::spawn(move || {
            back.complete(0, 0);
            back.wakes()
        });
        let asleep = queue.ask_for_interrupt();
        let is_notified = device.join().unwrap();
        assert!(is_notified || !asleep, "the driver sleeps beside a completion");
    });
}

#[test]
fn a_sleeping_driver_is_interrupted() {
    interrupt();
}

#[test]
#[should_panic(expected = "the driver sleeps beside a completion")]
fn without_its_barrier_the_driver_sleeps_through_a_completion() {
    weaken(Edge::UsedEvent, Side::Sleeper, interrupt);
}

/// A model in which a back end dies between two completions: it has completed the second request,
/// but not the first.
fn change_of_hands() {
    loom::model(|| {
        let (memory, mut queue) = queue();
        generation::set_first(&memory, GENERATION);
        generation::mark_ready(&memory, READY, 2);
        queue.add(0);
        queue.add(1);
        let _ = queue.publish();
        let back = Back { memory: memory.clone() };
        let control = thread::spawn(move || {
            // The old back end completes the second request. Then a new back end answers the
            // control plane.
            back.complete(0, 1);
            generation::begin_next(&back.memory, GENERATION, 2);
            if generation::ready_generation(&back.memory, READY) == 4 {
                assert_eq!((back.available(), back.head(1)), (2, 0), "a new back end finds what is still to be done");
            }
        });
        let present = generation::current(&memory, GENERATION);
        if present != 2 {
            assert_eq!(queue.not_taken().collect::<Vec<_>>(), [1]);
            queue.reset_for_new_device([0].into_iter());
            generation::mark_ready(&memory, READY, present);
        }
        control.join().unwrap();
    });
}

#[test]
fn a_new_back_end_finds_consistent_rings() {
    change_of_hands();
}

#[test]
#[should_panic(expected = "a new back end finds what is still to be done")]
fn a_settled_word_stored_without_release_shows_inconsistent_rings() {
    weaken(Edge::QueueReady, Side::Release, change_of_hands);
}
