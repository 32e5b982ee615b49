//! The task-work list: whoever has something for a ring's own thread pushes
//! it, from any thread, without a lock and without ever waiting for another
//! pusher; the ring's driver takes it, oldest first. The kernel's `mpscq`.
//!
//! # Pushing and taking
//! A list that hangs together from the oldest entry to the newest. A pusher
//! swaps its entry in as the newest (`tail`), then hangs it on the one that was
//! the newest before: two steps, whatever others do. Between the two the list
//! is torn, and **the taker never waits for it to be mended**: it takes what it
//! can reach, and the pusher, once it has mended it, says so (`state`) and then
//! looks for whom to tell, as it does for any entry. The last entry of an
//! unbroken list is taken by putting the list's own `stub` in its place.
//!
//! There is one [`Taker`], which whoever drives the ring holds.
//!
//! # State
//! One word tells what the taker has not looked at since it last
//! [began](Taker::begin):
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–28 | `lazy` | so many entries were pushed that can wait for more of them |
//! | 29 | `torn` | the taker could not reach what is there, and turned away |
//! | 30 | `urgent` | one was pushed that cannot, or something was left |
//! | 31 | `sealed` | nobody will look any more ([`Taker::seal`]) |
//!
//! It is changed after the list, by one read-modify-write on each side: who
//! begins to take either finds the entry or leaves the mark for the next look;
//! who turns away from a torn list either finds it mended, or has whoever mends
//! it announce it anew ([`Taker::leave`]);
//! who pushes while the queue is sealed either is seen by who seals it, or sees
//! the seal and has to take the entry out again itself.
//!
//! [`Entry`] owns its allocation, and moving a request between its holders
//! moves that pointer, so nothing is allocated on the way.

use crate::ordering::Edge;
use crate::sync::{Arc, AtomicPtr, AtomicU32, Ordering, UnsafeCell};
use alloc::boxed::Box;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr;

/// The next newer entry, once it is hung on.
type Link = AtomicPtr<Header>;

/// What the queue knows of an entry; also the stub.
struct Header {
    newer: Link,
}

/// The header first: a pointer to it is one to the node.
#[repr(C)]
struct Node<T> {
    header: Header,
    value: T,
}

/// A value that can stand in a [`Queue`], owned.
pub struct Entry<T>(Box<Node<T>>);

impl<T> Entry<T> {
    /// The one allocation of this value's life.
    pub fn new(value: T) -> Self {
        Entry(Box::new(Node { header: Header { newer: AtomicPtr::new(ptr::null_mut()) }, value }))
    }

    pub fn into_inner(self) -> T {
        self.0.value
    }
}

impl<T> Deref for Entry<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for Entry<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

const TORN: u32 = 1 << 29;
const URGENT: u32 = 1 << 30;
const SEALED: u32 = 1 << 31;

/// Whether there is something that the taker has not looked at.
#[inline(always)]
fn is_marked(state: u32) -> bool {
    state & !(SEALED | TORN) != 0
}

/// Whether whoever waits for several entries may sleep on until there are as
/// many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// It may: the kernel's lazy wake.
    Lazy,
    /// It may not: the entry can be what something else waits for.
    Urgent,
}

/// What a pusher learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the taker has to be told, and a sealed queue has none"]
pub struct Pushed {
    /// This one is to announce that there is something: the list was empty, and
    /// later pushers leave it to this one; or the taker has turned away from a torn
    /// list, which may be this one's doing.
    pub first: bool,
    /// How many entries wait, as far as the taker has not looked; `u32::MAX`
    /// with an urgent one among them.
    pub queued: u32,
    /// The queue was sealed meanwhile: this thread must see to it that what it
    /// holds is taken.
    pub sealed: bool,
}

/// The pushers' end.
pub struct Queue<T>(Arc<Shared<T>>);

/// The end of the one who takes.
pub struct Taker<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// The newest entry, or the stub.
    tail: AtomicPtr<Header>,
    state: AtomicU32,
    stub: Header,
    /// The oldest entry, or the stub in front of it; the taker's alone.
    head: UnsafeCell<*mut Header>,
    _entries: core::marker::PhantomData<Entry<T>>,
}

// SAFETY: 1. Entries only pass through, each from one owner to the next. 2. The
// pointers are to nodes of the list and to the stub, which live as long as it.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: 1. As above. 2. `head` is touched by the taker and in `drop` alone.
unsafe impl<T: Send> Sync for Shared<T> {}

/// An empty queue, both ends of it.
pub fn queue<T>() -> (Queue<T>, Taker<T>) {
    let shared = Arc::new(Shared {
        tail: AtomicPtr::new(ptr::null_mut()),
        state: AtomicU32::new(0),
        stub: Header { newer: AtomicPtr::new(ptr::null_mut()) },
        head: UnsafeCell::new(ptr::null_mut()),
        _entries: core::marker::PhantomData,
    });
    let stub = shared.stub();
    shared.tail.store(stub, Ordering::Relaxed);
    // SAFETY: nobody else has it yet.
    shared.head.with_mut(|head| unsafe { *head = stub });
    (Queue(shared.clone()), Taker(shared))
}

