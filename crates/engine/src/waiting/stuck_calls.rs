//! The stuck-call watchdog: interrupts a driver's system call that sleeps although the driver holds
//! its ring's lock. The watched call is accept4(2) on a blocking listener.
//!
//! accept4(2) has no flag that makes one call non-blocking. O_NONBLOCK belongs to the open file,
//! which the program and perhaps another process use. So the driver first checks whether there is a
//! connection. But another process that shares the listener may accept that connection in between.
//! The driver then sleeps until the next connection comes, and holds the ring's lock meanwhile.
//!
//! While drivers make such calls, the watchdog checks at intervals whether a driver is still in the
//! call that it was in at the last check. If so, the watchdog interrupts the call, in the way in
//! which a worker's call is interrupted (`sys::wait`). The watchdog is a thread of its own, because
//! the ring watcher drives rings, too, and may get stuck itself. After some time without watched
//! calls the watchdog sleeps, and later it ends. Only the first call after such a pause costs the
//! driver a system call.
//!
//! If a call got stuck ([`StuckCalls::has_been_stuck`]), another process shares the call's
//! listener. Workers then make the next calls of the ring ([`StuckCalls::leaves_to_worker`]). Each
//! further stuck call doubles the number of calls that workers make.

use alloc::sync::Arc;
use usring_sys::thread::ThreadId;
use usring_sys::watched_call::WatchedCalls;
use usring_sys::{signals, thread};

/// Number of accept4(2) calls that go to workers after a ring's first stuck call.
const FIRST_PENALTY: u32 = 256;
/// Maximum number of accept4(2) calls that go to workers after one stuck call.
const LAST_PENALTY: u32 = 1 << 20;

/// Thread id of the calling thread, which makes several accept4(2) calls. `None`: not looked up
/// yet.
pub(crate) struct Caller(pub Option<u32>);

/// A ring's watched calls (accept4(2) under the ring's lock), and how many of the next calls go to
/// workers.
#[derive(Default)]
pub(crate) struct StuckCalls {
    pub watch: Option<Arc<WatchedCalls>>,
    /// Number of coming accept4(2) calls that workers make instead of the driver.
    for_workers: u32,
    /// The number of accept4(2) calls that went to workers after the last stuck call.
    penalty: u32,
    /// Thread-local block and thread id of the only thread that drives a ring with deferred task
    /// work. After that thread has ended, a new thread may get its block. In the kernel, the new
    /// thread cannot use the ring (EEXIST), so programs do not try. If a program does, the watchdog
    /// cannot interrupt a stuck call of the new thread. The call ends with the next connection.
    owner: Option<(ThreadId, u32)>,
}

impl StuckCalls {
    /// Returns whether a worker has to make the next accept4(2) call, and counts the call. A worker
    /// may sleep in the call, because it holds no ring's lock.
    pub fn leaves_to_worker(&mut self) -> bool {
        let leaves = self.for_workers != 0;
        self.for_workers -= u32::from(leaves);
        leaves
    }

    /// Sends the next accept4(2) calls to workers, because a call got stuck: the watchdog has
    /// interrupted the call, and the connection that the driver had found is gone. So another
    /// process has accepted it. (If the connection is still there, the call was only slow, because
    /// its thread got no processor.)
    pub fn has_been_stuck(&mut self) {
        self.penalty = (2 * self.penalty).clamp(FIRST_PENALTY, LAST_PENALTY);
        self.for_workers = self.penalty;
    }

    /// Returns the calling thread's id, if it is known, for the next accept4(2) calls. `is_owner`:
    /// no other thread makes watched calls on this ring, so the id is looked up once and kept.
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
