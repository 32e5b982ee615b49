//! The SQ thread of IORING_SETUP_SQPOLL: submits for the program, which makes no system call while
//! the SQ thread is awake. One SQ thread may serve several rings (ATTACH_WQ).
//!
//! The SQ thread sleeps after `sq_thread_idle` without work. The hand-over:
//!
//! | SQ thread | program |
//! |---|---|
//! | sets NEED_WAKEUP on each of its rings | stores the SQ's tail |
//! | full barrier | full barrier |
//! | checks each SQ once more | checks NEED_WAKEUP |
//!
//! So at least one of the two sees the other's store.

use crate::driving::{order, reap, submit, task_work};
use crate::host;
use crate::ring::{Exit, Ring};
use crate::waiting::sq_thread::{SqThread, SqThreadHandle};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use usring_sys::clock::Nanoseconds;
use usring_sys::sleep::Sleeper;
use usring_sys::thread::{self, Credentials};
use usring_sys::ticks::{self, Ticks};
use usring_sys::{Errno, memory_reserve, processor, timer_slack, wait};
use usring_uapi::io_uring as abi;
use usring_uapi::io_uring::io_uring_params;

/// Nanoseconds without work after which the SQ thread sleeps, if the program sets `sq_thread_idle`
/// to 0.
const DEFAULT_IDLE: Nanoseconds = 1_000_000_000;
const MILLISECOND: Nanoseconds = 1_000_000;
/// Nanoseconds between two tries to submit while memory is low.
const LOW_MEMORY_PAUSE: Nanoseconds = MILLISECOND;
/// Maximum number of SQEs that the SQ thread takes from one ring before it serves its next ring. If
/// the SQ thread has only one ring, there is no limit.
const SHARE: u32 = 8;

/// Gives a new ring its SQ thread, before any other thread can use the ring. With ATTACH_WQ that is
/// the SQ thread of the ring named by `wq_fd`, if possible. Otherwise starts a new SQ thread.
pub(crate) fn join(ring: &mut Arc<Ring>, params: &io_uring_params) -> Result<(), Errno> {
    ticks::calibrate();
    if ring.is_polled() {
        // The first call of this function measures the timer's overshoot. It is made here, so that
        // no wait has to make the measurement.
        timer_slack::overshoot();
    }
    let idle = match params.sq_thread_idle {
        0 => DEFAULT_IDLE,
        milliseconds => u64::from(milliseconds) * MILLISECOND,
    };
    if ring.has(abi::IORING_SETUP_ATTACH_WQ) && attach(ring, params.wq_fd.cast_signed(), idle)? {
        return Ok(());
    }
    let processor = ring.has(abi::IORING_SETUP_SQ_AFF).then_some(params.sq_thread_cpu);
    if processor.is_some_and(|number| !processor::is_allowed(number)) {
        return Err(Errno::EINVAL);
    }
    let own = SqThread::new(idle, processor)?;
    set_sq_thread(ring, &own);
    let added = own.add(ring);
    debug_assert!(added, "an SQ thread that was not started yet is marked dead");
    // The SQ thread has its creator's credentials, as in the kernel. So the SQ thread is started by
    // the calling thread, which creates the ring.
    let theirs = own.clone();
    let started = thread::spawn("iou-sqp", Credentials::OfSubmitter, Box::new(move || theirs.run()));
    if started.is_err() {
        own.mark_ended();
        // The SQ thread was not started. Without this call, the ring and the [`SqThread`] would
        // keep each other in memory.
        leave(ring);
    }
    started
}

/// Attaches a new ring to the SQ thread of the ring with the descriptor `number`. Returns `false`
/// if that SQ thread has just ended, or belongs to an ancestor of this process. Error: `EINVAL` if
/// the ring with that descriptor has no SQPOLL.
fn attach(ring: &mut Arc<Ring>, number: i32, idle: Nanoseconds) -> Result<bool, Errno> {
    let other = host::ring_to_attach_to(number)?;
    if !other.has(abi::IORING_SETUP_SQPOLL) {
        return Err(Errno::EINVAL);
    }
    let Some(shared) = other.sq_thread.thread.lock().clone() else { return Ok(false) };
    shared.idle.fetch_max(idle, Ordering::Relaxed);
    // The SQ thread has the credentials of the other ring's creator. So this ring's requests are
    // given the credentials of this ring's creator, which is the calling thread.
    let mut locked = ring.lock();
    let own_rights = locked.waiting.rights.submit_for_creator();
    locked.release(Exit::Pause);
    own_rights?;
    set_sq_thread(ring, &shared);
    Ok(shared.add(ring))
}

