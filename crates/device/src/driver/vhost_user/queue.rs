//! A queue pair: requests of a block device in a virtqueue. Their data lies in bounce memory, or in
//! memory that the program shares with the back end.
//!
//! - A request has a slot (header, status, descriptor table) and bounce memory. Both are indexed by
//!   the request's *head*, which is the index of its first descriptor.
//! - Slot and bounce memory stay unchanged until the back end has answered. So if another back end
//!   takes over, it can get the request again.
//! - Some requests take several *rounds* (virtio requests, one after the other) with one head. A
//!   durable write is followed by a flush; a long discard is split.

use super::VhostUser;
use super::arena::{self, QUEUE_SIZE, QueueArea, SlotArray, slot};
use super::block::{self, feature};
use super::generation;
use super::lifeline::Lifeline;
use super::shares::KnownShares;
use crate::driver::{QueueOptions, QueuePair, Submission};
use crate::request::{Completion, Completions, DeviceRequest, Operation};
use crate::supply::QueueGrant;
use crate::virtqueue::{DESCRIPTOR, Descriptor, VirtQueue};
use alloc::vec::Vec;
use usring_sys::plain::IoVector;
use usring_sys::sync::Arc;
use usring_sys::{Errno, UserAddress, eventfd, width};

/// Number of descriptors of a request with one piece of data. Such a request gets no indirect table
/// while at least [`MANY_UNUSED`] descriptors of the main table are unused. An indirect table costs
/// time, because the back end has to read it, too.
const ONE_PIECE_DESCRIPTORS: usize = 3;
const MANY_UNUSED: usize = QUEUE_SIZE as usize / 2;

pub struct Queue {
    device: Arc<VhostUser>,
    ring: VirtQueue,
    area: QueueArea,
    headers: SlotArray<[u64; 2]>,
    statuses: SlotArray<u8>,
    grant: QueueGrant,
    lifeline: Lifeline,
    interrupts: bool,
    /// Whether the thread that uses the queue may be asleep on the interrupt.
    armed: bool,
    indirect: bool,
    /// The generation for which the rings are laid out. It identifies the back end that serves the
    /// device: see [`super::generation`].
    generation: u32,
    /// Indices of free descriptors of the main table. A free descriptor is a head (first
    /// descriptor) that no request uses, or it belongs to no chain. A free head may keep the chain
    /// of its last request.
    free: Vec<u16>,
    /// Number of unused descriptors of the main table. Chains of free heads count as unused.
    unused: usize,
    /// For each head (a request's first descriptor): the request, its segments and its chain.
    requests: Vec<Request>,
    /// Number of rounds that were begun so far.
    sequence: u64,
    shares: KnownShares,
    /// The data of the request that is being submitted: addresses and lengths in the back end.
    data: Vec<(u64, u32)>,
}

#[derive(Default)]
struct Request {
    /// The request that the back end is serving, if any.
    active: Option<Active>,
    /// The program's memory of a read whose data goes through bounce memory: the data is copied
    /// there at the end. The vector keeps its capacity for later requests.
    segments: Vec<IoVector>,
    /// Descriptors of the main table that follow the head in its chain. They belong to this
    /// request, or to the last request of an unused head.
    chain: Vec<u16>,
}

#[derive(Clone, Copy)]
struct Active {
    token: u32,
    /// Result in bytes if the request succeeds.
    answer: u32,
    next: Next,
    /// Number of rounds (virtio requests) that the queue began before this one. By this number, the
    /// queue passes the requests in flight to another back end in their order.
    sequence: u64,
}

/// The step that a `DeviceRequest` takes after a round, which is one virtio request, has succeeded.
#[derive(Clone, Copy)]
enum Next {
    Nothing,
    CopyOut,
    Flush,
    /// Begin the next round, another virtio request, of a discard or a write of zeroes.
    Clear {
        operation: Operation,
        offset: u64,
        length: u64,
    },
}

