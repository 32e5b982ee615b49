//! A device for tests, with its blocks in memory. The test sets its limits, latency and failures,
//! and reads its counters.
#![allow(dead_code)]

#[path = "../common/wait_limit.rs"]
pub mod wait_limit;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use usring_device::geometry::Features;
use usring_device::{
    Completion, Completions, Device, DeviceRequest, Driver, Geometry, Operation, PolicyWord, PollPolicy, QueueOptions,
    QueuePair, Submission,
};
use usring_sys::clock::Clock;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall, UserAddress, eventfd, user_memory};

pub const BLOCK: u32 = 512;

/// State that the test and the device share.
pub struct Controls {
    pub bytes: Mutex<Vec<u8>>,
    /// Time from the doorbell to the completion, in nanoseconds.
    pub latency: AtomicU64,
    /// Number of polls of all queue pairs.
    pub polls: AtomicU64,
    pub requests: AtomicU64,
    pub durable_writes: AtomicU64,
    pub flushes: AtomicU64,
    /// Number of times that an interrupt was armed.
    pub interrupts: AtomicU64,
    pub most_in_flight: AtomicU64,
    /// Number of open queue pairs.
    pub queues: AtomicU32,
    /// Maximum number of queue pairs that may be open.
    pub most_queues: AtomicU32,
    /// A request that covers this byte of the device fails. `u64::MAX`: no request fails.
    pub bad_byte: AtomicU64,
    /// Every n-th request needs a worker (`Driver::execute`).
    pub worker_every: AtomicU64,
    /// Maximum number of requests in flight in a queue pair, even if its depth is larger.
    pub room: AtomicU32,
    /// Addresses that no request may use. `None`: all may be used.
    pub forbidden: Mutex<Option<Range<u64>>>,
}

impl Controls {
    pub fn get(&self, counter: impl Fn(&Controls) -> &AtomicU64) -> u64 {
        counter(self).load(Ordering::Relaxed)
    }

    fn carry_out(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        let range = request.offset as usize..(request.offset + request.length) as usize;
        if range.contains(&(self.bad_byte.load(Ordering::Relaxed) as usize)) {
            return Err(Errno::EIO);
        }
        if let Some(forbidden) = &*self.forbidden.lock().unwrap() {
            let named =
                |segment: &IoVector| segment.base < forbidden.end && segment.base + segment.length > forbidden.start;
            assert!(!request.segments.iter().any(named), "a request uses forbidden memory");
        }
        let mut bytes = self.bytes.lock().unwrap();
        let mut at = range.start;
        match request.operation {
            Operation::Flush => drop(self.flushes.fetch_add(1, Ordering::Relaxed)),
            Operation::Discard | Operation::WriteZeroes => bytes[range.clone()].fill(0),
            Operation::Read | Operation::Write => {
                if request.durable {
                    self.durable_writes.fetch_add(1, Ordering::Relaxed);
                }
                for segment in request.segments {
                    let (base, part) = (UserAddress(segment.base), at..at + segment.length as usize);
                    match request.operation {
                        Operation::Read => user_memory::copy_out(base, &bytes[part])?,
                        _ => user_memory::copy_in(&mut bytes[part], base)?,
                    }
                    at += segment.length as usize;
                }
                assert_eq!(at, range.end, "the request's length is the sum of its segments");
            }
        }
        Ok((at - range.start) as u32)
    }
}

pub struct TestDriver {
    pub geometry: Geometry,
    pub controls: Arc<Controls>,
}

/// Returns a driver with `size` bytes. It accepts only short requests with few segments. The
/// segments may lie at any address.
pub fn driver(size: u64) -> TestDriver {
    user_memory::install_fault_handler();
    let features = Features { polls: true, flush: true, discard: true, write_zeroes: true, ..Features::default() };
    let geometry = Geometry { size, block: BLOCK, alignment: 1, transfer: 8 << 10, segments: 4, queues: 8, features };
    let controls = Controls {
        bytes: Mutex::new(vec![0; size as usize]),
        latency: AtomicU64::new(0),
        polls: AtomicU64::new(0),
        requests: AtomicU64::new(0),
        durable_writes: AtomicU64::new(0),
        flushes: AtomicU64::new(0),
        interrupts: AtomicU64::new(0),
        most_in_flight: AtomicU64::new(0),
        queues: AtomicU32::new(0),
        most_queues: AtomicU32::new(u32::MAX),
        bad_byte: AtomicU64::new(u64::MAX),
        worker_every: AtomicU64::new(u64::MAX),
        room: AtomicU32::new(u32::MAX),
        forbidden: Mutex::new(None),
    };
    TestDriver { geometry, controls: Arc::new(controls) }
}

impl TestDriver {
    pub fn device(self, policy: PollPolicy) -> (Device, Arc<Controls>, PolicyWord) {
        let controls = self.controls.clone();
        let word = PolicyWord::leaked(policy);
        (Device::new(Box::new(self), word, false), controls, word)
    }
}

