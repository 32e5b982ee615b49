//! The queue pairs of a file: one over an AIO context of its own, and one that
//! leaves to workers whatever it cannot answer at once.

use super::durability;
use crate::driver::delivery::{Delivery, Parcel};
use crate::driver::{MOST_SEGMENTS, QueuePair, Submission};
use crate::geometry::Geometry;
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::kernel_aio::{Batch, Context, Waiter};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, eventfd, file};
use usring_uapi::aio::{self, IoEvent, Iocb};
use usring_uapi::general as linux;

/// In a request's `aio_data`, above its token: no bytes at all would be an error.
const EXPECTS_BYTES: u64 = 1 << 32;
/// In a request's `aio_data`: its completion does not signal the interrupt's eventfd.
const SILENT: u64 = 1 << 33;

/// Members of vectored requests of one batch, in all.
const VECTORS: usize = 2 * MOST_SEGMENTS as usize;

/// The descriptor that becomes readable for a sleeper.
struct Interrupt {
    eventfd: Arc<OwnedDescriptor>,
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
    eventfd.map(|eventfd| Interrupt { eventfd: Arc::new(eventfd), is_armed: false })
}

/// A queue pair over the kernel's AIO.
pub struct AioQueue {
    context: Context,
    /// What has been accepted since the kernel was last told.
    parcel: Box<Parcel>,
    /// Before that: there was no room for more of their segments.
    #[expect(clippy::vec_box, reason = "they are handed on by these boxes")]
    closed: Vec<Box<Parcel>>,
    /// Empty ones.
    #[expect(clippy::vec_box, reason = "they are handed on by these boxes")]
    spare: Vec<Box<Parcel>>,
    /// Answers to requests that the kernel did not take.
    refused: Vec<IoEvent>,
    /// A filter of the program's forbids io_submit(2).
    is_denied: bool,
    /// Requests out whose completions signal nothing.
    silent: u32,
    /// How many are not answered yet, wherever they are.
    out: u32,
    depth: u32,
    /// What all requests have in common.
    template: Iocb,
    target: Target,
    interrupt: Option<Interrupt>,
}

/// Empty parcels that are kept: one for each thread that tells the kernel of
/// something, and there are not many.
const SPARE: usize = 4;

/// Which file requests are for.
pub enum Target {
    /// The device's own.
    Device(DeviceTarget),
    /// Each names one of the program's (`DeviceRequest::file`), whose number is good
    /// until the kernel has been told of the batch and holds the file itself.
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
    /// The context of a queue pair: for its requests, and what wakes who sleeps for them.
    pub fn context(depth: u32) -> Result<Context, Errno> {
        Context::new(depth + Waiter::MOST)
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
        let interrupt = interrupt_by(eventfd);
        let parcel = empty_parcel(&context, &target, &interrupt, depth)?;
        Ok(AioQueue {
            context,
            parcel,
            closed: Vec::new(),
            spare: Vec::new(),
            refused: Vec::new(),
            is_denied: false,
            silent: 0,
            out: 0,
            depth,
            template,
            target,
            interrupt,
        })
    }

    /// An empty parcel takes the place of the one that was being filled.
    fn close_parcel(&mut self) -> Result<Box<Parcel>, Errno> {
        let fresh = match self.spare.pop() {
            Some(spare) => spare,
            None => empty_parcel(&self.context, &self.target, &self.interrupt, self.depth)?,
        };
        Ok(core::mem::replace(&mut self.parcel, fresh))
    }

    /// There is no room for so many segments in this parcel.
    #[cold]
    fn begin_another(&mut self, segments: usize) -> bool {
        match self.close_parcel() {
            Ok(full) => self.closed.push(full),
            Err(_) => return false,
        }
        self.parcel.batch.has_room(segments)
    }

    /// There is no memory for a parcel that could take the place of this one.
    #[cold]
    fn tell_here(&mut self) {
        for mut parcel in core::mem::take(&mut self.closed) {
            self.context.expect(parcel.batch.length());
            parcel.hand_over();
            self.put_aside(parcel);
        }
        self.context.expect(self.parcel.batch.length());
        self.parcel.hand_over();
        let mut refused = core::mem::take(&mut self.parcel.refused);
        self.note_refused(&mut refused);
    }

    #[inline]
    fn count_out(&mut self) {
        self.out += 1;
        self.silent += u32::from(self.template.aio_data & SILENT != 0);
    }

    #[inline]
    fn count_back(&mut self, event: &IoEvent) -> Completion {
        self.silent -= u32::from(event.data & SILENT != 0);
        completion(event)
    }

    #[inline]
    fn note_refused(&mut self, refused: &mut Vec<IoEvent>) {
        if !refused.is_empty() {
            self.is_denied |= refused.iter().any(is_denial);
            self.context.give_up(refused.len());
            self.refused.append(refused);
            ring(&mut self.interrupt);
        }
    }

    /// The kernel has been told of it.
    #[inline]
    fn put_aside(&mut self, mut parcel: Box<Parcel>) {
        self.note_refused(&mut parcel.refused);
        if self.spare.len() < SPARE {
            self.spare.push(parcel);
        }
    }
}

