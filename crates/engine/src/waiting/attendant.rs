//! The ring watcher (`attendant`): one thread of the process that watches the rings that no thread
//! is inside of. So a program that only looks at the CQ in memory, or only at the ring's
//! descriptor, still sees its completions. The ring watcher also starts all other threads of the
//! engine. So no thread is made in the middle of a program's call, which may be inside malloc or a
//! signal handler.
//!
//! How a ring is watched:
//!
//! 1. A driver that leaves a ring with armed files or timers puts the ring's epoll set into the
//!    ring watcher's set, one-shot.
//! 2. When the entry fires, the ring watcher marks the ring as called ([`Attendance`]) and tries
//!    its lock once. It never waits for a ring's lock: one slow driver would delay all rings.
//! 3. If the lock was free, the ring watcher drives the ring, and arms the entry again as it
//!    leaves. If the lock was held, its holder looks for a call after releasing it (the hand-over
//!    of `sys::mutex`).
//!
//! A waiter that watches the ring's set itself switches the ring watcher's entry off meanwhile: a
//! needless wake-up of a thread costs more than two epoll_ctl(2). For a program that keeps coming
//! back even these two calls are too much: see `rounds`.

use super::last_thread::LastThread;
use crate::completion::task_work;
use crate::process::{self, process};
use crate::ring::{LockedRing, Ring};
use crate::waiting::device_queues;
use crate::waiting::rounds::{self, Habit, Rounds};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use usring_sys::clock::Clock;
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::epoll::{self, Epoll, Event};
use usring_sys::mutex::Mutex;
use usring_sys::thread::Credentials;
use usring_sys::{Errno, credentials, eventfd, futex, thread};
use usring_uapi::io_uring as abi;

type Action = Box<dyn FnOnce() + Send>;

/// A task for the ring watcher.
enum Errand {
    Birth { name: &'static str, credentials: Credentials, life: Action, stillborn: Action },
    Run(Action),
}

/// Work that the ring watcher does before a thread changes its credentials. Its words are written
/// and read in signal handlers.
#[derive(Default)]
struct Preparation {
    /// Workers and anchors that were asked for and have not started yet.
    births: AtomicU32,
    /// The common group is to get an anchor, because threads are going to differ.
    wants_anchor: AtomicBool,
    /// Futex word, raised when either of the two is done.
    done: AtomicU32,
}

impl Preparation {
    fn is_over(&self) -> bool {
        self.births.load(Ordering::Acquire) == 0 && !self.wants_anchor.load(Ordering::Acquire)
    }

    fn announce(&self) {
        self.done.fetch_add(1, Ordering::Release);
        futex::wake(&self.done, u32::MAX);
    }

    /// Waits until the work is done, for at most a second: the calling thread may hold a lock that
    /// the ring watcher needs.
    fn wait(&self) {
        let end = Clock::Monotonic.now() + credentials::PATIENCE;
        loop {
            let seen = self.done.load(Ordering::Acquire);
            let left = end.saturating_sub(Clock::Monotonic.now());
            if self.is_over() || left == 0 {
                return;
            }
            let _ = futex::wait(&self.done, seen, Some(left));
        }
    }
}

#[derive(Default)]
pub(crate) struct Attendant {
    post: Mutex<Option<Arc<Post>>>,
    /// Number of the wake eventfd plus 1, for [`Attendant::note_change`].
    bell: AtomicI32,
    /// A thread has changed its credentials.
    has_changed: AtomicBool,
    preparation: Preparation,
    /// The ring watcher's thread, as [`thread::current`] names it.
    thread: AtomicUsize,
}

/// State that the ring watcher shares with its clients.
struct Post {
    set: Epoll,
    /// The wake eventfd: readable while there are tasks to run.
    bell: OwnedDescriptor,
    errands: Mutex<Vec<Errand>>,
    rings: Mutex<BTreeMap<u64, Weak<Ring>>>,
    last_ring: AtomicU64,
    rounds: Rounds,
}

const BELL: u64 = 0;
/// Event data of the program's thread that is watched (`last_thread`).
const LAST_THREAD: u64 = u64::MAX;

/// Milliseconds between two polls of the descriptors that wait for a record lock to go
/// (`sys::descriptor`), and of the program's first thread. No event marks the end of either.
const BETWEEN_LOOKS: u16 = 1000;
/// The polls also come after this many wake-ups, for the case that one wake-up always follows
/// another.
const WAKE_UPS_BETWEEN_LOOKS: u32 = 1024;

/// Wakes the ring watcher, because a descriptor has begun to wait for a record lock to go.
static RING_THE_BELL: fn() = || process().attendant.ring_the_bell();

/// A ring's entry in the ring watcher's set.
#[derive(Default)]
pub(crate) struct Attendance {
    /// Event data of the entry; 0 until the entry is first made.
    id: AtomicU64,
    /// The entry is armed and has not fired since.
    armed: AtomicBool,
    /// The entry has fired, and no driver has looked since.
    called: AtomicBool,
    pub habit: Habit,
}

impl Attendance {
    #[inline(always)]
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// Takes the call, for a driver that is going to look at the ring.
    pub fn take_call(&self) -> bool {
        self.is_called() && self.called.swap(false, Ordering::SeqCst)
    }
}

static OBSERVER: credentials::Observer = credentials::Observer {
    before: |will_differ| {
        if let Some(process) = process::existing() {
            process.attendant.prepare_change(will_differ);
        }
    },
    after: || {
        if let Some(process) = process::existing() {
            process.attendant.note_change();
        }
    },
};

impl Attendant {
    /// Starts the ring watcher if it is not running; called when a ring is set up.
    pub fn start(&'static self) -> Result<(), Errno> {
        self.post().map(drop)
    }

