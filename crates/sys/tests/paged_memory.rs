//! Tests memory that is mapped twice, as the pager of swapped memory uses it.

use std::sync::atomic::{AtomicBool, Ordering};
use usring_sys::mapping::PAGE;
use usring_sys::paged_memory::PagedMemory;
use usring_sys::{Errno, UserAddress, processor, user_memory};

#[path = "../../../xtask/src/skipped.rs"]
mod skipped;

/// Sets its flag when it is dropped, even by a panic.
struct Finally<'a>(&'a AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread fills and frees the first page again and again, while the program's view has a guard
/// marker on that page. Meanwhile another thread brings in and evicts the second page.
#[test]
fn a_freed_page_keeps_its_guard_marker_while_its_neighbour_is_evicted() {
    user_memory::install_fault_handler();
    let window = PagedMemory::aliased(16 * PAGE, None).unwrap();
    let memory = window.memory();
    let first = UserAddress(memory.address() as u64);
    let second = UserAddress((memory.address() + PAGE) as u64);
    let end = AtomicBool::new(false);
    match memory.guard(0, 2 * PAGE) {
        Err(Errno::EINVAL) => return skipped::skip("this Linux has no guard markers for files"),
        answer => answer.unwrap(),
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _end = Finally(&end);
            let content = [1; PAGE];
            for round in 0..20_000 {
                memory.fill(0, &content);
                memory.discard(0, PAGE).unwrap();
                let touched = user_memory::read::<u64>(first);
                assert_eq!(touched, Err(Errno::EFAULT), "the marker is lost in round {round}");
            }
        });
        while !end.load(Ordering::Relaxed) {
            memory.unguard(PAGE, PAGE).unwrap();
            user_memory::write(second, 2u64).unwrap();
            memory.guard(PAGE, PAGE).unwrap();
            memory.prepare_reading(PAGE, PAGE).unwrap();
            assert!(!memory.is_zero(PAGE, PAGE));
            memory.discard(PAGE, PAGE).unwrap();
            processor::yield_now();
        }
    });
}
