//! Models of hazard pointers. loom reports an access to an object that is being freed. Each model
//! checks that a removed object is freed exactly once. usring uses membarrier(2) on one side. The
//! models instead have a fence on both sides ([`Edge::light_barrier`]).
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use usring_sys::hazard_table::{RetiredList, Table};
use usring_sys::mutex::Mutex;
use usring_sys::ordering::{Edge, Side, weaken};
use usring_sys::sync::{Arc, AtomicU32, AtomicUsize, Ordering};

/// Number of rows of hazard pointers. The table permits no smaller number.
const ROWS: usize = 2;

struct Object {
    content: UnsafeCell<u32>,
    freed: AtomicU32,
}

/// A table with one entry (`place`), two objects, and the hazard pointers of the threads that find
/// objects in it.
struct World {
    place: AtomicUsize,
    pointers: Table<ROWS>,
    list: RetiredList,
    objects: [Object; 2],
}

unsafe fn free(object: usize) {
    // SAFETY: an object of `World::objects`, which lives until the model is over.
    let object = unsafe { &*(object as *const Object) };
    // SAFETY: loom reports conflicting accesses to its `UnsafeCell`.
    object.content.with_mut(|content| unsafe { *content = 0 });
    object.freed.fetch_add(1, Ordering::Relaxed);
}

impl World {
    fn new() -> Arc<World> {
        let object = |content| Object { content: UnsafeCell::new(content), freed: AtomicU32::new(0) };
        let world = World {
            place: AtomicUsize::new(0),
            pointers: Table::model(),
            list: Mutex::new(Vec::new()),
            objects: [object(1), object(2)],
        };
        let world = Arc::new(world);
        world.place.store(world.address(0), Ordering::Release);
        world
    }

    fn address(&self, index: usize) -> usize {
        &raw const self.objects[index] as usize
    }

    fn find(&self) -> usize {
        self.place.load(Ordering::Acquire)
    }

    /// Finds and uses an object as a thread with the thread pointer `thread`. `is_inside`: the
    /// thread holds a lock that may be part of an object, so it cannot sweep the retired objects.
    /// Returns whether the caller has to arrange a sweep.
    fn use_one(&self, thread: usize, is_inside: bool) -> bool {
        let pointer = self.pointers.free_pointer(thread).expect("each thread has a row");
        let (object, is_announced) = Table::<ROWS>::protect(pointer, || self.find());
        if object > 1 {
            // SAFETY: an object of `World::objects`, which lives until the model is over.
            let content = unsafe { &(*(object as *const Object)).content };
            // SAFETY: loom reports conflicting accesses to its `UnsafeCell`.
            assert_ne!(content.with(|content| unsafe { *content }), 0, "an object is used after its end");
        }
        if !is_announced {
            return false;
        }
        let has_retired = self.pointers.end(pointer);
        if has_retired && !is_inside {
            self.pointers.sweep(&self.list);
        }
        has_retired && is_inside && self.pointers.request_sweep()
    }

    /// Replaces the first object by the object `other` (0: by no object), and retires the first
    /// object.
    fn replace(&self, other: usize) {
        self.place.store(other, Ordering::Release);
        // SAFETY: no thread can find the object any more.
        unsafe { self.pointers.retire(|| &self.list, self.address(0), free) };
    }

    fn assert_freed_once(&self) {
        assert_eq!(self.objects[0].freed.load(Ordering::Relaxed), 1, "an object is never freed");
        assert_eq!(self.objects[1].freed.load(Ordering::Relaxed), 0);
    }
}

/// Runs a model with a bounded number of preemptions. To explore all interleavings would take
/// hours.
fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// One thread replaces an object while another thread finds and uses it.
fn an_object_is_replaced() {
    bounded(4, || {
        let world = World::new();
        let user = {
            let world = world.clone();
            thread::spawn(move || world.use_one(8, false))
        };
        world.replace(world.address(1));
        user.join().unwrap();
        world.assert_freed_once();
    });
}

#[test]
fn an_object_is_freed_once_and_after_its_last_use() {
    an_object_is_replaced();
}

#[test]
#[should_panic]
fn a_user_without_barrier_uses_an_object_that_is_freed_or_leaves_one_behind() {
    weaken(Edge::Hazard, Side::Sleeper, an_object_is_replaced);
}

#[test]
#[should_panic]
fn a_remover_without_barrier_frees_an_object_in_use_or_leaves_one_behind() {
    weaken(Edge::Hazard, Side::Waker, an_object_is_replaced);
}

/// Two threads get their rows of hazard pointers concurrently. Both begin their search at one row.
#[test]
fn threads_that_take_their_rows_together_protect_their_objects() {
    bounded(3, || {
        let world = World::new();
        let users = [8, 16].map(|thread| {
            let world = world.clone();
            thread::spawn(move || world.use_one(thread, false))
        });
        world.replace(0);
        users.into_iter().for_each(|user| _ = user.join().unwrap());
        world.assert_freed_once();
    });
}

/// Two threads end their uses of an object without freeing it. Exactly one of them has to arrange a
/// sweep of the retired objects, and that sweep frees the object.
#[test]
fn an_object_is_freed_by_the_sweep_that_its_last_user_relies_on() {
    bounded(3, || {
        let world = World::new();
        let users = [8, 16].map(|thread| {
            let world = world.clone();
            thread::spawn(move || {
                if world.use_one(thread, true) {
                    world.pointers.sweep(&world.list);
                }
            })
        });
        let remover = {
            let world = world.clone();
            thread::spawn(move || world.replace(0))
        };
        users.into_iter().for_each(|user| user.join().unwrap());
        remover.join().unwrap();
        world.assert_freed_once();
    });
}