    fn post(&'static self) -> Result<Arc<Post>, Errno> {
        let mut post = self.post.lock();
        if let Some(post) = &*post {
            return Ok(post.clone());
        }
        let fresh = Arc::new(Post {
            set: Epoll::new()?,
            bell: eventfd::create()?.into_private()?,
            errands: Mutex::new(Vec::new()),
            rings: Mutex::new(BTreeMap::new()),
            last_ring: AtomicU64::new(BELL),
            rounds: Rounds::default(),
        });
        fresh.set.add(fresh.bell.number(), epoll::IN, BELL)?;
        self.bell.store(fresh.bell.number() + 1, Ordering::Release);
        credentials::set_observer(&OBSERVER);
        descriptor::set_parked_hook(&RING_THE_BELL);
        let theirs = fresh.clone();
        let life = move || {
            self.thread.store(thread::current().0, Ordering::Relaxed);
            theirs.attend();
        };
        if let Err(error) = thread::spawn("usring-attend", Credentials::Following, Box::new(life)) {
            // The program may get this descriptor number at any moment.
            self.bell.store(0, Ordering::Release);
            return Err(error);
        }
        *post = Some(fresh.clone());
        Ok(fresh)
    }

    /// Starts a thread soon; runs `stillborn` if the thread cannot be started.
    pub fn start_thread(&'static self, name: &'static str, credentials: Credentials, life: Action, stillborn: Action) {
        let Ok(post) = self.post() else { return stillborn() };
        post.ask(Errand::Birth { name, credentials, life, stillborn });
    }

    /// Starts a worker of the common group soon, with the rights that all threads have now. Runs
    /// `stillborn` if the worker cannot be started.
    pub fn start_worker(&'static self, life: Action, stillborn: Action) {
        let preparation = &self.preparation;
        preparation.births.fetch_add(1, Ordering::SeqCst);
        let over = || {
            preparation.births.fetch_sub(1, Ordering::SeqCst);
            preparation.announce();
        };
        // The worker itself reports that it has started: its generation is known by then.
        let life = move || (over(), life()).1;
        let stillborn = move || (over(), stillborn()).1;
        self.start_thread("iou-wrk", Credentials::OfBirth, Box::new(life), Box::new(stillborn));
    }

    /// Returns whether the calling thread is the ring watcher. A task that it gives itself runs
    /// only after its present one.
    pub fn is_current(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == thread::current().0
    }

    /// Called by a thread that is about to change its credentials. Waits until the work that was
    /// asked for under the old credentials is done. For a signal handler.
    fn prepare_change(&self, will_differ: bool) {
        if will_differ {
            self.preparation.wants_anchor.store(true, Ordering::SeqCst);
        }
        if !self.preparation.is_over() && self.signal() && !self.is_current() {
            self.preparation.wait();
        }
    }

