//! The ring watcher: one thread of the process that watches the rings that no thread is inside of.
//! So a program that only reads the CQ in memory, or only polls the ring's descriptor, still sees
//! its completions. The ring watcher also runs the tasks that other threads pass to it
//! (`waiting::tasks`).
//!
//! How a ring is watched:
//!
//! 1. A driver that leaves a ring with armed files or timers puts the ring's epoll set into the
//!    ring watcher's set, one-shot.
//! 2. When this entry reports an event, the ring watcher marks the ring as one that must be driven
//!    (`waiting::watcher_entry`), and tries the ring's lock once. The ring watcher never waits for
//!    a ring's lock: one slow driver would delay all rings.
//! 3. If the lock was free, the ring watcher drives the ring, and then arms the entry again. If the
//!    lock was held, its holder checks the mark after releasing the lock (the hand-over of
//!    `sys::mutex`).
//!
//! A waiter that sleeps on the ring's epoll set disarms the ring watcher's entry meanwhile.
//! Disarming and arming take one epoll_ctl(2) each, but a needless wake-up of the ring watcher
//! would cost more. For a program that enters the ring again and again even these two calls cost
//! too much: see `idle_watch`.

use super::last_thread::LastThread;
use crate::driving::idle_watch::{self, IdleWatch};
use crate::driving::{ended, reap, task_work};
use crate::ring::{LockedRing, Ring};
use crate::waiting::rights::groups;
use crate::waiting::tasks::{Action, Mailbox, Service, tasks};
use crate::waiting::{left_rings, process_rings};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::Errno;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::descriptor::{self};
use usring_sys::epoll::{self, Epoll, Event};
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::process_number;
use usring_uapi::io_uring as abi;

/// Event data of the eventfd by which other threads wake the ring watcher to run tasks.
const WAKE_EVENT: u64 = 0;

/// The ring watcher's epoll set, and the rings in this set, by the event data of their entries.
struct Watcher {
    set: Epoll,
    rings: Mutex<BTreeMap<u64, Weak<Ring>>>,
    last_ring: AtomicU64,
    idle: IdleWatch,
}

static WATCHER: PerProcess<Mutex<Option<Arc<Watcher>>>> = PerProcess::new();

static SERVICE: Service = Service { prepare, undo: || *watcher().lock() = None };

/// Starts the ring watcher if it is not running. Called when a ring is set up.
pub(crate) fn start() -> Result<(), Errno> {
    tasks().start_for_ring(&SERVICE)
}

fn prepare(mailbox: &Arc<Mailbox>) -> Result<Action, Errno> {
    let watcher = Arc::new(Watcher {
        set: Epoll::new()?,
        rings: Mutex::new(BTreeMap::new()),
        last_ring: AtomicU64::new(WAKE_EVENT),
        idle: IdleWatch::default(),
    });
    watcher.set.add(mailbox.number(), epoll::IN, WAKE_EVENT)?;
    // This call fails if the process has no process number. Such a process shares no ring, so no
    // other process ever has to wake its ring watcher. The error is therefore ignored.
    let _ = process_number::watch_wake_ups(&watcher.set, CALLED_BY_PROCESS);
    *self::watcher().lock() = Some(watcher.clone());
    let mailbox = mailbox.clone();
    Ok(Box::new(move || watcher.run(&mailbox)))
}

fn watcher() -> &'static Mutex<Option<Arc<Watcher>>> {
    WATCHER.get_or_make(Mutex::default)
}

/// Returns the running ring watcher; starts it if there is none.
fn running() -> Result<Arc<Watcher>, Errno> {
    if let Some(running) = &*watcher().lock() {
        return Ok(running.clone());
    }
    start()?;
    watcher().lock().clone().ok_or(Errno::EAGAIN)
}

/// Event data of the eventfd by which processes wake each other's ring watchers.
const CALLED_BY_PROCESS: u64 = u64::MAX - 1;

/// Event data of the descriptor of the watched thread (`last_thread`).
const LAST_THREAD: u64 = u64::MAX;

/// Milliseconds between two checks of things that end without an event. These are the program's
/// first thread, other processes' descriptors of rings that this process has closed, and record
/// locks. While the program has record locks on a file, usring's duplicate of the file stays open,
/// because close(2) would drop the locks (`sys::descriptor`).
const CHECK_INTERVAL_MS: u16 = 1000;
/// Nanoseconds between two attempts to move this process's backlog (CQEs without room in the CQ)
/// into the CQ of a shared ring. Only this process can move these CQEs, because they are in its own
/// memory.
const FLUSH_INTERVAL_NS: Nanoseconds = 5_000_000;

