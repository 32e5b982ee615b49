//! The attendant: one thread of the process that watches the rings nobody is
//! inside of, so that a program which only looks at the CQ in memory, or only
//! at the ring's descriptor, still sees its completions. It also gives birth
//! to all other threads of the engine, so that none is made in the middle of a
//! program's call (which may stand inside malloc or a signal handler).
//!
//! A driver that leaves a ring with armed files or timers puts the ring's
//! epoll set into the attendant's, one-shot. When it fires the attendant
//! drives the ring, and by leaving it arms it again. It never waits for a
//! ring's lock, or one slow driver would delay all rings: it leaves a call at
//! the ring and tries the lock once, and whoever holds it looks for a call
//! after letting go (the hand-over of `sys::mutex`). A waiter that watches the
//! set itself switches the attendant off meanwhile: waking a thread for
//! nothing costs more than two epoll_ctl(2). And where the program keeps coming
//! back, even those are too much: `rounds`.

use super::last_thread::LastThread;
use crate::device_queues;
use crate::process::{self, process};
use crate::ring::{LockedRing, Ring};
use crate::rounds::{self, Habit, Rounds};
use crate::task_work;
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

/// What the attendant is asked to do.
enum Errand {
    Birth { name: &'static str, credentials: Credentials, life: Action, stillborn: Action },
    Run(Action),
}

/// Work that the ring watcher does before a thread changes its credentials. Its words are written
/// and read in signal handlers.
#[derive(Default)]
struct Preparation {
    /// Workers that were asked for and are not born yet.
    births: AtomicU32,
    /// The common group is to have an anchor: threads are going to differ.
    wants_anchor: AtomicBool,
    /// Futex word: counted up when one of the two is done.
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

    /// Waits until it is over, a second at most: the calling thread may hold a lock that the ring
    /// watcher needs.
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
    /// The bell's number plus 1, for [`Attendant::note_change`].
    bell: AtomicI32,
    /// A thread has changed its credentials.
    has_changed: AtomicBool,
    preparation: Preparation,
    /// The thread, as [`thread::current`] names it.
    thread: AtomicUsize,
}

/// What the thread and its clients share.
struct Post {
    set: Epoll,
    /// Readable while there are errands to run.
    bell: OwnedDescriptor,
    errands: Mutex<Vec<Errand>>,
    rings: Mutex<BTreeMap<u64, Weak<Ring>>>,
    last_ring: AtomicU64,
    rounds: Rounds,
}

const BELL: u64 = 0;
/// The event of the program's thread that is watched.
const LAST_THREAD: u64 = u64::MAX;

/// How long, in milliseconds, until descriptors that wait for a record lock to
/// go (`sys::descriptor`), and the program's first thread, are looked at again: nothing tells of
/// either one's end.
const BETWEEN_LOOKS: u16 = 1000;
/// The looks come after this many wake-ups, too, where one always follows another.
const WAKE_UPS_BETWEEN_LOOKS: u32 = 1024;

/// A descriptor has begun to wait: the attendant has to know.
static RING_THE_BELL: fn() = || process().attendant.ring_the_bell();

/// A ring's place in the attendant's set.
#[derive(Default)]
pub(crate) struct Attendance {
    /// 0 until it was first put in.
    id: AtomicU64,
    /// Put in and not fired since.
    armed: AtomicBool,
    /// It has fired, and nobody has looked since.
    called: AtomicBool,
    pub habit: Habit,
}

impl Attendance {
    #[inline(always)]
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// The caller is going to look.
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
    /// Makes sure that the thread exists; called when a ring is set up.
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
        descriptor::set_keeper(&RING_THE_BELL);
        let theirs = fresh.clone();
        let life = move || {
            self.thread.store(thread::current().0, Ordering::Relaxed);
            theirs.attend();
        };
        if let Err(error) = thread::spawn("usring-attend", Credentials::Following, Box::new(life)) {
            // The number may be the program's in a moment.
            self.bell.store(0, Ordering::Release);
            return Err(error);
        }
        *post = Some(fresh.clone());
        Ok(fresh)
    }

    /// Starts a thread soon; `stillborn` runs if that is impossible.
    pub fn start_thread(&'static self, name: &'static str, credentials: Credentials, life: Action, stillborn: Action) {
        let Ok(post) = self.post() else { return stillborn() };
        post.ask(Errand::Birth { name, credentials, life, stillborn });
    }

    /// Starts a worker of the common group soon, by the rights that all threads have now;
    /// `stillborn` runs if that is impossible.
    pub fn start_worker(&'static self, life: Action, stillborn: Action) {
        let preparation = &self.preparation;
        preparation.births.fetch_add(1, Ordering::SeqCst);
        let over = || {
            preparation.births.fetch_sub(1, Ordering::SeqCst);
            preparation.announce();
        };
        // The worker itself says that it is born: by then its generation is known.
        let life = move || (over(), life()).1;
        let stillborn = move || (over(), stillborn()).1;
        self.start_thread("iou-wrk", Credentials::OfBirth, Box::new(life), Box::new(stillborn));
    }

