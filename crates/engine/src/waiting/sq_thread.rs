//! The SQ thread of IORING_SETUP_SQPOLL: submits for the program, which then
//! needs no call at all while the thread is awake. One thread may serve
//! several rings (ATTACH_WQ).
//!
//! It sleeps after `sq_thread_idle` without work. Before that it sets
//! NEED_WAKEUP on each of its rings, passes a full barrier and looks at each
//! SQ once more; the program stores its tail, passes a full barrier and looks
//! at the flag. One of the two sees the other.

use crate::device_queues;
use crate::host;
use crate::ring::Ring;
use crate::task_work;
use crate::{rights, submit};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::mutex::Mutex;
use usring_sys::sleep::{SleepWord, Sleeper, Wake};
use usring_sys::thread::{self, Credentials};
use usring_sys::ticks::{self, Ticks};
use usring_sys::{Errno, processor, timer_slack, wait};
use usring_uapi::io_uring as abi;
use usring_uapi::io_uring::io_uring_params;

/// What `sq_thread_idle` of 0 means.
const DEFAULT_IDLE: Nanoseconds = 1_000_000_000;
const MILLISECOND: Nanoseconds = 1_000_000;
/// Entries taken from one ring before the next one's turn, if there are
/// several.
const SHARE: u32 = 8;

/// A ring's end of its thread.
#[derive(Default)]
pub(crate) struct SqThreadHandle {
    thread: Mutex<Option<Arc<SqThread>>>,
}

struct SqThread {
    rings: Mutex<Vec<Arc<Ring>>>,
    /// Counts up when the list changes.
    changes: AtomicU32,
    idle: AtomicU64,
    processor: Option<u32>,
    /// Where the thread itself sleeps.
    sleep: SleepWord,
    /// Where those sleep who wait for room in an SQ.
    room: SleepWord,
    dead: AtomicBool,
}

/// Gives a new ring its thread: that of the ring it attaches to, or its own.
pub(crate) fn join(ring: &Arc<Ring>, params: &io_uring_params) -> Result<(), Errno> {
    ticks::calibrate();
    if ring.is_polled() {
        // Asked here once, and not in the middle of a wait.
        timer_slack::overshoot();
    }
    let idle = match params.sq_thread_idle {
        0 => DEFAULT_IDLE,
        milliseconds => u64::from(milliseconds) * MILLISECOND,
    };
    if ring.has(abi::IORING_SETUP_ATTACH_WQ) {
        let other = host::ring_to_attach_to(params.wq_fd as i32)?;
        let shared = other.sq_thread.thread.lock().clone().ok_or(Errno::EINVAL)?;
        shared.idle.fetch_max(idle, Ordering::Relaxed);
        // The thread has the credentials of the other ring's creator.
        let mut locked = ring.lock();
        let own_rights = rights::submit_for_creator(&mut locked);
        locked.unlock();
        own_rights?;
        if shared.add(ring) {
            *ring.sq_thread.thread.lock() = Some(shared);
            return Ok(());
        }
        // It has just ended with its last ring: this one gets its own.
    }
    let processor = ring.has(abi::IORING_SETUP_SQ_AFF).then_some(params.sq_thread_cpu);
    if processor.is_some_and(|number| !processor::is_allowed(number)) {
        return Err(Errno::EINVAL);
    }
    let own = Arc::new(SqThread {
        rings: Mutex::new(Vec::new()),
        changes: AtomicU32::new(0),
        idle: AtomicU64::new(idle),
        processor,
        sleep: SleepWord::new(),
        room: SleepWord::new(),
        dead: AtomicBool::new(false),
    });
    let added = own.add(ring);
    debug_assert!(added, "a thread that was never alive has died");
    *ring.sq_thread.thread.lock() = Some(own.clone());
    // Born of the ring's creator, whose credentials it keeps, as the kernel's does.
    let theirs = own.clone();
    let started = thread::spawn("iou-sqp", Credentials::OfSubmitter, Box::new(move || theirs.live()));
    if started.is_err() {
        own.die();
    }
    started
}

/// Takes a ring away from its thread, which ends with its last ring.
pub(crate) fn part(ring: &Arc<Ring>) {
    let Some(thread) = ring.sq_thread.thread.lock().take() else { return };
    thread.rings.lock().retain(|other| !Arc::ptr_eq(other, ring));
    thread.changes.fetch_add(1, Ordering::SeqCst);
    thread.wake();
    thread.announce_room();
}

impl SqThreadHandle {
    fn get(&self) -> Option<Arc<SqThread>> {
        self.thread.lock().clone()
    }

    /// `EOWNERDEAD` if the thread could not be started.
    pub fn check_alive(&self) -> Result<(), Errno> {
        match self.get() {
            Some(thread) if !thread.dead.load(Ordering::SeqCst) => Ok(()),
            _ => Err(Errno::EOWNERDEAD),
        }
    }

    /// Wakes the thread, if there is one.
    pub fn wake(&self) {
        if let Some(thread) = self.get() {
            thread.wake();
        }
    }

