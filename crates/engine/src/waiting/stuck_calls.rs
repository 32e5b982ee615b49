//! Calls that a driver makes under its ring's lock although the kernel may put
//! it to sleep in them: accept4(2) of a listener that blocks.
//!
//! accept4 has no form that does not wait, and O_NONBLOCK is the whole open file's,
//! the program's and perhaps another process's. So the driver asks first whether
//! there is a connection. But whoever shares the listener may take it in
//! between, and then the driver sleeps until the next one comes, with the ring's
//! lock in its hands.
//!
//! The guard gets it out again. While such calls are made, it looks at intervals
//! whether a ring's driver is still in the call that it was in the last time, and
//! breaks that off as a worker's call is broken off (`sys::wait`). It is a thread
//! of its own because the attendant drives rings, too. Where nothing has been
//! called for some time it sleeps, and in the end goes; a call costs it no
//! system call of its own but the first after such a pause.
//!
//! A ring on which that has happened ([`StuckCalls::has_been_stuck`]) knows that a listener of its own is shared,
//! and leaves the next calls to workers ([`StuckCalls::leaves_to_worker`]); each
//! time it happens again, twice as many.

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

/// Between two looks. A driver is stuck for twice as long at most.
const INTERVAL: Nanoseconds = 5_000_000;
/// So many looks without a call in between, and the guard sleeps.
const QUIET_LOOKS: u32 = 20;
/// So long asleep, and it ends.
const IDLE_LIMIT: Nanoseconds = 5_000_000_000;

/// How many calls are left to workers after one has been stuck.
const FIRST_PENALTY: u32 = 256;
const LAST_PENALTY: u32 = 1 << 20;

/// The thread that makes calls, asked for once by who makes several.
pub(crate) struct Caller(Option<u32>);

/// A ring's part.
#[derive(Default)]
pub(crate) struct StuckCalls {
    watch: Option<Arc<WatchedCalls>>,
    /// So many calls are for workers.
    for_workers: u32,
    /// So many were the last time.
    penalty: u32,
    /// The one thread that drives a ring which defers its work, by both of its names. The first may be another
    /// thread's once it has ended; but to that one the ring is closed on the kernel (EEXIST), so no program has it go
    /// on there. If one did, a call in which it got stuck would end with the next connection and no sooner.
    owner: Option<(ThreadId, u32)>,
}

impl StuckCalls {
    /// Whether the next call is to be made by a worker, which may wait in it.
    pub fn leaves_to_worker(&mut self) -> bool {
        let leaves = self.for_workers != 0;
        self.for_workers -= u32::from(leaves);
        leaves
    }

    /// Somebody else was faster: a call that came to nothing would have slept.
    /// (If what it was made for is there still, it was only slow, for want of a
    /// processor.)
    pub fn has_been_stuck(&mut self) {
        self.penalty = (2 * self.penalty).clamp(FIRST_PENALTY, LAST_PENALTY);
        self.for_workers = self.penalty;
    }

    /// Who is going to make calls. `is_owner`: nobody else does on this ring.
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

    /// Makes a call that is expected not to sleep. `None`: it came to nothing,
    /// for it slept or was slow, or a signal has come.
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

/// The process's guard.
#[derive(Default)]
pub(crate) struct Guard {
    watcher: Watcher,
    /// Each with what was seen at the last look.
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
            // It would start the guard when it is back from the call in which it
            // may be stuck. If two are started, one goes at once.
            let _ = thread::spawn(NAME, Credentials::Service, Box::new(|| self.keep_watch()));
        } else if is_new {
            // Without a thread the next call tries again.
            let stillborn = || self.watcher.is_stillborn();
            attendant.start_thread(NAME, Credentials::Service, Box::new(|| self.keep_watch()), Box::new(stillborn));
        }
    }

    /// The thread.
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

    /// Looks at every ring; answers whether a call was made since the last look
    /// or is being made.
    fn look(&self) -> bool {
        let mut busy = false;
        self.watches.lock().retain_mut(|(watch, last)| {
            let now = watch.look();
            if now == *last && now.is_inside() {
                watch.break_off(now, wait::interrupt_worker);
            }
            busy |= now != *last || !now.is_outside();
            *last = now;
            // The ring's own share, while there is a ring.
            Arc::strong_count(watch) > 1
        });
        busy
    }
}
