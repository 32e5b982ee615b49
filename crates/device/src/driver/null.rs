//! A device that stores nothing. Every request completes after its latency, and the device touches
//! no memory. So a measurement with it shows the cost of everything but the device.

use crate::batches::{AT_ONCE, Batches};
use crate::distribution::Distribution;
use crate::driver::{Driver, QueueOptions, QueuePair, Submission};
use crate::geometry::{ANY_NUMBER, Features, Geometry};
use crate::random::Random;
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use crate::spec::{DeviceKind, Layer, Opening, OptionRow, ValueKind, check_size};
use crate::timeline::Timeline;
use crate::timer_interrupt::TimerInterrupt;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::Errno;
use usring_sys::ticks::{self, Ticks};
use usring_sys::width;

pub static KIND: DeviceKind = DeviceKind {
    name: "null",
    options: &[
        OptionRow { name: "size", value: ValueKind::Size, required: true },
        OptionRow { name: "latency", value: ValueKind::Distribution, required: false },
        OptionRow { name: "latency-seed", value: ValueKind::Number, required: false },
        OptionRow { name: "block", value: ValueKind::Block, required: false },
    ],
    check: check_size,
    open: Opening::Device(|layer, _| Ok(Box::new(Null::new(layer)))),
};

struct Null {
    geometry: Geometry,
    /// Latency of each request, in ticks.
    latency: Distribution,
    seed: u64,
    /// Number of queue pairs opened so far. Each queue pair draws latencies from its own random
    /// sequence, which this number selects.
    queues: AtomicU64,
}

impl Null {
    fn new(layer: &Layer) -> Null {
        ticks::calibrate();
        let features = Features {
            polls: true,
            flush: true,
            discard: true,
            write_zeroes: true,
            forgets: true,
            ..Features::default()
        };
        Null {
            geometry: Geometry {
                size: layer.size("size").unwrap_or(0),
                block: layer.block(),
                alignment: 1,
                transfer: super::LONGEST_TRANSFER,
                segments: super::MOST_SEGMENTS,
                queues: ANY_NUMBER,
                features,
            },
            latency: layer.distribution("latency").unwrap_or(Distribution::NOTHING).in_ticks(),
            seed: layer.number("latency-seed").unwrap_or(0),
            queues: AtomicU64::new(0),
        }
    }
}

impl Driver for Null {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        let interrupt = TimerInterrupt::new(options.interrupts)?;
        if let Distribution::Constant(latency) = self.latency {
            return Ok(Box::new(ConstantQueue { batches: Batches::new(options.depth)?, latency, interrupt }));
        }
        let mut accepted = Vec::new();
        accepted.try_reserve_exact(options.depth as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(Box::new(DrawnQueue {
            depth: options.depth,
            in_flight: 0,
            accepted,
            timeline: Timeline::new(options.depth)?,
            latency: self.latency,
            random: Random::of(self.seed, self.queues.fetch_add(1, Ordering::Relaxed)),
            interrupt,
        }))
    }
}

/// Returns the completion of a request, which always succeeds.
#[inline]
fn completion(request: &DeviceRequest) -> Completion {
    let result = match request.operation {
        Operation::Read | Operation::Write => width::int(request.length),
        Operation::Flush | Operation::Discard | Operation::WriteZeroes => 0,
    };
    Completion { token: request.token, result }
}

#[inline]
fn is_past(due: Option<Ticks>) -> bool {
    due.is_some_and(|due| due <= Ticks::now())
}

/// Queue pair of a device with constant latency.
struct ConstantQueue {
    batches: Batches,
    /// Latency of each request, in ticks.
    latency: u64,
    interrupt: TimerInterrupt,
}

impl QueuePair for ConstantQueue {
    #[inline]
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.batches.add(completion(request)) { Submission::Accepted } else { Submission::Full }
    }

    #[inline]
    fn ring_doorbell(&mut self) {
        let latency = self.latency;
        self.batches.end_batch(|| if latency == 0 { AT_ONCE } else { Ticks(Ticks::now().0.saturating_add(latency)) });
        self.interrupt.advance(self.batches.earliest());
    }

    #[inline]
    fn poll(&mut self, completions: &mut Completions) {
        if self.batches.collect(completions) {
            self.interrupt.acknowledge();
        }
    }

    fn has_completions(&mut self) -> bool {
        is_past(self.batches.earliest())
    }

    fn interrupt(&self) -> Option<i32> {
        self.interrupt.number()
    }

    fn arm_interrupt(&mut self) -> bool {
        self.interrupt.arm(self.batches.earliest())
    }
}

/// Queue pair of a device whose latency is random.
struct DrawnQueue {
    depth: u32,
    in_flight: u32,
    /// Completions of the requests that were accepted since the last doorbell. Their latency begins
    /// at the next doorbell.
    accepted: Vec<Completion>,
    timeline: Timeline,
    /// Latency of each request, in ticks.
    latency: Distribution,
    random: Random,
    interrupt: TimerInterrupt,
}

impl QueuePair for DrawnQueue {
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.in_flight == self.depth {
            return Submission::Full;
        }
        self.in_flight += 1;
        self.accepted.push(completion(request));
        Submission::Accepted
    }

    fn ring_doorbell(&mut self) {
        if self.accepted.is_empty() {
            return;
        }
        let now = Ticks::now().0;
        for completion in self.accepted.drain(..) {
            let latency = self.latency.draw(&mut self.random);
            self.timeline.add(Ticks(now.saturating_add(latency)), completion);
        }
        self.interrupt.advance(self.timeline.earliest());
    }

    fn poll(&mut self, completions: &mut Completions) {
        let found = self.timeline.collect(completions);
        if found > 0 {
            self.in_flight -= found;
            self.interrupt.acknowledge();
        }
    }

    fn has_completions(&mut self) -> bool {
        is_past(self.timeline.earliest())
    }

    fn interrupt(&self) -> Option<i32> {
        self.interrupt.number()
    }

    fn arm_interrupt(&mut self) -> bool {
        self.interrupt.arm(self.timeline.earliest())
    }
}
