//! A queue pair with what its user has to know to wait for it well: how many
//! requests are out, and since when.
//!
//! A wait is `begin_wait`, then `poll` and `pause` in turns until enough has
//! completed. What `pause` answers follows the device's policy, which may
//! change between two looks.
//!
//! Only while the policy is hybrid, requests are tracked: when each was
//! submitted (one reading of the clock for each batch), which is the oldest,
//! and how long those before it took. Otherwise a submission costs one look at
//! the policy, a poll one at a pointer.

use crate::driver::{Delivery, QueueOptions, QueuePair, Submission};
use crate::policy::{PolicyWord, PollPolicy};
use crate::request::{Completions, DeviceRequest};
use crate::tracker::{Manner, Tracker};
use alloc::boxed::Box;
use usring_sys::clock::Nanoseconds;
use usring_sys::kernel_aio::Waiter;

/// One user's queue pair.
pub struct Channel {
    queue: Box<dyn QueuePair>,
    policy: &'static PolicyWord,
    in_flight: u32,
    options: QueueOptions,
    manner: Manner,
    tracker: Option<Box<Tracker>>,
    /// The tracker stays whatever the policy becomes.
    keeps_tracking: bool,
}

/// One wait for completions, from its start to its end.
#[derive(Debug, Default)]
pub struct Wait {
    slept: bool,
}

/// What to do after a look that found too little; in order of haste, so who
/// waits for several channels does the least of what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pause {
    /// Look again.
    Spin,
    /// Sleep this long ([`usring_sys::timer_slack::sleep_precisely`]), then look
    /// again; the wait's only sleep.
    Sleep(Nanoseconds),
    /// Arm the interrupt and sleep on it.
    Interrupt,
}

impl Channel {
    pub(crate) fn new(
        queue: Box<dyn QueuePair>,
        policy: &'static PolicyWord,
        options: QueueOptions,
        manner: Manner,
    ) -> Self {
        let mut channel =
            Channel { queue, policy, in_flight: 0, options, manner, tracker: None, keeps_tracking: false };
        if policy.is_hybrid() {
            channel.tracker();
        }
        channel
    }

    /// Makes now, and keeps, what a hybrid policy needs: for a user that may not
    /// allocate when the policy changes.
    pub fn keep_tracking(&mut self) {
        self.keeps_tracking = true;
        self.tracker();
    }

    /// See [`QueuePair::submit`].
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

    /// See [`QueuePair::ring_doorbell`].
    #[inline]
    pub fn ring_doorbell(&mut self) {
        self.queue.ring_doorbell();
        if let Some(tracker) = &mut self.tracker {
            tracker.end_batch();
        }
    }

    /// See [`QueuePair::is_delivered_to`].
    pub fn is_delivered_to(&self) -> bool {
        self.queue.is_delivered_to()
    }

    /// See [`QueuePair::begin_delivery`].
    #[inline]
    pub fn begin_delivery(&mut self) -> Option<Delivery> {
        let delivery = self.queue.begin_delivery();
        if let Some(tracker) = &mut self.tracker {
            tracker.end_batch();
        }
        delivery
    }

    /// See [`QueuePair::end_delivery`].
    #[inline]
    pub fn end_delivery(&mut self, delivery: Delivery) {
        self.queue.end_delivery(delivery);
    }

    /// Appends what has completed. See [`QueuePair::poll`].
    #[inline]
    pub fn poll(&mut self, completions: &mut Completions) {
        let before = completions.as_slice().len();
        self.queue.poll(completions);
        self.in_flight -= (completions.as_slice().len() - before) as u32;
        if self.tracker.is_some() {
            self.note_completions(completions, before);
        }
    }

    /// See [`QueuePair::has_news`].
    #[inline]
    pub fn has_news(&mut self) -> bool {
        self.queue.has_news()
    }

    #[inline(never)]
    fn note_completions(&mut self, completions: &Completions, before: usize) {
        if !self.policy.is_hybrid() && !self.keeps_tracking {
            self.tracker = None;
        } else if let Some(tracker) = &mut self.tracker {
            tracker.looked(&completions.as_slice()[before..]);
        }
    }

    fn tracker(&mut self) -> &mut Tracker {
        let (manner, depth) = (self.manner, self.options.depth);
        self.tracker.get_or_insert_with(|| Box::new(Tracker::new(manner, depth)))
    }

    /// Requests that have been accepted and not completed.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// See [`QueuePair::interrupt`].
    pub fn interrupt(&self) -> Option<i32> {
        self.queue.interrupt()
    }

    /// See [`QueuePair::waiter`].
    pub fn waiter(&self) -> Option<Waiter> {
        self.queue.waiter()
    }

    /// See [`QueuePair::silence`].
    pub fn silence(&mut self) {
        self.queue.silence();
    }

    /// See [`QueuePair::has_silent`].
    pub fn has_silent(&self) -> bool {
        self.queue.has_silent()
    }

    /// See [`QueuePair::arm_interrupt`].
    pub fn arm_interrupt(&mut self) -> bool {
        self.queue.arm_interrupt()
    }

    pub fn begin_wait(&self) -> Wait {
        Wait::default()
    }

    /// What to do next in a wait that has found too little.
    #[inline]
    pub fn pause(&mut self, wait: &mut Wait) -> Pause {
        match self.policy.get() {
            PollPolicy::Classic => Pause::Spin,
            PollPolicy::Interrupt if self.options.interrupts => Pause::Interrupt,
            // The policy was another when the queue pair was opened, and its
            // device knows nobody to interrupt.
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
