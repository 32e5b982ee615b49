//! Hazard pointers: a thread uses only an object that was still in its place after the
//! announcement.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::{hazard, per_process};

static FREED: AtomicUsize = AtomicUsize::new(0);
static FREED_EARLY: AtomicUsize = AtomicUsize::new(0);

unsafe fn free(object: usize) {
    FREED.fetch_add(object, Ordering::Relaxed);
}

unsafe fn free_early(object: usize) {
    FREED_EARLY.fetch_add(object, Ordering::Relaxed);
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

/// The object is removed between the announcement and the second look-up. No later use follows that
/// could free it.
#[test]
fn an_object_that_is_removed_during_a_look_up_is_freed_when_the_look_up_is_over() {
    const OBJECT: usize = 0x10000;
    per_process::prepare().unwrap();
    hazard::prepare();
    let looks = Cell::new(0);
    let find = || {
        looks.set(looks.get() + 1);
        if looks.get() == 1 {
            return OBJECT;
        }
        // SAFETY: no thread can find the object any more, and it is no real memory.
        unsafe { hazard::retire(OBJECT, free_early) };
        0
    };
    let Some((object, used)) = hazard::protect(find) else {
        println!("skipped: membarrier(2) is refused here");
        return;
    };
    assert_eq!((object, FREED_EARLY.load(Ordering::Relaxed)), (0, 0));
    drop(used);
    assert_eq!(FREED_EARLY.load(Ordering::Relaxed), OBJECT, "the object stays");
}
