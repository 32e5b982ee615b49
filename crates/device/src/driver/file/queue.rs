//! The queue pairs of a file. [`AioQueue`] uses an AIO context of its own. [`InlineQueue`]
//! completes a request immediately if it can, and leaves all others to workers.

use super::durability;
use crate::driver::deferred_submit::{DeferredSubmit, PendingBatch};
use crate::driver::{MOST_SEGMENTS, QueuePair, Submission};
use crate::geometry::Geometry;
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::kernel_aio::{Batch, Context, Waiter};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, eventfd, file, width};
use usring_uapi::aio::{self, IoEvent, Iocb};
use usring_uapi::general as linux;

/// Bit of a request's `aio_data`, above its token: a result of 0 bytes is an error, because it
/// means that the file has become shorter than the device.
const EXPECTS_BYTES: u64 = 1 << 32;
/// Bit of a request's `aio_data`: the completion does not signal the interrupt's eventfd.
const WITHOUT_SIGNAL: u64 = 1 << 33;

/// Maximum number of segments of all vectored requests of a batch.
const VECTORS: usize = 2 * MOST_SEGMENTS as usize;

/// The eventfd on which the queue pair's user sleeps.
struct Interrupt {
    eventfd: Arc<OwnedDescriptor>,
    /// Whether the thread that uses the queue sleeps on the eventfd, or is about to.
    is_armed: bool,
}

impl Interrupt {
    /// Clears earlier signals of the eventfd. The caller must poll the queue pair afterwards.
    fn drain(&mut self) {
        eventfd::drain(self.eventfd.number());
    }

    /// Signals the eventfd, if the interrupt is armed. Called for a completion that the kernel does
    /// not signal.
    fn ring(&mut self) {
        if core::mem::take(&mut self.is_armed) {
            eventfd::signal(self.eventfd.number());
        }
    }
}

fn number_of(interrupt: &Option<Interrupt>) -> Option<i32> {
    interrupt.as_ref().map(|interrupt| interrupt.eventfd.number())
}

fn ring_interrupt(interrupt: &mut Option<Interrupt>) {
    if let Some(interrupt) = interrupt {
        interrupt.ring();
    }
}

fn interrupt_by(eventfd: Option<OwnedDescriptor>) -> Option<Interrupt> {
    eventfd.map(|eventfd| Interrupt { eventfd: Arc::new(eventfd), is_armed: false })
}

/// A queue pair on the kernel's AIO.
pub struct AioQueue {
    context: Context,
    /// The current batch: requests accepted since the last batch was closed, and not yet submitted
    /// to the kernel.
    open: Box<PendingBatch>,
    /// Closed batches that are not submitted yet. A batch is closed when it has no room for the
    /// segments of the next request.
    #[expect(clippy::vec_box, reason = "they are handed on by these boxes")]
    closed: Vec<Box<PendingBatch>>,
    /// Empty batches that are kept for reuse.
    #[expect(clippy::vec_box, reason = "they are handed on by these boxes")]
    spare: Vec<Box<PendingBatch>>,
    /// Completions of requests that the kernel refused.
    refused: Vec<IoEvent>,
    /// Whether a seccomp filter of the program refuses io_submit(2), whatever the call submits.
    is_denied: bool,
    /// Number of requests in flight whose completions do not signal the interrupt.
    without_signal: u32,
    /// Number of requests that the queue pair has accepted and not yet completed.
    in_flight: u32,
    depth: u32,
    /// The iocb fields that all requests have in common.
    template: Iocb,
    target: Target,
    interrupt: Option<Interrupt>,
}

/// Maximum number of empty batches to keep for reuse. Each thread that submits needs one batch, and
/// few threads submit at one time.
const MOST_SPARE_BATCHES: usize = 4;

/// The file that requests are for.
pub enum Target {
    /// The device's own file.
    Device(DeviceTarget),
    /// A file of the program, which each request names (`DeviceRequest::file`). The file's
    /// descriptor number must stay valid until the batch of the request has been submitted. From
    /// then on the kernel holds the file.
    Named,
}

pub struct DeviceTarget {
    /// The device's own file, which stays open for later requests. For a submitted request, the
    /// kernel itself keeps the file open.
    file: Arc<HeldDescriptor>,
    read_only: bool,
    /// Bits that must be 0 in the address and the length of every segment.
    misaligned: u64,
}

impl DeviceTarget {
    pub fn new(file: Arc<HeldDescriptor>, geometry: &Geometry) -> DeviceTarget {
        let misaligned = u64::from(geometry.alignment - 1);
        DeviceTarget { file, read_only: geometry.features.read_only, misaligned }
    }

