//! The task-work list (the kernel's `mpscq`). Any thread pushes entries for a ring's own thread
//! without a lock, and never waits for another pusher. The ring's driver takes them, oldest first.
//!
//! # Pushing and taking
//! The list is linked from the oldest entry to the newest. A pusher makes two steps, whatever other
//! threads do:
//! 1. It swaps its entry in as the newest (`tail`).
//! 2. It links its entry behind the previous newest.
//!
//! Between the two steps the list is broken (`torn`), and **the taker never waits for its repair**.
//! The taker takes the entries that it can reach. The pusher, after its second step, updates
//! `state` and decides whom to notify, as for any entry. The last entry of an unbroken list is
//! taken by putting the list's own `stub` in its place.
//!
//! There is one [`Taker`], which the ring's driver holds.
//!
//! # State
//! One word says what the taker has not looked at since it last [began](Taker::begin):
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–28 | `lazy` | number of pushed entries that can wait until more have come |
//! | 29 | `torn` | the taker could not reach an entry, and stopped |
//! | 30 | `urgent` | an entry was pushed that cannot wait, or the taker left entries |
//! | 31 | `sealed` | no taker will look any more ([`Taker::seal`]) |
//!
//! The word is changed after the list, by one read-modify-write on each side. Hence:
//! - A taker that begins either finds the entry, or leaves the entry's mark in the word for its
//!   next look.
//! - A taker that leaves a broken list either finds it repaired, or the repairing pusher announces
//!   its entry again ([`Taker::leave`]).
//! - A pusher that pushes while the queue is sealed either is seen by the sealing thread, or sees
//!   the seal. In the second case the pusher must take the entry out again itself.
//!
//! [`Entry`] owns its allocation. A request moves between its holders as that pointer, so no step
//! allocates.

use crate::ordering::Edge;
use crate::sync::{Arc, AtomicPtr, AtomicU32, Ordering, UnsafeCell};
use alloc::boxed::Box;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr;

/// The next newer entry, once it is linked.
type Link = AtomicPtr<Header>;

/// The part of an entry that the queue uses; also the stub.
struct Header {
    newer: Link,
}

/// The header comes first: a pointer to the header is a pointer to the node.
#[repr(C)]
struct Node<T> {
    header: Header,
    value: T,
}

/// An owned value that can be put into a [`Queue`].
pub struct Entry<T>(Box<Node<T>>);

impl<T> Entry<T> {
    /// Allocates the node: the only allocation in this value's life.
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

/// Returns whether there are entries that the taker has not looked at.
#[inline(always)]
fn is_marked(state: u32) -> bool {
    state & !(SEALED | TORN) != 0
}

/// Whether a thread that waits for several entries may go on sleeping until there are as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The thread may go on sleeping: the kernel's lazy wake.
    Lazy,
    /// The thread must look: other work may wait for this entry.
    Urgent,
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the taker has to be notified, and a sealed queue has none"]
pub struct Pushed {
    /// This pusher has to announce the entry. Either the list was empty, and later pushers rely on
    /// this announcement. Or the taker stopped at a broken list, and this push may have broken it.
    pub first: bool,
    /// Number of entries that the taker has not looked at; `u32::MAX` if an urgent entry is among
    /// them.
    pub queued: u32,
    /// The queue was sealed meanwhile: this thread must see to it that the queue's entries are
    /// taken.
    pub sealed: bool,
}

/// The pushers' end.
pub struct Queue<T>(Arc<Shared<T>>);

/// The taker's end.
pub struct Taker<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// The newest entry, or the stub.
    tail: AtomicPtr<Header>,
    state: AtomicU32,
    stub: Header,
    /// The oldest entry, or the stub in front of it. Only the taker uses it.
    head: UnsafeCell<*mut Header>,
    _entries: core::marker::PhantomData<Entry<T>>,
}

// SAFETY: 1. Entries only pass through, each from one owner to the next. 2. The pointers lead to
// nodes of the list and to the stub, which live as long as the list.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: 1. Entries only pass through, each from one owner to the next. 2. Only the taker and
// `drop` touch `head`.
unsafe impl<T: Send> Sync for Shared<T> {}

/// Makes an empty queue; returns both ends of it.
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
    // SAFETY: no other thread has the queue yet.
    shared.head.with_mut(|head| unsafe { *head = stub });
    (Queue(shared.clone()), Taker(shared))
}

impl<T> Queue<T> {
    /// Adds an entry. Ends with a read-modify-write, which callers may use as a barrier.
    #[inline]
    pub fn push(&self, entry: Entry<T>, urgency: Urgency) -> Pushed {
        let shared = &*self.0;
        let node = Box::into_raw(entry.0).cast::<Header>();
        // SAFETY: this thread still owns the node.
        unsafe { (*node).newer.store(ptr::null_mut(), Ordering::Relaxed) };
        let before = shared.tail.swap(node, Edge::Queue.both());
        // SAFETY: 1. `before` was the newest node, and no node is linked behind it yet. The taker
        // does not take it until this thread has linked its own. 2. The stub lives as long as the
        // queue.
        unsafe { (*before).newer.store(node, Edge::Queue.release()) };
        let state = match urgency {
            Urgency::Lazy => shared.state.fetch_add(1, Edge::Queue.both()).wrapping_add(1),
            Urgency::Urgent => shared.state.fetch_or(URGENT, Edge::Queue.both()) | URGENT,
        };
        let queued = if state & URGENT != 0 { u32::MAX } else { state & !(SEALED | TORN) };
        let first = ptr::eq(before, shared.stub()) || state & TORN != 0;
        Pushed { first, queued, sealed: state & SEALED != 0 }
    }

