//! Task work: requests that another thread has finished, and messages of other rings. They wait on
//! the ring's task-work list until a driver completes them. The driver is:
//!
//! - usually a thread inside the ring;
//! - if no thread is inside, the thread that adds the work to the list;
//! - on a ring that defers task work, its owner alone;
//! - on a ring that processes share, the thread that adds the work.
//!
//! The hand-over:
//!
//! | the thread that adds work | the driver that leaves |
//! |---|---|
//! | pushes, which is a full barrier | releases the lock, which is a full barrier |
//! | checks for a sleeper or a lock holder | checks the list once more |
//!
//! So at least one of the two sees the other's step.
//!
//! Each ring has its own list, sleep word and eventfd, so threads of different rings do not contend
//! here. (Until 5.11, the kernel's notification by signal took a lock that all threads of a process
//! share.)
//!
//! The list of a closed ring is sealed. A thread that later pushes an entry frees the entry, or
//! returns the entry to the ring that sent it.

use crate::completion::complete;
use crate::driving::{batch, dispatch, expiry, reap, shared_work};
use crate::op::message_ring;
use crate::probes;
use crate::request::outcome::Answer;
use crate::request::{Progress, RequestEntry};
use crate::ring::{Exit, LockedRing, Ring};
use crate::submission::opcode_table;
use crate::waiting::tasks::tasks;
use alloc::boxed::Box;
use alloc::sync::Arc;
use usring_sys::epoll::{self, Epoll};
use usring_sys::queue::{Rest, Urgency};
use usring_sys::{process_mutex, processor};
use usring_uapi::Cqe;
use usring_uapi::io_uring as abi;

/// How the kernel makes a thread run its task work: one way for each kind of ring. The comment of
/// [`Ring::add_task_work`] says how usring runs it instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// The owner is not interrupted: it runs the work when it asks for events (DEFER_TASKRUN). The
    /// thread that pushes the first entry announces the work to the program. This thread signals
    /// the eventfd, sets the SQ flag TASKRUN, and makes the ring's descriptor readable. A sleeping
    /// owner is woken once the list has as many entries as the owner waits for.
    #[doc(alias = "TWA_NONE")]
    None,
    /// In the kernel, the thread runs the work at its next return to user mode. The notification
    /// ends no sleep except an interruptible one (COOP_TASKRUN).
    #[doc(alias = "TWA_SIGNAL_NO_IPI")]
    Resume,
    /// In the kernel, the thread is interrupted at once and runs the work, even if it sleeps in
    /// another system call. Without the interrupt, that call could sleep for ever: it may wait for
    /// an event that only this task work causes.
    #[doc(alias = "TWA_SIGNAL")]
    Signal,
}

impl Notification {
    pub fn of(ring: &Ring) -> Notification {
        if ring.defers_task_work() {
            Notification::None
        } else if ring.has(abi::IORING_SETUP_COOP_TASKRUN) {
            Notification::Resume
        } else {
            Notification::Signal
        }
    }
}

impl Ring {
    /// Passes a request that a worker has finished to the request's ring. Any thread may call this
    /// function. The caller never waits for a driver of this process. It may have to wait for a
    /// driver in another process ([`run_if_unattended`]).
    pub(crate) fn add_finished(self: &Arc<Self>, request: RequestEntry) {
        // The entry is urgent, because a chain, a drain or a counted timeout may wait for a
        // worker's result. The kernel's workers also wake waiters at once.
        self.add_task_work(request, Urgency::Urgent, true);
    }

    /// Puts a request on the ring's task-work list, and notifies the thread that has to complete
    /// the request. `by_worker`: a worker has run the request, so an eventfd with EVENTFD_ASYNC is
    /// signalled, too. If `by_worker` is `false`, the caller may be inside another ring. This
    /// function then never waits for this ring's lock.
    pub(crate) fn add_task_work(self: &Arc<Self>, request: RequestEntry, urgency: Urgency, by_worker: bool) {
        let run = if by_worker { run_if_unattended } else { run_inside };
        let pushed = self.task_work.push(request, urgency);
        if pushed.sealed {
            return run(self);
        }
        match Notification::of(self) {
            Notification::None => {
                if pushed.first {
                    announce_deferred(self, by_worker);
                }
                self.wakers.wake_target(pushed.queued);
            }
            // In the kernel, only the ring's own thread can complete the request, so `Signal`
            // interrupts that thread. Here the thread that adds the request can complete it, so no
            // interrupt is needed. The ring's own thread may sleep in another system call, for an
            // event that only this task work causes. Then the thread that adds the work causes that
            // event.
            Notification::Resume | Notification::Signal => {
                // If an SQ thread polls the devices, a waiter only reads the CQ. Such a waiter
                // would not do the task work if it were woken.
                let wake = || self.wakers.wake_target(u32::MAX);
                if self.is_polled_by_thread() || !self.control.sharing().leave_to_waiter(wake) {
                    run(self);
                }
            }
        }
    }
}

