//! Tests hazard pointers: after a thread has stored its hazard pointer, it checks that the object
//! is still in its table, and only then uses the object.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use usring_sys::{hazard, per_process};

#[path = "../../../xtask/src/skipped.rs"]
mod skipped;

static FREED: AtomicUsize = AtomicUsize::new(0);
static FREED_EARLY: AtomicUsize = AtomicUsize::new(0);

/// Lets one test run at a time. The tests share the list of retired objects. A sweep of one test
/// would free the other test's object too early.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

unsafe fn free(object: usize) {
    FREED.fetch_add(object, Ordering::Relaxed);
}

unsafe fn free_early(object: usize) {
    FREED_EARLY.fetch_add(object, Ordering::Relaxed);
}

/// A thread has found an object. The object is replaced and freed before the thread stores its
/// hazard pointer. The thread gets the new object, which is not freed until its use has ended.
#[test]
fn an_object_that_is_replaced_before_the_announcement_is_not_used() {
    const OLD: usize = 0x100;
    const NEW: usize = 0x1000;
    let _alone = alone();
    per_process::prepare().unwrap();
    hazard::prepare();
    let looks = Cell::new(0);
    let find = || {
        looks.set(looks.get() + 1);
        if looks.get() > 1 {
            return NEW;
        }
        // SAFETY: no thread can find the object any more, and the callback accesses no memory.
        unsafe { hazard::retire(OLD, free) };
        OLD
    };
    let Some((object, used)) = hazard::protect(find) else {
        return skipped::skip("membarrier(2) is refused here");
    };
    assert_eq!(FREED.load(Ordering::Relaxed), OLD, "no hazard pointer had the object");
    assert_eq!(object, NEW);
    assert!(used.is_some());
    // SAFETY: no thread can find the object any more, and the callback accesses no memory.
    unsafe { hazard::retire(NEW, free) };
    assert_eq!(FREED.load(Ordering::Relaxed), OLD, "the object is in use");
    drop(used);
    assert_eq!(FREED.load(Ordering::Relaxed), OLD + NEW);
}

/// A thread looks an object up twice, and stores its hazard pointer in between. The object is
/// removed from its table before the second look-up. So the thread uses no object, and the end of
/// its look-up must free the object.
#[test]
fn an_object_that_is_removed_during_a_look_up_is_freed_when_the_look_up_is_over() {
    const OBJECT: usize = 0x10000;
    let _alone = alone();
    per_process::prepare().unwrap();
    hazard::prepare();
    let looks = Cell::new(0);
    let find = || {
        looks.set(looks.get() + 1);
        if looks.get() == 1 {
            return OBJECT;
        }
        // SAFETY: no thread can find the object any more, and the callback accesses no memory.
        unsafe { hazard::retire(OBJECT, free_early) };
        0
    };
    let Some((object, used)) = hazard::protect(find) else {
        return skipped::skip("membarrier(2) is refused here");
    };
    assert_eq!((object, FREED_EARLY.load(Ordering::Relaxed)), (0, 0));
    drop(used);
    assert_eq!(FREED_EARLY.load(Ordering::Relaxed), OBJECT, "the object was not freed");
}