    /// Returns whether the taker has looked at every entry. One relaxed load; a caller that relies
    /// on the answer passes a barrier first.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        !is_marked(self.0.state.load(Ordering::Relaxed))
    }

    /// Returns whether no taker will look any more.
    #[inline]
    pub fn is_sealed(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) & SEALED != 0
    }
}

impl<T> Taker<T> {
    /// Returns whether there are entries to look at. From here on pushers mark the state anew. So
    /// the caller has to take all entries, or [leave](Self::leave) them.
    #[inline]
    pub fn begin(&mut self) -> bool {
        if !is_marked(self.0.state.load(Ordering::Relaxed)) {
            return false;
        }
        self.0.state.fetch_and(SEALED, Edge::Queue.acquire());
        true
    }

    /// Takes the oldest entry that can be reached. `None` if there is none, or only behind a broken
    /// link.
    #[inline]
    pub fn take(&mut self) -> Option<Entry<T>> {
        let shared = &*self.0;
        // SAFETY: `&mut self` is the only taker.
        shared.head.with_mut(|head| unsafe { shared.advance(&mut *head) }).map(|node| {
            // SAFETY: 1. `Box::into_raw` of a node made the pointer. 2. The node has just left the
            // list, and belongs to this thread.
            Entry(unsafe { Box::from_raw(node.cast::<Node<T>>()) })
        })
    }

    /// Leaves the entries not taken since [`Self::begin`] to the next look.
    pub fn leave(&mut self) -> Rest {
        let shared = &*self.0;
        if ptr::eq(shared.tail.load(Ordering::Relaxed), shared.stub()) {
            return Rest::Nothing;
        }
        // SAFETY: `&mut self` is the only taker.
        let can_advance = || shared.head.with_mut(|head| unsafe { shared.can_advance(*head) });
        if !can_advance() {
            // A pusher that has changed the state already repaired the list before. Any other
            // pusher finds `TORN` set.
            shared.state.fetch_or(TORN, Edge::Queue.both());
            if !can_advance() {
                return Rest::OutOfReach;
            }
        }
        shared.state.fetch_or(URGENT, Ordering::Relaxed);
        Rest::Entries
    }

    /// Seals the queue: no taker will look any more, and each later push reports the seal. The
    /// caller takes the entries that are in the queue.
    pub fn seal(&mut self) {
        self.0.state.fetch_or(SEALED | URGENT, Edge::Queue.acquire());
    }
}

/// The rest of the list when the taker stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Nothing,
    /// A pusher is between its two steps. It announces its entry when it is done, as the
    /// [first](Pushed::first). That entry may then be the only one counted, so a thread that goes
    /// to sleep must ask to be woken for one.
    OutOfReach,
    /// Entries are left; they are marked as not looked at.
    Entries,
}

impl<T> Shared<T> {
    fn stub(&self) -> *mut Header {
        (&raw const self.stub).cast_mut()
    }

    /// Takes the oldest node out of the list.
    ///
    /// # Safety
    /// `head` must be the list's, and no other thread may use it.
    #[inline]
    unsafe fn advance(&self, head: &mut *mut Header) -> Option<*mut Header> {
        let mut oldest = *head;
        // SAFETY: for this and the following reads of `newer`: 1. The head is a node of the list or
        // the stub. 2. A node stays until the taker takes it.
        let mut newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
        if ptr::eq(oldest, self.stub()) {
            if newer.is_null() {
                return None;
            }
            oldest = newer;
            *head = oldest;
            // SAFETY: a node stays until the taker takes it.
            newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
        }
        if newer.is_null() {
            // `oldest` is the newest node, too, or a pusher is about to link a node behind it. The
            // release orders the reset of the stub's link before the next pusher's store to it.
            self.stub.newer.store(ptr::null_mut(), Ordering::Relaxed);
            let stub = self.stub();
            if self.tail.compare_exchange(oldest, stub, Edge::Queue.release(), Ordering::Relaxed).is_ok() {
                *head = stub;
                return Some(oldest);
            }
            // SAFETY: a node stays until the taker takes it.
            newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
            if newer.is_null() {
                return None;
            }
        }
        *head = newer;
        Some(oldest)
    }

    /// Returns whether there is a node that can be taken.
    ///
    /// # Safety
    /// `head` must be the list's, and no other thread may change it.
    unsafe fn can_advance(&self, head: *mut Header) -> bool {
        // SAFETY: as in `advance`.
        let newer = unsafe { (*head).newer.load(Ordering::Relaxed) };
        !newer.is_null() || !ptr::eq(head, self.stub()) && ptr::eq(self.tail.load(Ordering::Relaxed), head)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        loop {
            // SAFETY: no other thread has the queue.
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
