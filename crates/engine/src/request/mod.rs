//! A request: one SQE on its way to its CQE.
//!
//! A request has exactly one owner at any time. It moves through these modules:
//!
//! 1. `submit`
//! 2. `drain` or `link`, if it has to wait for other requests
//! 3. `issue`
//! 4. `fast_poll`, `timeout`, or `workers` and then `task_work`, if it cannot complete at once
//! 5. `complete`
//! 6. its ring's pool, for reuse
//!
//! Modules pass an owning pointer to the request, so a move neither copies nor allocates.

pub(crate) mod conditions;
pub(crate) mod fault;
pub(crate) mod file;
pub(crate) mod operation;
pub(crate) mod outcome;
pub(crate) mod pool;
pub(crate) mod successor;

use crate::completion::event_descriptor::EventDescriptor;
use crate::completion::request_events::RequestEvents;
use crate::registered::buffer_group::SelectedBuffer;
use crate::registered::registered_buffers::BufferReference;
use alloc::boxed::Box;
use alloc::sync::Arc;
use conditions::{RequestId, Tag};
use core::sync::atomic::AtomicU32;
use fault::{FaultStage, PendingFault};
use file::{FileReference, FileUse};
use operation::Operation;
use operation::read_write::FILE_POSITION;
use operation::send_receive::POLL_FIRST;
use usring_ring::JournalSlot;
use usring_sys::queue::Entry;
use usring_sys::{Errno, SystemCall, epoll, wait};
use usring_uapi::{Sqe, opcode, sqe_flags};

/// Flag that usring adds in a request's copy of the SQE. With the flag, `personality` in that copy
/// is the number of a group of threads with equal rights (`waiting::rights`). Group 0: all threads
/// had equal rights when the request was submitted. By the time of the request's first attempt, the
/// threads' rights may differ.
pub(crate) const HAS_GROUP: u8 = 1 << 7;

/// The owning pointer by which a request moves between modules.
pub(crate) type RequestEntry = Entry<Request>;

/// The blocking work of an opcode: carries out the request in a worker; returns the result.
pub(crate) type Work = fn(&mut Request, &Blocking) -> i32;

/// The properties of an opcode. Its row of the opcode table sets them.
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    /// The opcode's blocking work. `None`: no worker can carry out the request.
    pub work: Option<Work>,
    /// The request works on the file whose number is in the SQE's `fd`.
    pub needs_file: bool,
    /// Events for which the file is polled when the request would block; 0: the file is not polled.
    pub poll_events: u32,
    /// The request may use a provided buffer (BUFFER_SELECT).
    pub selects_buffer: bool,
    /// The SQE's `ioprio` has a meaning. Otherwise it must be 0.
    pub takes_ioprio: bool,
    /// Workers carry out requests of this opcode on one regular file in order, one at a time.
    pub hashes_regular_file: bool,
    /// The blocking work may take for ever: it waits for an event, not for a disk.
    pub waits_for_ever: bool,
    /// The issue uses the ring's tables (buffers, files). So a worker may run the request only
    /// after its issue.
    pub needs_ring_at_issue: bool,
    /// The result depends on the rights of the thread that tries the request. A thread with other
    /// rights than the submitter leaves the request to a worker. Not set for opcodes whose requests
    /// always go to a worker.
    pub bears_rights: bool,
    /// As in the kernel, a negative result from a worker does not break a link. If the request has
    /// CQE_SKIP_SUCCESS, such a result posts no CQE.
    pub errors_keep_link: bool,
    /// The request may be submitted to a ring with IOPOLL.
    pub allowed_on_polled_ring: bool,
    pub supported: bool,
    /// The request may get a fault (`submission::faults`).
    pub is_armed: bool,
}

/// The properties of an opcode that is not supported.
pub(crate) const UNSUPPORTED: Properties = Properties {
    work: None,
    needs_file: false,
    poll_events: 0,
    selects_buffer: false,
    takes_ioprio: false,
    hashes_regular_file: false,
    waits_for_ever: false,
    needs_ring_at_issue: false,
    bears_rights: false,
    errors_keep_link: false,
    allowed_on_polled_ring: false,
    supported: false,
    is_armed: false,
};

