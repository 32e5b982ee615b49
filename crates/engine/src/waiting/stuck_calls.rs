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
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::mutex::Mutex;
use usring_sys::thread::ThreadId;
use usring_sys::{Errno, SystemCall, futex, processor, signals, thread, wait};

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

/// What a watched driver is doing: the low bits of [`Watch::state`], above
/// which its calls are counted.
mod phase {
    pub const MASK: u32 = 3;
    pub const OUTSIDE: u32 = 0;
    pub const INSIDE: u32 = 1;
    /// The guard is about to send its signal: the driver may not leave, or the
    /// signal would break off something else.
    pub const BEING_BROKEN_OFF: u32 = 2;
    /// The signal has been sent.
    pub const BROKEN_OFF: u32 = 3;
    /// One more call.
    pub const CALL: u32 = 4;
}

/// One ring's driver, as the guard sees it.
#[derive(Default)]
struct Watch {
    state: AtomicU32,
    thread: AtomicU32,
    /// Set to break the call off.
    cancelled: AtomicU32,
}

/// The thread that makes calls, asked for once by who makes several.
pub(crate) struct Caller(Option<u32>);

/// A ring's part.
#[derive(Default)]
pub(crate) struct StuckCalls {
    watch: Option<Arc<Watch>>,
    /// So many calls are for workers.
    for_workers: u32,
    /// So many were the last time.
    penalty: u32,
    /// The one thread that drives a ring which defers its work, by both of its names.
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
            let watch = Arc::new(Watch::default());
            process().guard.watches.lock().push((watch.clone(), 0));
            watch
        });
        watch.thread.store(*caller.0.get_or_insert_with(signals::thread_id), Ordering::Relaxed);
        let inside = (watch.state.load(Ordering::Relaxed) & !phase::MASK).wrapping_add(phase::CALL) | phase::INSIDE;
        // A barrier, then the look at the guard; the guard says that it is about
        // to sleep, and then looks at this.
        watch.state.store(inside, Ordering::SeqCst);
        process().guard.rouse();
        let answer = wait::briefly(call, &watch.cancelled);
        let outside = inside & !phase::MASK;
        if watch.state.compare_exchange(inside, outside, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            watch.come_out(outside);
        }
        answer
    }
}

impl Watch {
    /// The driver's way out of a call that the guard breaks off.
    #[cold]
    fn come_out(&self, outside: u32) {
        while self.state.load(Ordering::SeqCst) & phase::MASK != phase::BROKEN_OFF {
            processor::give_way();
        }
        // The signal is this thread's by now: at the latest it is delivered at
        // the end of its next system call.
        processor::give_way();
        self.cancelled.store(0, Ordering::SeqCst);
        self.state.store(outside, Ordering::SeqCst);
    }

    /// The guard's: breaks the call off that has been seen twice.
    #[cold]
    fn break_off(&self, seen: u32) {
        let thread = self.thread.load(Ordering::Relaxed);
        let broken = seen & !phase::MASK;
        let being_broken_off = broken | phase::BEING_BROKEN_OFF;
        if self.state.compare_exchange(seen, being_broken_off, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        self.cancelled.store(1, Ordering::SeqCst);
        wait::interrupt_worker(thread);
        self.state.store(broken | phase::BROKEN_OFF, Ordering::SeqCst);
    }
}

/// What the guard's thread is doing.
mod doing {
    /// There is no thread.
    pub const NOTHING: u32 = 0;
    /// The attendant has been asked to start it.
    pub const STARTING: u32 = 1;
    pub const SLEEPING: u32 = 2;
    pub const LOOKING: u32 = 3;
}

/// The process's guard.
#[derive(Default)]
pub(crate) struct Guard {
    /// One of `doing`; the futex that the thread sleeps on.
    state: AtomicU32,
    /// Each with its state at the last look.
    watches: Mutex<Vec<(Arc<Watch>, u32)>>,
}

impl Guard {
    #[inline]
    fn rouse(&'static self) {
        if self.state.load(Ordering::SeqCst) != doing::LOOKING {
            self.rouse_now();
        }
    }

    #[cold]
    fn rouse_now(&'static self) {
        let change = |from, to| self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        if change(doing::SLEEPING, doing::LOOKING).is_ok() {
            futex::wake(&self.state, 1);
            return;
        }
        let is_new = change(doing::NOTHING, doing::STARTING).is_ok();
        if !is_new && self.state.load(Ordering::SeqCst) != doing::STARTING {
            return;
        }
        let attendant = &process().attendant;
        if attendant.is_current() {
            // It would start the guard when it is back from the call in which it
            // may be stuck. If two are started, one goes at once.
            let _ = thread::spawn(NAME, Box::new(|| self.keep_watch()));
        } else if is_new {
            // Without a thread the next call tries again.
            let stillborn = || self.state.store(doing::NOTHING, Ordering::SeqCst);
            attendant.start_thread(NAME, Box::new(|| self.keep_watch()), Box::new(stillborn));
        }
    }

    /// The thread.
    fn keep_watch(&self) {
        let begins = self.state.compare_exchange(doing::STARTING, doing::LOOKING, Ordering::SeqCst, Ordering::SeqCst);
        if begins.is_err() {
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
            self.state.store(doing::SLEEPING, Ordering::SeqCst);
            if self.look() {
                self.state.store(doing::LOOKING, Ordering::SeqCst);
                continue;
            }
            while self.state.load(Ordering::SeqCst) == doing::SLEEPING {
                let slept = futex::wait(&self.state, doing::SLEEPING, Some(IDLE_LIMIT));
                if slept == Err(Errno::ETIMEDOUT) && self.retire() {
                    return;
                }
            }
        }
    }

    fn retire(&self) -> bool {
        self.state.compare_exchange(doing::SLEEPING, doing::NOTHING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Looks at every ring; answers whether a call was made since the last look
    /// or is being made.
    fn look(&self) -> bool {
        let mut busy = false;
        self.watches.lock().retain_mut(|(watch, last)| {
            let now = watch.state.load(Ordering::SeqCst);
            if now == *last && now & phase::MASK == phase::INSIDE {
                watch.break_off(now);
            }
            busy |= now != *last || now & phase::MASK != phase::OUTSIDE;
            *last = now;
            // The ring's own share, while there is a ring.
            Arc::strong_count(watch) > 1
        });
        busy
    }
}
