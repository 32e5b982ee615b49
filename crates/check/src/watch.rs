//! Receives the reports of the engine and the library, and derives the findings from them.
//!
//! The engine reports under a ring's lock. Lock order: ring → state of the checker.

use crate::chains::Chains;
use crate::format::Kind;
use crate::log::{self, Findings, Found};
use crate::memory::{self, Frame, ReturnSlot};
use crate::requests::{Access, InFlight, Requests};
use crate::shadow;
use crate::stack::{Registers, Stack};
use crate::stacks;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_engine::observers::{Closed, Completed, HeldBack, Observer, Submitted, Transfer};
use usring_sys::clock::Clock;
use usring_sys::descriptor::{self, FileIdentity, RESERVED_BASE};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::per_process::PerProcess;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall, signals, width};
use usring_uapi::general as linux;
use usring_uapi::{Sqe, opcode, sqe_flags};

/// The checker as an observer of the engine's requests.
pub static OBSERVER: Observer = Observer { submitted, completed, stepped: None, opened: |_| {}, closed };

/// A call of a thread that may submit requests.
struct Call {
    registers: Registers,
    /// The copy of the calling thread's stack. The copy is made when the call submits its first
    /// request.
    stack: Option<Arc<Stack>>,
}

#[derive(Default)]
struct State {
    requests: Requests,
    chains: Chains,
    findings: Findings,
    /// The io_uring_enter calls in progress, by thread.
    calls: BTreeMap<u32, Call>,
    last_chain: u64,
    /// The SQEs that the program has submitted and the SQ thread has not taken yet, by ring and
    /// position in the SQ. Each SQE has the stack of the call that submitted it.
    published: BTreeMap<(u64, u32), (Sqe, Arc<Stack>)>,
}

static STATE: PerProcess<Mutex<State>> = PerProcess::new();

/// Number of requests in flight. In a forked child, this word keeps the parent's value until the
/// child's first request.
pub static IN_FLIGHT: AtomicU32 = AtomicU32::new(0);

fn state() -> Guard<'static, State> {
    STATE.get_or_make(|| Mutex::new(State::default())).lock()
}

/// Returns whether any request is in flight, without a lock.
pub fn is_in_flight() -> bool {
    IN_FLIGHT.load(Ordering::Relaxed) != 0
}

/// Returns whether memory of a request in flight begins in the 1 TiB from the address `start`
/// upwards. If not, no request in flight uses a block of memory that begins at `start`.
pub fn has_memory_in_flight(start: u64) -> bool {
    is_in_flight()
        && state().requests.in_flight.values().any(|it| it.memory.iter().any(|m| m.base.wrapping_sub(start) < 1 << 40))
}

/// Notes that a thread of the program makes an io_uring_enter call.
pub fn begin_call(registers: Registers) {
    let thread = signals::thread_id();
    let mut state = state();
    state.check_memory(thread, registers);
    state.calls.insert(thread, Call { registers, stack: None });
}

/// Notes that the program submits SQEs to an SQ thread. `first`: the position in the SQ of the
/// first of these SQEs.
pub fn publishes(ring: u64, first: u32, sqes: impl Iterator<Item = Sqe>, registers: Registers) {
    let mut state = state();
    let mut stack = None;
    for (sqe, position) in sqes.zip((0..).map(|index| first.wrapping_add(index))) {
        let stack = stack.get_or_insert_with(|| Stack::copy(registers)).clone();
        state.published.insert((ring, position), (sqe, stack));
    }
}

/// Notes that the thread's io_uring_enter call returns.
pub fn end_call() {
    state().calls.remove(&signals::thread_id());
}