    /// Checks a request. Errors: `EPERM` for a write to a read-only device; `EINVAL` for a segment
    /// that is not aligned.
    #[inline]
    fn check(&self, request: &DeviceRequest) -> Result<(), Errno> {
        if request.operation == Operation::Write && self.read_only {
            return Err(Errno::EPERM);
        }
        if self.is_aligned(request.segments) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Returns whether every segment is aligned. For a misaligned segment, a file system may
    /// silently use the page cache and make the whole transfer within io_submit(2).
    #[inline]
    fn is_aligned(&self, segments: &[IoVector]) -> bool {
        segments.iter().fold(0, |bits, segment| bits | segment.base | segment.length) & self.misaligned == 0
    }
}

impl AioQueue {
    /// Makes the AIO context of a queue pair. It has room for the queue pair's requests and for the
    /// requests by which [`Waiter`] wakes a sleeping thread.
    pub fn context(depth: u32) -> Result<Context, Errno> {
        Context::new(depth + Waiter::MOST)
    }

    pub fn open(context: Context, target: Target, depth: u32, eventfd: Option<OwnedDescriptor>) -> Result<Self, Errno> {
        let mut template = Iocb::default();
        if let Target::Device(device) = &target {
            template.aio_fildes = device.file.number().cast_unsigned();
        }
        if let Some(eventfd) = &eventfd {
            template.aio_flags = aio::IOCB_FLAG_RESFD;
            template.aio_resfd = eventfd.number().cast_unsigned();
        }
        let interrupt = interrupt_by(eventfd);
        let pending = empty_batch(&context, &target, &interrupt, depth)?;
        Ok(AioQueue {
            context,
            open: pending,
            closed: Vec::new(),
            spare: Vec::new(),
            refused: Vec::new(),
            is_denied: false,
            without_signal: 0,
            in_flight: 0,
            depth,
            template,
            target,
            interrupt,
        })
    }

    /// Returns the current batch, and puts an empty batch in its place.
    fn close_batch(&mut self) -> Result<Box<PendingBatch>, Errno> {
        let fresh = match self.spare.pop() {
            Some(spare) => spare,
            None => empty_batch(&self.context, &self.target, &self.interrupt, self.depth)?,
        };
        Ok(core::mem::replace(&mut self.open, fresh))
    }

    /// Replaces the current batch, which has no room for `segments` more segments. Returns whether
    /// the new batch has room.
    #[cold]
    fn begin_next_batch(&mut self, segments: usize) -> bool {
        match self.close_batch() {
            Ok(full) => self.closed.push(full),
            Err(_) => return false,
        }
        self.open.iocbs.has_room(segments)
    }

    /// Submits all batches in this thread. Called if there is no memory for an empty batch.
    #[cold]
    fn submit_here(&mut self) {
        for mut pending in core::mem::take(&mut self.closed) {
            self.context.expect(pending.iocbs.length());
            pending.submit_all();
            self.keep_for_reuse(pending);
        }
        self.context.expect(self.open.iocbs.length());
        self.open.submit_all();
        let mut refused = core::mem::take(&mut self.open.refused);
        self.note_refused(&mut refused, self.open.is_denied);
    }

    #[inline]
    fn count_submitted(&mut self) {
        self.in_flight += 1;
        self.without_signal += u32::from(self.template.aio_data & WITHOUT_SIGNAL != 0);
    }

    #[inline]
    fn count_completed(&mut self, event: &IoEvent) -> Completion {
        self.without_signal -= u32::from(event.data & WITHOUT_SIGNAL != 0);
        completion(event)
    }

    #[inline]
    fn note_refused(&mut self, refused: &mut Vec<IoEvent>, is_denied: bool) {
        if !refused.is_empty() {
            self.is_denied |= is_denied;
            self.context.expect_fewer(refused.len());
            self.refused.append(refused);
            ring_interrupt(&mut self.interrupt);
        }
    }