impl Watcher {
    fn run(&self, mailbox: &Mailbox) {
        let mut events = [Event::default(); 32];
        // `checked_at`: the time of the last checks. If there was no check since checks became
        // necessary, it is the time at which they became necessary.
        let (mut idle_checked_at, mut checked_at) = (0, None);
        let mut last_thread = LastThread::new();
        loop {
            let watches_idle = !self.idle.is_empty();
            let needs_checks = descriptor::has_parked() || last_thread.needs_checks() || left_rings::are_any();
            let most =
                if watches_idle { Some(idle_watch::INTERVAL_MS) } else { needs_checks.then_some(CHECK_INTERVAL_MS) };
            checked_at = if needs_checks { checked_at.or_else(|| Some(Clock::Monotonic.now())) } else { None };
            let waited = self.set.wait(&mut events, most);
            if watches_idle {
                self.idle.check(&mut idle_checked_at);
            }
            // If events come often, epoll_wait(2) never times out. So the clock decides whether
            // checks are due.
            let is_due = |at| Clock::Monotonic.now() >= at + u64::from(CHECK_INTERVAL_MS) * 1_000_000;
            if checked_at.is_some_and(is_due) {
                checked_at = None;
                descriptor::close_unlocked();
                left_rings::end_unneeded();
                last_thread.check(&self.set, LAST_THREAD);
            }
            let Ok(count) = waited else { continue };
            for event in &events[..count] {
                match event.data {
                    WAKE_EVENT => run_tasks(mailbox),
                    CALLED_BY_PROCESS => process_rings::with_unseen_notices().iter().for_each(mark_and_drive),
                    LAST_THREAD => last_thread.has_ended(&self.set, LAST_THREAD),
                    id => self.drive(id),
                }
            }
        }
    }

    fn drive(&self, id: u64) {
        let Some(ring) = self.rings.lock().get(&id).and_then(Weak::upgrade) else { return };
        ring.watch.armed.store(false, Ordering::SeqCst);
        if ring.defers_task_work() {
            // Only the ring's owner may complete its requests, so the owner is notified.
            task_work::announce_files(&ring);
            return;
        }
        mark_and_drive(&ring);
    }

    fn arm(&self, ring: &Arc<Ring>, set: i32) -> Result<(), Errno> {
        let id = ring.watch.id.load(Ordering::Relaxed);
        if id != 0 {
            return self.set.modify(set, epoll::IN | epoll::ONESHOT, id);
        }
        let id = self.last_ring.fetch_add(1, Ordering::Relaxed) + 1;
        self.rings.lock().insert(id, Arc::downgrade(ring));
        self.set.add(set, epoll::IN | epoll::ONESHOT, id)?;
        ring.watch.id.store(id, Ordering::Relaxed);
        Ok(())
    }
}

/// Runs the tasks that other threads have put into the mailbox. Also handles rings that have become
/// shared, and changes of credentials.
fn run_tasks(mailbox: &Mailbox) {
    mailbox.drain();
    if tasks().take_change() {
        groups().sweep();
    }
    mailbox.run();
    process_rings::newly_shared().iter().for_each(mark_and_drive);
    if let Some(begun) = tasks().take_anchor_wish() {
        groups().anchor_common(begun);
    }
}

/// Marks the ring as one that must be driven. If no thread holds the ring's lock, the calling
/// thread drives the ring now. Otherwise the thread that holds the lock drives it.
pub(super) fn mark_and_drive(ring: &Arc<Ring>) {
    ring.watch.must_be_driven.store(true, Ordering::SeqCst);
    task_work::run_if_unattended(ring);
}

/// Applies `change` to the list of rings under idle watching (the rings that the program enters so
/// often that the ring watcher only checks them at intervals). Wakes the ring watcher if `change`
/// returns `true`. Returns `false` if the ring watcher cannot be started.
pub(super) fn with_idle_watch(change: impl FnOnce(&IdleWatch) -> bool) -> bool {
    let Ok(watcher) = running() else { return false };
    if change(&watcher.idle) {
        tasks().wake();
    }
    true
}

/// Makes the ring watcher responsible for the ring's waiting requests. A driver that is about to
/// leave the ring calls this function.
#[inline(always)]
pub(crate) fn take_over(locked: &mut LockedRing) {
    take_over_beside(locked, 0);
}

/// Makes the ring watcher responsible for the ring's waiting requests, while a driver has released
/// the lock and will take it again. `own`: the number of requests in flight on devices that the
/// driver itself is going to poll for.
#[inline(always)]
pub(crate) fn take_over_beside(locked: &mut LockedRing, own: u32) {
    // If waiters poll the devices themselves, no interrupt is needed.
    let counts_on_devices = locked.devices.queues.in_flight() > own && !locked.waiters_poll_devices();
    let is_left = locked.waiting.polls.armed() != 0 || !locked.waiting.timeouts.is_empty() || counts_on_devices;
    if is_left || locked.ring.is_shared() && is_left_by_others(locked) {
        take_over_waits(locked);
    }
}