fn submitted(submitted: &Submitted) {
    let thread = signals::thread_id();
    let mut state = state();
    let submission = state.calls.get_mut(&thread).map(|call| {
        let Call { registers, stack } = call;
        stack.get_or_insert_with(|| Stack::copy(*registers)).clone()
    });
    let sqe = submitted.sqe;
    let published = state.published.remove(&(submitted.request.ring, submitted.sq_position));
    let submission = submission.or_else(|| published.as_ref().map(|(_, stack)| stack.clone()));
    state.chains.submit(sqe.opcode, sqe.fd);
    if submitted.held_back != HeldBack::Chain {
        state.last_chain += 1;
    }
    let (access, memory) = match submitted.transfer {
        Transfer::Unknown => (Access::None, Vec::new()),
        Transfer::Into(members) => (Access::Writes, members.into()),
        Transfer::From(members) => (Access::Reads, members.into()),
    };
    let mut request = InFlight {
        ring: submitted.ring_number,
        user_data: sqe.user_data,
        posts_cqe: sqe.flags & sqe_flags::CQE_SKIP_SUCCESS == 0,
        opcode: sqe.opcode,
        number: sqe.fd,
        has_descriptor: submitted.descriptor.is_some() && sqe.flags & sqe_flags::FIXED_FILE == 0,
        thread,
        submission,
        submitted_at: Clock::Monotonic.now(),
        access,
        memory,
        slot: None,
        checksum: None,
        changed: None,
        held_back: submitted.held_back,
        chain: if submitted.is_linked { state.last_chain } else { 0 },
        closed: None,
        shared_stack: None,
        poisoned: Vec::new(),
        is_reported: false,
    };
    request.slot = request.submission.as_ref().and_then(|stack| ReturnSlot::above(request.memory.first()?, &stack.0));
    let share =
        |stack: &Arc<Stack>| stacks::share(log::process(), submitted.ring_number, submitted.request.number, &stack.0);
    request.shared_stack = request.submission.as_ref().and_then(share);
    state.judge_user_data(submitted.request.ring, &request);
    if published.is_some_and(|(published, _)| is_overwritten(&published, sqe)) {
        state.add(Kind::Overwritten, &request, 0, IoVector::default(), None);
    }
    state.begin_checksum(&mut request);
    state.judge_memory(&mut request);
    state.requests.in_flight.insert(submitted.request, request);
    state.count();
}

fn completed(completed: &Completed) {
    let mut state = state();
    state.requests.forget_consumed(completed.request.ring, completed.consumed);
    let Some(mut request) = state.requests.in_flight.remove(&completed.request) else { return };
    state.count();
    state.end_flight(&request);
    state.judge_changed(&mut request, completed.result);
    state.judge_closed(&request, completed.result);
    if completed.breaks_chain {
        state.chains.break_by(request.clone(), completed.result);
    }
    if completed.has_not_begun && completed.result == Errno::ECANCELED.negative() {
        state.chains.cancel(&request);
    }
    if let Some(position) = completed.position
        && request.has_effect()
    {
        state.requests.add_done(completed.request.ring, position, completed.result, request);
    }
}

fn closed(closed: &Closed) {
    let mut state = state();
    state.published.retain(|(ring, _), _| *ring != closed.ring);
    let (in_flight, done) = state.requests.take_ring(closed.ring, closed.consumed, closed.tail);
    state.count();
    in_flight.iter().for_each(|request| state.end_flight(request));
    for request in in_flight.iter().filter(|request| request.has_effect()) {
        state.add(Kind::Leaked, request, 0, request.first_member(), None);
    }
    for (done, is_behind) in done {
        let kind = if is_behind { Kind::Overflowed } else { Kind::Unreaped };
        state.add(kind, &done.request, done.result, IoVector::default(), None);
    }
}

/// Notes that the program frees, unmaps or discards memory. `kind`: the kind of the finding if a
/// request in flight uses that memory.
pub fn releases(start: u64, length: u64, kind: Kind, registers: Registers) {
    let mut state = state();
    let mut found = Vec::new();
    for request in state.requests.in_flight.values_mut().filter(|request| !request.is_reported) {
        if let Some(member) = request.member_in(start, length) {
            request.is_reported = true;
            found.push((request.clone(), member));
        }
    }
    if found.is_empty() {
        return;
    }
    let stack = Stack::copy(registers);
    for (request, member) in found {
        state.add(kind, &request, 0, member, Some(&stack));
    }
}

/// Notes that the program has used memory that AddressSanitizer reports. A request in flight may
/// read into that memory.
pub fn touched(address: u64, registers: Registers) {
    let mut state = state();
    let is_target = |request: &&InFlight| !request.poisoned.is_empty() && request.member_in(address, 1).is_some();
    let Some(request) = state.requests.in_flight.values().find(is_target).cloned() else { return };
    let member = request.member_in(address, 1).unwrap_or_default();
    state.add(Kind::Touched, &request, 0, member, Some(&Stack::copy(registers)));
}

/// Notes that the program closes a descriptor.
pub fn closes_descriptor(number: i32, registers: Registers) {
    if !is_in_flight() {
        return;
    }
    let mut state = state();
    let mut stack = None;
    let of_file = |it: &&mut InFlight| it.has_descriptor && it.number == number && it.closed.is_none();
    for request in state.requests.in_flight.values_mut().filter(of_file) {
        let Ok(file) = descriptor::identity(number) else { return };
        let stack = stack.get_or_insert_with(|| Stack::copy(registers));
        request.closed = Some((stack.clone(), file));
    }
}