fn empty_parcel(
    context: &Context,
    target: &Target,
    interrupt: &Option<Interrupt>,
    depth: u32,
) -> Result<Box<Parcel>, Errno> {
    let file = match target {
        Target::Device(device) => Some(device.file.clone()),
        Target::Named => None,
    };
    let interrupt = interrupt.as_ref().map(|interrupt| interrupt.eventfd.clone());
    let batch = Batch::new(context, depth as usize, VECTORS)?;
    Ok(Box::new(Parcel { batch, file, interrupt, refused: Vec::new(), next: None }))
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
        if self.is_denied {
            return Submission::NeedsWorker;
        }
        if self.out == self.depth {
            return Submission::Full;
        }
        if let Target::Device(device) = &self.target
            && request.operation != Operation::Flush
            && let Err(error) = device.check(request)
        {
            return Submission::Refused(error);
        }
        let segments = request.segments.len();
        if !self.parcel.batch.has_room(segments) && !self.begin_another(segments) {
            return Submission::Full;
        }
        let data = u64::from(request.token) | self.template.aio_data;
        let mut iocb = Iocb { aio_data: data, aio_lio_opcode: command, ..self.template };
        if matches!(self.target, Target::Named) {
            iocb.aio_fildes = request.file.number as u32;
            iocb.aio_rw_flags = request.file.flags as i32;
        }
        match request.operation {
            // A flush has no place, and the kernel minds if it is given one.
            Operation::Flush => {
                self.count_out();
                self.parcel.batch.push(iocb, &[], vectored);
                return Submission::Accepted;
            }
            Operation::Write => iocb.aio_rw_flags |= durability(request) as i32,
            _ => {}
        }
        let is_read = request.operation == Operation::Read;
        if is_read && request.length != 0 && matches!(self.target, Target::Device(_)) {
            iocb.aio_data |= EXPECTS_BYTES;
        }
        iocb.aio_offset = request.offset as i64;
        self.count_out();
        self.parcel.batch.push(iocb, request.segments, vectored);
        Submission::Accepted
    }

    /// Sleeps in the caller, who says by it that nobody minds.
    fn ring_doorbell(&mut self) {
        if let Some(mut delivery) = self.begin_delivery() {
            delivery.carry_out();
            self.end_delivery(delivery);
        }
    }

    fn is_delivered_to(&self) -> bool {
        true
    }

    #[inline]
    fn begin_delivery(&mut self) -> Option<Delivery> {
        let mut first = None;
        if !self.parcel.batch.is_empty() {
            let Ok(parcel) = self.close_parcel() else {
                self.tell_here();
                return None;
            };
            self.context.expect(parcel.batch.length());
            first = Some(parcel);
        }
        while let Some(mut earlier) = self.closed.pop() {
            self.context.expect(earlier.batch.length());
            earlier.next = first;
            first = Some(earlier);
        }
        first.map(Delivery)
    }

    #[inline]
    fn end_delivery(&mut self, delivery: Delivery) {
        let mut next = Some(delivery.0);
        while let Some(mut parcel) = next {
            next = parcel.next.take();
            self.put_aside(parcel);
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut Completions) {
        let before = completions.as_slice().len();
        while completions.has_room()
            && let Some(refused) = self.refused.pop()
        {
            completions.push(self.count_back(&refused));
        }
        let expected = self.context.expected();
        while completions.has_room()
            && let Some(event) = self.context.take()
        {
            completions.push(self.count_back(&event));
        }
        if self.context.expected() != expected {
            self.context.finish_look();
        }
        self.out -= (completions.as_slice().len() - before) as u32;
    }

    fn has_news(&mut self) -> bool {
        !self.refused.is_empty() || !self.context.is_empty()
    }

    fn interrupt(&self) -> Option<i32> {
        number_of(&self.interrupt)
    }

    fn waiter(&self) -> Option<Waiter> {
        let interrupt = self.interrupt.as_ref()?;
        Some(self.context.waiter(interrupt.eventfd.clone()))
    }

    fn silence(&mut self) {
        (self.template.aio_flags, self.template.aio_data) = (0, SILENT);
    }

    fn has_silent(&self) -> bool {
        self.silent != 0
    }

    fn arm_interrupt(&mut self) -> bool {
        if let Some(interrupt) = &self.interrupt {
            (self.template.aio_flags, self.template.aio_data) = (aio::IOCB_FLAG_RESFD, 0);
            self.template.aio_resfd = interrupt.eventfd.number() as u32;
        }
        // Before the look: a completion in between rings once more.
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.drain();
        }
        let is_silent = self.refused.is_empty() && self.context.is_empty();
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.is_armed = is_silent;
        }
        is_silent
    }
}

/// Whether the kernel never refuses a request for this, but a seccomp filter does.
fn is_denial(event: &IoEvent) -> bool {
    [Errno::EPERM, Errno::ENOSYS, Errno::EACCES].iter().any(|error| event.res == i64::from(error.negative()))
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
