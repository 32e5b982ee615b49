//! The ring watcher: one thread of the process that watches the rings that no thread
//! is inside of. So a program that only looks at the CQ in memory, or only at the ring's
//! descriptor, still sees its completions. The ring watcher also runs the tasks that
//! other threads leave for it (`waiting::tasks`).
//!
//! How a ring is watched:
//!
//! 1. A driver that leaves a ring with armed files or timers puts the ring's epoll set into the
//!    ring watcher's set, one-shot.
//! 2. When the entry fires, the ring watcher marks the ring as called (`waiting::watcher_entry`)
//!    and tries its lock once. It never waits for a ring's lock: one slow driver would delay all
//!    rings.
//! 3. If the lock was free, the ring watcher drives the ring, and arms the entry again as it
//!    leaves. If the lock was held, its holder looks for a call after releasing it (the hand-over
//!    of `sys::mutex`).
//!
//! A waiter that watches the ring's set itself switches the ring watcher's entry off meanwhile: a
//! needless wake-up of a thread costs more than two calls of epoll_ctl(2). For a program that keeps
//! coming back even these two calls are too much: see `idle_watch`.

use super::last_thread::LastThread;
use crate::driving::idle_watch::{self, IdleWatch};
use crate::driving::{reap, task_work};
use crate::ring::{LockedRing, Ring};
use crate::waiting::process_rings;
use crate::waiting::rights::groups;
use crate::waiting::tasks::{Action, Mailbox, Service, tasks};
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

/// Event data of the wake eventfd.
const WAKE_EVENT: u64 = 0;

/// The ring watcher's set, and the rings in it.
struct Watcher {
    set: Epoll,
    rings: Mutex<BTreeMap<u64, Weak<Ring>>>,
    last_ring: AtomicU64,
    idle: IdleWatch,
}

static WATCHER: PerProcess<Mutex<Option<Arc<Watcher>>>> = PerProcess::new();

static SERVICE: Service = Service { prepare, undo: || *watcher().lock() = None };

/// Starts the ring watcher if it is not running; called when a ring is set up.
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
    // A process without a number shares no ring.
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

/// Event data of the eventfd by which processes call each other.
const CALLED_BY_PROCESS: u64 = u64::MAX - 1;

/// Event data of the descriptor of the watched thread (`last_thread`).
const LAST_THREAD: u64 = u64::MAX;

/// Milliseconds between two checks of things whose end no event marks. These are the program's
/// first thread, and parked descriptors: usring may close those only when the program's record
/// locks on their files are gone (`sys::descriptor`).
const BETWEEN_LOOKS: u16 = 1000;
/// Nanoseconds between two attempts to move CQEs that only this process has into the CQ.
const BETWEEN_FLUSHES: Nanoseconds = 5_000_000;
/// The checks also come after this many wake-ups, because the set of a busy ring watcher is never
/// without an event for a whole interval.
const WAKE_UPS_BETWEEN_LOOKS: u32 = 1024;