    /// Has the ring watcher retire groups whose rights no thread has any more. For a signal
    /// handler.
    fn note_change(&self) {
        self.has_changed.store(true, Ordering::Release);
        self.signal();
    }

    /// Wakes the ring watcher, in a signal handler. Returns `false` if there is none.
    fn signal(&self) -> bool {
        let number = self.bell.load(Ordering::Acquire);
        if number > 0 {
            eventfd::signal(number - 1);
        }
        number > 0
    }

    fn ring_the_bell(&'static self) {
        if let Ok(post) = self.post() {
            eventfd::signal(post.bell.number());
        }
    }

    /// Runs an action soon, in a thread that holds no lock.
    pub fn run(&'static self, action: Action) {
        if let Ok(post) = self.post() {
            post.ask(Errand::Run(action));
        }
    }
}

impl Post {
    fn ask(&self, errand: Errand) {
        self.errands.lock().push(errand);
        eventfd::signal(self.bell.number());
    }

    fn attend(&self) {
        let mut events = [Event::default(); 32];
        let (mut last_round, mut last_look, mut wake_ups) = (0, 0, 0u32);
        let mut last_thread = LastThread::new();
        loop {
            let makes_rounds = !self.rounds.is_empty();
            let looks = descriptor::has_parked() || last_thread.needs_looks();
            let most = if makes_rounds { Some(rounds::INTERVAL_MS) } else { looks.then_some(BETWEEN_LOOKS) };
            let waited = self.set.wait(&mut events, most);
            if makes_rounds {
                self.rounds.make(&mut last_round);
            }
            let is_time = !makes_rounds || last_round.saturating_sub(last_look) >= u64::from(BETWEEN_LOOKS) * 1_000_000;
            wake_ups = wake_ups.wrapping_add(1);
            if waited == Ok(0) && is_time || wake_ups.is_multiple_of(WAKE_UPS_BETWEEN_LOOKS) {
                last_look = last_round;
                descriptor::close_unlocked();
                last_thread.look(&self.set, LAST_THREAD);
            }
            let Ok(count) = waited else { continue };
            for event in &events[..count] {
                match event.data {
                    BELL => self.run_errands(),
                    LAST_THREAD => last_thread.has_ended(&self.set, LAST_THREAD),
                    id => self.drive(id),
                }
            }
        }
    }

    fn run_errands(&self) {
        eventfd::drain(self.bell.number());
        if process().attendant.has_changed.swap(false, Ordering::Acquire) {
            process().groups.sweep();
        }
        let errands = core::mem::take(&mut *self.errands.lock());
        for errand in errands {
            match errand {
                Errand::Run(action) => action(),
                Errand::Birth { name, credentials, life, stillborn } => {
                    if thread::spawn(name, credentials, life).is_err() {
                        stillborn();
                    }
                }
            }
        }
        let preparation = &process().attendant.preparation;
        if preparation.wants_anchor.load(Ordering::Acquire) {
            // Counted before the wish is taken back: the preparation is not over in between.
            preparation.births.fetch_add(1, Ordering::SeqCst);
            preparation.wants_anchor.store(false, Ordering::SeqCst);
            process().groups.anchor_common(|| {
                preparation.births.fetch_sub(1, Ordering::SeqCst);
                preparation.announce();
            });
        }
    }

    fn drive(&self, id: u64) {
        let Some(ring) = self.rings.lock().get(&id).and_then(Weak::upgrade) else { return };
        ring.attendance.armed.store(false, Ordering::SeqCst);
        if ring.defers_task_work() {
            // Only the ring's owner may complete requests. It is notified that there is work.
            task_work::announce_files(&ring);
            return;
        }
        call(&ring);
    }

