//! The attendant: one thread of the process that watches the rings nobody is
//! inside of, so that a program which only looks at the CQ in memory, or only
//! at the ring's descriptor, still sees its completions. It also gives birth
//! to all other threads of the engine, so that none is made in the middle of a
//! program's call (which may stand inside malloc or a signal handler).
//!
//! A driver that leaves a ring with armed files or timers puts the ring's
//! epoll set into the attendant's, one-shot. When it fires the attendant
//! drives the ring, and by leaving it arms it again.

use crate::ring::{LockedRing, Ring};
use crate::task_work;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::epoll::{self, Epoll, Event};
use usring_sys::mutex::Mutex;
use usring_sys::{Errno, eventfd, thread};
use usring_uapi::io_uring as abi;

type Action = Box<dyn FnOnce() + Send>;

struct Birth {
    name: &'static str,
    life: Action,
    stillborn: Action,
}

#[derive(Default)]
pub(crate) struct Attendant {
    post: Mutex<Option<Arc<Post>>>,
}

/// What the thread and its clients share.
struct Post {
    set: Epoll,
    /// Readable while there are births to attend to.
    bell: OwnedDescriptor,
    births: Mutex<Vec<Birth>>,
    rings: Mutex<BTreeMap<u64, Weak<Ring>>>,
    last_ring: AtomicU64,
}

const BELL: u64 = 0;

/// A ring's place in the attendant's set.
#[derive(Default)]
pub(crate) struct Attendance {
    /// 0 until it was first put in.
    id: AtomicU64,
    /// Put in and not fired since.
    armed: AtomicBool,
}

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
            births: Mutex::new(Vec::new()),
            rings: Mutex::new(BTreeMap::new()),
            last_ring: AtomicU64::new(BELL),
        });
        fresh.set.add(fresh.bell.number(), epoll::IN, BELL)?;
        let theirs = fresh.clone();
        thread::spawn("usring-attend", Box::new(move || theirs.attend()))?;
        *post = Some(fresh.clone());
        Ok(fresh)
    }

    /// Starts a thread soon; `stillborn` runs if that is impossible.
    pub fn start_thread(&'static self, name: &'static str, life: Action, stillborn: Action) {
        let Ok(post) = self.post() else { return stillborn() };
        post.births.lock().push(Birth { name, life, stillborn });
        eventfd::signal(post.bell.number());
    }
}

impl Post {
    fn attend(&self) {
        let mut events = [Event::default(); 32];
        loop {
            let Ok(count) = self.set.wait(&mut events) else { continue };
            for event in &events[..count] {
                match event.data {
                    BELL => self.give_birth(),
                    id => self.drive(id),
                }
            }
        }
    }

    fn give_birth(&self) {
        eventfd::drain(self.bell.number());
        let births = core::mem::take(&mut *self.births.lock());
        for birth in births {
            if thread::spawn(birth.name, birth.life).is_err() {
                (birth.stillborn)();
            }
        }
    }

    fn drive(&self, id: u64) {
        let Some(ring) = self.rings.lock().get(&id).and_then(Weak::upgrade) else { return };
        ring.attendance.armed.store(false, Ordering::SeqCst);
        if ring.defers_task_work() {
            // Its owner alone may complete; it is told that there is work.
            task_work::announce_deferred(&ring, false);
            return;
        }
        let mut locked = ring.lock();
        if ring.wakers.sleep.is_led() {
            // The event has woken the leader as well, who deals with it and
            // arms this again when it leaves.
            locked.unlock();
            return task_work::run_if_unattended(&ring);
        }
        task_work::run_all(&mut locked);
        locked.leave();
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

/// Called by a driver that is about to leave: somebody has to watch what the
/// ring waits for.
#[inline(always)]
pub(crate) fn take_over(locked: &mut LockedRing) {
    if locked.polls.armed() != 0 || !locked.timeouts.is_empty() {
        take_over_waits(locked);
    }
}

#[inline(never)]
fn take_over_waits(locked: &mut LockedRing) {
    let ring = locked.ring;
    if ring.defers_task_work() && !hears_announcements(locked) {
        return;
    }
    watch(locked);
}

/// Whether the owner of a ring that defers wants to be told of its work while
/// it is not inside.
fn hears_announcements(locked: &LockedRing) -> bool {
    let ring = locked.ring;
    ring.has(abi::IORING_SETUP_TASKRUN_FLAG) || ring.readiness.is_watched() || locked.event_descriptor.is_some()
}

fn watch(locked: &mut LockedRing) {
    let until: Option<Nanoseconds> = locked.timeouts.until_next();
    if crate::fast_poll::arm_timer(locked, until).is_err() {
        return;
    }
    let ring = locked.ring.clone();
    let Some(set) = locked.polls.set() else { return };
    if ring.attendance.armed.swap(true, Ordering::SeqCst) {
        return;
    }
    let armed = crate::process::process().attendant.post().and_then(|post| post.arm(&ring, set.number()));
    if armed.is_err() {
        ring.attendance.armed.store(false, Ordering::SeqCst);
    }
}

/// The ring goes away.
pub(crate) fn forget(ring: &Arc<Ring>) {
    let id = ring.attendance.id.load(Ordering::Relaxed);
    if id == 0 {
        return;
    }
    if let Ok(post) = crate::process::process().attendant.post() {
        post.rings.lock().remove(&id);
    }
}