impl Driver for TestDriver {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        let controls = self.controls.clone();
        if controls.queues.fetch_add(1, Ordering::Relaxed) >= controls.most_queues.load(Ordering::Relaxed) {
            controls.queues.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::EBUSY);
        }
        let room = options.depth.min(controls.room.load(Ordering::Relaxed)) as usize;
        let interrupt = options.interrupts.then(|| usring_sys::timerfd::create().unwrap());
        Ok(Box::new(TestQueue {
            controls,
            geometry: self.geometry,
            room,
            accepted: vec![],
            pending: vec![],
            interrupt,
        }))
    }

    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        self.controls.carry_out(request)
    }
}

struct TestQueue {
    controls: Arc<Controls>,
    geometry: Geometry,
    room: usize,
    accepted: Vec<Completion>,
    pending: Vec<(u64, Completion)>,
    interrupt: Option<usring_sys::descriptor::OwnedDescriptor>,
}

impl QueuePair for TestQueue {
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        let Geometry { block, alignment, transfer, segments, size, .. } = self.geometry;
        let within = request.offset.checked_add(request.length).is_some_and(|end| end <= size);
        assert!(within && (request.offset | request.length).is_multiple_of(u64::from(block)), "{request:?}");
        if matches!(request.operation, Operation::Read | Operation::Write) {
            assert!(
                request.length <= u64::from(transfer) && request.segments.len() <= segments as usize,
                "{request:?}"
            );
            assert!(request.length > 0 && request.segments.iter().all(|segment| segment.length > 0), "{request:?}");
        }
        if request.segments.iter().any(|segment| !segment.base.is_multiple_of(u64::from(alignment))) {
            return Submission::Refused(Errno::EINVAL);
        }
        let in_flight = self.accepted.len() + self.pending.len();
        if in_flight >= self.room {
            return Submission::Full;
        }
        let count = self.controls.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(self.controls.worker_every.load(Ordering::Relaxed)) {
            return Submission::NeedsWorker;
        }
        let result = self.controls.carry_out(request).map_or_else(Errno::negative, |bytes| bytes as i32);
        self.accepted.push(Completion { token: request.token, result });
        self.controls.most_in_flight.fetch_max(in_flight as u64 + 1, Ordering::Relaxed);
        Submission::Accepted
    }

    fn ring_doorbell(&mut self) {
        let due = Clock::Monotonic.now() + self.controls.latency.load(Ordering::Relaxed);
        // Completes the requests in reverse order, because users must accept completions in any
        // order.
        self.pending.extend(self.accepted.drain(..).rev().map(|completion| (due, completion)));
    }

    fn poll(&mut self, completions: &mut Completions) {
        self.controls.polls.fetch_add(1, Ordering::Relaxed);
        let now = Clock::Monotonic.now();
        self.pending.retain(|(due, completion)| {
            let keep = *due > now || !completions.has_room();
            if !keep {
                completions.push(*completion);
            }
            keep
        });
        if let Some(interrupt) = &self.interrupt {
            eventfd::drain(interrupt.number());
        }
    }

    fn interrupt(&self) -> Option<i32> {
        self.interrupt.as_ref().map(|interrupt| interrupt.number())
    }

    fn arm_interrupt(&mut self) -> bool {
        self.controls.interrupts.fetch_add(1, Ordering::Relaxed);
        let earliest = self.pending.iter().map(|(due, _)| *due).min().expect("a request is in flight");
        let left = earliest.saturating_sub(Clock::Monotonic.now());
        left > 0 && usring_sys::timerfd::arm(self.interrupt().unwrap(), left).is_ok()
    }
}

impl Drop for TestQueue {
    fn drop(&mut self) {
        let clean = self.accepted.is_empty() && self.pending.is_empty();
        assert!(clean || std::thread::panicking(), "a request is in flight");
        self.controls.queues.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A page that may be accessed, followed by pages that may not be accessed.
pub struct HalfUsable(usize);

const PAGE: usize = usring_sys::mapping::PAGE;
const PAGES: usize = 16;

impl HalfUsable {
    pub fn new() -> HalfUsable {
        let address = usring_sys::mapping::private_pages(PAGES * PAGE).unwrap();
        let arguments = [(address + PAGE) as u64, ((PAGES - 1) * PAGE) as u64, 0, 0, 0];
        SystemCall::new(usring_uapi::general::__NR_mprotect, arguments).run().unwrap();
        HalfUsable(address)
    }

    /// Returns the address of the last `bytes` bytes that may be accessed.
    pub fn before_end(&self, bytes: u64) -> u64 {
        (self.0 + PAGE) as u64 - bytes
    }
}

impl Drop for HalfUsable {
    fn drop(&mut self) {
        let _ = usring_sys::mapping::unmap(self.0, PAGES * PAGE);
    }
}