impl Queue {
    pub fn new(device: Arc<VhostUser>, mut grant: QueueGrant, options: QueueOptions) -> Result<Self, Errno> {
        let arena = &device.arena;
        if grant.index >= device.parameters.queues {
            return Err(Errno::EINVAL);
        }
        let area = arena.queue(grant.index);
        let call = options.interrupts.then(|| grant.call.number());
        let lifeline = Lifeline::new(grant.connection.take(), call)?;
        let ring =
            VirtQueue::new(Arc::clone(arena.memory()), area.layout(), device.parameters.has(feature::EVENT_INDEX));
        Ok(Queue {
            ring,
            area,
            headers: area.headers(arena.memory()),
            statuses: area.statuses(arena.memory()),
            grant,
            lifeline,
            interrupts: options.interrupts,
            armed: false,
            indirect: device.parameters.has(feature::INDIRECT_DESCRIPTORS),
            generation: area.ready_generation(arena.memory()),
            free: (0..QUEUE_SIZE).rev().collect(),
            unused: usize::from(QUEUE_SIZE),
            requests: (0..QUEUE_SIZE).map(|_| Request::default()).collect(),
            sequence: 0,
            shares: KnownShares::default(),
            data: Vec::with_capacity(arena::MOST_DESCRIPTORS),
            device,
        })
    }

    fn is_dead(&self) -> bool {
        generation::is_last(self.generation)
    }

