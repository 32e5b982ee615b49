//! Helpers for tests of drivers: a queue pair with time limits, memory that a device may write, and
//! random traffic that is compared with a model.

pub use super::wait_limit::WAIT_LIMIT;
use fastrand::Rng;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::time::{Duration, Instant};
use usring_device::{
    Completion, Completions, DeviceRequest, Driver, NamedFile, Operation, QueueOptions, QueuePair, Submission,
};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall};
use usring_uapi::general as linux;

/// Memory that a device reads and writes without the compiler's knowledge. So the test accesses it
/// only by copies, and never by references.
pub struct Memory {
    start: *mut u8,
    length: usize,
}

// SAFETY: moving a `Memory` moves the only pointer to its allocation. The bytes are accessed by
// copies only. A test that lends the bytes to a device waits for the completions first.
unsafe impl Send for Memory {}

impl Memory {
    /// Allocates zeroed memory, aligned to a page.
    pub fn new(length: usize) -> Memory {
        // SAFETY: `layout` never returns a layout of size 0.
        let start = unsafe { alloc_zeroed(Memory::layout(length)) };
        assert!(!start.is_null());
        Memory { start, length }
    }

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length.max(1), 4096).unwrap()
    }

    pub fn address(&self) -> u64 {
        self.start as u64
    }

    pub fn segment(&self, from: usize, length: usize) -> IoVector {
        assert!(from + length <= self.length);
        IoVector { base: self.address() + from as u64, length: length as u64 }
    }

    pub fn set(&mut self, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= self.length);
        // SAFETY: the assertion keeps the range within the allocation. `bytes` is another
        // allocation, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(from), bytes.len()) };
    }

    pub fn get(&self, from: usize, length: usize) -> Vec<u8> {
        assert!(from + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: the assertion keeps the range within the allocation. `bytes` is another
        // allocation, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(from), bytes.as_mut_ptr(), length) };
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` has allocated the memory with this layout, and nothing uses it afterwards.
        unsafe { dealloc(self.start, Memory::layout(self.length)) };
    }
}

/// Returns whether the descriptor `number` becomes readable within the time `within`.
pub fn is_readable(number: i32, within: Duration) -> bool {
    let mut one = (number, linux::POLLIN as u16, 0u16);
    let arguments = [&raw mut one as u64, 1, within.as_millis() as u64, 0, 0];
    SystemCall::new(linux::__NR_poll, arguments).run() == Ok(1)
}

/// Returns a request that reads or writes as many bytes as the segments have together.
pub fn transfer(token: u32, operation: Operation, offset: u64, segments: &[IoVector]) -> DeviceRequest<'_> {
    let length = segments.iter().map(|segment| segment.length).sum();
    DeviceRequest {
        token,
        operation,
        durable: false,
        registered: false,
        offset,
        length,
        segments,
        file: NamedFile::default(),
    }
}

/// A queue pair in use by a test.
pub struct Rig<'a> {
    pub driver: &'a dyn Driver,
    pub queue: Box<dyn QueuePair>,
    options: QueueOptions,
    /// Completions that [`Rig::wait`] has not returned yet.
    found: Vec<Completion>,
    completions: Completions,
    pub in_flight: usize,
}

impl<'a> Rig<'a> {
    pub fn new(driver: &'a dyn Driver, options: QueueOptions) -> Rig<'a> {
        let queue = driver.open_queue(options).unwrap();
        assert_eq!(queue.interrupt().is_some(), options.interrupts);
        Rig { driver, queue, options, found: Vec::new(), completions: Completions::new(), in_flight: 0 }
    }

    /// Submits a request to the queue pair, or executes it if the queue pair needs a worker. The
    /// caller rings the doorbell.
    pub fn submit(&mut self, request: &DeviceRequest) {
        let start = Instant::now();
        loop {
            let result = match self.queue.submit(request) {
                Submission::Accepted => {
                    self.in_flight += 1;
                    return;
                }
                Submission::Full => {
                    assert!(start.elapsed() < WAIT_LIMIT, "the queue stays full");
                    self.queue.ring_doorbell();
                    self.poll_once();
                    continue;
                }
                Submission::NeedsWorker => match self.driver.execute(request) {
                    Ok(bytes) => bytes as i32,
                    Err(error) => error.negative(),
                },
                Submission::Refused(error) => error.negative(),
            };
            self.in_flight += 1;
            self.found.push(Completion { token: request.token, result });
            return;
        }
    }

    /// Returns whether a completion is known already, so that no poll is needed. There are three
    /// cases: a worker has executed the request, the queue pair has refused it, or an earlier poll
    /// has found its completion.
    pub fn is_answered(&self) -> bool {
        !self.found.is_empty()
    }

    fn poll_once(&mut self) {
        self.completions.clear();
        self.queue.poll(&mut self.completions);
        self.found.extend_from_slice(self.completions.as_slice());
    }

    /// Waits for at least one completion, by interrupts if the queue has them. Without interrupts,
    /// it polls whenever the queue pair reports that a poll may find completions.
    pub fn wait(&mut self) -> Vec<Completion> {
        let start = Instant::now();
        loop {
            if self.options.interrupts || self.queue.has_completions() {
                self.poll_once();
            }
            if !self.found.is_empty() {
                self.in_flight -= self.found.len();
                return std::mem::take(&mut self.found);
            }
            assert!(start.elapsed() < WAIT_LIMIT, "{} requests are not answered", self.in_flight);
            if self.options.interrupts && self.queue.arm_interrupt() {
                let number = self.queue.interrupt().unwrap();
                assert!(is_readable(number, WAIT_LIMIT), "no interrupt, with {} requests out", self.in_flight);
            }
        }
    }

    /// Submits one request and waits for it. No other request may be in flight.
    pub fn run(&mut self, request: &DeviceRequest) -> i32 {
        assert_eq!(self.in_flight, 0);
        self.submit(request);
        self.queue.ring_doorbell();
        let done = self.wait();
        assert!(done.len() == 1 && done[0].token == request.token, "{done:?}");
        done[0].result
    }

    pub fn transfer(&mut self, operation: Operation, offset: u64, segments: &[IoVector]) -> i32 {
        self.run(&transfer(0, operation, offset, segments))
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut memory = Memory::new(bytes.len());
        memory.set(0, bytes);
        let segment = memory.segment(0, bytes.len());
        assert_eq!(self.transfer(Operation::Write, offset, &[segment]), bytes.len() as i32);
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        let memory = Memory::new(length);
        let segment = memory.segment(0, length);
        assert_eq!(self.transfer(Operation::Read, offset, &[segment]), length as i32);
        memory.get(0, length)
    }

    /// Runs an operation without data on a range of the device.
    pub fn range(&mut self, operation: Operation, offset: u64, length: u64) -> i32 {
        self.run(&DeviceRequest { length, ..transfer(0, operation, offset, &[]) })
    }
}

/// Random reads and writes within a part of a device, compared with a model. The part has no other
/// user.
pub struct Traffic {
    pub part: std::ops::Range<u64>,
    pub options: QueueOptions,
    pub requests: usize,
    pub keeps_data: bool,
    pub seed: u64,
}

struct Slot {
    memory: Memory,
    /// Offset, length and operation of the request in flight. `None` if no request is in flight.
    out: Option<(u64, usize, Operation)>,
}

/// Longest transfer, in blocks.
const LONGEST_BLOCKS: u64 = 16;

impl Traffic {
    /// Runs the traffic and checks each result. Returns the tokens in the order of completion.
    pub fn run(&self, driver: &dyn Driver) -> Vec<u32> {
        let geometry = driver.geometry();
        let block = u64::from(geometry.block);
        let mut rig = Rig::new(driver, self.options);
        let mut dice = Rng::with_seed(self.seed);
        let mut model = vec![0u8; (self.part.end - self.part.start) as usize];
        let new_slot = || Slot { memory: Memory::new((LONGEST_BLOCKS * block) as usize), out: None };
        let mut slots: Vec<Slot> = (0..self.options.depth).map(|_| new_slot()).collect();
        let (mut submitted, mut order) = (0, Vec::new());
        while order.len() < self.requests {
            let batch = 1 + dice.u64(..u64::from(self.options.depth));
            for _ in 0..batch {
                let Some(token) = slots.iter().position(|slot| slot.out.is_none()) else { break };
                if submitted == self.requests {
                    break;
                }
                let blocks = 1 + dice.u64(..LONGEST_BLOCKS);
                let start = dice.u64(..(model.len() as u64) / block - blocks + 1) * block;
                let length = blocks * block;
                let overlaps = |(at, long, _)| start < at + long as u64 && at < start + length;
                if slots.iter().filter_map(|slot| slot.out).any(overlaps) {
                    continue;
                }
                self.submit(&mut rig, &mut slots[token], token as u32, start..start + length, &mut model, &mut dice);
                submitted += 1;
            }
            rig.queue.ring_doorbell();
            if rig.in_flight == 0 && rig.found.is_empty() {
                continue;
            }
            for completion in rig.wait() {
                self.check(&mut slots[completion.token as usize], completion, &model);
                order.push(completion.token);
            }
        }
        rig.poll_once();
        assert_eq!((rig.in_flight, rig.found.len()), (0, 0), "a request completed twice");
        order
    }

    fn submit(
        &self,
        rig: &mut Rig,
        slot: &mut Slot,
        token: u32,
        range: std::ops::Range<u64>,
        model: &mut [u8],
        dice: &mut Rng,
    ) {
        let length = (range.end - range.start) as usize;
        let operation = if dice.u64(..2) == 0 { Operation::Read } else { Operation::Write };
        let fresh: Vec<u8> = (0..length / 8).flat_map(|_| dice.u64(..).to_le_bytes()).collect();
        slot.memory.set(0, &fresh);
        if operation == Operation::Write {
            model[range.start as usize..range.end as usize].copy_from_slice(&fresh);
        }
        slot.out = Some((range.start, length, operation));
        let segments = [slot.memory.segment(0, length)];
        let offset = self.part.start + range.start;
        let durable = operation == Operation::Write && dice.u64(..16) == 0;
        rig.submit(&DeviceRequest { durable, ..transfer(token, operation, offset, &segments) });
    }

    fn check(&self, slot: &mut Slot, completion: Completion, model: &[u8]) {
        let (start, length, operation) = slot.out.take().expect("a completion of a request that is not in flight");
        assert_eq!(completion.result, length as i32, "{operation:?} of {length} at {start}");
        if operation == Operation::Read && self.keeps_data {
            let (found, expected) = (slot.memory.get(0, length), &model[start as usize..start as usize + length]);
            assert!(found == expected, "read of {length} at {start}: not what was written");
        }
    }
}

/// Returns whether a result is the errno `error`.
pub fn is_error(result: i32, error: Errno) -> bool {
    result == error.negative()
}
