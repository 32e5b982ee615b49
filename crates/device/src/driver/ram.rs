//! A device in memory that all processes of a run share.
//!
//! A transfer is copied on its way in, as Linux's own RAM disk does it, but one
//! request late: while one is copied, the processor fetches the blocks of the
//! next, for which it would have to wait otherwise. The doorbell copies the last
//! one of its batch.

use crate::driver::{Driver, QueueOptions, QueuePair, Submission};
use crate::geometry::{Features, Geometry};
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use crate::spec::{Kind, Layer, Opened, Opening, OptionRow, ValueKind, check_size};
use crate::supply::Supply;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use usring_sys::bulk_memory::BulkMemory;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, eventfd};

pub static KIND: Kind = Kind {
    name: "ram",
    options: &[
        OptionRow { name: "size", value: ValueKind::Size, required: true },
        OptionRow { name: "block", value: ValueKind::Block, required: false },
    ],
    check: check_size,
    open: Opening::Device(open),
};

/// Zeroes up to this many bytes are written in place; more are a hole in the
/// memory's file, which takes a system call and gives the pages back.
const ZEROED_IN_PLACE: u64 = 128 << 10;

struct Ram {
    geometry: Geometry,
    memory: Arc<BulkMemory>,
}

fn open(layer: &Layer, supply: Box<dyn Supply>) -> Opened {
    let size = layer.size("size").ok_or(Errno::EINVAL)?;
    let memory = Arc::new(BulkMemory::map(supply.memory(size)?, size)?);
    let features = Features { polls: true, flush: false, discard: true, write_zeroes: true, read_only: false };
    let geometry = Geometry {
        size,
        block: layer.block(),
        alignment: 1,
        transfer: super::LONGEST_TRANSFER,
        segments: super::MOST_SEGMENTS,
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
        Ok(Box::new(RamQueue { memory, depth, done, next: None, event, armed: false, signalled: false }))
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
    /// Accepted, being fetched, and not yet copied.
    next: Option<Next>,
    event: Option<OwnedDescriptor>,
    /// Somebody may be asleep on the event.
    armed: bool,
    /// The event is readable.
    signalled: bool,
}

/// A read or write of one piece.
#[derive(Clone, Copy)]
struct Next {
    token: u32,
    operation: Operation,
    offset: u64,
    segment: IoVector,
}

impl RamQueue {
    #[inline]
    fn finish(&mut self, token: u32, result: Result<u32, Errno>) {
        let result = result.map_or_else(Errno::negative, |bytes| bytes as i32);
        self.done.push_back(Completion { token, result });
    }

    #[inline]
    fn copy_next(&mut self) {
        if let Some(Next { token, operation, offset, segment }) = self.next.take() {
            let result = transfer(&self.memory, operation, offset, &[segment]);
            self.finish(token, result);
        }
    }
}

impl QueuePair for RamQueue {
    #[inline]
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.done.len() + usize::from(self.next.is_some()) == self.depth {
            return Submission::Full;
        }
        let &DeviceRequest { token, operation, offset, .. } = request;
        if let (Operation::Read | Operation::Write, &[segment]) = (operation, request.segments) {
            self.memory.prefetch(offset, segment.length);
            self.copy_next();
            self.next = Some(Next { token, operation, offset, segment });
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
        self.finish(token, result);
        Submission::Accepted
    }

    #[inline]
    fn ring_doorbell(&mut self) {
        self.copy_next();
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

/// Copies what a read or write asks for; nothing for a flush, since memory is
/// as durable as it gets.
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
    Ok((offset - start) as u32)
}