impl<T> Queue<T> {
    /// Adds an entry. A read-modify-write is the last thing this does.
    #[inline]
    pub fn push(&self, entry: Entry<T>, urgency: Urgency) -> Pushed {
        let shared = &*self.0;
        let node = Box::into_raw(entry.0).cast::<Header>();
        // SAFETY: the node is still this thread's own.
        unsafe { (*node).newer.store(ptr::null_mut(), Ordering::Relaxed) };
        let before = shared.tail.swap(node, Edge::Queue.both());
        // SAFETY: 1. It was the newest, and nothing hung on it: the taker lets
        // it stand until this one does. 2. The stub lives as long as the queue.
        unsafe { (*before).newer.store(node, Edge::Queue.release()) };
        let state = match urgency {
            Urgency::Lazy => shared.state.fetch_add(1, Edge::Queue.both()).wrapping_add(1),
            Urgency::Urgent => shared.state.fetch_or(URGENT, Edge::Queue.both()) | URGENT,
        };
        let queued = if state & URGENT != 0 { u32::MAX } else { state & !(SEALED | TORN) };
        let first = ptr::eq(before, shared.stub()) || state & TORN != 0;
        Pushed { first, queued, sealed: state & SEALED != 0 }
    }

    /// Whether there is nothing that the taker has not looked at. One load; who
    /// has to rely on the answer stands behind a barrier.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        !is_marked(self.0.state.load(Ordering::Relaxed))
    }

    /// Whether nobody will look any more.
    #[inline]
    pub fn is_sealed(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) & SEALED != 0
    }
}

impl<T> Taker<T> {
    /// Whether there is something to look at. From here on whoever pushes marks
    /// it anew, so all that there is has to be taken, or [left](Self::leave).
    #[inline]
    pub fn begin(&mut self) -> bool {
        if !is_marked(self.0.state.load(Ordering::Relaxed)) {
            return false;
        }
        self.0.state.fetch_and(SEALED, Edge::Queue.acquire());
        true
    }

    /// The oldest entry that can be reached.
    #[inline]
    pub fn take(&mut self) -> Option<Entry<T>> {
        let shared = &*self.0;
        // SAFETY: this is the taker.
        shared.head.with_mut(|head| unsafe { shared.advance(&mut *head) }).map(|node| {
            // SAFETY: 1. `Box::into_raw` of a node made it. 2. It has just left
            // the list, and is this thread's.
            Entry(unsafe { Box::from_raw(node.cast::<Node<T>>()) })
        })
    }

    /// What was not taken since [`Self::begin`] waits for the next look.
    pub fn leave(&mut self) -> Rest {
        let shared = &*self.0;
        if ptr::eq(shared.tail.load(Ordering::Relaxed), shared.stub()) {
            return Rest::Nothing;
        }
        // SAFETY: this is the taker.
        let can_advance = || shared.head.with_mut(|head| unsafe { shared.can_advance(*head) });
        if !can_advance() {
            // A pusher that has changed the state already has mended the list
            // before; any other one finds this.
            shared.state.fetch_or(TORN, Edge::Queue.both());
            if !can_advance() {
                return Rest::OutOfReach;
            }
        }
        shared.state.fetch_or(URGENT, Ordering::Relaxed);
        Rest::Entries
    }

    /// From now on nobody looks any more: whoever pushes is told so. What is
    /// there already is to be taken by the caller.
    pub fn seal(&mut self) {
        self.0.state.fetch_or(SEALED | URGENT, Edge::Queue.acquire());
    }
}

/// What is left in the list when the taker turns away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Nothing,
    /// A pusher is in the middle of it, and will say so when it is done, as the
    /// [first](Pushed::first). Its entry may be the only one that is counted then: who goes to sleep needs
    /// to be woken for one.
    OutOfReach,
    /// Marked as not looked at.
    Entries,
}

impl<T> Shared<T> {
    fn stub(&self) -> *mut Header {
        (&raw const self.stub).cast_mut()
    }

    /// Takes the oldest node out of the list.
    ///
    /// # Safety
    /// `head` is the list's, and nobody else uses it.
    #[inline]
    unsafe fn advance(&self, head: &mut *mut Header) -> Option<*mut Header> {
        let mut oldest = *head;
        // SAFETY: for this and the next ones: 1. The head is a node of the list
        // or the stub. 2. A node stays until the taker takes it.
        let mut newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
        if ptr::eq(oldest, self.stub()) {
            if newer.is_null() {
                return None;
            }
            oldest = newer;
            *head = oldest;
            // SAFETY: as above.
            newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
        }
        if newer.is_null() {
            // It is the newest, or somebody is about to hang another on it. The
            // release makes the next pusher's hook a later one than this.
            self.stub.newer.store(ptr::null_mut(), Ordering::Relaxed);
            let stub = self.stub();
            if self.tail.compare_exchange(oldest, stub, Edge::Queue.release(), Ordering::Relaxed).is_ok() {
                *head = stub;
                return Some(oldest);
            }
            // SAFETY: as above.
            newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
            if newer.is_null() {
                return None;
            }
        }
        *head = newer;
        Some(oldest)
    }

    /// Whether there is a node to be taken.
    ///
    /// # Safety
    /// As for [`Self::advance`].
    unsafe fn can_advance(&self, head: *mut Header) -> bool {
        // SAFETY: as in `advance`.
        let newer = unsafe { (*head).newer.load(Ordering::Relaxed) };
        !newer.is_null() || !ptr::eq(head, self.stub()) && ptr::eq(self.tail.load(Ordering::Relaxed), head)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        loop {
            // SAFETY: nobody else has the queue.
            let node = self.head.with_mut(|head| unsafe { self.advance(&mut *head) });
            let Some(node) = node else { return };
            // SAFETY: as in `take`.
            drop(unsafe { Box::from_raw(node.cast::<Node<T>>()) });
        }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Taker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taker").finish_non_exhaustive()
    }
}
