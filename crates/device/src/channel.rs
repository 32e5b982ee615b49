//! A queue pair with what its user has to know to wait for it well: how many
//! requests are out, and since when.
//!
//! A wait is `begin_wait`, then `poll` and `pause` in turns until enough has
//! completed. What `pause` answers follows the device's policy, which may
//! change between two looks.

use crate::driver::{QueuePair, Submission};
use crate::policy::{PolicyWord, PollPolicy};
use crate::request::{Completions, DeviceRequest};
use alloc::boxed::Box;
use usring_sys::clock::Nanoseconds;

/// One user's queue pair.
pub struct Channel {
    queue: Box<dyn QueuePair>,
    policy: &'static PolicyWord,
    in_flight: u32,
}

/// One wait for completions, from its start to its end.
#[derive(Debug, Default)]
pub struct Wait {
    slept: bool,
}

/// What to do after a look that found too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Look again.
    Spin,
    /// Sleep this long, then look again; the wait's only sleep.
    Sleep(Nanoseconds),
    /// Arm the interrupt and sleep on it.
    Interrupt,
}

impl Channel {
    pub(crate) fn new(queue: Box<dyn QueuePair>, policy: &'static PolicyWord, depth: u32) -> Self {
        let _ = depth;
        Channel { queue, policy, in_flight: 0 }
    }

    /// See [`QueuePair::submit`].
    #[inline]
    pub fn submit(&mut self, request: &DeviceRequest) -> Submission {
        let submission = self.queue.submit(request);
        if submission == Submission::Accepted {
            self.in_flight += 1;
        }
        submission
    }

    /// See [`QueuePair::ring_doorbell`].
    #[inline]
    pub fn ring_doorbell(&mut self) {
        self.queue.ring_doorbell();
    }

    /// Appends what has completed. See [`QueuePair::poll`].
    #[inline]
    pub fn poll(&mut self, completions: &mut Completions) {
        let before = completions.as_slice().len();
        self.queue.poll(completions);
        self.in_flight -= (completions.as_slice().len() - before) as u32;
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
            PollPolicy::Interrupt => Pause::Interrupt,
            PollPolicy::HybridFixed(span) if !wait.slept => {
                wait.slept = true;
                Pause::Sleep(span)
            }
            PollPolicy::HybridFixed(_) | PollPolicy::HybridAdaptive => Pause::Spin,
        }
    }
}