    /// Sleeps until the ring's SQ has room (SQ_WAIT).
    pub fn wait_for_room(&self, ring: &Ring) -> Result<(), Errno> {
        let Some(thread) = self.get() else { return Err(Errno::EOWNERDEAD) };
        loop {
            let ticket = thread.room.announce(Sleeper::Futex, 1);
            let slept = if ring.memory.is_submission_full() && !thread.dead.load(Ordering::SeqCst) {
                wait::futex(thread.room.futex(), ticket.futex_value(), None)
            } else {
                Ok(())
            };
            // Whoever is claimed is claimed with all others: nobody relies on
            // this one.
            let _ = thread.room.retract(ticket);
            match slept {
                Err(Errno::EINTR) => return Err(Errno::EINTR),
                _ if !ring.memory.is_submission_full() => return Ok(()),
                _ => self.check_alive()?,
            }
        }
    }
}

impl SqThread {
    /// `false`: the thread serves nobody any more.
    fn add(&self, ring: &Arc<Ring>) -> bool {
        {
            // A thread dies under this lock, and only with an empty list.
            let mut rings = self.rings.lock();
            if self.dead.load(Ordering::SeqCst) {
                return false;
            }
            rings.push(ring.clone());
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.wake();
        true
    }

    fn wake(&self) {
        wake(&self.sleep);
    }

    /// It could not be started: whoever has joined it meanwhile has no thread.
    fn die(&self) {
        let rings = self.rings.lock();
        self.dead.store(true, Ordering::SeqCst);
        drop(rings);
        self.announce_room();
    }

    /// Whether the thread is to end, because no ring is left.
    fn ends(&self) -> bool {
        let rings = self.rings.lock();
        if !rings.is_empty() {
            return false;
        }
        self.dead.store(true, Ordering::SeqCst);
        drop(rings);
        self.announce_room();
        true
    }

    fn announce_room(&self) {
        wake(&self.room);
    }

    fn live(&self) {
        if let Some(number) = self.processor {
            processor::stay_on(number);
        }
        let mut seen = self.changes.load(Ordering::SeqCst);
        let mut rings = self.rings.lock().clone();
        let mut last_work = Ticks::now();
        loop {
            let changes = self.changes.load(Ordering::SeqCst);
            if changes != seen {
                seen = changes;
                rings = self.rings.lock().clone();
            }
            if rings.is_empty() {
                if self.ends() {
                    return;
                }
                // The change that gave it a ring is on its way here.
                processor::give_way();
                continue;
            }
            if self.serve(&rings) {
                last_work = Ticks::now();
                continue;
            }
            if Ticks::now().since(last_work) < self.idle.load(Ordering::Relaxed) {
                // The bound of this spin is the idle time that the program
                // chose.
                spin();
                continue;
            }
            self.sleep(&rings, seen);
            last_work = Ticks::now();
        }
    }

    /// Submits what there is; answers whether there was anything.
    fn serve(&self, rings: &[Arc<Ring>]) -> bool {
        let most = if rings.len() > 1 { SHARE } else { u32::MAX };
        let mut worked = false;
        for ring in rings {
            if !ring.is_polled() && ring.memory.submitted() == 0 && !ring.has_work_left() {
                continue;
            }
            let mut locked = ring.lock();
            if locked.closed || ring.is_disabled() {
                continue;
            }
            task_work::run(&mut locked);
            let taken = submit::submit(&mut locked, most);
            if ring.is_polled() {
                device_queues::reap(&mut locked);
                // As long as something is out this thread alone looks for it.
                worked |= locked.devices.in_flight() > 0;
            }
            // A device that has its caller stand still holds up no other ring.
            if rings.len() > 1 {
                locked.leave_inside()
            } else {
                locked.leave()
            }
            worked |= taken > 0;
            if taken > 0 {
                self.announce_room();
            }
        }
        worked
    }

    /// Sleeps until it is woken, unless there is something to do: `seen` is the
    /// state of the list that `rings` was copied from.
    fn sleep(&self, rings: &[Arc<Ring>], seen: u32) {
        // First of all, so that an enter that follows the flag finds it.
        let ticket = self.sleep.announce(Sleeper::Futex, 1);
        let mut idle = self.changes.load(Ordering::SeqCst) == seen;
        for ring in rings {
            let mut locked = ring.lock();
            let nothing = locked.sq.prepare_sleep();
            idle &= nothing || ring.is_disabled();
            locked.unlock();
            // A worker or the attendant may have found the lock taken just now.
            idle &= !ring.has_work_left();
        }
        if idle {
            let _ = self.sleep.sleep(&ticket, None);
        }
        // Claimed or not, it looks at everything again now.
        let _ = self.sleep.retract(ticket);
        for ring in rings {
            let locked = ring.lock();
            locked.sq.end_sleep();
            locked.unlock();
        }
    }
}

/// Before the next look. Where there is but one processor, what is looked for
/// can only come from whoever gets it meanwhile. Elsewhere the thread keeps its
/// own, as the kernel's does: whoever else wants to run there gets a share by
/// the scheduler's rule, but one who gives way to them waits for all of theirs,
/// some milliseconds each time.
fn spin() {
    if processor::is_only() {
        processor::give_way();
    } else {
        core::hint::spin_loop();
    }
}

fn wake(word: &SleepWord) {
    if word.wake_target(u32::MAX) == Wake::Futex {
        word.wake_futex();
    }
}
