//! The task-work list: whoever has something for a ring's own thread pushes
//! it, from any thread and without a lock; the ring's thread takes everything
//! at once. The kernel's `llist`.
//!
//! A stack that is pushed by compare-and-swap and emptied by one swap, turned
//! round by who takes it. Chosen over a queue with two ends because taking a
//! batch is one instruction, is safe for several takers, and never has to wait
//! for a pusher that was preempted half-way. Pushing reads nothing that is not
//! its own (never the entry below), so entries can be freed by who takes them
//! with no reclamation scheme, and the usual ABA of a stack cannot hurt: a
//! link that equals the head is right, whatever happened in between.
//!
//! Each entry has a weight, and the head word counts the weight of what waits
//! in its upper 16 bits (a user-space address has 47): `DEFER_TASKRUN` wakes
//! its thread only when enough completions wait. The count stops at
//! [`Queue::URGENT`].
//!
//! [`Entry`] owns its allocation, and moving a request between its holders
//! moves that pointer, so nothing is allocated on the way.

use crate::ordering::Edge;
use crate::sync::{AtomicPtr, Ordering, UnsafeCell};
use alloc::boxed::Box;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr;

struct Node<T> {
    /// The entry below, while this one is in a list; nothing else.
    link: UnsafeCell<*mut Node<T>>,
    value: T,
}

/// A value that can stand in a [`Queue`], owned.
pub struct Entry<T>(Box<Node<T>>);

// SAFETY: the link belongs to whoever owns the entry; it moves with the value.
unsafe impl<T: Send> Send for Entry<T> {}
// SAFETY: `&Entry` gives `&T` and nothing else.
unsafe impl<T: Sync> Sync for Entry<T> {}

impl<T> Entry<T> {
    /// The one allocation of this value's life.
    pub fn new(value: T) -> Self {
        Entry(Box::new(Node { link: UnsafeCell::new(ptr::null_mut()), value }))
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

const WEIGHT_SHIFT: u32 = 48;

/// The list. See the head of this file.
pub struct Queue<T> {
    /// Newest entry, with the weight of all in the upper bits.
    head: AtomicPtr<Node<T>>,
}

// SAFETY: entries only pass through, each from one owner to the next.
unsafe impl<T: Send> Send for Queue<T> {}
// SAFETY: as above; the head is atomic.
unsafe impl<T: Send> Sync for Queue<T> {}

fn node_of<T>(head: *mut Node<T>) -> *mut Node<T> {
    head.map_addr(|address| address & ((1 << WEIGHT_SHIFT) - 1))
}

fn weight_of<T>(head: *mut Node<T>) -> u32 {
    (head.addr() >> WEIGHT_SHIFT) as u32
}

impl<T> Queue<T> {
    /// The weight of an entry that cannot wait, and the most that is counted.
    pub const URGENT: u32 = 0xffff;

    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Queue { head: AtomicPtr::new(ptr::null_mut()) }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Queue { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Adds an entry of weight 1; says whether the list was empty.
    #[inline]
    pub fn push(&self, entry: Entry<T>) -> bool {
        node_of(self.push_node(entry, 1).0).is_null()
    }

    /// Adds an entry of this weight (at least 1); returns the weight of
    /// everything that waits now.
    #[inline]
    pub fn push_weighted(&self, entry: Entry<T>, weight: u32) -> u32 {
        self.push_node(entry, weight.max(1)).1
    }

    #[inline]
    fn push_node(&self, entry: Entry<T>, weight: u32) -> (*mut Node<T>, u32) {
        let node = Box::into_raw(entry.0);
        assert!(node.addr() >> WEIGHT_SHIFT == 0, "an address of user space has 47 bits");
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let total = weight_of(head).saturating_add(weight).min(Self::URGENT);
            // SAFETY: the node is still this thread's own.
            unsafe { (*node).link.with_mut(|link| *link = node_of(head)) };
            let new = node.map_addr(|address| address | (total as usize) << WEIGHT_SHIFT);
            match self.head.compare_exchange_weak(head, new, Edge::Queue.release(), Ordering::Relaxed) {
                Ok(_) => return (head, total),
                Err(now) => head = now,
            }
        }
    }

    /// One load; who has to rely on the answer stands behind a barrier.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.weight() == 0
    }

    /// The weight of everything that waits, up to [`Queue::URGENT`]; one load.
    #[inline]
    pub fn weight(&self) -> u32 {
        weight_of(self.head.load(Ordering::Relaxed))
    }

    /// Takes everything, oldest first.
    #[inline]
    pub fn take_all(&self) -> Batch<T> {
        let mut rest = node_of(self.head.swap(ptr::null_mut(), Edge::Queue.acquire()));
        let mut batch = Batch { next: ptr::null_mut(), length: 0 };
        while !rest.is_null() {
            // SAFETY: the swap made every node of the list this thread's own,
            // and the acquire makes what the pushers wrote visible.
            let below = unsafe {
                (*rest).link.with_mut(|link| {
                    let below = *link;
                    *link = batch.next;
                    below
                })
            };
            batch.next = rest;
            batch.length += 1;
            rest = below;
        }
        batch
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue::new()
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("weight", &self.weight()).finish_non_exhaustive()
    }
}

/// What was taken at once, oldest first. Dropping it frees what is left.
pub struct Batch<T> {
    next: *mut Node<T>,
    length: usize,
}

// SAFETY: a batch owns its entries.
unsafe impl<T: Send> Send for Batch<T> {}

impl<T> Iterator for Batch<T> {
    type Item = Entry<T>;

    #[inline]
    fn next(&mut self) -> Option<Entry<T>> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: 1. The batch owns its nodes, each made by `Box::into_raw`.
        // 2. This one leaves the batch here.
        let node = unsafe { Box::from_raw(self.next) };
        // SAFETY: owned.
        self.next = node.link.with(|link| unsafe { *link });
        self.length -= 1;
        Some(Entry(node))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.length, Some(self.length))
    }
}

impl<T> ExactSizeIterator for Batch<T> {}

impl<T> Drop for Batch<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}
