//! The stuck-call watchdog (`guard`): gets a driver out of a call under its ring's lock that the
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

use crate::process::process;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;
use usring_sys::clock::Nanoseconds;
use usring_sys::mutex::Mutex;
use usring_sys::thread::{Credentials, ThreadId};
use usring_sys::watched_call::{Rouse, Seen, WatchedCalls, Watcher};
use usring_sys::{Errno, SystemCall, futex, signals, thread, wait};

const NAME: &str = "usring-guard";

/// Nanoseconds between two checks. A driver is stuck for at most twice as long.
const INTERVAL: Nanoseconds = 5_000_000;
/// Checks without a call in between after which the watchdog sleeps.
const QUIET_LOOKS: u32 = 20;
/// Nanoseconds of sleep after which the watchdog ends.
const IDLE_LIMIT: Nanoseconds = 5_000_000_000;

/// Least and most calls that are left to workers after one has been stuck.
const FIRST_PENALTY: u32 = 256;
const LAST_PENALTY: u32 = 1 << 20;

/// Id of the thread that makes calls; looked up once for several calls.
pub(crate) struct Caller(Option<u32>);

/// A ring's share of the watchdog.
#[derive(Default)]
pub(crate) struct StuckCalls {
    watch: Option<Arc<WatchedCalls>>,
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

    /// Makes a call that is expected not to sleep. `None`: the call had no result, because it
    /// slept, was slow, or a signal came.
    pub fn make(&mut self, caller: &mut Caller, call: &SystemCall) -> Option<Result<u64, Errno>> {
        let watch = self.watch.get_or_insert_with(|| {
            let watch = Arc::new(WatchedCalls::default());
            process().guard.watches.lock().push((watch.clone(), Seen::default()));
            watch
        });
        let begun = watch.begin(*caller.0.get_or_insert_with(signals::thread_id));
        process().guard.rouse();
        let answer = wait::briefly(call, watch.cancelled());
        watch.end(begun);
        answer
    }
}

/// The process's watchdog.
#[derive(Default)]
pub(crate) struct Guard {
    watcher: Watcher,
    /// The watched calls of each ring, with their state at the last check.
    watches: Mutex<Vec<(Arc<WatchedCalls>, Seen)>>,
}

impl Guard {
    #[inline]
    fn rouse(&'static self) {
        if !self.watcher.is_looking() {
            self.rouse_now();
        }
    }

    #[cold]
    fn rouse_now(&'static self) {
        let is_new = match self.watcher.rouse() {
            Rouse::Nothing => return,
            Rouse::Wake => {
                futex::wake(self.watcher.word(), 1);
                return;
            }
            Rouse::Start { first } => first,
        };
        let attendant = &process().attendant;
        if attendant.is_current() {
            // The ring watcher would start the watchdog only after the call in which it may be
            // stuck. If two watchdogs are started, one of them ends at once.
            let _ = thread::spawn(NAME, Credentials::Service, Box::new(|| self.keep_watch()));
        } else if is_new {
            // If the thread cannot be started, the next call tries again.
            let stillborn = || self.watcher.is_stillborn();
            attendant.start_thread(NAME, Credentials::Service, Box::new(|| self.keep_watch()), Box::new(stillborn));
        }
    }

    /// The watchdog's life.
    fn keep_watch(&self) {
        if !self.watcher.begin() {
            return;
        }
        let never = AtomicU32::new(0);
        let mut quiet = 0;
        loop {
            let _ = futex::wait(&never, 0, Some(INTERVAL));
            quiet = if self.look() { 0 } else { quiet + 1 };
            if quiet < QUIET_LOOKS {
                continue;
            }
            quiet = 0;
            self.watcher.lie_down(|| self.look());
            while let Some((word, value)) = self.watcher.asleep() {
                let slept = futex::wait(word, value, Some(IDLE_LIMIT));
                if slept == Err(Errno::ETIMEDOUT) && self.watcher.retire() {
                    return;
                }
            }
        }
    }

    /// Checks every ring. Returns whether a call was made since the last check, or is being made.
    fn look(&self) -> bool {
        let mut busy = false;
        self.watches.lock().retain_mut(|(watch, last)| {
            let now = watch.look();
            if now == *last && now.is_inside() {
                watch.break_off(now, wait::interrupt_worker);
            }
            busy |= now != *last || !now.is_outside();
            *last = now;
            // The ring holds one reference, as long as there is a ring.
            Arc::strong_count(watch) > 1
        });
        busy
    }
}
