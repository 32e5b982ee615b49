//! The task-work list (the kernel's `mpscq`). Any thread pushes entries for a ring without a lock,
//! and never waits for another pusher. The ring's driver (the thread that holds the ring's lock)
//! takes them out, oldest first.
//!
//! # Pushing and taking
//! The list is linked from the oldest entry to the newest. A pusher makes two steps, whatever other
//! threads do:
//! 1. It swaps its entry in as the newest (`tail`).
//! 2. It links its entry behind the previous newest.
//!
//! Between the two steps the list is broken (`torn`), and **the consumer never waits for its
//! repair**. The consumer takes out the entries that it can reach from the oldest one. After its
//! second step the pusher updates `state`, and decides whom to notify, as for any entry. To take
//! out the only entry of an unbroken list, the consumer makes the list's own `stub` the newest.
//!
//! A list has one [`Consumer`], which only the ring's driver uses.
//!
//! # State
//! One word records the pushes since the consumer last [began](Consumer::begin) to take entries:
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–28 | `lazy` | number of pushed entries that can wait until more are pushed |
//! | 29 | `torn` | the consumer stopped at a link that was not stored yet |
//! | 30 | `urgent` | an entry that cannot wait was pushed, or the consumer stopped before the last entry |
//! | 31 | `sealed` | the consumer will take no entries any more ([`Consumer::seal`]) |
//!
//! The pusher and the consumer change the word after the list, each by one read-modify-write.
//! Hence:
//! - When a consumer begins, it can reach a pushed entry, or the pusher's update of the word makes
//!   the next [`Consumer::begin`] return `true`.
//! - When a consumer stops at a broken list ([`Consumer::stop`]), it either finds the list
//!   repaired, or the pusher that repairs it announces its entry again.
//! - If an entry is pushed while the queue is being sealed, either the sealing thread finds the
//!   entry, or the pusher sees the seal. In the second case the pusher has to ensure that the entry
//!   is taken out.
//!
//! An [`Entry`] owns its allocation. A request is passed on as a pointer to its entry, so neither a
//! push nor a take allocates.

use crate::ordering::Edge;
use crate::sync::{Arc, AtomicPtr, AtomicU32, Ordering, UnsafeCell};
use alloc::boxed::Box;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr;

/// Pointer to the next newer entry; null until the pusher of that entry has linked it.
type Link = AtomicPtr<Header>;

/// The link of an entry in the list, or of the stub (the list's own node).
struct Header {
    newer: Link,
}

/// An entry's allocation. The header comes first, so a pointer to the header is also a pointer to
/// the node.
#[repr(C)]
struct Node<T> {
    header: Header,
    value: T,
}

/// An owned value that can be put into a [`Queue`].
pub struct Entry<T>(Box<Node<T>>);

impl<T> Entry<T> {
    /// Allocates an entry. To push and to take the entry allocates nothing more.
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

/// Returns whether the state shows entries in the list: entries were pushed since the consumer last
/// began to take entries, or the consumer has left entries.
#[inline(always)]
fn is_marked(state: u32) -> bool {
    state & !(SEALED | TORN) != 0
}

/// Whether the push of an entry wakes a thread that sleeps until there are several entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The thread may sleep until there are enough entries for it (the kernel's lazy wake).
    Lazy,
    /// The thread must be woken at once, because other work may wait for this entry.
    Urgent,
}

/// The result of [`Queue::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the consumer has to be notified, and a sealed queue has none"]
pub struct Pushed {
    /// Whether this pusher has to notify a thread that takes entries. It has to if the list was
    /// empty: later pushers depend on this notification. It also has to if the consumer stopped at
    /// a link that was not stored yet, because that link may be this pusher's.
    pub first: bool,
    /// Number of entries pushed since the consumer last began to take entries; `u32::MAX` if one of
    /// them is urgent.
    pub queued: u32,
    /// The queue is sealed: its consumer takes no more entries. This pusher has to ensure that the
    /// entries in the queue are taken out.
    pub sealed: bool,
}

/// The pushers' end of a task-work list.
pub struct Queue<T>(Arc<Shared<T>>);