    /// Keeps a submitted batch for reuse, and records the requests that the kernel refused.
    #[inline]
    fn keep_for_reuse(&mut self, mut pending: Box<PendingBatch>) {
        self.note_refused(&mut pending.refused, pending.is_denied);
        if self.spare.len() < MOST_SPARE_BATCHES {
            self.spare.push(pending);
        }
    }
}

fn empty_batch(
    context: &Context,
    target: &Target,
    interrupt: &Option<Interrupt>,
    depth: u32,
) -> Result<Box<PendingBatch>, Errno> {
    let file = match target {
        Target::Device(device) => Some(device.file.clone()),
        Target::Named => None,
    };
    let interrupt = interrupt.as_ref().map(|interrupt| interrupt.eventfd.clone());
    let iocbs = Batch::new(context, depth as usize, VECTORS)?;
    Ok(Box::new(PendingBatch { iocbs, file, interrupt, refused: Vec::new(), is_denied: false, next: None }))
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
        if self.in_flight == self.depth {
            return Submission::Full;
        }
        if let Target::Device(device) = &self.target
            && request.operation != Operation::Flush
            && let Err(error) = device.check(request)
        {
            return Submission::Refused(error);
        }
        let segments = request.segments.len();
        if !self.open.iocbs.has_room(segments) && !self.begin_next_batch(segments) {
            return Submission::Full;
        }
        let data = u64::from(request.token) | self.template.aio_data;
        let mut iocb = Iocb { aio_data: data, aio_lio_opcode: command, ..self.template };
        if matches!(self.target, Target::Named) {
            iocb.aio_fildes = request.file.number.cast_unsigned();
            iocb.aio_rw_flags = request.file.flags.cast_signed();
        }
        match request.operation {
            // Leaves the offset at 0, because the kernel refuses a flush with an offset.
            Operation::Flush => {
                self.count_submitted();
                self.open.iocbs.push(iocb, &[], vectored);
                return Submission::Accepted;
            }
            Operation::Write => iocb.aio_rw_flags |= durability(request).cast_signed(),
            _ => {}
        }
        let is_read = request.operation == Operation::Read;
        if is_read && request.length != 0 && matches!(self.target, Target::Device(_)) {
            iocb.aio_data |= EXPECTS_BYTES;
        }
        iocb.aio_offset = request.offset.cast_signed();
        self.count_submitted();
        self.open.iocbs.push(iocb, request.segments, vectored);
        Submission::Accepted
    }

    /// Submits the accepted requests in the calling thread, which may sleep. A caller that must not
    /// sleep uses [`QueuePair::begin_deferred`] instead.
    fn ring_doorbell(&mut self) {
        if let Some(mut batch) = self.begin_deferred() {
            batch.run();
            self.end_deferred(batch);
        }
    }

    fn defers_submits(&self) -> bool {
        true
    }

    #[inline]
    fn begin_deferred(&mut self) -> Option<DeferredSubmit> {
        let mut first = None;
        if !self.open.iocbs.is_empty() {
            let Ok(pending) = self.close_batch() else {
                self.submit_here();
                return None;
            };
            self.context.expect(pending.iocbs.length());
            first = Some(pending);
        }
        while let Some(mut earlier) = self.closed.pop() {
            self.context.expect(earlier.iocbs.length());
            earlier.next = first;
            first = Some(earlier);
        }
        first.map(DeferredSubmit)
    }

    #[inline]
    fn end_deferred(&mut self, batch: DeferredSubmit) {
        let mut next = Some(batch.0);
        while let Some(mut pending) = next {
            next = pending.next.take();
            self.keep_for_reuse(pending);
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut Completions) {
        let before = completions.as_slice().len();
        while completions.has_room()
            && let Some(refused) = self.refused.pop()
        {
            completions.push(self.count_completed(&refused));
        }
        let expected = self.context.expected();
        while completions.has_room()
            && let Some(event) = self.context.take()
        {
            completions.push(self.count_completed(&event));
        }
        if self.context.expected() != expected {
            self.context.free_read_slots();
        }
        self.in_flight -= width::count(completions.as_slice().len() - before);
    }

    fn has_completions(&mut self) -> bool {
        !self.refused.is_empty() || !self.context.is_empty()
    }

    fn interrupt(&self) -> Option<i32> {
        number_of(&self.interrupt)
    }

    fn waiter(&self) -> Option<Waiter> {
        let interrupt = self.interrupt.as_ref()?;
        Some(self.context.waiter(interrupt.eventfd.clone()))
    }

    fn suppress_interrupts(&mut self) {
        (self.template.aio_flags, self.template.aio_data) = (0, WITHOUT_SIGNAL);
    }

    fn has_suppressed(&self) -> bool {
        self.without_signal != 0
    }

    fn arm_interrupt(&mut self) -> bool {
        if let Some(interrupt) = &self.interrupt {
            (self.template.aio_flags, self.template.aio_data) = (aio::IOCB_FLAG_RESFD, 0);
            self.template.aio_resfd = interrupt.eventfd.number().cast_unsigned();
        }
        // The eventfd is cleared before the check for completions. So a completion after the check
        // signals the eventfd again.
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

#[inline]
fn completion(event: &IoEvent) -> Completion {
    let token = width::low(event.data);
    match event.res {
        // The file has become shorter than the device.
        0 if event.data & EXPECTS_BYTES != 0 => Completion::failed(token, Errno::EIO),
        result => Completion { token, result: width::int(result.cast_unsigned()) },
    }
}

/// A queue pair that serves a read at once if the page cache has the data. A worker serves every
/// other request. So no request is ever in flight in this queue pair.
pub struct InlineQueue {
    file: Arc<HeldDescriptor>,
    /// Whether to try each read with RWF_NOWAIT in the submitting thread.
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
                self.answered.push(Completion { token: request.token, result: bytes.cast_signed() });
                ring_interrupt(&mut self.interrupt);
                Submission::Accepted
            }
            // The file system does not support RWF_NOWAIT (tmpfs).
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
