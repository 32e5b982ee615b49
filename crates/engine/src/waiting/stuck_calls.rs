//! The stuck-call watchdog: gets a driver out of a call under its ring's lock that the
//! kernel may put to sleep. That call is accept4(2) on a listener that blocks.
//!
//! accept4 has no form that does not wait. O_NONBLOCK belongs to the whole open file, which is the
//! program's and perhaps another process's. So the driver asks first whether there is a connection.
//! But another process that shares the listener may take the connection in between. The driver then
//! sleeps until the next one comes, while it holds the ring's lock.
//!
//! While such calls are made, the watchdog checks at intervals whether a ring's driver is still in
//! the call that it was in the last time. If so, it ends the call, as a worker's call is ended
//! (`sys::wait`). The watchdog is a thread of its own because the ring watcher drives rings, too.
//! It sleeps after some time without calls, and later ends. Only the first call after such a pause
//! costs the driver a system call.
//!
//! A ring on which a call got stuck ([`StuckCalls::has_been_stuck`]) has a listener that is shared.
//! It leaves its next calls to workers ([`StuckCalls::leaves_to_worker`]), and twice as many of
//! them each time that it happens again.

use alloc::sync::Arc;
use usring_sys::thread::ThreadId;
use usring_sys::watched_call::WatchedCalls;
use usring_sys::{signals, thread};

/// Least and most calls that are left to workers after one has been stuck.
const FIRST_PENALTY: u32 = 256;
const LAST_PENALTY: u32 = 1 << 20;

/// Id of the thread that makes calls; looked up once for several calls.
pub(crate) struct Caller(pub Option<u32>);

/// A ring's share of the watchdog.
#[derive(Default)]
pub(crate) struct StuckCalls {
    pub watch: Option<Arc<WatchedCalls>>,
    /// Number of next calls that are left to workers.
    for_workers: u32,
    /// Number of calls that were left to workers the last time.
    penalty: u32,
    /// Both names of the one thread that drives a ring with deferred task work. After its end the
    /// first name may be another thread's. The kernel refuses that thread the ring (EEXIST), so no
    /// program continues there. If one did, a call in which it got stuck would only end with the
    /// next connection.
    owner: Option<(ThreadId, u32)>,
}

impl StuckCalls {
    /// Returns whether a worker makes the next call; a worker may wait in it.
    pub fn leaves_to_worker(&mut self) -> bool {
        let leaves = self.for_workers != 0;
        self.for_workers -= u32::from(leaves);
        leaves
    }

    /// Leaves the next calls to workers. Called when a call had no result and its connection is
    /// gone: another process was faster, and the call would have slept. (If the connection is still
    /// there, the call was only slow, for want of a processor.)
    pub fn has_been_stuck(&mut self) {
        self.penalty = (2 * self.penalty).clamp(FIRST_PENALTY, LAST_PENALTY);
        self.for_workers = self.penalty;
    }

    /// Returns the caller for the next calls. `is_owner`: no other thread makes such calls on this
    /// ring.
    pub fn caller(&mut self, is_owner: bool) -> Caller {
        if !is_owner {
            return Caller(None);
        }
        let this = thread::current();
        match self.owner {
            Some((owner, id)) if owner == this => Caller(Some(id)),
            _ => {
                let id = signals::thread_id();
                self.owner = Some((this, id));
                Caller(Some(id))
            }
        }
    }
}
