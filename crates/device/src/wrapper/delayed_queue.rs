//! An inner queue pair whose completions are held back until their due times. Both wrappers use it.

use crate::batches::AT_ONCE;
use crate::driver::{DeferredSubmit, QueueOptions, QueuePair, Submission};
use crate::request::{Completion, Completions, DeviceRequest};
use crate::timeline::Timeline;
use crate::timer_interrupt::TimerInterrupt;
use alloc::boxed::Box;
use usring_sys::Errno;
use usring_sys::epoll::{self, Epoll};
use usring_sys::ticks::Ticks;

/// A queue pair that delays completions: the inner queue pair, its delayed completions, and a
/// common interrupt. The interrupt is an epoll set of the inner interrupt and a timer. It is
/// readable when one of the two is.
pub(super) struct DelayedQueue {
    inner: Box<dyn QueuePair>,
    depth: u32,
    /// Number of requests that the user has in flight. This includes requests that the inner queue
    /// pair has completed, while their completions are held back.
    in_flight: u32,
    timeline: Timeline,
    timer: TimerInterrupt,
    either: Option<Epoll>,
    /// Completions found by one poll of the inner queue pair.
    found: Completions,
}

impl DelayedQueue {
    pub fn new(inner: Box<dyn QueuePair>, options: QueueOptions) -> Result<DelayedQueue, Errno> {
        let timeline = Timeline::new(options.depth)?;
        let timer = TimerInterrupt::new(options.interrupts)?;
        let mut either = None;
        if let Some(number) = timer.number() {
            let set = Epoll::new()?;
            set.add(number, epoll::IN, 0)?;
            set.add(inner.interrupt().ok_or(Errno::EINVAL)?, epoll::IN, 0)?;
            either = Some(set);
        }
        Ok(DelayedQueue {
            inner,
            depth: options.depth,
            in_flight: 0,
            timeline,
            timer,
            either,
            found: Completions::new(),
        })
    }

    pub fn is_full(&self) -> bool {
        self.in_flight == self.depth
    }

    /// Submits a request to the inner queue pair. The caller has checked by
    /// [`DelayedQueue::is_full`] that there is room.
    pub fn submit(&mut self, request: &DeviceRequest) -> Submission {
        let submission = self.inner.submit(request);
        if submission == Submission::Accepted {
            self.in_flight += 1;
        }
        submission
    }

    /// Accepts a request without passing it to the inner queue pair. The request completes with
    /// `answer`, or never if `answer` is `None`.
    pub fn accept_with_answer(&mut self, answer: Option<Completion>) {
        self.in_flight += 1;
        if let Some(completion) = answer {
            self.timeline.add(AT_ONCE, completion);
        }
    }

    pub fn ring_doorbell(&mut self, due: impl FnMut(&Completion, Ticks) -> Ticks) {
        self.inner.ring_doorbell();
        self.after_doorbell(due);
    }

    /// Moves the completions that the inner device has posted at the doorbell to the timeline,
    /// which holds them until they are due.
    fn after_doorbell(&mut self, due: impl FnMut(&Completion, Ticks) -> Ticks) {
        self.take_in(due);
        self.timer.advance(self.timeline.earliest());
    }

    pub fn defers_submits(&self) -> bool {
        self.inner.defers_submits()
    }

    pub fn begin_deferred(&mut self, due: impl FnMut(&Completion, Ticks) -> Ticks) -> Option<DeferredSubmit> {
        let batch = self.inner.begin_deferred();
        if batch.is_none() {
            self.after_doorbell(due);
        }
        batch
    }

    pub fn end_deferred(&mut self, batch: DeferredSubmit, due: impl FnMut(&Completion, Ticks) -> Ticks) {
        self.inner.end_deferred(batch);
        self.after_doorbell(due);
    }

    pub fn poll(&mut self, completions: &mut Completions, due: impl FnMut(&Completion, Ticks) -> Ticks) {
        self.take_in(due);
        let handed_over = self.timeline.collect(completions);
        if handed_over > 0 {
            self.in_flight -= handed_over;
            self.timer.acknowledge();
        } else {
            self.timer.advance(self.timeline.earliest());
        }
    }

    /// Moves all completions of the inner queue pair to the timeline, which holds them until they
    /// are due. `due` returns the due time of a completion.
    fn take_in(&mut self, mut due: impl FnMut(&Completion, Ticks) -> Ticks) {
        loop {
            self.found.clear();
            self.inner.poll(&mut self.found);
            if self.found.as_slice().is_empty() {
                return;
            }
            let now = Ticks::now();
            for completion in self.found.as_slice() {
                self.timeline.add(due(completion, now), *completion);
            }
            // The inner poll has cleared the inner interrupt. The user may still be asleep on the
            // common interrupt, so the inner interrupt is armed again.
            if self.found.has_room() && (!self.timer.is_armed() || self.inner.arm_interrupt()) {
                return;
            }
        }
    }

    pub fn interrupt(&self) -> Option<i32> {
        self.either.as_ref().map(Epoll::number)
    }

    pub fn arm_interrupt(&mut self) -> bool {
        self.timer.arm(self.timeline.earliest()) && self.inner.arm_interrupt()
    }
}
