//! Tests a table from which some threads read, while other threads put objects in and remove them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use usring_sys::per_process;
use usring_sys::shared_table::SharedTable;

/// An object that records whether it is alive, and counts how many objects exist.
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
fn found_objects_are_alive_and_removed_objects_are_freed_later() {
    // Indices (places) in several segments of the table.
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
                        // The thread uses two more objects together with this one. It has only two
                        // hazard pointers, so the third look-up acquires the lock.
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
    assert_eq!(count.load(Ordering::Relaxed), 0, "removed objects were never freed");
}

/// In a forked child, an object can be freed even if a hazard pointer of a parent's thread names
/// it.
#[test]
fn a_forked_child_ignores_its_parents_hazard_pointers() {
    per_process::prepare().unwrap();
    let table = SharedTable::<Thing>::default();
    let count = Arc::new(AtomicUsize::new(0));
    table.reserve(0).unwrap();
    table.put(0, Thing::new(0, &count));
    let (uses, over) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let used = table.find(0).unwrap();
            uses.wait();
            over.wait();
            assert!(used.alive.load(Ordering::Relaxed));
        });
        uses.wait();
        // SAFETY: the child only removes one object, which may free memory, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(table.take(0, |_| true));
            // SAFETY: `_exit` has no requirement. It ends the child.
            unsafe { libc::_exit(count.load(Ordering::Relaxed) as i32) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        over.wait();
        assert_eq!(status, 0, "objects are left in the child");
    });
    drop(table.take(0, |_| true));
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

/// If membarrier(2) fails, a thread might still use the removed object, so it is never freed.
#[test]
fn an_object_removed_without_a_membarrier_is_never_freed() {
    per_process::prepare().unwrap();
    let table = SharedTable::<Thing>::default();
    let count = Arc::new(AtomicUsize::new(0));
    table.reserve(0).unwrap();
    table.put(0, Thing::new(0, &count));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            deny_barrier();
            drop(table.take(0, |_| true));
        });
    });
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// Makes membarrier(2) fail with EPERM in this thread, by a seccomp filter.
fn deny_barrier() {
    let statement = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_membarrier as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` is a valid filter, which the kernel copies. It applies to this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}