    /// Checks whether the device can serve a request at all, whatever the state of the queue.
    fn check(&self, request: &DeviceRequest) -> Result<(), Errno> {
        let parameters = &self.device.parameters;
        let transfers = matches!(request.operation, Operation::Read | Operation::Write);
        if transfers && request.length > u64::from(self.device.geometry.transfer) {
            return Err(Errno::EINVAL);
        }
        let offered = match request.operation {
            _ if transfers => true,
            Operation::Flush => parameters.has(feature::FLUSH),
            operation => parameters.most_cleared(operation) > 0,
        };
        let writes = !matches!(request.operation, Operation::Read | Operation::Flush);
        if writes && parameters.has(feature::READ_ONLY) {
            return Err(Errno::EPERM);
        }
        if offered { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    /// Fills `self.data` with the addresses of a request's data in the back end. Copies a write's
    /// data to the bounce memory, unless all of it lies in shared memory. Returns whether the
    /// bounce memory is used.
    fn set_data_addresses(&mut self, head: u16, request: &DeviceRequest) -> Result<bool, Errno> {
        self.data.clear();
        if request.registered && self.set_shared_addresses(request) {
            return Ok(false);
        }
        self.data.clear();
        let bounce = self.area.bounce(head);
        self.add_data(arena::address(bounce), request.length);
        let mut at = bounce;
        let mut left = width::size(request.length);
        for segment in request.segments {
            let length = left.min(width::size(segment.length));
            if request.operation == Operation::Write {
                self.ring.memory().copy_in(at, length, UserAddress(segment.base))?;
            }
            at += length;
            left -= length;
        }
        if left == 0 { Ok(true) } else { Err(Errno::EINVAL) }
    }

    /// Fills `self.data` with the addresses of a request's data in the back end. Returns `false` if
    /// a part of the data lies in other memory, or if the data has more pieces than a request can
    /// have. `self.data` is then incomplete.
    fn set_shared_addresses(&mut self, request: &DeviceRequest) -> bool {
        self.shares.renew(&self.device.shares);
        let most = self.device.parameters.segments as usize;
        let mut left = request.length;
        for segment in request.segments {
            match self.shares.find(*segment) {
                Some(address) if segment.length <= left => self.add_data(address, segment.length),
                _ => return false,
            }
            if self.data.len() > most {
                return false;
            }
            left -= segment.length;
        }
        left == 0
    }

    fn add_data(&mut self, mut address: u64, mut length: u64) {
        while length > 0 {
            let piece = length.min(u64::from(self.device.parameters.segment_bytes));
            self.data.push((address, width::low(piece)));
            address += piece;
            length -= piece;
        }
    }

    /// Adds a round (one virtio request) to the available ring, with the data in `self.data`.
    /// Subtracts the chain's descriptors from `self.unused`, except the head: the caller has
    /// subtracted the head.
    #[inline]
    fn add_round(&mut self, head: u16, operation: Operation, offset: u64) {
        self.headers.write(usize::from(head), block::header(operation, offset));
        self.statuses.write(usize::from(head), block::NO_STATUS);
        let behind = self.data.len() + 1;
        if self.indirect && (behind >= ONE_PIECE_DESCRIPTORS || self.unused < MANY_UNUSED) {
            self.free_chain(head);
            self.write_indirect_table(head, operation);
        } else {
            if self.requests[usize::from(head)].chain.len() != behind {
                self.lengthen_chain(head, behind);
            }
            self.unused -= behind;
            self.write_data_descriptors(head, operation);
        }
        self.ring.add(head);
    }

    /// Replaces the chain of a head (a request's first descriptor) by a chain of `length`
    /// descriptors. Writes the descriptors of header and status, which need no other write while
    /// the head keeps this chain.
    #[cold]
    fn lengthen_chain(&mut self, head: u16, length: usize) {
        self.free_chain(head);
        for _ in 0..length {
            let index = self.free.pop().expect("the caller checks that enough descriptors are free");
            self.free_chain(index);
            self.requests[usize::from(head)].chain.push(index);
        }
        let slot = self.area.slot(head);
        let chain = &self.requests[usize::from(head)].chain;
        self.ring.set_descriptor(head, block::header_descriptor(slot).followed_by(chain[0]));
        self.ring.set_descriptor(chain[length - 1], block::status_descriptor(slot));
    }

    /// Writes the descriptors of a request's data to the main table.
    #[inline]
    fn write_data_descriptors(&mut self, head: u16, operation: Operation) {
        let chain = &self.requests[usize::from(head)].chain;
        for (link, data) in chain.windows(2).zip(&self.data) {
            self.ring.set_descriptor(link[0], block::data_descriptor(operation, *data).followed_by(link[1]));
        }
    }

    /// Writes all descriptors of a request to an indirect table of its own.
    fn write_indirect_table(&mut self, head: u16, operation: Operation) {
        let slot = self.area.slot(head);
        let memory = self.ring.memory();
        let data = self.data.iter().map(|data| block::data_descriptor(operation, *data));
        let mut count = 0u16;
        let place = |count: u16| slot + slot::TABLE + usize::from(count) * DESCRIPTOR;
        for descriptor in core::iter::once(block::header_descriptor(slot)).chain(data) {
            descriptor.followed_by(count + 1).store(memory, place(count));
            count += 1;
        }
        block::status_descriptor(slot).store(memory, place(count));
        self.ring.set_descriptor(head, Descriptor::table(arena::address(slot + slot::TABLE), count + 1));
    }

    /// Frees the descriptors of the chain that an unused head has kept from its last request.
    #[inline]
    fn free_chain(&mut self, head: u16) {
        while let Some(index) = self.requests[usize::from(head)].chain.pop() {
            self.free.push(index);
        }
    }

    /// Begins the next round (virtio request) of a discard or a write of zeroes. Returns the step
    /// that follows this round.
    fn begin_clear_round(&mut self, head: u16, operation: Operation, offset: u64, length: u64) -> Next {
        let piece = length.min(self.device.parameters.most_cleared(operation));
        let range = self.area.slot(head) + slot::RANGE;
        self.ring.memory().write(range, block::range(offset, piece));
        self.data.clear();
        self.data.push((arena::address(range), block::RANGE));
        self.add_round(head, operation, 0);
        match length - piece {
            0 => Next::Nothing,
            length => Next::Clear { operation, offset: offset + piece, length },
        }
    }

    /// Ends a round (one virtio request): counts the descriptors of the head's chain as unused.
    fn end_round(&mut self, head: u16) {
        self.unused += self.requests[usize::from(head)].chain.len();
    }

    fn release(&mut self, head: u16) {
        self.end_round(head);
        self.unused += 1;
        self.requests[usize::from(head)].active = None;
        self.free.push(head);
    }

    /// Handles a head that the back end has used. If this was the last round (virtio request) of a
    /// request, returns the request's completion. `None` after an earlier round, or if no request
    /// has this head.
    #[inline]
    fn finish(&mut self, head: u32) -> Option<Completion> {
        let active = self.requests.get(head as usize)?.active.as_ref()?;
        let (token, answer) = (active.token, active.answer.cast_signed());
        let is_last = matches!(active.next, Next::Nothing);
        let head = (head & 0xffff) as u16;
        let mut outcome = block::result_of_status(self.statuses.read(usize::from(head)));
        if !is_last && outcome.is_ok() {
            outcome = self.next_step(head)?;
        }
        self.release(head);
        Some(match outcome {
            Ok(()) => Completion { token, result: answer },
            Err(error) => Completion::failed(token, error),
        })
    }

    /// Makes the step that follows a successful round (virtio request). Returns the request's
    /// result, or `None` if the step is another round.
    #[inline(never)]
    fn next_step(&mut self, head: u16) -> Option<Result<(), Errno>> {
        let active = self.requests[usize::from(head)].active?;
        let next = match active.next {
            Next::Nothing => return Some(Ok(())),
            Next::CopyOut => return Some(self.copy_out(head)),
            Next::Flush => {
                self.end_round(head);
                self.data.clear();
                self.add_round(head, Operation::Flush, 0);
                Next::Nothing
            }
            Next::Clear { operation, offset, length } => {
                self.end_round(head);
                self.begin_clear_round(head, operation, offset, length)
            }
        };
        self.requests[usize::from(head)].active = Some(Active { next, sequence: self.sequence, ..active });
        self.sequence += 1;
        None
    }

    fn copy_out(&self, head: u16) -> Result<(), Errno> {
        let mut at = self.area.bounce(head);
        for segment in &self.requests[usize::from(head)].segments {
            self.ring.memory().copy_out(at, width::size(segment.length), UserAddress(segment.base))?;
            at += width::size(segment.length);
        }
        Ok(())
    }

    /// Handles a new generation. If another back end serves the device (step 3 of
    /// [`super::generation`]), rebuilds the available ring from the requests in flight, and
    /// notifies the control plane that the queue is ready. If no other back end will come, only
    /// records the generation.
    #[cold]
    fn change_generation(&mut self, generation: u32) {
        self.generation = generation;
        if self.interrupts {
            // The control plane has signalled this eventfd for the new generation. The back end may
            // have signalled it, too. No completion is lost, because the caller checks the used
            // ring in any case.
            eventfd::drain(self.grant.call.number());
        }
        if self.is_dead() {
            return;
        }
        let mut is_done = [false; QUEUE_SIZE as usize];
        for head in self.ring.not_taken() {
            if let Some(done) = is_done.get_mut(head as usize) {
                *done = true;
            }
        }
        let requests = (0..QUEUE_SIZE).zip(&self.requests);
        let mut rest: Vec<_> = requests
            .filter(|(head, _)| !is_done[usize::from(*head)])
            .filter_map(|(head, request)| Some((request.active?.sequence, head)))
            .collect();
        rest.sort_unstable();
        self.ring.reset_for_new_device(rest.into_iter().map(|(_, head)| head));
        self.area.mark_ready(self.ring.memory(), generation);
        eventfd::signal(self.grant.ready.number());
    }

    /// Fails requests in flight, as many as `completions` has room for, because no back end will
    /// complete them.
    #[cold]
    fn fail_all(&mut self, completions: &mut Completions) {
        for head in 0..QUEUE_SIZE {
            if !completions.has_room() {
                return;
            }
            if let Some(active) = self.requests[usize::from(head)].active {
                self.release(head);
                completions.push(Completion::failed(active.token, Errno::EIO));
            }
        }
    }

    /// Collects completed requests, as many as fit in `completions`. Returns the number of
    /// completed rounds (virtio requests).
    ///
    /// When a request has completed, the cache line of its status is in the cache of the back end's
    /// processor. This thread reads that line now, and writes it for the next request. So this
    /// thread prefetches the line for writing, one request ahead.
    #[inline]
    fn collect(&mut self, completions: &mut Completions) -> u32 {
        let ready = self.ring.ready_count();
        let mut rounds = 0;
        if ready > 0 {
            self.statuses.prefetch_to_write(usize::from(self.ring.guess_head(0)));
        }
        while rounds < ready && completions.has_room() {
            rounds += 1;
            if rounds < ready {
                self.statuses.prefetch_to_write(usize::from(self.ring.guess_head(1)));
            }
            let Some(head) = self.ring.take() else { break };
            if let Some(completion) = self.finish(head) {
                completions.push(completion);
            }
        }
        u32::from(rounds)
    }

    #[inline]
    fn poll_device(&mut self, completions: &mut Completions) {
        let generation = self.device.arena.generation();
        if generation != self.generation {
            self.change_generation(generation);
        }
        let before = completions.as_slice().len();
        loop {
            let rounds = self.collect(completions);
            if self.is_dead() {
                self.fail_all(completions);
            } else if rounds > 0 && self.ring.has_unpublished() {
                self.ring_doorbell();
            }
            if !self.armed {
                return;
            }
            if completions.as_slice().len() > before {
                self.armed = false;
                self.ring.refuse_interrupt();
                return eventfd::drain(self.grant.call.number());
            }
            if rounds == 0 {
                return;
            }
            // The interrupt was for a round (virtio request) that is not the last of its request.
            // The request is still in flight, so the queue asks for another interrupt.
            eventfd::drain(self.grant.call.number());
            if self.ask_for_call() {
                return;
            }
        }
    }

    /// Asks the back end for an interrupt. Returns `false` if a request may have completed already.
    fn ask_for_call(&mut self) -> bool {
        self.ring.ask_for_interrupt() && self.device.arena.generation() == self.generation
    }
}

impl QueuePair for Queue {
    #[inline]
    fn submit(&mut self, request: &DeviceRequest) -> Submission {
        if self.is_dead() {
            return Submission::Refused(Errno::EIO);
        }
        if let Err(error) = self.check(request) {
            return Submission::Refused(error);
        }
        let Some(&head) = self.free.last() else { return Submission::Full };
        if !self.ring.has_unpublished() {
            self.ring.prefetch_to_publish();
        }
        let DeviceRequest { operation, offset, length, .. } = *request;
        let mut answer = 0;
        let mut next = Next::Nothing;
        let mut copied = false;
        if matches!(operation, Operation::Read | Operation::Write) {
            copied = match self.set_data_addresses(head, request) {
                Ok(copied) => copied,
                Err(error) => return Submission::Refused(error),
            };
            answer = width::low(length);
            next = match operation {
                Operation::Read if copied => Next::CopyOut,
                Operation::Write if request.durable && self.device.parameters.write_back => Next::Flush,
                _ => Next::Nothing,
            };
        } else {
            self.data.clear();
        }
        // One check of the unused descriptors is enough for all rounds (virtio requests) of this
        // request: no later round needs more descriptors than the first.
        if !self.indirect && self.unused < self.data.len() + 3 {
            return Submission::Full;
        }
        self.free.pop();
        self.unused -= 1;
        match operation {
            Operation::Discard | Operation::WriteZeroes => {
                next = self.begin_clear_round(head, operation, offset, length)
            }
            _ => self.add_round(head, operation, offset),
        }
        if answer > 0 {
            self.area.count_transfer(self.ring.memory(), copied);
        }
        let kept = &mut self.requests[usize::from(head)];
        if let Next::CopyOut = next {
            kept.segments.clear();
            kept.segments.extend_from_slice(request.segments);
        }
        kept.active = Some(Active { token: request.token, answer, next, sequence: self.sequence });
        self.sequence += 1;
        Submission::Accepted
    }

    #[inline]
    fn ring_doorbell(&mut self) {
        if self.ring.publish() {
            eventfd::signal(self.grant.kick.number());
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut Completions) {
        let before = completions.as_slice().len();
        self.poll_device(completions);
        if self.lifeline.count_poll(completions.as_slice().len() > before) {
            self.device.arena.end();
        }
    }

    #[inline]
    fn has_completions(&mut self) -> bool {
        self.ring.has_used() || self.device.arena.generation() != self.generation || self.is_dead()
    }

    fn interrupt(&self) -> Option<i32> {
        self.interrupts.then(|| self.lifeline.interrupt().unwrap_or(self.grant.call.number()))
    }

    fn arm_interrupt(&mut self) -> bool {
        if !self.interrupts || self.is_dead() {
            return false;
        }
        // The eventfd is cleared before the generation and the rings are checked. So a signal that
        // comes after the check makes the eventfd readable again.
        if !self.lifeline.take_call(self.grant.call.number()) {
            self.device.arena.end();
            return false;
        }
        self.armed = true;
        self.ask_for_call()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.supply.return_queue(self.grant.index, self.lifeline.connection());
    }
}