/// Notifies the owner of a DEFER_TASKRUN ring of work that only the owner runs: entries on the
/// task-work list, or completions of devices. `by_worker`: a worker has run one of the requests, so
/// an eventfd with EVENTFD_ASYNC is signalled, too.
pub(crate) fn announce_deferred(ring: &Arc<Ring>, by_worker: bool) {
    show_deferred(ring);
    if let Some(event) = &*ring.work_event.lock() {
        event.signal(&ring.memory, by_worker);
    }
}

/// Notifies the owner of a DEFER_TASKRUN ring that the ring's epoll set reports a file, a timer or
/// a device. Does not signal the ring's eventfd if the eventfd itself probably caused the report.
pub(crate) fn announce_files(ring: &Arc<Ring>) {
    show_deferred(ring);
    let event = ring.work_event.lock().clone();
    let Some(event) = event.filter(|event| !event.is_cause()) else { return };
    if event.is_awaited() && !ring.is_shared() && watch_again_if_handled(ring) {
        return;
    }
    event.signal(&ring.memory, false);
}

/// Asks the ring's epoll set whether the owner has handled the event. If the set reports nothing,
/// lets the ring watcher watch the set again, and returns `true`. Returns `false` if the set still
/// reports an event, or if a driver keeps the lock: the ring watcher tries only a few times.
fn watch_again_if_handled(ring: &Arc<Ring>) -> bool {
    const MOST_TRIES: u32 = 16;
    let mut tries = 0..MOST_TRIES;
    let locked = loop {
        match (ring.try_lock(), tries.next()) {
            (Ok(locked), _) => break locked,
            (Err(_), Some(_)) => processor::yield_now(),
            (Err(_), None) => return false,
        }
    };
    let is_ready = |set: &Epoll| epoll::poll_now(set.number(), epoll::IN).is_ok_and(|ready| ready != 0);
    if locked.waiting.polls.set().is_some_and(is_ready) {
        return false;
    }
    locked.release(Exit::FinishedInside);
    // This thread was the driver for a moment. Another thread may have left work to this thread
    // meanwhile.
    if ring.task_work.is_sealed() {
        run_inside(ring);
    }
    true
}

/// Sets the TASKRUN flag in the SQ ring, if the program asked for it, and signals threads that poll
/// the ring's descriptor.
fn show_deferred(ring: &Ring) {
    if ring.has(abi::IORING_SETUP_TASKRUN_FLAG) {
        ring.memory.set_flag(abi::IORING_SQ_TASKRUN);
    }
    ring.readiness.announce();
}

/// Clears the announcements of work, because the owner is about to check for all work. A thread
/// that adds more work later announces it again.
pub(crate) fn clear_announcement(locked: &LockedRing) {
    if locked.ring.memory.flags() & abi::IORING_SQ_TASKRUN != 0 {
        locked.queues.sq.clear_flag(abi::IORING_SQ_TASKRUN);
    }
    locked.ring.readiness.clear_announcement();
}

/// Runs the ring's waiting work, unless a thread of this process drives the ring. That driver
/// checks for work after it has released the lock. A driver in another process does not check this
/// process's list, so the caller waits until that driver releases the lock.
#[inline(never)]
pub(crate) fn run_if_unattended(ring: &Arc<Ring>) {
    run_unattended(ring, Exit::FinishedForOthers, || Some(ring.lock()));
}

/// Runs the ring's waiting work, unless the ring has a driver. If the driver is in another process,
/// the ring watcher waits for it and then runs the work. The caller itself must not wait: it is
/// inside another ring or has a deferred submit, and the driver may be waiting for the caller.
#[inline(never)]
pub(crate) fn run_inside(ring: &Arc<Ring>) {
    run_unattended(ring, Exit::FinishedInside, || {
        let ring = ring.clone();
        tasks().run(Box::new(move || run_if_unattended(&ring)));
        None
    });
}

