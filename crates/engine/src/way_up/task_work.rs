//! The way up from other threads: workers put finished requests on the ring's
//! task-work list, and the ring's own thread completes them. If nobody is
//! inside, the thread that brings the work does it, unless the ring defers
//! task work to its owner.
//!
//! Who brings work: push, full barrier (the push itself), then look whether
//! someone sleeps or holds the lock. Who leaves: release the lock (a full
//! barrier), then look at the list once more. One of the two sees the other.

use crate::attendant;
use crate::complete;
use crate::device_queues;
use crate::issue;
use crate::request::{Progress, RequestEntry};
use crate::ring::{LockedRing, Ring};
use crate::{fast_poll, timeout};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, Ordering};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::epoll::{self, Epoll};
use usring_sys::mutex::Mutex;
use usring_sys::sleep::{SleepWord, Wake};
use usring_sys::{Errno, eventfd};
use usring_uapi::io_uring as abi;

/// How sleepers of a ring are woken.
#[derive(Default)]
pub(crate) struct Wakers {
    pub sleep: SleepWord,
    /// In the ring's epoll set, once there is one; its number for wakers.
    descriptor: Mutex<Option<OwnedDescriptor>>,
    number: AtomicI32,
}

impl Wakers {
    /// Puts a wake descriptor into the ring's new epoll set.
    pub fn join(&self, set: &Epoll) -> Result<(), Errno> {
        let descriptor = eventfd::create()?.into_private()?;
        set.add(descriptor.number(), epoll::IN | epoll::EDGE, fast_poll::WAKE_DATA)?;
        self.number.store(descriptor.number(), Ordering::Release);
        *self.descriptor.lock() = Some(descriptor);
        Ok(())
    }

    /// Wakes one group of sleepers for work of this weight; the caller has
    /// just pushed it. Answers whether there was somebody.
    #[inline(always)]
    fn wake_one(&self, queued: u32) -> bool {
        let target = self.sleep.wake_target_after_rmw(queued);
        target != Wake::Nobody && self.carry_out(target)
    }

    /// Wakes sleepers for CQEs that were published before the lock was
    /// released, so many of which are ready now: not who waits for more.
    #[inline(always)]
    pub fn wake_all(&self, ready: u32) {
        while self.wake_one(ready) {}
    }

    /// Has whoever watches the epoll set come here: a waiter, or the attendant.
    #[cold]
    pub fn call_watcher(&self) {
        eventfd::signal(self.number.load(Ordering::Acquire));
    }

    #[inline(never)]
    fn carry_out(&self, target: Wake) -> bool {
        match target {
            Wake::Nobody => return false,
            Wake::Futex => self.sleep.wake_futex(),
            Wake::Epoll => eventfd::signal(self.number.load(Ordering::Acquire)),
        }
        true
    }
}

/// Gives a finished request to its ring. Any thread; never blocks on the ring.
pub(crate) fn add(ring: &Arc<Ring>, request: RequestEntry) {
    // Never lazy: what a worker brings may be what a chain, a drain or a
    // counted timeout waits for (the kernel's workers wake at once, too).
    let queued = ring.task_work.push_weighted(request, u32::MAX);
    if ring.defers_task_work() {
        announce_deferred(ring, true);
        ring.wakers.wake_one(queued);
        return;
    }
    if ring.wakers.wake_one(queued) {
        return;
    }
    run_if_unattended(ring);
}

/// The owner of a DEFER_TASKRUN ring alone runs its work; others only tell.
pub(crate) fn announce_deferred(ring: &Arc<Ring>, by_worker: bool) {
    if ring.has(abi::IORING_SETUP_TASKRUN_FLAG) {
        ring.memory.set_flag(abi::IORING_SQ_TASKRUN);
    }
    ring.readiness.announce();
    if let Some(event) = &*ring.told_of_work.lock() {
        event.tell(ring, by_worker);
    }
}

/// The owner is about to look at all there is: from here on whoever brings
/// more says so again.
pub(crate) fn hear_announcement(locked: &LockedRing) {
    if locked.ring.memory.flags() & abi::IORING_SQ_TASKRUN != 0 {
        locked.sq.clear_flag(abi::IORING_SQ_TASKRUN);
    }
    locked.ring.readiness.hear();
}

/// Runs what waits while nobody drives the ring. If somebody does, that
/// driver looks again after it has released the lock.
#[inline(never)]
pub(crate) fn run_if_unattended(ring: &Arc<Ring>) {
    while ring.has_work_left() {
        let Some(mut locked) = ring.try_lock() else { return };
        if ring.attendance.take_call() {
            run_all(&mut locked);
        } else {
            run(&mut locked);
        }
        locked.finish_batch();
        attendant::take_over(&mut locked);
        locked.unlock();
    }
}

/// Completes what other threads have finished.
#[inline]
pub(crate) fn run(locked: &mut LockedRing) {
    if locked.ring.task_work.is_empty() {
        return;
    }
    run_batch(locked);
}

#[inline(never)]
fn run_batch(locked: &mut LockedRing) {
    hear_announcement(locked);
    let ring = locked.ring.clone();
    for mut request in ring.task_work.take_all() {
        debug_assert!(request.progress == Progress::Ran);
        if locked.closed {
            // Nobody looks any more, and what it was linked to must not start.
            continue;
        }
        locked.completed_by_worker = true;
        locked.statistics.count_worker(request.sqe.opcode);
        let result = match request.row.finish {
            Some(finish) => {
                let result = request.result;
                finish(locked, &mut request, result)
            }
            None => request.result,
        };
        let failed = crate::op::is_failure(&request, result);
        complete::complete(locked, request, issue::Answer { result, failed });
    }
    issue::run_issuable(locked);
}

/// Everything that may have become due: files, timers, finished work.
pub(crate) fn run_all(locked: &mut LockedRing) {
    run(locked);
    fast_poll::look(locked);
    device_queues::reap(locked);
    timeout::expire(locked);
}
