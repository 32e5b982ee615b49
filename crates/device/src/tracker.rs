//! A channel's record of its requests in flight, while the device's policy is hybrid: when each was
//! submitted, which is the oldest, and how long earlier requests took.

use crate::estimate::{Bucket, Expectations, HalfMean};
use crate::policy::PollPolicy;
use crate::request::{Completion, DeviceRequest};
use alloc::vec;
use alloc::vec::Vec;
use usring_sys::clock::Nanoseconds;
use usring_sys::ticks::Ticks;
use usring_sys::timer_slack;

/// The kind of user that waits. It decides how long an adaptive sleep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaiterKind {
    /// A ring, with any number of requests in flight.
    Ring,
    /// A blocking call, which does nothing until its own request has completed (as in blk-mq).
    Call,
}

#[derive(Debug)]
enum Estimate {
    Ring(Expectations),
    Call(HalfMean),
}

pub(crate) struct Tracker {
    /// The request in flight, indexed by its token.
    requests: Vec<Tracked>,
    oldest: u32,
    newest: u32,
    /// Time at which the first request since the last doorbell was submitted.
    batch: Option<Ticks>,
    /// Time at which the channel's user began to sleep. During the sleep, the channel is not
    /// polled. `None` while the user is awake.
    asleep_since: Option<Ticks>,
    estimate: Estimate,
    overshoot: Nanoseconds,
}

/// A request in flight, in a doubly linked list by age.
#[derive(Clone, Copy)]
struct Tracked {
    submitted: Ticks,
    older: u32,
    newer: u32,
    bucket: Bucket,
    /// Whether this entry is in the list of requests in flight. `false` if no request with this
    /// token is in flight, or if the request was submitted under a policy that is not hybrid.
    known: bool,
}

const NONE: u32 = u32::MAX;

impl Tracker {
    pub(crate) fn new(waiter: WaiterKind, depth: u32) -> Self {
        let unknown =
            Tracked { submitted: Ticks(0), older: NONE, newer: NONE, bucket: Bucket::default(), known: false };
        Tracker {
            requests: vec![unknown; depth as usize],
            oldest: NONE,
            newest: NONE,
            batch: None,
            asleep_since: None,
            estimate: match waiter {
                WaiterKind::Ring => Estimate::Ring(Expectations::default()),
                WaiterKind::Call => Estimate::Call(HalfMean::default()),
            },
            overshoot: timer_slack::overshoot(),
        }
    }

    #[inline]
    pub(crate) fn submitted(&mut self, request: &DeviceRequest) {
        let submitted = *self.batch.get_or_insert_with(Ticks::now);
        let bucket = Bucket::of(request.operation, request.length);
        let older = self.newest;
        self.requests[request.token as usize] = Tracked { submitted, older, newer: NONE, bucket, known: true };
        match self.requests.get_mut(older as usize) {
            Some(older) => older.newer = request.token,
            None => self.oldest = request.token,
        }
        self.newest = request.token;
    }

    #[inline]
    pub(crate) fn end_batch(&mut self) {
        self.batch = None;
    }

    /// Records the completions that a poll has found, and learns from their latencies.
    pub(crate) fn learn_from_poll(&mut self, found: &[Completion]) {
        let asleep_since = self.asleep_since.take();
        if found.is_empty() {
            return;
        }
        let now = Ticks::now();
        let asleep = asleep_since.map_or(0, |since| now.since(since));
        if let Estimate::Ring(expectations) = &mut self.estimate {
            expectations.begin_poll();
        }
        for completion in found {
            let Some(request) = self.remove(completion.token) else { continue };
            let latency = now.since(request.submitted);
            match &mut self.estimate {
                Estimate::Ring(expectations) => expectations.record(request.bucket, latency, asleep),
                Estimate::Call(mean) => mean.record(request.bucket, latency, now),
            }
        }
    }

    #[inline]
    fn remove(&mut self, token: u32) -> Option<Tracked> {
        let request = self.requests.get_mut(token as usize).filter(|request| request.known)?;
        request.known = false;
        let request = *request;
        match self.requests.get_mut(request.older as usize) {
            Some(older) => older.newer = request.newer,
            None => self.oldest = request.newer,
        }
        match self.requests.get_mut(request.newer as usize) {
            Some(newer) => newer.older = request.older,
            None => self.newest = request.older,
        }
        Some(request)
    }

    /// Returns how long to sleep before the next poll, in nanoseconds; 0 for no sleep. `alone`: one
    /// request is in flight.
    pub(crate) fn sleep(&mut self, policy: PollPolicy, alone: bool) -> Nanoseconds {
        let Some(oldest) = self.requests.get(self.oldest as usize) else { return 0 };
        let now = Ticks::now();
        let age = now.since(oldest.submitted);
        let span = match (policy, &self.estimate) {
            (PollPolicy::HybridFixed(span), _) => span.saturating_sub(age),
            (_, Estimate::Ring(expectations)) => expectations.sleep(oldest.bucket, age, alone, self.overshoot),
            (_, Estimate::Call(mean)) => mean.sleep(oldest.bucket),
        };
        if span != 0 {
            self.asleep_since = Some(now);
        }
        span
    }
}
