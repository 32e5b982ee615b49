//! Drives a queue pair: single requests, or many in flight.

use crate::backend::LIMIT;
use fastrand::Rng;
use std::time::Instant;
use usring_device::{Completion, Completions, DeviceRequest, NamedFile, Operation, QueuePair, Submission};
use usring_sys::plain::IoVector;

pub fn vector(bytes: &[u8]) -> IoVector {
    IoVector { base: bytes.as_ptr() as u64, length: bytes.len() as u64 }
}

/// Pages that a test registers. They are a mapping of their own, because another test may have
/// registered the allocator's memory.
pub struct Pages(*mut u8, usize);

impl Pages {
    pub fn new(length: usize, fill: u8) -> Pages {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the call makes a new mapping.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        let mut pages = Pages(address.cast(), length);
        pages.fill(fill);
        pages
    }
}

impl std::ops::Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is mapped and filled. The device writes it only while a request is in
        // flight.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

impl std::ops::DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped and filled. The device writes it only while a request is in
        // flight.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` has made the mapping, and only this value uses it.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Returns a device request with these values. All other fields have their usual values.
pub fn request(token: u32, operation: Operation, offset: u64, segments: &[IoVector]) -> DeviceRequest<'_> {
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

/// Polls the queue until `count` requests have completed. Returns their completions.
pub fn wait(queue: &mut dyn QueuePair, count: usize) -> Vec<Completion> {
    let (start, mut all, mut completions) = (Instant::now(), Vec::new(), Completions::new());
    while all.len() < count {
        assert!(start.elapsed() < LIMIT, "{} of {count} requests completed", all.len());
        completions.clear();
        queue.poll(&mut completions);
        all.extend_from_slice(completions.as_slice());
        if completions.as_slice().is_empty() {
            std::thread::yield_now();
        }
    }
    all
}

/// Sleeps until an interrupt and then polls, until `count` requests have completed. Returns their
/// completions.
pub fn wait_asleep(queue: &mut dyn QueuePair, count: usize) -> Vec<Completion> {
    let (mut all, mut completions) = (Vec::new(), Completions::new());
    loop {
        completions.clear();
        queue.poll(&mut completions);
        all.extend_from_slice(completions.as_slice());
        if all.len() >= count {
            return all;
        }
        if queue.arm_interrupt() {
            let mut watched = libc::pollfd { fd: queue.interrupt().unwrap(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the array is one entry, as its count says.
            let woken = unsafe { libc::poll(&mut watched, 1, LIMIT.as_millis() as i32) };
            assert_eq!(woken, 1, "{} of {count} requests completed", all.len());
        }
    }
}

/// Submits one request, waits for it, and returns its result.
pub fn run(queue: &mut dyn QueuePair, request: &DeviceRequest) -> i32 {
    match queue.submit(request) {
        Submission::Accepted => {
            queue.ring_doorbell();
            wait(queue, 1)[0].result
        }
        Submission::Refused(error) => error.negative(),
        other => panic!("{other:?}"),
    }
}

pub fn read(queue: &mut dyn QueuePair, offset: u64, length: usize) -> Vec<u8> {
    let buffer = vec![0xa5; length];
    assert_eq!(run(queue, &request(0, Operation::Read, offset, &[vector(&buffer)])), length as i32);
    buffer
}

const BLOCK: usize = 4096;

/// Traffic on random blocks: writes and reads. `depth` requests are in flight, at most one of them
/// on each block. The content of each read block is compared with the last write to that block.
pub struct Traffic {
    first: u64,
    blocks: u64,
    /// For each block, the number that the last write filled it with.
    holds: Vec<u64>,
    lanes: Vec<Lane>,
    numbers: Rng,
    pub answered: usize,
}

struct Lane {
    buffer: Box<[u64]>,
    /// The block that the request in flight uses, and whether the request writes. `None` if no
    /// request is in flight.
    out: Option<(usize, bool)>,
}

impl Traffic {
    pub fn new(first: u64, blocks: u64, depth: usize) -> Traffic {
        let lane = || Lane { buffer: vec![0; BLOCK / 8].into_boxed_slice(), out: None };
        Traffic {
            first,
            blocks,
            holds: vec![0; blocks as usize],
            lanes: (0..depth).map(|_| lane()).collect(),
            numbers: Rng::with_seed(first + depth as u64),
            answered: 0,
        }
    }

    /// Submits a request for each lane without a request in flight. A lane is a buffer with its
    /// request.
    pub fn submit(&mut self, queue: &mut dyn QueuePair) {
        for token in 0..self.lanes.len() {
            if self.lanes[token].out.is_some() {
                continue;
            }
            let block = self.numbers.u64(..self.blocks) as usize;
            let writes = self.numbers.bool();
            if self.lanes.iter().any(|lane| lane.out.is_some_and(|(other, _)| other == block)) {
                continue;
            }
            let lane = &mut self.lanes[token];
            if writes {
                self.holds[block] = self.numbers.u64(..);
            }
            lane.buffer.fill(if writes { self.holds[block] } else { !self.holds[block] });
            let segment = IoVector { base: lane.buffer.as_ptr() as u64, length: BLOCK as u64 };
            let operation = if writes { Operation::Write } else { Operation::Read };
            let offset = self.first + (block * BLOCK) as u64;
            assert_eq!(queue.submit(&request(token as u32, operation, offset, &[segment])), Submission::Accepted);
            lane.out = Some((block, writes));
        }
        queue.ring_doorbell();
    }

    pub fn out(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.out.is_some()).count()
    }

    pub fn take(&mut self, completions: &[Completion]) {
        for completion in completions {
            let lane = &mut self.lanes[completion.token as usize];
            let (block, writes) = lane.out.take().expect("each request completes once");
            assert_eq!(completion.result, BLOCK as i32);
            if !writes {
                let holds = self.holds[block];
                assert!(lane.buffer.iter().all(|word| *word == holds), "block {block} holds something else");
            }
            self.answered += 1;
        }
    }

    /// Runs `count` more requests, and then waits until none is in flight.
    pub fn run(&mut self, queue: &mut dyn QueuePair, count: usize) {
        let end = self.answered + count;
        while self.answered < end {
            self.submit(queue);
            let some = wait(queue, 1);
            self.take(&some);
        }
        self.finish(queue);
    }

    pub fn finish(&mut self, queue: &mut dyn QueuePair) {
        let rest = wait(queue, self.out());
        self.take(&rest);
    }

    /// Reads every block and compares it with what was last written to it.
    pub fn verify(&mut self, queue: &mut dyn QueuePair) {
        for block in 0..self.blocks {
            let bytes = read(queue, self.first + block * BLOCK as u64, BLOCK);
            let holds = self.holds[block as usize].to_ne_bytes();
            assert!(bytes.chunks_exact(8).all(|word| word == holds), "block {block} holds something else");
        }
    }
}