impl Watcher {
    fn run(&self, mailbox: &Mailbox) {
        let mut events = [Event::default(); 32];
        let (mut last_check, mut last_look, mut wake_ups) = (0, 0, 0u32);
        let mut last_thread = LastThread::new();
        loop {
            let watches_idle = !self.idle.is_empty();
            let looks = descriptor::has_parked() || last_thread.needs_looks();
            let most = if watches_idle { Some(idle_watch::INTERVAL_MS) } else { looks.then_some(BETWEEN_LOOKS) };
            let waited = self.set.wait(&mut events, most);
            if watches_idle {
                self.idle.check(&mut last_check);
            }
            let is_time = !watches_idle || last_check.saturating_sub(last_look) >= u64::from(BETWEEN_LOOKS) * 1_000_000;
            wake_ups = wake_ups.wrapping_add(1);
            if waited == Ok(0) && is_time || wake_ups.is_multiple_of(WAKE_UPS_BETWEEN_LOOKS) {
                last_look = last_check;
                descriptor::close_unlocked();
                last_thread.check(&self.set, LAST_THREAD);
            }
            let Ok(count) = waited else { continue };
            for event in &events[..count] {
                match event.data {
                    WAKE_EVENT => run_tasks(mailbox),
                    CALLED_BY_PROCESS => process_rings::with_news().iter().for_each(call),
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
        call(&ring);
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

/// Runs the tasks, and what a change of credentials asks for.
fn run_tasks(mailbox: &Mailbox) {
    mailbox.hear();
    if tasks().take_change() {
        groups().sweep();
    }
    mailbox.run();
    process_rings::newly_shared().iter().for_each(call);
    if let Some(begun) = tasks().take_anchor_wish() {
        groups().anchor_common(begun);
    }
}

/// Has the ring driven once: by the calling thread, or by the thread that holds the ring's lock.
pub(super) fn call(ring: &Arc<Ring>) {
    ring.watch.called.store(true, Ordering::SeqCst);
    task_work::run_if_unattended(ring);
}

/// Changes the list of rings under idle watching. `change` returns whether the ring watcher has to
/// be woken for the change. Returns `false` if the ring watcher cannot be started.
pub(super) fn with_idle_watch(change: impl FnOnce(&IdleWatch) -> bool) -> bool {
    let Ok(watcher) = running() else { return false };
    if change(&watcher.idle) {
        tasks().wake();
    }
    true
}

/// Hands the ring's waiting requests to the ring watcher; called by a driver that is about to
/// leave.
#[inline(always)]
pub(crate) fn take_over(locked: &mut LockedRing) {
    take_over_beside(locked, 0);
}

/// Hands the ring's waiting requests to the ring watcher, for a driver that will come back. The
/// driver itself is going to poll for `own` of the device requests.
#[inline(always)]
pub(crate) fn take_over_beside(locked: &mut LockedRing, own: u32) {
    // If waiters poll the devices themselves, no interrupt is needed.
    let counts_on_devices = locked.devices.queues.in_flight() > own && !locked.waiters_poll_devices();
    let is_left = locked.waiting.polls.armed() != 0 || !locked.waiting.timeouts.is_empty() || counts_on_devices;
    if is_left || locked.queues.cq.has_overflow_alone() && locked.ring.is_shared() {
        take_over_waits(locked);
    }
}

#[inline(never)]
fn take_over_waits(locked: &mut LockedRing) {
    let ring = locked.ring;
    if locked.devices.queues.in_flight() != 0 && !locked.waiters_poll_devices() && !ring.defers_task_work() {
        reap::settle(locked);
    }
    if ring.defers_task_work() && !hears_announcements(locked) {
        return;
    }
    if locked.waiting.polls.armed() != 0 && idle_watch::take_care(locked) {
        return;
    }
    watch(locked);
    if locked.waiting.polls.has_runnable() {
        // The thread that watches the set goes on with the runnable requests.
        ring.wakers.call_watcher();
    }
}

/// Returns whether the owner of a ring that defers task work can be notified of work while it is
/// not inside: by TASKRUN_FLAG, the ring's descriptor, or an eventfd.
fn hears_announcements(locked: &LockedRing) -> bool {
    let ring = locked.ring;
    ring.has(abi::IORING_SETUP_TASKRUN_FLAG) || ring.readiness.is_watched() || locked.notify.event_descriptor.is_some()
}

fn watch(locked: &mut LockedRing) {
    let interrupts = locked.devices.queues.in_flight() != 0 && !locked.waiters_poll_devices();
    if interrupts && !reap::arm_interrupts(locked) && locked.ring.defers_task_work() {
        // An interrupt reports no completion from before it was armed, so the owner is notified
        // here.
        task_work::announce_deferred(locked.ring, false);
    }
    if interrupts && locked.devices.queues.has_silent() {
        locked.devices.queues.poll_later();
    }
    // Another process may take CQEs and then wait for those that only this one has.
    let flush = (locked.queues.cq.has_overflow_alone() && locked.ring.is_shared())
        .then(|| Clock::Monotonic.now() + BETWEEN_FLUSHES);
    let times = [locked.devices.queues.next_poll(), locked.waiting.timeouts.next_due(), flush];
    let due = times.into_iter().flatten().min();
    if crate::waiting::fast_poll::arm_timer(locked, due).is_err() {
        return;
    }
    let ring = locked.ring.clone();
    let Some(set) = locked.waiting.polls.set() else { return };
    // A leader watches the set itself, and arms the entry when it leaves.
    if ring.is_led() || ring.watch.armed.swap(true, Ordering::SeqCst) {
        return;
    }
    let armed = running().and_then(|watcher| watcher.arm(&ring, set.number()));
    if armed.is_err() {
        ring.watch.armed.store(false, Ordering::SeqCst);
    }
}

/// Disarms the ring's entry in the ring watcher's set, for a waiter that is about to watch the
/// ring's set itself.
pub(crate) fn stand_down(locked: &LockedRing) {
    let watch = &locked.ring.watch;
    let Some(set) = locked.waiting.polls.set().filter(|_| watch.armed.swap(false, Ordering::SeqCst)) else {
        return;
    };
    if let Ok(watcher) = running() {
        let _ = watcher.set.modify(set.number(), epoll::ONESHOT, watch.id.load(Ordering::Relaxed));
    }
}

/// Removes the ring from the ring watcher's list, for a ring that goes away.
pub(crate) fn forget(ring: &Arc<Ring>) {
    let id = ring.watch.id.load(Ordering::Relaxed);
    if id == 0 {
        return;
    }
    if let Ok(watcher) = running() {
        watcher.rings.lock().remove(&id);
    }
}
