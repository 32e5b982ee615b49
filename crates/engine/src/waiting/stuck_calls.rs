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

/// Least and most calls that go to workers after a call has been stuck.
const FIRST_PENALTY: u32 = 256;
const LAST_PENALTY: u32 = 1 << 20;

/// Id of the thread that makes the calls, looked up once for several calls; `None`: not looked up
/// yet.
pub(crate) struct Caller(pub Option<u32>);

/// A ring's state for the watchdog, and its count of calls to leave to workers.
#[derive(Default)]
pub(crate) struct StuckCalls {
    pub watch: Option<Arc<WatchedCalls>>,
    /// Number of coming calls that go to workers.
    for_workers: u32,
    /// Number of calls that went to workers the last time.
    penalty: u32,
    /// Thread-local block and id of the one thread that drives a ring with deferred task work.
    /// After its end, another thread may get the same block. The kernel refuses that thread the
    /// ring (EEXIST), so no program relies on it. If one does, the watchdog cannot end a stuck call
    /// of that thread; it ends with the next connection.
    owner: Option<(ThreadId, u32)>,
}

impl StuckCalls {
    /// Returns whether a worker has to make the next call. A worker may wait in it without harm.
    pub fn leaves_to_worker(&mut self) -> bool {
        let leaves = self.for_workers != 0;
        self.for_workers -= u32::from(leaves);
        leaves
    }

    /// Has workers make the next calls. The caller reports a call that had no result, and whose
    /// connection is gone: another process took the connection, so the call would have slept. (If
    /// the connection is still there, the call was only slow, for want of a processor.)
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