/// Notes that the process ends. Called after [`Observer::closed`] was called for each ring of the
/// process.
pub fn ends_process() {
    let mut state = state();
    let broken: Vec<_> = state.chains.take_unnoticed().collect();
    for (request, result) in broken {
        state.add(Kind::BrokenLink, &request, result, request.first_member(), None);
    }
    state.findings.record_counts();
}

/// Maximum number of bytes that one io_uring_enter call compares with checksums. Further memory is
/// compared only at the request's completion.
const MOST_BYTES: u64 = 256 << 10;

impl State {
    fn count(&self) {
        IN_FLIGHT.store(width::count(self.requests.in_flight.len()), Ordering::Relaxed);
    }

    fn add(&mut self, kind: Kind, request: &InFlight, result: i32, memory: IoVector, misdeed: Option<&Stack>) {
        self.findings.add(&Found { kind, request, result, memory, misdeed, bad: None, recorded: &[] });
    }

    /// Finds a request in flight with the user_data of a request that is being submitted. The
    /// program could not tell the CQEs of these two requests apart.
    fn judge_user_data(&mut self, ring: u64, request: &InFlight) {
        // liburing gives this user_data to timeouts of its own (LIBURING_UDATA_TIMEOUT).
        const OF_LIBURING: u64 = u64::MAX;
        if !log::is_user_data_unique() || !request.posts_cqe || request.user_data == OF_LIBURING {
            return;
        }
        let is_same = |other: &&InFlight| other.posts_cqe && other.user_data == request.user_data;
        let other = self.requests.of_ring(ring).map(|(_, other)| other).find(is_same);
        if let Some(submission) = other.map(|other| other.submission.clone()) {
            self.add(Kind::SameUserData, request, 0, IoVector::default(), submission.as_deref());
        }
    }

    /// Finds memory of a request that the program must not use, at the request's submission. If the
    /// request reads into its memory, poisons the memory until the completion.
    fn judge_memory(&mut self, request: &mut InFlight) {
        if !shadow::is_on() || request.access == Access::None {
            return;
        }
        let poisoned_until = |address: u64| {
            let others = self.requests.in_flight.values().filter(|other| !other.poisoned.is_empty());
            others.filter_map(|other| other.member_in(address, 1)).map(|it| it.base.saturating_add(it.length)).max()
        };
        let bad = request.memory.iter().find_map(|member| Some((*member, shadow::first_bad(member, poisoned_until)?)));
        let Some((memory, bad)) = bad else {
            if request.access == Access::Writes {
                request.poisoned = request.memory.iter().filter_map(shadow::poison).collect();
            }
            return;
        };
        request.is_reported = true;
        let is_of_program = self.calls.contains_key(&request.thread);
        let recorded = if is_of_program { shadow::recorded_stack(&memory, bad) } else { Vec::new() };
        let (kind, misdeed) = (Kind::BadMemory, None);
        self.findings.add(&Found { kind, request, result: 0, memory, misdeed, bad: Some(bad), recorded: &recorded });
    }

    /// Ends the poison of a request that is no longer in flight, and frees the slot of its shared
    /// stack. Memory into which another request reads, too, stays poisoned.
    fn end_flight(&self, request: &InFlight) {
        request.shared_stack.into_iter().for_each(|slot| stacks::end(log::process(), slot));
        if request.poisoned.is_empty() {
            return;
        }
        request.poisoned.iter().for_each(|entry| shadow::unpoison(*entry));
        let others = self.requests.in_flight.values().filter(|other| !other.is_reported && !other.poisoned.is_empty());
        let meets = |other: &&InFlight| request.memory.iter().any(|it| other.member_in(it.base, it.length).is_some());
        others.filter(meets).for_each(|other| other.poisoned.iter().for_each(|entry| shadow::poison_again(*entry)));
    }