/// Returns whether the ring watcher has to drive a shared ring at intervals, although perhaps no
/// request of this process waits. There are two possible reasons: the ring watcher has to move the
/// backlog into the CQ, or to check whether other processes are alive.
fn is_left_by_others(locked: &LockedRing) -> bool {
    locked.queues.cq.has_overflow_alone() || ended::check_interval(locked).is_some()
}

#[inline(never)]
fn take_over_waits(locked: &mut LockedRing) {
    let ring = locked.ring;
    if locked.devices.queues.in_flight() != 0 && !locked.waiters_poll_devices() && !ring.defers_task_work() {
        reap::reap_and_arm(locked);
    }
    if ring.defers_task_work() && !watches_announcements(locked) {
        return;
    }
    if locked.waiting.polls.armed() != 0 && idle_watch::adjust(locked) {
        return;
    }
    watch(locked);
    if locked.waiting.polls.has_runnable() {
        // The thread that watches the ring's epoll set has to continue the requests that are due
        // for an attempt without an event. So that thread is woken.
        ring.wakers.wake_watcher();
    }
}

/// Returns whether the owner of a ring that defers task work can be notified of work while it is
/// outside the ring. The means are TASKRUN_FLAG, the ring's descriptor, and an eventfd.
fn watches_announcements(locked: &LockedRing) -> bool {
    let ring = locked.ring;
    ring.has(abi::IORING_SETUP_TASKRUN_FLAG) || ring.readiness.is_watched() || locked.notify.event_descriptor.is_some()
}

fn watch(locked: &mut LockedRing) {
    let interrupts = locked.devices.queues.in_flight() != 0 && !locked.waiters_poll_devices();
    if interrupts && !reap::arm_interrupts(locked) && locked.ring.defers_task_work() {
        // An interrupt that is armed now does not report completions that have come before. So the
        // owner is notified here.
        task_work::announce_deferred(locked.ring, false);
    }
    if interrupts && locked.devices.queues.has_suppressed() {
        locked.devices.queues.poll_later();
    }
    // Another process may empty the CQ, and then wait for CQEs that only this process has in its
    // backlog. So this process tries at intervals to move its backlog into the CQ.
    let flush = (locked.queues.cq.has_overflow_alone() && locked.ring.is_shared())
        .then(|| Clock::Monotonic.now() + FLUSH_INTERVAL_NS);
    let next_check = ended::check_interval(locked).map(|span| Clock::Monotonic.now() + span);
    let times = [locked.devices.queues.next_poll(), locked.waiting.timeouts.next_due(), flush, next_check];
    // This code compares plain numbers, with MAX for `None`. The optimised minimum of `Option`s
    // also compares the values of `None`s. Valgrind's memcheck reports those reads of uninitialised
    // memory.
    let first = times.into_iter().fold(Nanoseconds::MAX, |first, time| first.min(time.unwrap_or(Nanoseconds::MAX)));
    let due = (first != Nanoseconds::MAX).then_some(first);
    if crate::waiting::fast_poll::arm_timer(locked, due).is_err() {
        return;
    }
    let ring = locked.ring.clone();
    let Some(set) = locked.waiting.polls.set() else { return };
    // A leader (the waiter that sleeps on the ring's set) watches the set itself, and arms the ring
    // watcher's entry when it leaves.
    if ring.is_led() || ring.watch.armed.swap(true, Ordering::SeqCst) {
        return;
    }
    let armed = running().and_then(|watcher| watcher.arm(&ring, set.number()));
    if armed.is_err() {
        ring.watch.armed.store(false, Ordering::SeqCst);
    }
}

/// Disarms the ring's entry in the ring watcher's set, because the calling waiter is about to sleep
/// on the ring's own epoll set.
pub(crate) fn disarm(locked: &LockedRing) {
    let watch = &locked.ring.watch;
    let Some(set) = locked.waiting.polls.set().filter(|_| watch.armed.swap(false, Ordering::SeqCst)) else {
        return;
    };
    if let Ok(watcher) = running() {
        let _ = watcher.set.modify(set.number(), epoll::ONESHOT, watch.id.load(Ordering::Relaxed));
    }
}

/// Removes a ring from the ring watcher's list, because the ring is being closed.
pub(crate) fn forget(ring: &Arc<Ring>) {
    let id = ring.watch.id.load(Ordering::Relaxed);
    if id == 0 {
        return;
    }
    if let Ok(watcher) = running() {
        watcher.rings.lock().remove(&id);
    }
}
