//! The rings of this process whose waiters may have a leader: the one waiter that sleeps on the
//! ring's epoll set. When another process begins to use such a ring, the leader has to become an
//! ordinary sleeper ([`Ring::is_shared`]). So that process wakes this process's ring watcher, which
//! calls [`wake_of_shared`].

use crate::ring::Ring;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;

static RINGS: PerProcess<Mutex<Vec<Weak<Ring>>>> = PerProcess::new();

/// Adds a ring that has just got its epoll set.
pub(super) fn enlist(ring: &Arc<Ring>) {
    let mut rings = RINGS.get_or_make(Mutex::default).lock();
    if rings.len() == rings.capacity() {
        rings.retain(|ring| ring.strong_count() > 0);
    }
    rings.push(Arc::downgrade(ring));
}

/// Wakes the leaders of rings that other processes use. Only the ring watcher calls this.
pub(crate) fn wake_of_shared() {
    let Some(rings) = RINGS.get() else { return };
    let has_late_leader = |ring: &Arc<Ring>| ring.has_late_leader();
    let concerned: Vec<_> = rings.lock().iter().filter_map(Weak::upgrade).filter(has_late_leader).collect();
    concerned.iter().for_each(|ring| ring.wakers.call_watcher());
}
