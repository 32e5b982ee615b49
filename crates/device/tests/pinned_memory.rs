//! Memory whose pages are evicted and paged in (`usring_sys::pinned_memory`) must not be passed to
//! a device that lends it to the kernel until completion. Other devices may access it directly.
#![cfg(not(loom))]

mod test_device;

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use test_device::{BLOCK, driver};
use usring_device::{Operation, PollPolicy, Route, Transfer};
use usring_sys::pinned_memory::{self, PinHook};
use usring_sys::plain::IoVector;

const SIZE: usize = 32 << 10;
/// The part of the memory that the pin hook covers: its pages may be evicted.
const WITHIN: std::ops::Range<usize> = 16 << 10..24 << 10;

/// Returns memory that all tests share. Its middle is covered by the pin hook (`PinHook`). The
/// tests never change its content.
fn memory() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    *START.get_or_init(|| {
        let start = vec![0x11u8; SIZE].leak().as_mut_ptr().expose_provenance() as u64;
        let window = start + WITHIN.start as u64..start + WITHIN.end as u64;
        pinned_memory::set_pin_hook(Box::leak(Box::new(PinHook {
            prepare: |_| Ok(0),
            finish: |_, _, answer| Some(answer),
            window,
        })));
        start
    })
}

fn segment(from: usize, length: usize) -> IoVector {
    IoVector { base: memory() + from as u64, length: length as u64 }
}

#[test]
fn a_request_skips_the_queue_pair_if_its_memory_is_in_the_pin_hook() {
    let route = |kernel_holds_memory, segments: &[IoVector]| {
        let mut geometry = driver(1 << 20).geometry;
        geometry.features.kernel_holds_memory = kernel_holds_memory;
        let (operation, durable, registered) = (Operation::Read, false, false);
        Transfer { operation, durable, registered, direct: true, offset: 0, segments }.route(&geometry)
    };
    let straight = |length| Route::QueuePair { length };
    let block = BLOCK as usize;
    assert_eq!(route(true, &[segment(WITHIN.start - block, block)]), straight(512), "it ends before the window");
    assert_eq!(route(true, &[segment(WITHIN.end, block)]), straight(512), "it begins behind the window");
    for (from, length) in [
        (WITHIN.start - block, 2 * block),
        (WITHIN.start, block),
        (WITHIN.end - block, 2 * block),
        (WITHIN.start + block, block),
    ] {
        assert_eq!(route(true, &[segment(from, length)]), Route::BlockFile, "{length} bytes from {from} on");
        assert_eq!(route(true, &[segment(0, block), segment(from, length)]), Route::BlockFile, "as the second segment");
        assert_eq!(route(false, &[segment(from, length)]), straight(length as u64));
    }
}

#[test]
fn a_call_copies_memory_that_the_device_must_not_access() {
    for kernel_holds_memory in [false, true] {
        let mut test = driver(SIZE as u64);
        test.geometry.features.kernel_holds_memory = kernel_holds_memory;
        let window = segment(WITHIN.start, WITHIN.len());
        *test.controls.forbidden.lock().unwrap() =
            kernel_holds_memory.then(|| window.base..window.base + window.length);
        let (device, controls, _) = test.device(PollPolicy::Classic);
        let whole = [segment(0, 12 << 10), segment(12 << 10, SIZE - (12 << 10))];
        assert_eq!(device.as_file().write(0, &whole, true, false), Ok(SIZE as u64));
        assert!(controls.bytes.lock().unwrap().iter().all(|byte| *byte == 0x11));
        assert_eq!(device.as_file().read(0, &whole, true), Ok(SIZE as u64));
        assert!(controls.requests.load(Relaxed) > 0);
    }
}