/// Runs the ring's waiting work, and then releases the lock by `exit`. If a driver in another
/// process holds the lock, calls `wait`. `wait` acquires the lock, or passes the work to the ring
/// watcher and returns `None`.
#[inline(always)]
fn run_unattended<'a>(ring: &'a Arc<Ring>, exit: Exit, wait: impl Fn() -> Option<LockedRing<'a>>) {
    let drive = |mut locked: LockedRing<'a>| {
        if ring.watch.take_must_be_driven() {
            if ring.is_shared() {
                shared_work::check(&mut locked);
            }
            run_all(&mut locked);
            if locked.queues.cq.has_overflow_alone() && ring.is_shared() {
                locked.flush_overflow();
            }
        } else {
            run(&mut locked);
        }
        locked.finish_batch();
        locked.release(exit);
    };
    process_mutex::run_unattended(|| ring.has_work_left(), || ring.try_lock(), wait, drive);
}

/// Maximum number of task-work entries that one run completes on a DEFER_TASKRUN ring, unless the
/// owner waits for more completions. The limit lets the owner return to its program now and then
/// (`IO_LOCAL_TW_DEFAULT_MAX` in the kernel).
const DEFERRED_RUN: u32 = 20;

/// Completes the requests on the task-work list.
#[inline]
pub(crate) fn run(locked: &mut LockedRing) {
    run_for(locked, u32::MAX);
}

impl LockedRing<'_> {
    /// Completes the requests on the task-work list. `op::message_ring` calls this function when
    /// the driver is inside another ring.
    pub fn run_task_work(&mut self) {
        run(self);
    }
}

/// Completes requests on the task-work list, for a caller that waits for `wanted` completions. On a
/// ring that defers task work, the limit is the larger of `wanted` and [`DEFERRED_RUN`] entries.
#[inline]
pub(crate) fn run_for_wait(locked: &mut LockedRing, wanted: u32) {
    let limit = if locked.ring.defers_task_work() { wanted.max(DEFERRED_RUN) } else { u32::MAX };
    run_for(locked, limit);
}

#[inline]
fn run_for(locked: &mut LockedRing, limit: u32) {
    if locked.queues.consumer.begin() {
        run_batch(locked, limit);
    }
}

#[inline(never)]
fn run_batch(locked: &mut LockedRing, limit: u32) {
    clear_announcement(locked);
    let mut by_worker = false;
    let mut entries = 0;
    while entries < limit {
        let Some(request) = locked.queues.consumer.take() else { break };
        entries += 1;
        by_worker |= request.progress == Progress::Ran;
        run_one(locked, request);
    }
    if entries != 0 && probes::is_on(locked.ring) {
        probes::ran(locked.ring, entries);
    }
    batch::run_issuable(locked);
    // A thread that pushes an entry behind another one does not notify the owner. So a driver that
    // leaves entries on the list notifies the owner.
    if locked.queues.consumer.stop() == Rest::Entries && locked.ring.defers_task_work() {
        announce_deferred(locked.ring, by_worker);
    }
}

fn run_one(locked: &mut LockedRing, request: RequestEntry) {
    match request.progress {
        Progress::Visiting => message_ring::run_visit(locked, request),
        // The ring is closed: no thread reads its CQEs, and requests linked to this one must not
        // start. The request is only released.
        _ if locked.closed => {}
        Progress::Message => {
            locked.post(Cqe { user_data: request.sqe.user_data, res: request.result, flags: request.cqe_flags });
            locked.queues.pool.give_back(request);
        }
        Progress::Returned => {
            let result = request.result;
            complete::complete(locked, request, result.into());
        }
        Progress::New | Progress::Refused | Progress::NotStarted | Progress::Ran => finish(locked, request),
    }
}

/// Completes a request that a worker has run. If the request is a multishot that continues, issues
/// it again instead.
fn finish(locked: &mut LockedRing, mut request: RequestEntry) {
    debug_assert!(request.progress == Progress::Ran);
    locked.notify.completed_by_worker = true;
    // The worker may have made a file ready, such as the other end of a pipe, or an inotify queue.
    // So the epoll set may have something to report.
    locked.waiting.polls.may_report = true;
    locked.queues.statistics.count_worker(request.sqe.opcode);
    let result = match opcode_table::row(request.sqe.opcode).finish {
        Some(finish) => {
            let result = request.result;
            finish(locked, &mut request, result)
        }
        None => request.result,
    };
    if request.progress == Progress::New {
        // The multishot has posted one result, and continues.
        locked.queues.issuable.push_back(request);
        return;
    }
    let failed = request.is_failure(result);
    complete::complete(locked, request, Answer { result, failed });
}

/// Runs all that may be due on the ring: finished work, ready files, device completions, timers.
pub(crate) fn run_all(locked: &mut LockedRing) {
    run(locked);
    dispatch::poll(locked);
    reap::reap(locked);
    expiry::expire(locked);
}
