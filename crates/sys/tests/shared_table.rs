//! A table that some threads look into while others put things in and take them out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use usring_sys::per_process;
use usring_sys::shared_table::SharedTable;

/// Knows whether it is still there, and how many of its kind are.
struct Thing {
    place: usize,
    alive: AtomicBool,
    count: Arc<AtomicUsize>,
}

impl Thing {
    fn new(place: usize, count: &Arc<AtomicUsize>) -> Arc<Thing> {
        count.fetch_add(1, Ordering::Relaxed);
        Arc::new(Thing { place, alive: AtomicBool::new(true), count: count.clone() })
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn what_is_found_is_alive_and_what_is_taken_out_goes_in_the_end() {
    // Of several segments.
    const PLACES: [usize; 4] = [0, 63, 64, 5000];
    const ROUNDS: usize = if cfg!(debug_assertions) { 2000 } else { 20_000 };
    per_process::prepare().unwrap();
    let table = SharedTable::<Thing>::default();
    let (count, over) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
    PLACES.iter().for_each(|place| table.reserve(*place).unwrap());
    assert!(table.find(1).is_none() && table.find(1 << 20).is_none() && table.find(u32::MAX as usize).is_none());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut found = 0;
                while !over.load(Ordering::Relaxed) || found == 0 {
                    for place in PLACES {
                        let Some(thing) = table.find(place) else { continue };
                        // A second one meanwhile, and a third, for which there is no pointer.
                        let others = [table.find(PLACES[0]), table.find(PLACES[1])];
                        assert!(thing.alive.load(Ordering::Relaxed) && thing.place == place);
                        assert!(others.iter().flatten().all(|other| other.alive.load(Ordering::Relaxed)));
                        found += 1;
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            for place in PLACES {
                table.put(place, Thing::new(place, &count));
            }
            if round % 64 == 0 {
                std::thread::yield_now();
            }
            for place in PLACES {
                assert!(table.take(place, |thing| thing.place != place).is_none());
                assert_eq!(table.take(place, |thing| thing.place == place).map(|thing| thing.place), Some(place));
            }
            if round + 1 == ROUNDS {
                table.put(0, Thing::new(0, &count));
                over.store(true, Ordering::Relaxed);
            }
        }
    });
    drop(table.take(0, |_| true));
    assert_eq!(count.load(Ordering::Relaxed), 0, "things that were taken out and never went");
}