    /// Computes the checksum of the memory that `request` reads, unless another request in flight
    /// writes to this memory. If `request` itself writes to its memory, drops the checksums of the
    /// requests that read from there.
    fn begin_checksum(&mut self, request: &mut InFlight) {
        let meets = |other: &InFlight| {
            let shared = |member: &IoVector| other.member_in(member.base, member.length).is_some();
            request.memory.iter().any(shared)
        };
        match request.access {
            Access::None => {}
            Access::Reads => {
                let is_target = |other: &InFlight| other.access == Access::Writes && meets(other);
                let is_alone = !self.requests.in_flight.values().any(is_target);
                // A request that a link or a drain holds back begins later. Until then, an earlier
                // request may still fill the memory of this request.
                if is_alone && request.held_back == HeldBack::No {
                    request.checksum = memory::checksum(&request.memory);
                }
            }
            Access::Writes => {
                let readers = self.requests.in_flight.values_mut().filter(|other| other.checksum.is_some());
                readers.filter(|other| meets(other)).for_each(|other| other.checksum = None);
            }
        }
    }

    /// Checks the memory of requests in flight, at a call of the thread `thread`: whether the
    /// memory has changed. For requests that this thread has submitted, also checks whether the
    /// stack frame of the memory has ended.
    fn check_memory(&mut self, thread: u32, now: Registers) {
        let mut left = MOST_BYTES;
        let mut stack = None;
        let mut copy = || stack.get_or_insert_with(|| Stack::copy(now)).clone();
        let is_main = thread == width::low(SystemCall::new(linux::__NR_getpid, [0; 5]).run().unwrap_or(0));
        let mut dead = Vec::new();
        for request in self.requests.in_flight.values_mut().filter(|request| !request.is_reported) {
            let length = request.memory.iter().fold(0u64, |sum, member| sum.saturating_add(member.length));
            if let Some(sum) = request.checksum
                && request.changed.is_none()
                && length <= left
            {
                left -= length;
                if memory::checksum(&request.memory).is_some_and(|now| now != sum) {
                    request.changed = Some(Some(copy()));
                }
            }
            let Some(slot) = request.slot.filter(|_| request.thread == thread) else { continue };
            let member = request.first_member();
            let frame = memory::frame_of(member.base, slot, now, is_main);
            if frame != Frame::Exists {
                request.is_reported = frame == Frame::HasEnded;
                request.slot = None;
                dead.push((request.clone(), member, frame));
            }
        }
        for (request, member, frame) in dead {
            let kind = if frame == Frame::HasEnded { Kind::DeadFrame } else { Kind::PerhapsDeadFrame };
            self.add(kind, &request, 0, member, Some(&copy()));
        }
    }

    /// Judges a request whose memory should not have changed until its completion. If the request
    /// has transferred nothing, the change did no harm.
    fn judge_changed(&mut self, request: &mut InFlight, result: i32) {
        let Some(sum) = request.checksum.filter(|_| result > 0 && !request.is_reported) else { return };
        if request.changed.is_none() && memory::checksum(&request.memory).is_some_and(|now| now != sum) {
            let call = self.calls.get(&signals::thread_id());
            request.changed = Some(call.map(|call| Stack::copy(call.registers)));
        }
        if let Some(place) = request.changed.take() {
            self.add(Kind::Changed, request, result, request.first_member(), place.as_deref());
        }
    }

    /// Judges a request whose file was closed while the request was in flight. The close is a
    /// mistake in two cases:
    ///
    /// - The request waited for the file, and then got data or a connection from the file, although
    ///   the program has no descriptor of the file any more.
    /// - The request was held back in a chain, and then failed because the descriptor was closed.
    fn judge_closed(&mut self, request: &InFlight, result: i32) {
        let Some((stack, file)) = &request.closed else { return };
        let is_accept = request.opcode == opcode::ACCEPT;
        let has_used = request.awaits_file() && (result > 0 || is_accept && result >= 0) && !file.is_stored();
        let has_missed = request.held_back == HeldBack::Chain && result == Errno::EBADF.negative();
        if has_missed || has_used && !is_open(file) {
            self.add(Kind::ClosedFile, request, result, IoVector::default(), Some(stack));
        }
    }
}

/// Returns whether the program has changed an SQE since its submission. Compares only fields that
/// the engine leaves unchanged in its copy (`taken`).
fn is_overwritten(published: &Sqe, taken: &Sqe) -> bool {
    let fields = |sqe: &Sqe| (sqe.opcode, sqe.fd, sqe.off, sqe.addr, sqe.len, sqe.user_data);
    fields(published) != fields(taken)
}

/// Returns whether the program still has a descriptor of a file.
fn is_open(file: &FileIdentity) -> bool {
    (0..RESERVED_BASE)
        .filter_map(|number| descriptor::identity(number).ok())
        .any(|other| (other.device, other.inode) == (file.device, file.inode))
}
