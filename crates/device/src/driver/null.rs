//! A device that keeps nothing: every request is done after its latency, and no
//! memory is touched. What is left is the cost of everything else.

use crate::distribution::Distribution;
use crate::driver::{Driver, QueueOptions, QueuePair, Submission};
use crate::geometry::{Features, Geometry};
use crate::random::Random;
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use crate::spec::{Kind, Layer, Opening, OptionRow, ValueKind, check_size};
use crate::timeline::{AT_ONCE, Timeline};
use crate::timer_interrupt::TimerInterrupt;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::Errno;
use usring_sys::ticks::{self, Ticks};

pub static KIND: Kind = Kind {
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
    /// In ticks.
    latency: Distribution,
    seed: u64,
    /// Queue pairs opened so far: each draws a sequence of its own.
    queues: AtomicU64,
}

impl Null {
    fn new(layer: &Layer) -> Null {
        ticks::calibrate();
        let features = Features { polls: true, flush: true, discard: true, write_zeroes: true, read_only: false };
        Null {
            geometry: Geometry {
                size: layer.size("size").unwrap_or(0),
                block: layer.block(),
                alignment: 1,
                transfer: super::LONGEST_TRANSFER,
                segments: super::MOST_SEGMENTS,
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
        let depth = options.depth;
        let mut accepted = Vec::new();
        accepted.try_reserve_exact(depth as usize).map_err(|_| Errno::ENOMEM)?;
        let in_order = self.latency.is_constant();
        Ok(Box::new(NullQueue {
            depth,
            in_flight: 0,
            accepted,
            timeline: if in_order { Timeline::in_order(depth)? } else { Timeline::sorted(depth)? },
            latency: self.latency,
            random: Random::of(self.seed, self.queues.fetch_add(1, Ordering::Relaxed)),
            interrupt: TimerInterrupt::new(options.interrupts)?,
        }))
    }
}

struct NullQueue {
    depth: u32,
    in_flight: u32,
    /// Their time runs from the doorbell.
    accepted: Vec<Completion>,
    timeline: Timeline,
    /// In ticks.
    latency: Distribution,
    random: Random,
    interrupt: TimerInterrupt,
}

impl QueuePair for NullQueue {
    #[inline]
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.in_flight == self.depth {
            return Submission::Full;
        }
        self.in_flight += 1;
        let result = match request.operation {
            Operation::Read | Operation::Write => request.length as i32,
            Operation::Flush | Operation::Discard | Operation::WriteZeroes => 0,
        };
        self.accepted.push(Completion { token: request.token, result });
        Submission::Accepted
    }

    fn ring_doorbell(&mut self) {
        if self.accepted.is_empty() {
            return;
        }
        if let Distribution::Constant(latency) = self.latency {
            let due = if latency == 0 { AT_ONCE } else { Ticks(Ticks::now().0.saturating_add(latency)) };
            self.accepted.drain(..).for_each(|completion| self.timeline.add(due, completion));
        } else {
            let now = Ticks::now().0;
            for completion in self.accepted.drain(..) {
                let latency = self.latency.draw(&mut self.random);
                self.timeline.add(Ticks(now.saturating_add(latency)), completion);
            }
        }
        self.interrupt.advance(self.timeline.earliest());
    }

    #[inline]
    fn poll(&mut self, completions: &mut Completions) {
        let before = completions.as_slice().len();
        self.timeline.collect(completions);
        let found = completions.as_slice().len() - before;
        if found > 0 {
            self.in_flight -= found as u32;
            self.interrupt.acknowledge();
        }
    }

    fn interrupt(&self) -> Option<i32> {
        self.interrupt.number()
    }

    fn arm_interrupt(&mut self) -> bool {
        self.interrupt.arm(self.timeline.earliest())
    }
}
