//! A wrapper that makes random errors: requests fail, transfer fewer bytes than requested, never
//! complete, or complete late. With an equal seed, the errors are equal.
//!
//! A random draw decides the outcome of each request, in the order in which a queue pair accepts
//! requests. If the inner device passes a request to a worker, the worker draws again.

use super::delayed_queue::DelayedQueue;
use crate::batches::AT_ONCE;
use crate::driver::{DeferredSubmit, Driver, QueueOptions, QueuePair, Submission};
use crate::geometry::Geometry;
use crate::random::{Random, share_of};
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use crate::spec::{DeviceKind, Layer, Opening, OptionRow, Probability, ValueKind};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;
use usring_sys::plain::IoVector;
use usring_sys::ticks::{self, Ticks};
use usring_sys::{Errno, wait, width};

pub static KIND: DeviceKind = DeviceKind {
    name: "error",
    options: &[
        OptionRow { name: "seed", value: ValueKind::Number, required: false },
        OptionRow { name: "eio", value: ValueKind::Probability, required: false },
        OptionRow { name: "short", value: ValueKind::Probability, required: false },
        OptionRow { name: "never", value: ValueKind::Probability, required: false },
        OptionRow { name: "late", value: ValueKind::Probability, required: false },
        OptionRow { name: "late-by", value: ValueKind::Span, required: false },
    ],
    check: |layer| {
        let sum: u64 = CHANCES.iter().map(|(name, _)| u64::from(chance(layer, name))).sum();
        if sum > u64::from(Probability::ALWAYS) { Err("the sum of the probabilities is more than 1") } else { Ok(()) }
    },
    open: Opening::Wrapper(|layer, inner| Ok(Box::new(Faulty::new(layer, inner)))),
};

/// The outcome that a random draw gives a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DrawnOutcome {
    Well,
    /// Fails with EIO. The inner device does not get the request.
    Fails,
    /// Transfers at least one block, but fewer blocks than requested.
    Short,
    /// Never completes. The inner device does not get the request, so the request's memory is not
    /// accessed.
    Never,
    Late,
}

const CHANCES: [(&str, DrawnOutcome); 4] = [
    ("eio", DrawnOutcome::Fails),
    ("short", DrawnOutcome::Short),
    ("never", DrawnOutcome::Never),
    ("late", DrawnOutcome::Late),
];

/// Default of the option `late-by`, in nanoseconds.
const LATE_BY: Nanoseconds = 10_000_000;

fn chance(layer: &Layer, name: &str) -> u32 {
    layer.probability(name).unwrap_or_default().per_billion()
}

struct Faulty {
    inner: Box<dyn Driver>,
    /// Probabilities in units of 10⁻⁹, in the order of [`CHANCES`].
    chances: [u32; CHANCES.len()],
    late_by: Nanoseconds,
    seed: u64,
    /// Number of random sequences used so far: one per queue pair and one per blocking call.
    sequences: AtomicU64,
}

impl Faulty {
    fn new(layer: &Layer, inner: Box<dyn Driver>) -> Faulty {
        Faulty {
            inner,
            chances: CHANCES.map(|(name, _)| chance(layer, name)),
            late_by: layer.span("late-by").unwrap_or(LATE_BY),
            seed: layer.number("seed").unwrap_or(0),
            sequences: AtomicU64::new(0),
        }
    }

    fn dice(&self) -> Dice {
        let random = Random::of(self.seed, self.sequences.fetch_add(1, Ordering::Relaxed));
        Dice { chances: self.chances, random }
    }
}

/// The random draw for a request.
#[derive(Clone, Copy)]
struct Drawn {
    outcome: DrawnOutcome,
    /// The part of the request to transfer if the outcome is a short transfer, in units of 2⁻⁶⁴ of
    /// the request's length.
    share: u64,
}

/// Draws the outcomes of requests.
struct Dice {
    chances: [u32; CHANCES.len()],
    random: Random,
}

impl Dice {
    /// Draws an outcome. Each call uses two random numbers, so the n-th outcome does not depend on
    /// the kinds of earlier outcomes.
    fn draw(&mut self) -> Drawn {
        let mut number = width::low(self.random.below(u64::from(Probability::ALWAYS)));
        let share = self.random.draw();
        for (chance, (_, outcome)) in self.chances.into_iter().zip(CHANCES) {
            if number < chance {
                return Drawn { outcome, share };
            }
            number -= chance;
        }
        Drawn { outcome: DrawnOutcome::Well, share }
    }
}

impl Drawn {
    /// Returns how many bytes to transfer if the outcome is a short transfer: whole blocks, at
    /// least one, and not all. `None` if the request has another outcome or cannot be shortened.
    fn length(&self, request: &DeviceRequest, block: u64) -> Option<u64> {
        let blocks = match request.operation {
            Operation::Read | Operation::Write => request.length / block,
            Operation::Flush | Operation::Discard | Operation::WriteZeroes => 0,
        };
        if self.outcome == DrawnOutcome::Short && blocks > 1 {
            Some((1 + share_of(self.share, blocks - 1)) * block)
        } else {
            None
        }
    }
}