    fn arm(&self, ring: &Arc<Ring>, set: i32) -> Result<(), Errno> {
        let id = ring.attendance.id.load(Ordering::Relaxed);
        if id != 0 {
            return self.set.modify(set, epoll::IN | epoll::ONESHOT, id);
        }
        let id = self.last_ring.fetch_add(1, Ordering::Relaxed) + 1;
        self.rings.lock().insert(id, Arc::downgrade(ring));
        self.set.add(set, epoll::IN | epoll::ONESHOT, id)?;
        ring.attendance.id.store(id, Ordering::Relaxed);
        Ok(())
    }
}

/// Has the ring looked at, by the calling thread or by the thread that drives it now.
pub(super) fn call(ring: &Arc<Ring>) {
    ring.attendance.called.store(true, Ordering::SeqCst);
    task_work::run_if_unattended(ring);
}

/// Changes the list of rings under idle watching. `change` returns whether the ring watcher has to
/// be woken for it. Returns `false` if there is no ring watcher.
pub(super) fn with_rounds(change: impl FnOnce(&Rounds) -> bool) -> bool {
    let Ok(post) = process().attendant.post() else { return false };
    if change(&post.rounds) {
        eventfd::signal(post.bell.number());
    }
    true
}

/// Hands what the ring waits for to the ring watcher; called by a driver that is about to leave.
#[inline(always)]
pub(crate) fn take_over(locked: &mut LockedRing) {
    take_over_beside(locked, 0);
}

/// Hands what the ring waits for to the ring watcher, for a driver that will come back. The driver
/// is going to poll `own` device requests itself.
#[inline(always)]
pub(crate) fn take_over_beside(locked: &mut LockedRing, own: u32) {
    // The callers that ask a polled ring for events poll the devices themselves.
    let counts_on_devices = locked.devices.in_flight() > own && !locked.is_looked_for();
    if locked.polls.armed() != 0 || !locked.timeouts.is_empty() || counts_on_devices {
        take_over_waits(locked);
    }
}

#[inline(never)]
fn take_over_waits(locked: &mut LockedRing) {
    let ring = locked.ring;
    if locked.devices.in_flight() != 0 && !locked.is_looked_for() && !ring.defers_task_work() {
        device_queues::settle(locked);
    }
    if ring.defers_task_work() && !hears_announcements(locked) {
        return;
    }
    if locked.polls.armed() != 0 && rounds::take_care(locked) {
        return;
    }
    watch(locked);
    if locked.polls.has_due() {
        // Another thread goes on with the requests that are due.
        ring.wakers.call_watcher();
    }
}

/// Returns whether the owner of a ring that defers task work wants to be notified of work while it
/// is not inside.
fn hears_announcements(locked: &LockedRing) -> bool {
    let ring = locked.ring;
    ring.has(abi::IORING_SETUP_TASKRUN_FLAG) || ring.readiness.is_watched() || locked.event_descriptor.is_some()
}

fn watch(locked: &mut LockedRing) {
    let interrupts = locked.devices.in_flight() != 0 && !locked.is_looked_for();
    if interrupts && !device_queues::arm_interrupts(locked) && locked.ring.defers_task_work() {
        // A device raises no interrupt for completions from before it was armed, so the owner is
        // notified here.
        task_work::announce_deferred(locked.ring, false);
    }
    if interrupts && locked.devices.has_silent() {
        locked.devices.look_later();
    }
    let due = match locked.devices.next_look() {
        Some(look) => Some(locked.timeouts.next_due().map_or(look, |due| due.min(look))),
        None => locked.timeouts.next_due(),
    };
    if crate::waiting::fast_poll::arm_timer(locked, due).is_err() {
        return;
    }
    let ring = locked.ring.clone();
    let Some(set) = locked.polls.set() else { return };
    // The leader watches the set, and comes by here when it leaves.
    if ring.wakers.sleep.is_led() || ring.attendance.armed.swap(true, Ordering::SeqCst) {
        return;
    }
    let armed = process().attendant.post().and_then(|post| post.arm(&ring, set.number()));
    if armed.is_err() {
        ring.attendance.armed.store(false, Ordering::SeqCst);
    }
}

/// Switches the ring's entry off, for a waiter that is about to watch the ring's set itself.
pub(crate) fn stand_down(locked: &LockedRing) {
    let attendance = &locked.ring.attendance;
    let Some(set) = locked.polls.set().filter(|_| attendance.armed.swap(false, Ordering::SeqCst)) else { return };
    if let Ok(post) = crate::process::process().attendant.post() {
        let _ = post.set.modify(set.number(), epoll::ONESHOT, attendance.id.load(Ordering::Relaxed));
    }
}

/// Drops the ring's entry, for a ring that goes away.
pub(crate) fn forget(ring: &Arc<Ring>) {
    let id = ring.attendance.id.load(Ordering::Relaxed);
    if id == 0 {
        return;
    }
    if let Ok(post) = process().attendant.post() {
        post.rings.lock().remove(&id);
    }
}
