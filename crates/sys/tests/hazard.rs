//! Hazard pointers: a thread uses only an object that was still in its place after the
//! announcement.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::{hazard, per_process};

static FREED: AtomicUsize = AtomicUsize::new(0);

unsafe fn free(object: usize) {
    FREED.fetch_add(object, Ordering::Relaxed);
}

/// The object is replaced and freed between the look-up and the announcement. The user gets its
/// replacement, which stays until the use is over.
#[test]
fn an_object_that_is_replaced_before_the_announcement_is_not_used() {
    const OLD: usize = 0x100;
    const NEW: usize = 0x1000;
    per_process::prepare().unwrap();
    hazard::prepare();
    let looks = Cell::new(0);
    let find = || {
        looks.set(looks.get() + 1);
        if looks.get() > 1 {
            return NEW;
        }
        // SAFETY: no thread can find the object any more, and it is no real memory.
        unsafe { hazard::retire(OLD, free) };
        OLD
    };
    let Some((object, used)) = hazard::protect(find) else {
        println!("skipped: membarrier(2) is refused here");
        return;
    };
    assert_eq!(FREED.load(Ordering::Relaxed), OLD, "nobody had announced its use");
    assert_eq!(object, NEW);
    assert!(used.is_some());
    // SAFETY: no thread can find the object any more, and it is no real memory.
    unsafe { hazard::retire(NEW, free) };
    assert_eq!(FREED.load(Ordering::Relaxed), OLD, "it is in use");
    drop(used);
    assert_eq!(FREED.load(Ordering::Relaxed), OLD + NEW);
}