/// Replaces the content of `into` by segments for the first `length` bytes of `segments`.
fn cut(segments: &[IoVector], mut length: u64, into: &mut Vec<IoVector>) {
    into.clear();
    for segment in segments {
        if length == 0 {
            return;
        }
        let part = segment.length.min(length);
        into.push(IoVector { length: part, ..*segment });
        length -= part;
    }
}

impl Driver for Faulty {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        ticks::calibrate();
        let depth = options.depth as usize;
        let (mut late, mut segments) = (Vec::new(), Vec::new());
        late.try_reserve_exact(depth).map_err(|_| Errno::ENOMEM)?;
        late.resize(depth, false);
        segments.try_reserve_exact(self.geometry().segments as usize).map_err(|_| Errno::ENOMEM)?;
        let delayed_queue = DelayedQueue::new(self.inner.open_queue(options)?, options)?;
        let lateness = Lateness { late, by: Ticks(0).after(self.late_by).0 };
        let block = u64::from(self.geometry().block);
        Ok(Box::new(FaultyQueue { delayed_queue, lateness, dice: self.dice(), block, drawn: None, segments }))
    }

    /// Executes a request according to its random outcome. If the outcome is "never completes", the
    /// call blocks until a signal arrives (`EINTR`).
    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        let drawn = self.dice().draw();
        match drawn.outcome {
            DrawnOutcome::Well => self.inner.execute(request),
            DrawnOutcome::Fails => Err(Errno::EIO),
            DrawnOutcome::Short => {
                let block = u64::from(self.geometry().block);
                let Some(length) = drawn.length(request, block) else { return self.inner.execute(request) };
                let mut segments = Vec::new();
                cut(request.segments, length, &mut segments);
                self.inner.execute(&DeviceRequest { length, segments: &segments, ..*request })
            }
            DrawnOutcome::Never => loop {
                wait::nanosleep(Nanoseconds::MAX)?;
            },
            DrawnOutcome::Late => {
                let answer = self.inner.execute(request);
                let _ = wait::nanosleep(self.late_by);
                answer
            }
        }
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

struct FaultyQueue {
    delayed_queue: DelayedQueue,
    lateness: Lateness,
    dice: Dice,
    block: u64,
    /// The random outcome of the next request; `None` before it is drawn. If the inner device has
    /// no room, the request keeps this outcome for its next submission.
    drawn: Option<Drawn>,
    /// Segments of the shortened request that is being submitted.
    segments: Vec<IoVector>,
}

struct Lateness {
    /// Whether the completion is late, indexed by token.
    late: Vec<bool>,
    /// Added latency of a late completion, in ticks.
    by: u64,
}

impl Lateness {
    fn due(&self, completion: &Completion, now: Ticks) -> Ticks {
        if self.late[completion.token as usize] { Ticks(now.0.saturating_add(self.by)) } else { AT_ONCE }
    }
}

impl QueuePair for FaultyQueue {
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.delayed_queue.is_full() {
            return Submission::Full;
        }
        let drawn = self.drawn.take().unwrap_or_else(|| self.dice.draw());
        self.lateness.late[request.token as usize] = drawn.outcome == DrawnOutcome::Late;
        let submission = match (drawn.outcome, drawn.length(request, self.block)) {
            (DrawnOutcome::Fails, _) => {
                self.delayed_queue.accept_with_answer(Some(Completion::failed(request.token, Errno::EIO)));
                Submission::Accepted
            }
            (DrawnOutcome::Never, _) => {
                self.delayed_queue.accept_with_answer(None);
                Submission::Accepted
            }
            (_, Some(length)) => {
                cut(request.segments, length, &mut self.segments);
                self.delayed_queue.submit(&DeviceRequest { length, segments: &self.segments, ..*request })
            }
            (_, None) => self.delayed_queue.submit(request),
        };
        if submission == Submission::Full {
            self.drawn = Some(drawn);
        }
        submission
    }

    fn ring_doorbell(&mut self) {
        self.delayed_queue.ring_doorbell(|completion, now| self.lateness.due(completion, now));
    }

    fn defers_submits(&self) -> bool {
        self.delayed_queue.defers_submits()
    }

    fn begin_deferred(&mut self) -> Option<DeferredSubmit> {
        self.delayed_queue.begin_deferred(|completion, now| self.lateness.due(completion, now))
    }

    fn end_deferred(&mut self, batch: DeferredSubmit) {
        self.delayed_queue.end_deferred(batch, |completion, now| self.lateness.due(completion, now));
    }

    fn poll(&mut self, completions: &mut Completions) {
        self.delayed_queue.poll(completions, |completion, now| self.lateness.due(completion, now));
    }

    fn interrupt(&self) -> Option<i32> {
        self.delayed_queue.interrupt()
    }

    fn arm_interrupt(&mut self) -> bool {
        self.delayed_queue.arm_interrupt()
    }
}
