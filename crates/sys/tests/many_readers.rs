//! Tests a table with many reading threads. There are more threads than rows of hazard pointers
//! (1,024).

use std::sync::{Arc, Barrier};
use usring_sys::per_process;
use usring_sys::shared_table::SharedTable;

const THREADS: usize = 1100;
const STACK: usize = 64 << 10;

/// Each thread uses an object of its own. Some threads get no row of hazard pointers, because there
/// are more threads than rows. If two threads shared a row, one object would be freed too early.
#[test]
fn threads_with_and_without_a_hazard_pointer_keep_their_objects() {
    per_process::prepare().unwrap();
    let table = SharedTable::<usize>::default();
    let objects: Vec<Arc<usize>> = (0..THREADS).map(Arc::new).collect();
    for object in &objects {
        table.reserve(**object).unwrap();
        table.put(**object, object.clone());
    }
    let (all_hold, over) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    let use_one = &|place: usize| {
        // `found` is asserted after the barriers. If the assertion failed before them, the other
        // threads would wait for ever.
        let found = table.find(place);
        all_hold.wait();
        over.wait();
        assert_eq!(found.as_deref().map(|object| **object), Some(place));
    };
    let in_use = std::thread::scope(|scope| {
        for place in 0..THREADS {
            let life = move || use_one(place);
            std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, life).unwrap();
        }
        all_hold.wait();
        for place in 0..THREADS {
            drop(table.take(place, |_| true));
        }
        let in_use = objects.iter().filter(|object| Arc::strong_count(object) > 1).count();
        over.wait();
        in_use
    });
    assert_eq!(in_use, THREADS, "objects were freed while threads used them");
    // When this object is removed, the earlier removed objects that no thread uses any more are
    // freed, too.
    table.put(0, Arc::new(0));
    drop(table.take(0, |_| true));
    assert!(objects.iter().all(|object| Arc::strong_count(object) == 1), "a use was never ended");
}