/// The consumer's end of a task-work list. Only the ring's driver uses it.
pub struct Consumer<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// The newest entry, or the stub.
    tail: AtomicPtr<Header>,
    state: AtomicU32,
    stub: Header,
    /// The oldest entry, or the stub (the list's own node) in front of it. Only the consumer uses
    /// it.
    head: UnsafeCell<*mut Header>,
    _entries: core::marker::PhantomData<Entry<T>>,
}

// SAFETY: 1. The list only moves entries between owners. 2. All pointers lead to nodes of the list
// or to the stub, which live as long as the list.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: 1. The list only moves entries between owners. 2. Only the consumer and `drop` access
// `head`.
unsafe impl<T: Send> Sync for Shared<T> {}

/// Makes an empty queue; returns both ends of it.
pub fn queue<T>() -> (Queue<T>, Consumer<T>) {
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
    (Queue(shared.clone()), Consumer(shared))
}

impl<T> Queue<T> {
    /// Adds an entry. The last step is a read-modify-write, which callers may use as a barrier.
    #[inline]
    pub fn push(&self, entry: Entry<T>, urgency: Urgency) -> Pushed {
        let shared = &*self.0;
        let node = Box::into_raw(entry.0).cast::<Header>();
        // SAFETY: this thread still owns the node.
        unsafe { (*node).newer.store(ptr::null_mut(), Ordering::Relaxed) };
        let before = shared.tail.swap(node, Edge::Queue.both());
        // SAFETY: 1. `before` was the newest node, and no node is linked behind it yet. The
        // consumer does not take it out until this thread has linked its node. 2. If `before` is
        // the stub, it lives as long as the queue.
        unsafe { (*before).newer.store(node, Edge::Queue.release()) };
        let state = match urgency {
            Urgency::Lazy => shared.state.fetch_add(1, Edge::Queue.both()).wrapping_add(1),
            Urgency::Urgent => shared.state.fetch_or(URGENT, Edge::Queue.both()) | URGENT,
        };
        let queued = if state & URGENT != 0 { u32::MAX } else { state & !(SEALED | TORN) };
        let first = ptr::eq(before, shared.stub()) || state & TORN != 0;
        Pushed { first, queued, sealed: state & SEALED != 0 }
    }

    /// Returns whether there is nothing to take: no entry was pushed since the consumer last began
    /// to take entries, and the consumer has left none. This is one relaxed load. So a caller that
    /// depends on the answer executes a barrier first.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        !is_marked(self.0.state.load(Ordering::Relaxed))
    }

    /// Returns whether the consumer has sealed the queue: it will take no entries any more.
    #[inline]
    pub fn is_sealed(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) & SEALED != 0
    }
}

impl<T> Consumer<T> {
    /// Returns whether there are entries to take, and resets the state. So the caller has to
    /// [take](Self::take) all entries, or call [`Self::stop`].
    #[inline]
    pub fn begin(&mut self) -> bool {
        if !is_marked(self.0.state.load(Ordering::Relaxed)) {
            return false;
        }
        self.0.state.fetch_and(SEALED, Edge::Queue.acquire());
        true
    }

    /// Removes and returns the oldest entry. `None` if the list is empty, or if a link that the
    /// consumer needs is not stored yet.
    #[inline]
    pub fn take(&mut self) -> Option<Entry<T>> {
        let shared = &*self.0;
        // SAFETY: a list has one consumer, borrowed mutably here, so no other thread accesses
        // `head`.
        shared.head.with_mut(|head| unsafe { shared.advance(&mut *head) }).map(|node| {
            // SAFETY: 1. `Box::into_raw` of a node made the pointer. 2. The node has just left the
            // list, and belongs to this thread.
            Entry(unsafe { Box::from_raw(node.cast::<Node<T>>()) })
        })
    }

