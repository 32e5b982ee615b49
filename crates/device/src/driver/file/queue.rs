//! The queue pairs of a file: one over an AIO context of its own, and one that
//! leaves to workers whatever it cannot answer at once.

use super::durability;
use crate::driver::{MOST_SEGMENTS, QueuePair, Submission};
use crate::geometry::Geometry;
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::kernel_aio::{Batch, Context};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, eventfd, file};
use usring_uapi::aio::{self, IoEvent, Iocb};
use usring_uapi::general as linux;

/// In a request's `aio_data`, above its token: no bytes at all would be an error.
const EXPECTS_BYTES: u64 = 1 << 32;

/// Members of vectored requests of one batch, in all.
const VECTORS: usize = 2 * MOST_SEGMENTS as usize;

/// The descriptor that becomes readable for a sleeper.
struct Interrupt {
    eventfd: OwnedDescriptor,
    /// Somebody sleeps on it, or is about to.
    is_armed: bool,
}

impl Interrupt {
    /// Silences what rang for completions of before; a look has to follow.
    fn drain(&mut self) {
        eventfd::drain(self.eventfd.number());
    }

    /// There is something that the kernel does not ring for.
    fn ring(&mut self) {
        if core::mem::take(&mut self.is_armed) {
            eventfd::signal(self.eventfd.number());
        }
    }
}

fn number_of(interrupt: &Option<Interrupt>) -> Option<i32> {
    interrupt.as_ref().map(|interrupt| interrupt.eventfd.number())
}

fn ring(interrupt: &mut Option<Interrupt>) {
    if let Some(interrupt) = interrupt {
        interrupt.ring();
    }
}

fn interrupt_by(eventfd: Option<OwnedDescriptor>) -> Option<Interrupt> {
    eventfd.map(|eventfd| Interrupt { eventfd, is_armed: false })
}

/// A queue pair over the kernel's AIO.
pub struct AioQueue {
    /// Dropped first: waits for what is in flight.
    context: Context,
    batch: Batch,
    /// The kernel had no room for all of the batch: it is offered the rest
    /// again at each look.
    is_held_up: bool,
    /// Answers to requests that the kernel did not take.
    refused: Vec<Completion>,
    /// How many are not answered yet, wherever they are.
    out: u32,
    depth: u32,
    /// What all requests have in common.
    template: Iocb,
    target: Target,
    interrupt: Option<Interrupt>,
}

/// Which file requests are for.
pub enum Target {
    /// The device's own.
    Device(DeviceTarget),
    /// Each names one of the program's (`DeviceRequest::file`): it has until the end
    /// of the batch, from when on the kernel holds it.
    Named,
}

pub struct DeviceTarget {
    /// The kernel holds it too for each request; this is for those to come.
    file: Arc<HeldDescriptor>,
    read_only: bool,
    /// Bits that no address and no length of a segment may have.
    misaligned: u64,
}

impl DeviceTarget {
    pub fn new(file: Arc<HeldDescriptor>, geometry: &Geometry) -> DeviceTarget {
        let misaligned = u64::from(geometry.alignment - 1);
        DeviceTarget { file, read_only: geometry.features.read_only, misaligned }
    }

    /// What the request is refused for.
    #[inline]
    fn check(&self, request: &DeviceRequest) -> Result<(), Errno> {
        if request.operation == Operation::Write && self.read_only {
            return Err(Errno::EPERM);
        }
        if self.is_aligned(request.segments) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Each segment has to be aligned: a file system that meets another may well go
    /// through the page cache, in silence and within the call.
    #[inline]
    fn is_aligned(&self, segments: &[IoVector]) -> bool {
        segments.iter().fold(0, |bits, segment| bits | segment.base | segment.length) & self.misaligned == 0
    }
}

impl AioQueue {
    /// The context of a queue pair.
    pub fn context(depth: u32) -> Result<Context, Errno> {
        Context::new(depth.max(1))
    }

