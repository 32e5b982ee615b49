//! The rings that this process has closed while other processes have descriptors of them. Requests
//! that this process has submitted to such a ring continue, and so does the ring's SQ thread.
//!
//! The kernel closes a ring with its last descriptor, in whichever process that is. usring sees
//! only the calls of this process. A ring's descriptor is an eventfd. Before this process closes
//! the descriptor, it puts the eventfd into an epoll set, the ring's witness
//! ([`Ring::note_close`]). The kernel removes the eventfd from the set when the last descriptor of
//! any process is closed. The ring watcher checks the witness every second, and ends the rings that
//! no process needs any more.

use crate::ring::{Exit, Ring};
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::epoll::Epoll;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_uapi::io_uring as abi;

static LEFT: PerProcess<Mutex<Vec<Left>>> = PerProcess::new();

struct Left {
    ring: Arc<Ring>,
    /// Ends the ring in this process.
    end: fn(&Arc<Ring>),
}

/// Adds to the list a ring that this process has closed and still needs. `end` is called once the
/// ring is no longer needed.
pub(crate) fn add(ring: &Arc<Ring>, end: fn(&Arc<Ring>)) {
    LEFT.get_or_make(Mutex::default).lock().push(Left { ring: ring.clone(), end });
}

/// Returns whether there are rings that this process has closed and still needs.
pub(crate) fn are_any() -> bool {
    LEFT.get().is_some_and(|left| !left.lock().is_empty())
}

/// Ends the closed rings that are no longer needed.
pub(crate) fn end_unneeded() {
    let Some(list) = LEFT.get() else { return };
    // No ring's lock may be acquired while the list is locked. So the checks are made on a copy of
    // the list. The list itself keeps its rings during the checks, because the ring watcher makes
    // no more checks once the list is empty.
    let mut unneeded: Vec<Arc<Ring>> = list.lock().iter().map(|left| left.ring.clone()).collect();
    unneeded.retain(|ring| !ring.is_needed_after_close());
    let is_unneeded = |left: &mut Left| unneeded.iter().any(|ring| Arc::ptr_eq(ring, &left.ring));
    let ended: Vec<_> = list.lock().extract_if(.., is_unneeded).collect();
    ended.iter().for_each(|left| (left.end)(&left.ring));
}

impl Ring {
    /// Called before a descriptor number of the ring is closed. If requests are in flight, or the
    /// ring has an SQ thread, makes the epoll set that `has_descriptors` needs.
    pub fn note_close(self: &Arc<Self>, number: i32) {
        if self.is_inherited() || !self.has(abi::IORING_SETUP_SQPOLL) && !self.has_requests() {
            return;
        }
        let witness = Epoll::new().and_then(|set| set.add(number, 0, 0).map(|()| set));
        *self.witness.lock() = witness.ok();
    }

    /// Returns whether any process has a descriptor of this ring, after this process has closed its
    /// last one. A process also counts if it has closed its descriptors, but still signals the
    /// ring's readiness. If the answer is not known, assumes that the processes of a shared ring
    /// have descriptors.
    fn has_descriptors(&self) -> bool {
        let is_empty = self.witness.lock().as_ref().and_then(Epoll::is_empty);
        is_empty.map_or(self.is_shared(), |is_empty| !is_empty)
    }

    /// Returns whether a ring that this process has closed still needs this process. This is so if
    /// this process has requests in flight or the ring's SQ thread, and other processes have
    /// descriptors of the ring.
    pub(crate) fn is_needed_after_close(self: &Arc<Self>) -> bool {
        (self.sq_thread.is_own() || self.has_requests()) && (self.readiness.is_watched() || self.has_descriptors())
    }

    /// Returns whether this process has submitted requests that have not completed.
    fn has_requests(self: &Arc<Self>) -> bool {
        let locked = self.lock();
        let any = locked.queues.drain.outstanding() != 0;
        locked.release(Exit::Leave);
        any
    }
}
