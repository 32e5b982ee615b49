//! A device in memory that all processes of a run share.
//!
//! A transfer is copied at submission, as Linux's own RAM disk does it. Copying
//! at the next look would cost the poller the same, and the segments would
//! have to be kept until then; this way a queue pair that is dropped has
//! nothing left to touch the program's memory with.

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
        Ok(Box::new(RamQueue { memory, depth: options.depth as usize, done, event, armed: false, signalled: false }))
    }

    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        match request.operation {
            Operation::Discard | Operation::WriteZeroes => {
                self.memory.punch(request.offset, request.length)?;
                Ok(0)
            }
            Operation::Read | Operation::Write | Operation::Flush => transfer(&self.memory, request),
        }
    }
}

struct RamQueue {
    memory: Arc<BulkMemory>,
    depth: usize,
    done: VecDeque<Completion>,
    event: Option<OwnedDescriptor>,
    /// Somebody may be asleep on the event.
    armed: bool,
    /// The event is readable.
    signalled: bool,
}

impl QueuePair for RamQueue {
    #[inline]
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.done.len() == self.depth {
            return Submission::Full;
        }
        let result = match request.operation {
            Operation::Discard => return Submission::NeedsWorker,
            Operation::WriteZeroes if request.length > ZEROED_IN_PLACE => return Submission::NeedsWorker,
            Operation::WriteZeroes => {
                self.memory.zero(request.offset, request.length);
                Ok(0)
            }
            Operation::Read | Operation::Write | Operation::Flush => transfer(&self.memory, request),
        };
        let result = result.map_or_else(Errno::negative, |bytes| bytes as i32);
        self.done.push_back(Completion { token: request.token, result });
        Submission::Accepted
    }

    #[inline]
    fn ring_doorbell(&mut self) {
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
fn transfer(memory: &BulkMemory, request: &DeviceRequest) -> Result<u32, Errno> {
    let mut offset = request.offset;
    for segment in request.segments {
        let address = UserAddress(segment.base);
        if request.operation == Operation::Read {
            memory.copy_to_user(offset, address, segment.length)?;
        } else {
            memory.copy_from_user(offset, address, segment.length)?;
        }
        offset += segment.length;
    }
    Ok((offset - request.offset) as u32)
}