/// Makes a worker's blocking system calls, which are interrupted when the request is cancelled.
pub(crate) struct Blocking<'a> {
    pub cancelled: &'a AtomicU32,
}

impl Blocking<'_> {
    pub fn run(&self, call: &SystemCall) -> Result<u64, Errno> {
        wait::call_blocking(call, self.cancelled)
    }
}

pub(crate) struct Request {
    pub id: RequestId,
    pub properties: &'static Properties,
    /// The ring's private copy of the SQE. The shared memory is read only once, because the program
    /// may change it.
    pub sqe: Sqe,
    /// The operation that the SQE asks for, as the opcode's prepare has read and checked it.
    pub operation: Operation,
    pub file: FileUse,
    /// The provided buffer that the request uses. `None` again once a CQE has named the buffer.
    pub buffer: Option<SelectedBuffer>,
    /// The registered buffer that the request transfers from or to.
    pub fixed_buffer: BufferReference,
    /// The next request of its chain.
    pub link: Option<RequestEntry>,
    /// The armed LINK_TIMEOUT that limits the request.
    pub link_timeout: Option<RequestId>,
    /// The request's slot in the journal (the list of all processes' requests in flight), if
    /// several processes use the ring.
    pub journal: Option<JournalSlot>,
    pub progress: Progress,
    /// The request posts many CQEs, all but the last with F_MORE. After each CQE with F_MORE, the
    /// request waits again.
    pub multishot: bool,
    /// The poll table's slot in which the request waits or last waited; 0 if it has never waited.
    pub poll_slot: Tag,
    /// The events that were last reported for the request's file; 0: none was reported since the
    /// request's submission.
    pub ready_for: u32,
    /// The request's result so far. `progress` says which step has set it.
    pub result: i32,
    /// Flags of the request's next CQE.
    pub cqe_flags: u32,
    /// On the ring of an AIO context: the eventfd that the iocb names (IOCB_FLAG_RESFD).
    pub event: Option<Arc<EventDescriptor>>,
    /// The fault that the request gets.
    pub fault: Option<Box<PendingFault>>,
    /// Whether the rules of `usring run --inject` were asked about the request. Meaningful if its
    /// `properties` have `is_armed`.
    pub was_asked: bool,
    /// The recorder (`usring crash`), an observer (`observers`) or a tracer (`probes`) wants to
    /// know when the request completes.
    pub is_watched: bool,
    /// Only a tracer wants to know when the request completes. Meaningful if `is_watched`.
    pub is_only_probed: bool,
    /// Number of the request's ring. Meaningful if `is_watched`.
    pub observed_ring: u32,
    /// Whether the request has begun to wait and was not issued since. Meaningful if `is_watched`.
    pub has_waited: bool,
    /// usring has set the request's IOSQE_ASYNC, because an IO_DRAIN held requests back at the
    /// submission (`submission::drain`). Meaningful if `is_watched` and not `is_only_probed`.
    pub is_forced: bool,
    /// The request's number among the requests of its opcode that rules of `usring run --inject`
    /// match; 0 if no rule has matched it yet. Meaningful if its `properties` have `is_armed`.
    pub rule_count: u64,
    /// The request's number in the recording of `usring crash`; 0 if it is not recorded.
    pub recorded: u64,
    /// The number of the recorded batch in which the request was submitted; 0 if a link or a drain
    /// held the request back.
    pub recorded_batch: u64,
}

/// The state of a request that decides what its next step is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    #[default]
    New,
    /// The request's prepare failed, with the error in `result`. The request is never issued.
    Refused,
    /// The request's chain broke before the request started. The request completes with the error
    /// in `result`.
    NotStarted,
    /// A worker has run the request and set `result`.
    Ran,
    /// The value is no request, but a message from another ring: `user_data`, `result` and
    /// `cqe_flags` are the fields of the CQE to post.
    Message,
    /// A MSG_RING of another ring that brings a file into this ring's table.
    Visiting,
    /// A MSG_RING of this ring that has come back from the other ring. The other ring has set
    /// `result`.
    Returned,
}