    pub fn open(context: Context, target: Target, depth: u32, eventfd: Option<OwnedDescriptor>) -> Result<Self, Errno> {
        let mut template = Iocb::default();
        if let Target::Device(device) = &target {
            template.aio_fildes = device.file.number() as u32;
        }
        if let Some(eventfd) = &eventfd {
            template.aio_flags = aio::IOCB_FLAG_RESFD;
            template.aio_resfd = eventfd.number() as u32;
        }
        let batch = Batch::new(depth as usize, VECTORS)?;
        let mut refused = Vec::new();
        refused.try_reserve_exact(depth as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(AioQueue {
            context,
            batch,
            is_held_up: false,
            refused,
            out: 0,
            depth,
            template,
            target,
            interrupt: interrupt_by(eventfd),
        })
    }

    /// Offers the kernel the batch.
    fn offer(&mut self) {
        self.is_held_up = false;
        while !self.batch.is_empty() {
            match self.context.submit(&mut self.batch) {
                Ok(_) => {}
                // A number that was named is good for this batch alone.
                Err(Errno::EAGAIN) if matches!(self.target, Target::Device(_)) => {
                    self.is_held_up = true;
                    if self.context.submitted() == 0 {
                        ring(&mut self.interrupt);
                    }
                    return;
                }
                // The first one's fault; the others may be better.
                Err(error) => {
                    let token = self.batch.drop_first() as u32;
                    self.refused.push(Completion::failed(token, error));
                    ring(&mut self.interrupt);
                }
            }
        }
    }
}

impl QueuePair for AioQueue {
    #[inline]
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        let (command, vectored) = match request.operation {
            Operation::Read => (aio::IOCB_CMD_PREAD, aio::IOCB_CMD_PREADV),
            Operation::Write => (aio::IOCB_CMD_PWRITE, aio::IOCB_CMD_PWRITEV),
            Operation::Flush => (aio::IOCB_CMD_FDSYNC, aio::IOCB_CMD_FDSYNC),
            Operation::Discard | Operation::WriteZeroes => return Submission::NeedsWorker,
        };
        if self.out == self.depth {
            return Submission::Full;
        }
        if !self.batch.has_room(request.segments.len()) {
            self.offer();
            if !self.batch.has_room(request.segments.len()) {
                return Submission::Full;
            }
        }
        let mut iocb = Iocb { aio_data: u64::from(request.token), aio_lio_opcode: command, ..self.template };
        if matches!(self.target, Target::Named) {
            iocb.aio_fildes = request.file.number as u32;
            iocb.aio_rw_flags = request.file.flags as i32;
        }
        match request.operation {
            // A flush has no place, and the kernel minds if it is given one.
            Operation::Flush => {
                self.out += 1;
                self.batch.push(iocb, &[], vectored);
                return Submission::Accepted;
            }
            Operation::Write => iocb.aio_rw_flags |= durability(request) as i32,
            _ => {}
        }
        if let Target::Device(device) = &self.target {
            if let Err(error) = device.check(request) {
                return Submission::Refused(error);
            }
            if request.operation == Operation::Read && request.length != 0 {
                iocb.aio_data |= EXPECTS_BYTES;
            }
        }
        iocb.aio_offset = request.offset as i64;
        self.out += 1;
        self.batch.push(iocb, request.segments, vectored);
        Submission::Accepted
    }

    #[inline]
    fn ring_doorbell(&mut self) {
        self.offer();
    }

    #[inline]
    fn poll(&mut self, completions: &mut Completions) {
        if self.is_held_up {
            self.offer();
        }
        let before = completions.as_slice().len();
        while completions.has_room()
            && let Some(refused) = self.refused.pop()
        {
            completions.push(refused);
        }
        let submitted = self.context.submitted();
        while completions.has_room()
            && let Some(event) = self.context.take()
        {
            completions.push(completion(&event));
        }
        if self.context.submitted() != submitted {
            self.context.finish_look();
        }
        self.out -= (completions.as_slice().len() - before) as u32;
    }

    fn has_news(&mut self) -> bool {
        self.is_held_up || !self.refused.is_empty() || !self.context.is_empty()
    }

    fn interrupt(&self) -> Option<i32> {
        number_of(&self.interrupt)
    }

    fn arm_interrupt(&mut self) -> bool {
        // Before the look: a completion in between rings once more.
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.drain();
        }
        if self.is_held_up {
            self.offer();
        }
        // Without a request in the kernel nobody would ring for the batch.
        let is_stuck = self.is_held_up && self.context.submitted() == 0;
        let is_silent = self.refused.is_empty() && self.context.is_empty() && !is_stuck;
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.is_armed = is_silent;
        }
        is_silent
    }
}

#[inline]
fn completion(event: &IoEvent) -> Completion {
    let token = event.data as u32;
    match event.res {
        // The file has become shorter than the device.
        0 if event.data & EXPECTS_BYTES != 0 => Completion::failed(token, Errno::EIO),
        result => Completion { token, result: result as i32 },
    }
}

/// A queue pair that has no requests in flight: it answers what the page cache
/// can answer, and leaves the rest to workers.
pub struct InlineQueue {
    file: Arc<HeldDescriptor>,
    /// A read that need not wait is tried here.
    tries_reads: bool,
    answered: Vec<Completion>,
    interrupt: Option<Interrupt>,
}

impl InlineQueue {
    pub fn open(
        file: Arc<HeldDescriptor>,
        depth: u32,
        eventfd: Option<OwnedDescriptor>,
        tries_reads: bool,
    ) -> Result<Self, Errno> {
        let mut answered = Vec::new();
        answered.try_reserve_exact(depth as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(InlineQueue { file, tries_reads, answered, interrupt: interrupt_by(eventfd) })
    }
}

impl QueuePair for InlineQueue {
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if request.operation != Operation::Read || !self.tries_reads {
            return Submission::NeedsWorker;
        }
        if self.answered.len() == self.answered.capacity() {
            return Submission::Full;
        }
        match file::read_at(self.file.number(), request.offset, request.segments, linux::RWF_NOWAIT) {
            Ok(bytes) if u64::from(bytes) == request.length => {
                self.answered.push(Completion { token: request.token, result: bytes as i32 });
                ring(&mut self.interrupt);
                Submission::Accepted
            }
            // The file system does not know the question (tmpfs).
            Err(Errno::EOPNOTSUPP) => {
                self.tries_reads = false;
                Submission::NeedsWorker
            }
            _ => Submission::NeedsWorker,
        }
    }

    fn ring_doorbell(&mut self) {}

    fn poll(&mut self, completions: &mut Completions) {
        while completions.has_room()
            && let Some(answer) = self.answered.pop()
        {
            completions.push(answer);
        }
    }

    fn interrupt(&self) -> Option<i32> {
        number_of(&self.interrupt)
    }

    fn arm_interrupt(&mut self) -> bool {
        let is_silent = self.answered.is_empty();
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.drain();
            interrupt.is_armed = is_silent;
        }
        is_silent
    }
}
