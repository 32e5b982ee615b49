//! Finishes a driver's batch, and releases the ring's lock in one of the ways that [`Exit`] lists.

use crate::completion::complete;
use crate::driving::{batch, deferred_submit, expiry, ring_watcher, task_work};
use crate::ring::{Exit, LockedRing, ReleaseCheck, Ring};
use alloc::sync::Arc;

impl<'a> LockedRing<'a> {
    /// Issues all issuable requests, publishes the batch's CQEs, and signals the registered eventfd
    /// and the ring's descriptor. Sleepers are woken when the lock is released.
    #[inline(always)]
    pub fn finish_batch(&mut self) {
        let unfinished = self.waiting.timeouts.has_counted(self.queues.cq.tail()) || self.has_issuable();
        if unfinished || self.registered.files.is_due() || self.registered.buffers.has_retired() {
            self.finish_rest();
        }
        if self.queues.cq.publish() {
            self.notify_published();
        } else if self.queues.cq.has_overflow() {
            self.notify_of_backlog();
        }
    }

    /// Notifies pollers and sleepers of newly published CQEs. Signals the ring's descriptor, the
    /// registered eventfd and the requests' own eventfds at once. Sleepers are woken when the lock
    /// is released. Every publication of CQEs calls this function.
    #[inline(always)]
    fn notify_published(&mut self) {
        self.notify.published = true;
        if self.queues.cq.has_overflow() {
            // A thread that is woken for the CQEs sees the backlog (CQEs without room in the CQ),
            // too. So the growth of the backlog needs no notification of its own.
            let _ = self.queues.cq.take_growth();
        }
        self.notify_watchers();
    }

    /// Notifies sleepers, and pollers of the ring's descriptor, that the backlog (CQEs without room
    /// in the CQ) has grown. Their next io_uring_enter(2) moves the backlog into the CQ. A
    /// registered eventfd is not signalled: it counts only CQEs in the CQ.
    #[cold]
    fn notify_of_backlog(&mut self) {
        if self.queues.cq.take_growth() {
            self.notify.published = true;
            self.notify.completed_by_worker = false;
            if self.ring.readiness.is_watched() {
                self.signal_pollers();
            }
        }
    }

    #[inline(always)]
    fn has_issuable(&self) -> bool {
        !self.queues.issuable.is_empty() || !self.queues.successors.is_empty()
    }

    #[cold]
    #[inline(never)]
    fn finish_rest(&mut self) {
        loop {
            if self.registered.files.is_due() {
                self.publish_files();
                let tags = self.registered.files.take_released();
                tags.into_iter().for_each(|tag| complete::post_tag(self, tag));
            }
            if self.registered.buffers.has_retired() {
                let tags = self.registered.buffers.take_released();
                tags.into_iter().for_each(|tag| complete::post_tag(self, tag));
            }
            // Timeouts also count the CQEs of released files and buffers, which the loop has just
            // posted.
            expiry::flush_counted(self);
            if !self.has_issuable() {
                return;
            }
            batch::run_issuable(self);
        }
    }

    /// Moves the backlog into the CQ, as far as the CQ has room. Completes timeouts that count
    /// these CQEs.
    pub fn flush_overflow(&mut self) {
        while self.queues.cq.has_overflow() && self.queues.cq.flush_overflow() {
            self.notify_published();
            if !self.waiting.timeouts.has_counted(self.queues.cq.tail()) {
                return;
            }
            self.finish_batch();
        }
    }

    #[inline(always)]
    fn notify_watchers(&mut self) {
        if self.ring.readiness.is_watched() {
            self.signal_pollers();
        }
        let by_worker = core::mem::take(&mut self.notify.completed_by_worker);
        if let Some(event) = &self.notify.event_descriptor {
            event.signal(&self.ring.memory, by_worker);
        }
        if self.notify.request_events.is_due() {
            self.notify.request_events.signal();
        }
    }

    /// Releases the ring's lock. [`Exit`] says what the driver does before and after that.
    #[inline(always)]
    pub fn release(mut self, exit: Exit) {
        if matches!(exit, Exit::Leave | Exit::LeaveInside) {
            self.finish_batch();
        }
        let release_check = match exit {
            Exit::Leave | Exit::Finished => self.flush_and_watch(deferred_submit::flush),
            Exit::FinishedForOthers => self.flush_and_watch(deferred_submit::flush_or_leave),
            Exit::FinishedInside | Exit::LeaveInside => self.flush_and_watch(deferred_submit::leave_to_helper),
            Exit::Pause => self.submit_deferred(),
            Exit::ToSubmit | Exit::Bare => self,
        }
        .unlock();
        match exit {
            Exit::Leave | Exit::Finished => drop(release_check),
            Exit::LeaveInside | Exit::ToSubmit => release_check.run(task_work::run_inside),
            Exit::FinishedForOthers | Exit::FinishedInside | Exit::Pause | Exit::Bare => {
                core::mem::forget(release_check)
            }
        }
    }

    /// Makes deferred submits by `flush`, and makes the ring watcher responsible for the ring's
    /// waiting requests.
    #[inline(always)]
    fn flush_and_watch(mut self, flush: impl Fn(Self) -> Self) -> Self {
        loop {
            if self.devices.queues.has_pending_submits() {
                self = flush(self);
            }
            ring_watcher::take_over(&mut self);
            if !self.devices.queues.has_pending_submits() {
                return self;
            }
        }
    }

    #[inline(always)]
    fn submit_deferred(mut self) -> Self {
        while self.devices.queues.has_pending_submits() {
            self = deferred_submit::flush(self);
        }
        self
    }
}

impl ReleaseCheck<'_> {
    /// Calls `run` if other threads have left work for this driver while this driver held the
    /// ring's lock.
    #[inline(always)]
    fn run(self, run: fn(&Arc<Ring>)) {
        self.run_new_work(run);
        core::mem::forget(self);
    }

    #[inline(always)]
    fn run_new_work(&self, run: fn(&Arc<Ring>)) {
        if self.0.has_work_left() && (!self.0.defers_task_work() || self.0.task_work.is_sealed()) {
            run(self.0);
        }
    }
}

impl Drop for ReleaseCheck<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.run_new_work(task_work::run_if_unattended);
    }
}
