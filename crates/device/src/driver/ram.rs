//! A device whose blocks are in memory that all processes of a `usring run` share.
//!
//! The submitting thread copies the data, as in Linux's RAM disk. It does so at the doorbell, for a
//! whole batch. During one copy, the thread prefetches the address translations and the data of the
//! next copies. Without that, each copy would wait for them.

use crate::driver::{Driver, QueueOptions, QueuePair, Submission};
use crate::geometry::{ANY_NUMBER, Features, Geometry};
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use crate::spec::{DeviceKind, Layer, Opened, Opening, OptionRow, ValueKind, check_size};
use crate::supply::Supply;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use usring_sys::bulk_memory::{BulkMemory, LINE};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, eventfd, width};

pub static KIND: DeviceKind = DeviceKind {
    name: "ram",
    options: &[
        OptionRow { name: "size", value: ValueKind::Size, required: true },
        OptionRow { name: "block", value: ValueKind::Block, required: false },
    ],
    check: check_size,
    open: Opening::Device(open),
};

/// Maximum length in bytes of a range that is zeroed by stores. A longer range becomes a hole in
/// the memory file, which takes a system call and frees the pages.
const ZEROED_IN_PLACE: u64 = 128 << 10;

/// Distance, in copies, between the current copy and the copy for which the thread prefetches. The
/// thread prefetches the first cache line of that copy's data, and the address translation, which
/// takes as long as several cache lines.
const COPIES_AHEAD: usize = 4;
/// Bytes of the next copy that the thread prefetches. The processor prefetches the bytes after them
/// by itself.
const PREFETCHED_BYTES: u64 = 1024;

struct Ram {
    geometry: Geometry,
    memory: Arc<BulkMemory>,
}

fn open(layer: &Layer, supply: Box<dyn Supply>) -> Opened {
    let size = layer.size("size").ok_or(Errno::EINVAL)?;
    let memory = Arc::new(BulkMemory::map(supply.memory(size)?, size)?);
    let features = Features { polls: true, discard: true, write_zeroes: true, ..Features::default() };
    let geometry = Geometry {
        size,
        block: layer.block(),
        alignment: 1,
        transfer: super::LONGEST_TRANSFER,
        segments: super::MOST_SEGMENTS,
        queues: ANY_NUMBER,
        features,
    };
    Ok(Box::new(Ram { geometry, memory }))
}

impl Driver for Ram {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        let mut done = VecDeque::new();
        done.try_reserve_exact(options.depth as usize).map_err(|_| Errno::ENOMEM)?;
        let event = if options.interrupts { Some(eventfd::create()?.into_private()?) } else { None };
        let memory = self.memory.clone();
        let depth = options.depth as usize;
        let mut batch = Vec::new();
        batch.try_reserve_exact(depth).map_err(|_| Errno::ENOMEM)?;
        Ok(Box::new(RamQueue { memory, depth, done, batch, event, armed: false, signalled: false }))
    }

    fn keep_after_fork(&self, keep: &mut dyn FnMut(i32)) -> bool {
        keep(self.memory.file());
        true
    }

    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        match request.operation {
            Operation::Discard | Operation::WriteZeroes => {
                self.memory.punch(request.offset, request.length)?;
                Ok(0)
            }
            Operation::Read | Operation::Write | Operation::Flush => {
                transfer(&self.memory, request.operation, request.offset, request.segments)
            }
        }
    }
}

struct RamQueue {
    memory: Arc<BulkMemory>,
    depth: usize,
    done: VecDeque<Completion>,
    /// Accepted reads and writes, whose data the thread copies at the next doorbell.
    batch: Vec<OnePiece>,
    event: Option<OwnedDescriptor>,
    /// Whether the thread that uses the queue may be asleep on `event`.
    armed: bool,
    /// Whether `event` is readable.
    signalled: bool,
}

/// A read or write with a single segment.
#[derive(Clone, Copy)]
struct OnePiece {
    token: u32,
    operation: Operation,
    offset: u64,
    segment: IoVector,
}

#[inline]
fn completion(token: u32, result: Result<u32, Errno>) -> Completion {
    Completion { token, result: result.map_or_else(Errno::negative, |bytes| bytes.cast_signed()) }
}

impl RamQueue {
    /// Copies the data of the accepted requests. During each copy, prefetches for the copies after
    /// it.
    #[inline]
    fn copy_batch(&mut self) {
        let fetch = |piece: Option<&OnePiece>, bytes: Range<u64>| {
            if let Some(OnePiece { offset, segment, .. }) = piece {
                self.memory.prefetch(*offset, bytes.start..bytes.end.min(segment.length));
            }
        };
        fetch(self.batch.first(), 0..PREFETCHED_BYTES);
        for at in 1..COPIES_AHEAD {
            fetch(self.batch.get(at), 0..LINE);
        }
        for at in 0..self.batch.len() {
            fetch(self.batch.get(at + COPIES_AHEAD), 0..LINE);
            fetch(self.batch.get(at + 1), LINE..PREFETCHED_BYTES);
            let OnePiece { token, operation, offset, segment } = self.batch[at];
            let result = transfer(&self.memory, operation, offset, &[segment]);
            self.done.push_back(completion(token, result));
        }
        self.batch.clear();
    }
}

impl QueuePair for RamQueue {
    #[inline]
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.done.len() + self.batch.len() == self.depth {
            return Submission::Full;
        }
        let &DeviceRequest { token, operation, offset, .. } = request;
        if let (Operation::Read | Operation::Write, &[segment]) = (operation, request.segments) {
            self.batch.push(OnePiece { token, operation, offset, segment });
            return Submission::Accepted;
        }
        let result = match request.operation {
            Operation::Discard => return Submission::NeedsWorker,
            Operation::WriteZeroes if request.length > ZEROED_IN_PLACE => return Submission::NeedsWorker,
            Operation::WriteZeroes => {
                self.memory.zero(request.offset, request.length);
                Ok(0)
            }
            Operation::Read | Operation::Write | Operation::Flush => {
                transfer(&self.memory, operation, offset, request.segments)
            }
        };
        self.done.push_back(completion(token, result));
        Submission::Accepted
    }

    #[inline]
    fn ring_doorbell(&mut self) {
        self.copy_batch();
        if self.armed
            && !self.done.is_empty()
            && let Some(event) = &self.event
        {
            eventfd::signal(event.number());
            (self.armed, self.signalled) = (false, true);
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut Completions) {
        while completions.has_room()
            && let Some(completion) = self.done.pop_front()
        {
            completions.push(completion);
        }
        if self.signalled
            && let Some(event) = &self.event
        {
            eventfd::drain(event.number());
            self.signalled = false;
        }
    }

    fn interrupt(&self) -> Option<i32> {
        self.event.as_ref().map(OwnedDescriptor::number)
    }

    fn arm_interrupt(&mut self) -> bool {
        self.armed = self.done.is_empty();
        self.armed
    }
}

/// Copies the data of a read or write. Returns the bytes copied. Does nothing for a flush, because
/// the device is memory.
#[inline]
fn transfer(memory: &BulkMemory, operation: Operation, start: u64, segments: &[IoVector]) -> Result<u32, Errno> {
    let mut offset = start;
    for segment in segments {
        let address = UserAddress(segment.base);
        if operation == Operation::Read {
            memory.copy_to_user(offset, address, segment.length)?;
        } else {
            memory.copy_from_user(offset, address, segment.length)?;
        }
        offset += segment.length;
    }
    Ok(width::low(offset - start))
}