impl Request {
    pub fn has_flag(&self, flag: u8) -> bool {
        self.sqe.flags & flag != 0
    }

    /// Returns whether the kernel would leave every attempt of the request to a worker
    /// (IOSQE_ASYNC). Returns `false` for a multishot: there the kernel's worker only waits for the
    /// file, and the submitter then tries the request.
    pub fn is_forced_once(&self) -> bool {
        self.has_flag(sqe_flags::ASYNC) && !self.multishot
    }

    /// Returns whether a fault delays the request. Such a request is in the ring's list of timers,
    /// although it is no timeout.
    pub fn is_delayed(&self) -> bool {
        let stage = self.fault.as_ref().map(|pending| pending.stage);
        matches!(stage, Some(FaultStage::Entering | FaultStage::Leaving(_)))
    }

    /// Returns whether a fault delays the request's completion. Such a request is done and cannot
    /// be cancelled.
    pub fn is_leaving(&self) -> bool {
        self.fault.as_ref().is_some_and(|pending| matches!(pending.stage, FaultStage::Leaving(_)))
    }

    /// Marks the request, so that a tracer sees its completion.
    pub fn watch_for_tracer(&mut self) {
        self.is_only_probed = !self.is_watched || self.is_only_probed;
        self.is_watched = true;
    }

    pub fn is_linked(&self) -> bool {
        self.has_flag(sqe_flags::IO_LINK | sqe_flags::IO_HARDLINK)
    }

    /// Marks a request that may have to be tried again after its submission. At that time, the
    /// threads' rights may differ: see [`HAS_GROUP`].
    pub fn mark_for_later(&mut self) {
        self.sqe.flags |= HAS_GROUP;
    }

    /// Returns whether the request is a LINK_TIMEOUT, which limits the request before it in its
    /// chain.
    pub fn is_link_timeout(&self) -> bool {
        self.sqe.opcode == opcode::LINK_TIMEOUT && matches!(self.operation, Operation::LinkTimeout(_))
    }

    /// Returns whether the request's file is known to be a socket: the request has been tried, and
    /// its opcode works on sockets only.
    pub fn is_known_socket(&self) -> bool {
        match &self.operation {
            Operation::SendReceive(transfer) => !transfer.has(POLL_FIRST),
            _ => false,
        }
    }

    /// Returns the events for which the request's file is polled when the request would block.
    #[inline]
    pub fn poll_events(&self) -> u32 {
        match &self.operation {
            Operation::SendReceive(transfer) => transfer.poll_events(self.properties.poll_events),
            _ => self.properties.poll_events,
        }
    }

    /// Returns whether an attempt of the request may have made another file ready, such as the
    /// other end of a pipe. Returns `false` for a transfer with an offset, because a seekable file
    /// has no other end. So a poll of an inotify queue that watches such a file can complete late.
    ///
    /// Returns `false` for a receive that has waited. Such a receive could only make its peer
    /// writable, and to ask the epoll set about that would cost a system call at each event.
    /// Returns `false` for CLOSE, too, because the kernel defers the end of a closed file.
    #[inline]
    pub fn may_make_ready(&self) -> bool {
        let affects_others = match &self.operation {
            Operation::ReadWrite(transfer) => transfer.offset == FILE_POSITION,
            Operation::SendReceive(_) | Operation::Connect(_) | Operation::EpollControl(_) => true,
            Operation::Command(_) | Operation::Message(_) | Operation::Open(_) => true,
            _ => self.sqe.opcode == opcode::SHUTDOWN,
        };
        affects_others && (self.poll_slot == 0 || self.properties.poll_events & epoll::OUT != 0)
    }

    /// Returns whether a worker's `result` breaks a normal link: it is fewer bytes than the request
    /// asks for, or an error of an opcode without `errors_keep_link`.
    pub fn is_failure(&self, result: i32) -> bool {
        match &self.operation {
            Operation::ReadWrite(operation) => operation.is_short(result),
            Operation::Splice(_) => result < 0 || result.cast_unsigned() != self.sqe.len,
            _ => result < 0 && !self.properties.errors_keep_link,
        }
    }

