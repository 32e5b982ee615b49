//! A queue pair, together with the data that its user needs to wait efficiently: the number of
//! requests in flight, and when they were submitted.
//!
//! - A wait is one `begin_wait`, followed by alternating calls of `poll` and `pause`, until enough
//!   requests have completed.
//! - `pause` follows the device's policy, which may change between two polls.
//! - Requests are tracked only while the policy is hybrid: when each was submitted, which is the
//!   oldest, and how long earlier requests took. The clock is read once per batch. Under the other
//!   policies, a submission only loads the policy, and a poll only tests a pointer.

use crate::driver::{DeferredSubmit, QueueOptions, QueuePair, Submission};
use crate::policy::{PolicyWord, PollPolicy};
use crate::request::{Completions, DeviceRequest};
use crate::tracker::{Tracker, WaiterKind};
use alloc::boxed::Box;
use usring_sys::clock::Nanoseconds;
use usring_sys::kernel_aio::Waiter;
use usring_sys::width;

/// A queue pair with one user.
pub struct Channel {
    queue: Box<dyn QueuePair>,
    policy: PolicyWord,
    in_flight: u32,
    options: QueueOptions,
    waiter: WaiterKind,
    tracker: Option<Box<Tracker>>,
    /// Whether the channel keeps the tracker (the submission times of requests) while the policy is
    /// not hybrid. Otherwise a change to another policy frees the tracker.
    keeps_tracking: bool,
}

/// One wait for completions, from its start to its end.
#[derive(Debug, Default)]
pub struct Wait {
    slept: bool,
}

/// The next step of a thread after a poll that found too few completions. Ordered by urgency: a
/// thread that waits for several channels (queue pairs) uses the minimum of their results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pause {
    /// Poll again.
    Spin,
    /// Sleep for this time ([`usring_sys::timer_slack::sleep_precisely`]), then poll again. One
    /// wait contains at most one such sleep.
    Sleep(Nanoseconds),
    /// Arm the interrupt and sleep on it.
    Interrupt,
}

impl Channel {
    pub(crate) fn new(
        queue: Box<dyn QueuePair>,
        policy: PolicyWord,
        options: QueueOptions,
        waiter: WaiterKind,
    ) -> Self {
        let mut channel =
            Channel { queue, policy, in_flight: 0, options, waiter, tracker: None, keeps_tracking: false };
        if policy.is_hybrid() {
            channel.tracker();
        }
        channel
    }

    /// Allocates the tracker of submission times, which hybrid policies need, and keeps it. Users
    /// that must not allocate later call this first, because the policy may change to hybrid at any
    /// time.
    pub fn keep_tracking(&mut self) {
        self.keeps_tracking = true;
        self.tracker();
    }

    /// Submits a request; see [`QueuePair::submit`].
    #[inline(always)]
    pub fn submit(&mut self, request: &DeviceRequest) -> Submission {
        let submission = self.queue.submit(request);
        if submission == Submission::Accepted {
            self.in_flight += 1;
            if self.policy.is_hybrid() {
                self.tracker().submitted(request);
            }
        }
        submission
    }

    /// Notifies the device of the accepted requests; see [`QueuePair::ring_doorbell`].
    #[inline]
    pub fn ring_doorbell(&mut self) {
        self.queue.ring_doorbell();
        if let Some(tracker) = &mut self.tracker {
            tracker.end_batch();
        }
    }

    /// Returns whether a thread may have to sleep while it notifies the device; see
    /// [`QueuePair::defers_submits`].
    pub fn defers_submits(&self) -> bool {
        self.queue.defers_submits()
    }

    /// Begins a deferred submit; see [`QueuePair::begin_deferred`].
    #[inline]
    pub fn begin_deferred(&mut self) -> Option<DeferredSubmit> {
        let batch = self.queue.begin_deferred();
        if let Some(tracker) = &mut self.tracker {
            tracker.end_batch();
        }
        batch
    }

    /// Ends a deferred submit; see [`QueuePair::end_deferred`].
    #[inline]
    pub fn end_deferred(&mut self, batch: DeferredSubmit) {
        self.queue.end_deferred(batch);
    }

    /// Appends the completed requests; see [`QueuePair::poll`].
    #[inline]
    pub fn poll(&mut self, completions: &mut Completions) {
        let before = completions.as_slice().len();
        self.queue.poll(completions);
        self.in_flight -= width::count(completions.as_slice().len() - before);
        if self.tracker.is_some() {
            self.note_completions(completions, before);
        }
    }

    /// Returns whether a poll may find completions; see [`QueuePair::has_completions`].
    #[inline]
    pub fn has_completions(&mut self) -> bool {
        self.queue.has_completions()
    }

    #[inline(never)]
    fn note_completions(&mut self, completions: &Completions, before: usize) {
        if !self.policy.is_hybrid() && !self.keeps_tracking {
            self.tracker = None;
        } else if let Some(tracker) = &mut self.tracker {
            tracker.learn_from_poll(&completions.as_slice()[before..]);
        }
    }

    fn tracker(&mut self) -> &mut Tracker {
        let (waiter, depth) = (self.waiter, self.options.depth);
        self.tracker.get_or_insert_with(|| Box::new(Tracker::new(waiter, depth)))
    }

    /// Returns the number of requests that the queue pair has accepted and not yet completed.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the descriptor of the interrupt; see [`QueuePair::interrupt`].
    pub fn interrupt(&self) -> Option<i32> {
        self.queue.interrupt()
    }

    /// Returns a means to sleep until several requests have completed, if the device has one; see
    /// [`QueuePair::waiter`].
    pub fn waiter(&self) -> Option<Waiter> {
        self.queue.waiter()
    }

    /// Makes later requests complete without an interrupt; see [`QueuePair::suppress_interrupts`].
    pub fn suppress_interrupts(&mut self) {
        self.queue.suppress_interrupts();
    }

    /// Returns whether a request in flight will complete without an interrupt; see
    /// [`QueuePair::has_suppressed`].
    pub fn has_suppressed(&self) -> bool {
        self.queue.has_suppressed()
    }

    /// Arms the interrupt; see [`QueuePair::arm_interrupt`].
    pub fn arm_interrupt(&mut self) -> bool {
        self.queue.arm_interrupt()
    }

    pub fn begin_wait(&self) -> Wait {
        Wait::default()
    }

    /// Returns the next step of a wait that has found too few completions.
    #[inline]
    pub fn pause(&mut self, wait: &mut Wait) -> Pause {
        match self.policy.get() {
            PollPolicy::Classic => Pause::Spin,
            PollPolicy::Interrupt if self.options.interrupts => Pause::Interrupt,
            // The queue pair has no interrupts, because another policy was in force when it was
            // opened. So the thread polls.
            PollPolicy::Interrupt => Pause::Spin,
            hybrid => self.pause_hybrid(wait, hybrid),
        }
    }

    #[inline(never)]
    fn pause_hybrid(&mut self, wait: &mut Wait, policy: PollPolicy) -> Pause {
        if core::mem::replace(&mut wait.slept, true) {
            return Pause::Spin;
        }
        let alone = self.in_flight == 1;
        match self.tracker.as_mut().map_or(0, |tracker| tracker.sleep(policy, alone)) {
            0 => Pause::Spin,
            span => Pause::Sleep(span),
        }
    }
}
