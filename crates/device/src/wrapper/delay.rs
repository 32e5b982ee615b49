//! A wrapper that adds latency. It holds back each completion of the inner device for a time that
//! depends on the request's direction.
//!
//! The time begins when the wrapper finds the inner device's completion. The wrapper looks for
//! completions at the doorbell and at each poll. So if the inner device completes requests at once,
//! the time begins at the doorbell.

use super::delayed_queue::DelayedQueue;
use crate::distribution::Distribution;
use crate::driver::{DeferredSubmit, Driver, QueueOptions, QueuePair, Submission};
use crate::geometry::Geometry;
use crate::random::Random;
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use crate::spec::{DeviceKind, Layer, Opening, OptionRow, ValueKind, nothing_to_check};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::plain::IoVector;
use usring_sys::ticks::{self, Ticks};
use usring_sys::{Errno, wait};

pub static KIND: DeviceKind = DeviceKind {
    name: "delay",
    options: &[
        OptionRow { name: "read", value: ValueKind::Distribution, required: false },
        OptionRow { name: "write", value: ValueKind::Distribution, required: false },
        OptionRow { name: "other", value: ValueKind::Distribution, required: false },
        OptionRow { name: "seed", value: ValueKind::Number, required: false },
    ],
    check: nothing_to_check,
    open: Opening::Wrapper(|layer, inner| Ok(Box::new(Delay::new(layer, inner)))),
};

/// The added latencies: for reads, writes and operations without data ([`direction`]).
type Latencies = [Distribution; 3];

struct Delay {
    inner: Box<dyn Driver>,
    latencies: Latencies,
    seed: u64,
    /// Number of random sequences used so far: one per queue pair and one per blocking call.
    sequences: AtomicU64,
}

/// Returns the index of an operation in [`Latencies`].
fn direction(operation: Operation) -> u8 {
    match operation {
        Operation::Read => 0,
        Operation::Write => 1,
        Operation::Flush | Operation::Discard | Operation::WriteZeroes => 2,
    }
}

impl Delay {
    fn new(layer: &Layer, inner: Box<dyn Driver>) -> Delay {
        let latency = |name| layer.distribution(name).unwrap_or(Distribution::NOTHING);
        Delay {
            inner,
            latencies: [latency("read"), latency("write"), latency("other")],
            seed: layer.number("seed").unwrap_or(0),
            sequences: AtomicU64::new(0),
        }
    }

    fn random(&self) -> Random {
        Random::of(self.seed, self.sequences.fetch_add(1, Ordering::Relaxed))
    }
}

impl Driver for Delay {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        ticks::calibrate();
        let depth = options.depth;
        let mut directions = Vec::new();
        directions.try_reserve_exact(depth as usize).map_err(|_| Errno::ENOMEM)?;
        directions.resize(depth as usize, 0);
        let delayed_queue = DelayedQueue::new(self.inner.open_queue(options)?, options)?;
        let latency =
            Latency { latencies: self.latencies.map(Distribution::in_ticks), directions, random: self.random() };
        Ok(Box::new(DelayQueue { delayed_queue, latency }))
    }

    /// Executes the request, and then sleeps for the added latency in the calling thread, which may
    /// block. A signal ends only the sleep; the request's result stays.
    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        let answer = self.inner.execute(request);
        let _ = wait::nanosleep(self.latencies[usize::from(direction(request.operation))].draw(&mut self.random()));
        answer
    }

    fn keep_after_fork(&self, keep: &mut dyn FnMut(i32)) -> bool {
        self.inner.keep_after_fork(keep)
    }

    fn share_memory(&self, memory: IoVector) {
        self.inner.share_memory(memory);
    }

    fn unshare_memory(&self, memory: IoVector) {
        self.inner.unshare_memory(memory);
    }

    fn unshare_replaced(&self, memory: IoVector) {
        self.inner.unshare_replaced(memory);
    }
}

struct DelayQueue {
    delayed_queue: DelayedQueue,
    latency: Latency,
}

/// Decides how long each completion is held back.
struct Latency {
    /// The added latencies, in ticks.
    latencies: Latencies,
    /// The direction of each request in flight, indexed by token.
    directions: Vec<u8>,
    random: Random,
}

impl Latency {
    fn due(&mut self, completion: &Completion, now: Ticks) -> Ticks {
        let direction = self.directions[completion.token as usize];
        Ticks(now.0.saturating_add(self.latencies[usize::from(direction)].draw(&mut self.random)))
    }
}

impl QueuePair for DelayQueue {
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.delayed_queue.is_full() {
            return Submission::Full;
        }
        self.latency.directions[request.token as usize] = direction(request.operation);
        self.delayed_queue.submit(request)
    }

    fn ring_doorbell(&mut self) {
        self.delayed_queue.ring_doorbell(|completion, now| self.latency.due(completion, now));
    }

    fn defers_submits(&self) -> bool {
        self.delayed_queue.defers_submits()
    }

    fn begin_deferred(&mut self) -> Option<DeferredSubmit> {
        self.delayed_queue.begin_deferred(|completion, now| self.latency.due(completion, now))
    }

    fn end_deferred(&mut self, batch: DeferredSubmit) {
        self.delayed_queue.end_deferred(batch, |completion, now| self.latency.due(completion, now));
    }

    fn poll(&mut self, completions: &mut Completions) {
        self.delayed_queue.poll(completions, |completion, now| self.latency.due(completion, now));
    }

    fn interrupt(&self) -> Option<i32> {
        self.delayed_queue.interrupt()
    }

    fn arm_interrupt(&mut self) -> bool {
        self.delayed_queue.arm_interrupt()
    }
}