    /// Returns whether the request is a transfer that would be direct I/O on a file with O_DIRECT.
    #[inline]
    pub fn may_be_direct(&self) -> bool {
        matches!(&self.operation, Operation::ReadWrite(transfer) if transfer.may_be_direct())
    }

    /// Makes the request's writes raise no SIGPIPE from now on. In the kernel, a worker would make
    /// these writes, and workers take no signals. A kernel without RWF_NOSIGNAL refuses such a
    /// write, and a worker of usring's makes it.
    #[cold]
    pub fn suppress_sigpipe(&mut self) {
        if let Operation::ReadWrite(transfer) = &mut self.operation {
            transfer.suppress_sigpipe();
        }
    }

    /// Returns the descriptor number of the request's file, if the request works on a file.
    pub fn file_number(&self) -> Option<i32> {
        self.properties.needs_file.then_some(self.file.number)
    }

    fn new() -> Self {
        Request {
            id: RequestId(0),
            properties: const { &UNSUPPORTED },
            sqe: Sqe::default(),
            operation: Operation::Nothing,
            file: FileUse::default(),
            buffer: None,
            fixed_buffer: BufferReference::Nothing,
            link: None,
            link_timeout: None,
            journal: None,
            progress: Progress::New,
            multishot: false,
            poll_slot: 0,
            ready_for: 0,
            result: 0,
            cqe_flags: 0,
            event: None,
            fault: None,
            was_asked: false,
            is_watched: false,
            is_only_probed: false,
            observed_ring: 0,
            has_waited: false,
            is_forced: false,
            rule_count: 0,
            recorded: 0,
            recorded_batch: 0,
        }
    }

    /// Initialises a spare request whose `sqe` has just been set. `properties`: the properties of
    /// the SQE's opcode.
    #[inline(always)]
    pub fn begin(&mut self, properties: &'static Properties) {
        self.properties = properties;
        self.progress = Progress::New;
        self.multishot = false;
        self.poll_slot = 0;
        self.ready_for = 0;
        self.cqe_flags = 0;
        self.file.number = self.sqe.fd;
    }

    /// Sets the operation of a request that [`Request::begin`] has initialised. The previous
    /// operation is [`Operation::Nothing`], whose drop does nothing. `forget` omits the code that
    /// the compiler would make for this drop.
    #[inline(always)]
    pub fn begin_operation(&mut self, operation: Operation) {
        debug_assert!(matches!(self.operation, Operation::Nothing));
        core::mem::forget(core::mem::replace(&mut self.operation, operation));
    }

    /// Returns the second half of a 32-byte CQE. For an AIO context, returns the `data` of the
    /// `io_event` instead, and gives `events` the eventfd that the request may have. The eventfd is
    /// signalled once the event is published.
    #[inline(never)]
    pub fn extension(&mut self, is_event: bool, events: &mut RequestEvents) -> [u64; 2] {
        if !is_event {
            return self.operation.cqe_extra();
        }
        events.end(self.event.take());
        [self.sqe.pad2, 0]
    }

    /// Releases everything that the request holds, before the request goes back to the pool.
    #[inline(always)]
    fn release(&mut self) {
        if self.operation.owns_memory() {
            self.operation = Operation::Nothing;
        } else {
            core::mem::forget(core::mem::replace(&mut self.operation, Operation::Nothing));
        }
        if self.file.device.is_some() {
            self.file.device = None;
        }
        if !matches!(self.file.reference, FileReference::Submitter) {
            self.file.reference = FileReference::Submitter;
        }
        self.fixed_buffer.release();
        debug_assert!(self.link.is_none() && self.link_timeout.is_none() && self.buffer.is_none());
        debug_assert!(self.event.is_none() && self.fault.is_none());
    }
}

/// Drops the rest of the chain in a loop. A chain may be as long as the SQ, which is too deep for
/// recursion.
impl Drop for Request {
    fn drop(&mut self) {
        let mut next = self.link.take();
        while let Some(mut request) = next {
            next = request.link.take();
        }
    }
}