    /// Whether the calling thread is the attendant: what it asks of itself is
    /// not done before it is back from what it does.
    pub fn is_current(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == thread::current().0
    }

    /// The calling thread is about to change its credentials: waits until what was asked for by
    /// those of before is done. For a signal handler.
    fn prepare_change(&self, will_differ: bool) {
        if will_differ {
            self.preparation.wants_anchor.store(true, Ordering::SeqCst);
        }
        if !self.preparation.is_over() && self.signal() && !self.is_current() {
            self.preparation.wait();
        }
    }

    /// Has the attendant look after groups of rights that are no more. For a signal handler.
    fn note_change(&self) {
        self.has_changed.store(true, Ordering::Release);
        self.signal();
    }

    /// Wakes the ring watcher, in a signal handler. `false`: there is none.
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

    /// Does something soon in a thread that holds no lock.
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
                descriptor::look_at_parked();
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
            process().groups.anchor_common(|| {
                preparation.wants_anchor.store(false, Ordering::Release);
                preparation.announce();
            });
        }
    }

    fn drive(&self, id: u64) {
        let Some(ring) = self.rings.lock().get(&id).and_then(Weak::upgrade) else { return };
        ring.attendance.armed.store(false, Ordering::SeqCst);
        if ring.defers_task_work() {
            // Its owner alone may complete; it is told that there is work.
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

/// Has the ring looked at: by the caller, or by whoever drives it now.
pub(super) fn call(ring: &Arc<Ring>) {
    ring.attendance.called.store(true, Ordering::SeqCst);
    task_work::run_if_unattended(ring);
}

/// Changes the round; the attendant is told if that has begun (`true`). `false`
/// if there is no attendant.
pub(super) fn with_rounds(change: impl FnOnce(&Rounds) -> bool) -> bool {
    let Ok(post) = process().attendant.post() else { return false };
    if change(&post.rounds) {
        eventfd::signal(post.bell.number());
    }
    true
}

/// Called by a driver that is about to leave: somebody has to watch what the
/// ring waits for.
#[inline(always)]
pub(crate) fn take_over(locked: &mut LockedRing) {
    take_over_beside(locked, 0);
}

/// The same for one who comes back: it is going to look at so many requests of the
/// devices itself.
#[inline(always)]
pub(crate) fn take_over_beside(locked: &mut LockedRing, own: u32) {
    // Who asks a polled ring for events looks for them itself.
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
        // Somebody else goes on with it.
        ring.wakers.call_watcher();
    }
}

/// Whether the owner of a ring that defers wants to be told of its work while
/// it is not inside.
fn hears_announcements(locked: &LockedRing) -> bool {
    let ring = locked.ring;
    ring.has(abi::IORING_SETUP_TASKRUN_FLAG) || ring.readiness.is_watched() || locked.event_descriptor.is_some()
}

fn watch(locked: &mut LockedRing) {
    let interrupts = locked.devices.in_flight() != 0 && !locked.is_looked_for();
    if interrupts && !device_queues::arm_interrupts(locked) && locked.ring.defers_task_work() {
        // What a device has done already it tells nobody any more.
        task_work::announce_deferred(locked.ring, false);
    }
    if interrupts && locked.devices.has_silent() {
        locked.devices.look_later();
    }
    let due = match locked.devices.next_look() {
        Some(look) => Some(locked.timeouts.next_due().map_or(look, |due| due.min(look))),
        None => locked.timeouts.next_due(),
    };
    if crate::fast_poll::arm_timer(locked, due).is_err() {
        return;
    }
    let ring = locked.ring.clone();
    let Some(set) = locked.polls.set() else { return };
    // A leader watches the set, and comes by here when it leaves.
    if ring.wakers.sleep.is_led() || ring.attendance.armed.swap(true, Ordering::SeqCst) {
        return;
    }
    let armed = process().attendant.post().and_then(|post| post.arm(&ring, set.number()));
    if armed.is_err() {
        ring.attendance.armed.store(false, Ordering::SeqCst);
    }
}

/// A waiter is about to watch the ring's set itself.
pub(crate) fn stand_down(locked: &LockedRing) {
    let attendance = &locked.ring.attendance;
    let Some(set) = locked.polls.set().filter(|_| attendance.armed.swap(false, Ordering::SeqCst)) else { return };
    if let Ok(post) = crate::process::process().attendant.post() {
        let _ = post.set.modify(set.number(), epoll::ONESHOT, attendance.id.load(Ordering::Relaxed));
    }
}

/// The ring goes away.
pub(crate) fn forget(ring: &Arc<Ring>) {
    let id = ring.attendance.id.load(Ordering::Relaxed);
    if id == 0 {
        return;
    }
    if let Ok(post) = process().attendant.post() {
        post.rings.lock().remove(&id);
    }
}