/// Makes the SQ thread of a new ring known to the ring.
fn set_sq_thread(ring: &mut Arc<Ring>, thread: &Arc<SqThread>) {
    let ring = Arc::get_mut(ring).expect("no other thread has a new ring");
    ring.sq_thread = SqThreadHandle::new(thread.clone());
}

/// Removes a ring from its SQ thread. The SQ thread ends when its last ring is removed.
pub(crate) fn leave(ring: &Arc<Ring>) {
    let Some(thread) = ring.sq_thread.thread.lock().take() else { return };
    thread.rings.lock().retain(|other| !Arc::ptr_eq(other, ring));
    thread.changes.fetch_add(1, Ordering::SeqCst);
    thread.wake();
    thread.announce_room();
}

impl SqThread {
    fn run(&self) {
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
                if self.end_if_without_ring() {
                    return;
                }
                // The SQ thread's copy of the list of rings is outdated: another thread has just
                // added a ring, and is about to raise `changes`.
                processor::yield_now();
                continue;
            }
            if self.serve(&rings) {
                last_work = Ticks::now();
                continue;
            }
            if memory_reserve::is_low() {
                // Nothing can be submitted without memory.
                let _ = wait::nanosleep(LOW_MEMORY_PAUSE);
            }
            let is_early = Ticks::now().since(last_work) < self.idle.load(Ordering::Relaxed);
            if is_early && !order::sq_thread_sleeps_early() {
                // The program chose the idle time. So this loop spins only as long as the program
                // asked for.
                spin();
                continue;
            }
            self.sleep(&rings, seen);
            last_work = Ticks::now();
        }
    }

    /// Submits the requests in the rings' SQs; returns whether there was any work.
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
                reap::reap(&mut locked);
                // No other thread polls the devices for the requests in flight, so the SQ thread
                // stays awake.
                worked |= locked.devices.queues.in_flight() > 0;
            }
            // With several rings, a submit helper makes deferred submits, so that a slow device
            // delays no other ring.
            if rings.len() > 1 {
                locked.release(Exit::LeaveInside)
            } else {
                locked.release(Exit::Leave)
            }
            worked |= taken > 0;
            if taken > 0 {
                self.announce_room();
            }
        }
        worked
    }

    /// Sleeps until a waker ends the sleep. Returns at once if there is work. `seen`: the value of
    /// `changes` when `rings` was copied.
    fn sleep(&self, rings: &[Arc<Ring>], seen: u32) {
        // This thread announces itself as a sleeper before it sets NEED_WAKEUP. So a thread in
        // io_uring_enter(2) that sees NEED_WAKEUP finds a sleeper to wake.
        let ticket = self.words.sleep.announce(Sleeper::Futex, 1);
        let mut idle = self.changes.load(Ordering::SeqCst) == seen;
        for ring in rings {
            let mut locked = ring.lock();
            if locked.closed {
                // The ring is closed, so the program may use the ring's memory for something else.
                // So NEED_WAKEUP is not set in that memory.
                idle = false;
                locked.release(Exit::Pause);
                continue;
            }
            let nothing = locked.queues.sq.prepare_sleep();
            idle &= nothing || ring.is_disabled();
            locked.release(Exit::Pause);
            // While the SQ thread held the lock just now, a worker or the ring watcher may have
            // failed to get the lock. If so, it has left its work to the SQ thread.
            idle &= !ring.has_work_left();
        }
        if idle {
            let _ = self.words.sleep.sleep(&ticket, None);
        }
        // `retract` returns whether a waker has chosen this thread. The result is not needed here,
        // because the thread checks for work in any case.
        let _ = self.words.sleep.retract(ticket);
        for ring in rings {
            let locked = ring.lock();
            // A ring that was closed during the sleep keeps NEED_WAKEUP set for other processes
            // (`Ring::end`).
            if !locked.closed {
                locked.queues.sq.end_sleep();
            }
            locked.release(Exit::Pause);
        }
    }
}

/// Spins or yields before the SQ thread's next poll. On a machine with one processor the SQ thread
/// yields: new work can only come from another thread, which needs the processor. On other machines
/// the SQ thread spins, as the kernel's does, and the scheduler preempts it for other threads. If
/// the SQ thread yielded there, it would lose some milliseconds each time, while other threads use
/// up their time slices.
fn spin() {
    if processor::is_the_only_one() {
        processor::yield_now();
    } else {
        core::hint::spin_loop();
    }
}
