//! The stuck-call watchdog's thread: see `stuck_calls`.

use crate::waiting::stuck_calls::{Caller, StuckCalls};
use crate::waiting::tasks::tasks;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;
use usring_sys::clock::Nanoseconds;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::thread::Credentials;
use usring_sys::watched_call::{Seen, WatchdogStep, WatchedCalls, Watcher};
use usring_sys::{Errno, SystemCall, futex, signals, thread, wait};

const NAME: &str = "usring-watchdog";

/// Nanoseconds between two checks of the watched calls. A driver is stuck in a call for at most two
/// such intervals.
const INTERVAL: Nanoseconds = 5_000_000;

/// Number of consecutive checks without a watched call after which the watchdog sleeps.
const QUIET_CHECKS: u32 = 20;

/// Nanoseconds of sleep after which the watchdog's thread ends.
const IDLE_LIMIT: Nanoseconds = 5_000_000_000;

/// Makes a system call that is not expected to sleep. Returns `None` if the call was interrupted:
/// by a signal, or by the watchdog because the call slept or was slow.
pub(crate) fn make(stuck: &mut StuckCalls, caller: &mut Caller, call: &SystemCall) -> Option<Result<u64, Errno>> {
    let watch = stuck.watch.get_or_insert_with(|| {
        let watch = Arc::new(WatchedCalls::default());
        watchdog().watches.lock().push((watch.clone(), Seen::default()));
        watch
    });
    let begun = watch.begin(*caller.0.get_or_insert_with(signals::thread_id));
    watchdog().ensure_checking();
    let answer = wait::call_briefly(call, watch.cancelled());
    watch.end(begun);
    answer
}

/// The stuck-call watchdog of this process.
#[derive(Default)]
pub(crate) struct Watchdog {
    watcher: Watcher,
    /// The watched calls of each ring, with their state at the watchdog's last check.
    watches: Mutex<Vec<(Arc<WatchedCalls>, Seen)>>,
}

static WATCHDOG: PerProcess<Watchdog> = PerProcess::new();

/// Returns the watchdog of this process; makes it on first use.
pub(crate) fn watchdog() -> &'static Watchdog {
    WATCHDOG.get_or_make(Watchdog::default)
}

impl Watchdog {
    #[inline]
    fn ensure_checking(&'static self) {
        if !self.watcher.is_checking() {
            self.start_checking();
        }
    }

    #[cold]
    fn start_checking(&'static self) {
        let is_new = match self.watcher.ensure_checking() {
            WatchdogStep::Nothing => return,
            WatchdogStep::Wake => {
                futex::wake(self.watcher.word(), 1);
                return;
            }
            WatchdogStep::Start { first } => first,
        };
        let tasks = tasks();
        if tasks.is_current() {
            // The calling thread is the ring watcher. If the start of the watchdog were a task, the
            // ring watcher would run that task only after the watched call, in which it may get
            // stuck. So the ring watcher starts the watchdog at once. If two watchdogs are started,
            // one of them ends immediately.
            let _ = thread::spawn(NAME, Credentials::Service, Box::new(|| self.keep_watch()));
        } else if is_new {
            // If the thread cannot be started, the next watched call tries again.
            let spawn_failed = || self.watcher.spawn_failed();
            tasks.start_thread(NAME, Credentials::Service, Box::new(|| self.keep_watch()), Box::new(spawn_failed));
        }
    }

    /// Runs the watchdog's thread: checks while drivers make watched calls, then sleeps, and ends
    /// after a sleep of [`IDLE_LIMIT`].
    fn keep_watch(&self) {
        if !self.watcher.begin() {
            return;
        }
        let never = AtomicU32::new(0);
        let mut quiet = 0;
        loop {
            let _ = futex::wait(&never, 0, Some(INTERVAL));
            quiet = if self.check() { 0 } else { quiet + 1 };
            if quiet < QUIET_CHECKS {
                continue;
            }
            quiet = 0;
            self.watcher.prepare_sleep(|| self.check());
            while let Some((word, value)) = self.watcher.sleep_word() {
                let slept = futex::wait(word, value, Some(IDLE_LIMIT));
                if slept == Err(Errno::ETIMEDOUT) && self.watcher.retire() {
                    return;
                }
            }
        }
    }

    /// Checks the watched calls of every ring, and interrupts a call that has lasted since the last
    /// check. Returns whether a driver is in a watched call, or has made one since the last check.
    fn check(&self) -> bool {
        let mut busy = false;
        self.watches.lock().retain_mut(|(watch, last)| {
            let now = watch.observe();
            if now == *last && now.is_inside() {
                watch.interrupt(now, wait::interrupt_worker);
            }
            busy |= now != *last || !now.is_outside();
            *last = now;
            // The ring has the other reference to its watched calls. If this entry has the only
            // reference, the ring is gone, and this entry is removed, too.
            Arc::strong_count(watch) > 1
        });
        busy
    }
}
