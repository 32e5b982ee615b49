//! Tests of the driver's half of a virtqueue: when it notifies the device, and when it asks for
//! interrupts.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use usring_device::virtqueue::{Descriptor, QueueLayout, VirtQueue};
use usring_sys::mapping::Mapping;
use usring_sys::shared::SharedMemory;

const PLACES: QueueLayout = QueueLayout { descriptors: 0, available: 256, used: 516, size: 16 };
/// Offsets of the used ring's flags, and of the available event after that ring.
const USED_FLAGS: usize = 516;
const AVAILABLE_EVENT: usize = 516 + 4 + 8 * 16;
const USED_EVENT: usize = 256 + 4 + 2 * 16;

fn queue(event_index: bool) -> (Arc<SharedMemory>, VirtQueue) {
    let memory = Arc::new(SharedMemory::new(Mapping::shared(4096).unwrap()));
    (memory.clone(), VirtQueue::new(memory, PLACES, event_index))
}

fn publish(queue: &mut VirtQueue, count: u16) -> bool {
    (0..count).for_each(|head| queue.add(head));
    queue.publish()
}

#[test]
fn a_polling_device_is_never_notified() {
    let (memory, mut queue_by_flag) = queue(false);
    assert!(publish(&mut queue_by_flag, 1), "a device that has set no flag wants notifications");
    memory.half_word(USED_FLAGS).store(1, Ordering::Relaxed);
    assert!(!publish(&mut queue_by_flag, 3));

    let (memory, mut queue_by_event) = queue(true);
    assert!(publish(&mut queue_by_event, 1), "event index 0 asks for the first entry's notification");
    // The event index is still 0, because a device that has seen the first entry and then polls
    // does not change it.
    assert!(!publish(&mut queue_by_event, 3));
    memory.half_word(AVAILABLE_EVENT).store(4, Ordering::Relaxed);
    assert!(publish(&mut queue_by_event, 1));
    assert!(!publish(&mut queue_by_event, 0), "without new entries there is no notification");
}

#[test]
fn a_polling_driver_disables_interrupts_and_a_sleeping_one_enables_them() {
    let (memory, queue_by_flag) = queue(false);
    let flags = |memory: &SharedMemory| memory.half_word(256).load(Ordering::Relaxed);
    assert_eq!(flags(&memory), 1);
    assert!(queue_by_flag.ask_for_interrupt());
    assert_eq!(flags(&memory), 0);
    queue_by_flag.refuse_interrupt();
    assert_eq!(flags(&memory), 1);

    let (memory, mut queue_by_event) = queue(true);
    let event = |memory: &SharedMemory| memory.half_word(USED_EVENT).load(Ordering::Relaxed);
    assert_eq!((flags(&memory), event(&memory)), (0, 0xffff));
    assert!(queue_by_event.ask_for_interrupt());
    assert_eq!(event(&memory), 0);
    // The used ring already has a head, so this request for an interrupt is too late. The next
    // request asks for an interrupt at the head after it.
    memory.half_word(516 + 2).store(1, Ordering::Relaxed);
    assert!(!queue_by_event.ask_for_interrupt());
    assert_eq!(queue_by_event.take(), Some(0));
    assert!(queue_by_event.ask_for_interrupt());
    assert_eq!(event(&memory), 1);
}

#[test]
fn a_descriptor_has_the_virtio_layout() {
    let (memory, queue) = queue(false);
    queue.set_descriptor(2, Descriptor::writable(0x1122_3344_5566_7788, 0x99aa_bbcc).followed_by(7));
    assert_eq!(memory.read::<[u64; 2]>(32), [0x1122_3344_5566_7788, 0x0007_0003_99aa_bbcc]);
    queue.set_descriptor(3, Descriptor::table(5, 3));
    assert_eq!(memory.read::<[u64; 2]>(48), [5, 4 << 32 | 48]);
}