    /// Stops taking entries. If entries are left that the consumer can reach, the next
    /// [`Self::begin`] returns `true`.
    pub fn stop(&mut self) -> Rest {
        let shared = &*self.0;
        if ptr::eq(shared.tail.load(Ordering::Relaxed), shared.stub()) {
            return Rest::Nothing;
        }
        // SAFETY: a list has one consumer, borrowed mutably here, so no other thread accesses
        // `head`.
        let can_advance = || shared.head.with_mut(|head| unsafe { shared.can_advance(*head) });
        if !can_advance() {
            // The pusher of the missing link may have updated the state already. Then the check
            // below sees its link. Otherwise the pusher will find `TORN` set.
            shared.state.fetch_or(TORN, Edge::Queue.both());
            if !can_advance() {
                return Rest::OutOfReach;
            }
        }
        shared.state.fetch_or(URGENT, Ordering::Relaxed);
        Rest::Entries
    }

    /// Seals the queue: from now on each push reports the seal. The caller takes out the entries
    /// that are in the queue.
    pub fn seal(&mut self) {
        self.0.state.fetch_or(SEALED | URGENT, Edge::Queue.acquire());
    }
}

/// The state of the list when the consumer stops ([`Consumer::stop`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Nothing,
    /// A pusher is between its two steps, so the consumer cannot reach the next entry. The pusher
    /// will announce its entry, as if it was the [first](Pushed::first). The list's state may count
    /// only this entry by then. So a thread that goes to sleep must wait for 1 entry, even if it
    /// needs more.
    OutOfReach,
    /// Entries are left, and the state records this: the next [`Consumer::begin`] returns `true`.
    Entries,
}

impl<T> Shared<T> {
    fn stub(&self) -> *mut Header {
        (&raw const self.stub).cast_mut()
    }

    /// Removes and returns the oldest node, as [`Consumer::take`] does.
    ///
    /// # Safety
    /// `head` must be the field `head` of this list, and no other thread may access it.
    #[inline]
    unsafe fn advance(&self, head: &mut *mut Header) -> Option<*mut Header> {
        let mut oldest = *head;
        // SAFETY: `oldest` is the stub, or a node, which lives until this thread takes it out.
        let mut newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
        if ptr::eq(oldest, self.stub()) {
            if newer.is_null() {
                return None;
            }
            oldest = newer;
            *head = oldest;
            // SAFETY: a node lives until the consumer takes it out, which only this thread does.
            newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
        }
        if newer.is_null() {
            // Either `oldest` is also the newest node, or a pusher has not linked its node behind
            // it yet. In the first case the compare_exchange makes the stub the newest. Its release
            // ordering keeps the reset of the stub's link before the store by which the next pusher
            // links its node to the stub.
            self.stub.newer.store(ptr::null_mut(), Ordering::Relaxed);
            let stub = self.stub();
            if self.tail.compare_exchange(oldest, stub, Edge::Queue.release(), Ordering::Relaxed).is_ok() {
                *head = stub;
                return Some(oldest);
            }
            // SAFETY: a node lives until the consumer takes it out, which only this thread does.
            newer = unsafe { (*oldest).newer.load(Edge::Queue.acquire()) };
            if newer.is_null() {
                return None;
            }
        }
        *head = newer;
        Some(oldest)
    }

    /// Returns whether [`Self::advance`] would return a node.
    ///
    /// # Safety
    /// `head` must be the value of the field `head` of this list, and no other thread may change
    /// that field.
    unsafe fn can_advance(&self, head: *mut Header) -> bool {
        // SAFETY: `head` is the stub, or a node, which lives until the caller takes it out.
        let newer = unsafe { (*head).newer.load(Ordering::Relaxed) };
        !newer.is_null() || !ptr::eq(head, self.stub()) && ptr::eq(self.tail.load(Ordering::Relaxed), head)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        loop {
            // SAFETY: `drop` has the last reference to the queue, so no other thread accesses
            // `head`.
            let node = self.head.with_mut(|head| unsafe { self.advance(&mut *head) });
            let Some(node) = node else { return };
            // SAFETY: 1. `Box::into_raw` of a node made the pointer. 2. The node has just left the
            // list, and belongs to this thread.
            drop(unsafe { Box::from_raw(node.cast::<Node<T>>()) });
        }
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
