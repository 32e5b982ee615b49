//! A request: one SQE on its way to its CQE.
//!
//! A request has exactly one owner at any time, and moves in this order:
//!
//! 1. `submit`
//! 2. `drain` or `link`, if it is held back
//! 3. `issue`
//! 4. `fast_poll`, `timeout`, or `workers` and then `task_work`, if it waits
//! 5. `complete`
//! 6. back to its ring's pool
//!
//! It is an owning pointer, so a move neither copies it nor allocates.

pub(crate) mod conditions;
pub(crate) mod file;
pub(crate) mod operation;
pub(crate) mod outcome;
pub(crate) mod pool;

use crate::completion::event_descriptor::EventDescriptor;
use crate::completion::request_events::RequestEvents;
use crate::registered::buffer_group::SelectedBuffer;
use crate::registered::registered_buffers::BufferHold;
use alloc::sync::Arc;
use conditions::{RequestId, Tag};
use core::sync::atomic::AtomicU32;
use file::{FileUse, Hold};
use operation::Operation;
use operation::send_receive::POLL_FIRST;
use usring_ring::JournalSlot;
use usring_sys::queue::Entry;
use usring_sys::{Errno, SystemCall, wait};
use usring_uapi::{Sqe, opcode, sqe_flags};

/// Flag in a request's copy of the SQE: `personality` there holds the number of a group with equal
/// rights (`waiting::rights`). Group 0 then means that all threads had equal rights at submission,
/// but that the first thread to try the request may have others.
pub(crate) const HAS_GROUP: u8 = 1 << 7;

/// The owning pointer by which a request moves between modules.
pub(crate) type RequestEntry = Entry<Request>;

/// The blocking work of an opcode: carries a request out in a worker and returns the result.
pub(crate) type Work = fn(&mut Request, &Blocking) -> i32;

/// The properties of an opcode, from its row of the opcode table.
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    /// Carries the request out in a worker, and may block; returns the result.
    pub work: Option<Work>,
    /// The request works on the file in `fd`.
    pub needs_file: bool,
    /// Events to poll the file for when the request would block.
    pub poll_events: u32,
    /// The request may take a provided buffer.
    pub selects_buffer: bool,
    /// The request's `ioprio` has a meaning; otherwise it must be 0.
    pub takes_ioprio: bool,
    /// Workers run requests of this opcode on one regular file in order, one at a time.
    pub hashes_regular_file: bool,
    /// A worker may have to wait without a limit.
    pub waits_for_ever: bool,
    /// The issue takes something from the ring, or looks a number up there. So no worker may run
    /// the request before it is issued.
    pub needs_ring_at_issue: bool,
    /// The result depends on the issuing thread's rights, so a thread with other rights leaves the
    /// request to a worker. (Not set for requests that always go to a worker.)
    pub bears_rights: bool,
    /// An error from a worker does not break a link, and gets no CQE with CQE_SKIP_SUCCESS, as in
    /// the kernel.
    pub errors_keep_link: bool,
    /// The request may be submitted to a ring with IOPOLL.
    pub allowed_on_polled_ring: bool,
    pub supported: bool,
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
};

/// Makes blocking system calls, which end early when the request is cancelled.
pub(crate) struct Blocking<'a> {
    pub cancelled: &'a AtomicU32,
}

impl Blocking<'_> {
    pub fn run(&self, call: &SystemCall) -> Result<u64, Errno> {
        wait::blocking(call, self.cancelled)
    }
}

pub(crate) struct Request {
    pub id: RequestId,
    pub properties: &'static Properties,
    /// The ring's private copy of the SQE: read once from shared memory, never again.
    pub sqe: Sqe,
    /// The operation that the opcode family's prepare made of the SQE.
    pub operation: Operation,
    pub file: FileUse,
    /// The provided buffer that the request has taken, until its CQE names it.
    pub buffer: Option<SelectedBuffer>,
    /// The registered buffer that the request transfers from or to.
    pub fixed_buffer: BufferHold,
    /// The next request of its chain.
    pub link: Option<RequestEntry>,
    /// The armed LINK_TIMEOUT that watches the request.
    pub link_timeout: Option<RequestId>,
    /// The request's slot in the journal of a shared ring.
    pub journal: Option<JournalSlot>,
    pub progress: Progress,
    /// The request has many CQEs, all but the last with F_MORE, and waits again after each.
    pub multishot: bool,
    /// Tag of the poll table's slot where the request waits or last waited; 0 if it never waited.
    pub place: Tag,
    /// The events for which its file was last ready; 0 before it waited.
    pub ready_for: u32,
    /// Its result so far; `progress` says from which step.
    pub result: i32,
    /// Flags of its next CQE.
    pub cqe_flags: u32,
    /// The eventfd that its iocb names (IOCB_FLAG_RESFD), on the ring of an AIO context.
    pub event: Option<Arc<EventDescriptor>>,
}

/// A request's progress, as far as its next step depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    #[default]
    New,
    /// The request's prepare failed, with the error in `result`. The request is never issued.
    Refused,
    /// The request's chain broke before it started: it ends with the error in `result`.
    Unbegun,
    /// A worker has run the request; `result` is the worker's.
    Ran,
    /// No request but a message for this ring: `user_data`, `result` and `cqe_flags` are those of
    /// the CQE to post.
    Message,
    /// Another ring's MSG_RING, which brings this ring a file.
    Visiting,
    /// This ring's MSG_RING, back from another ring, which has set `result`.
    Returned,
}

impl Request {
    pub fn has_flag(&self, flag: u8) -> bool {
        self.sqe.flags & flag != 0
    }

    /// Returns whether the kernel would leave each attempt of the request to a worker
    /// (IOSQE_ASYNC). It does not do so with a multishot, which waits for its file first and is
    /// then tried by its submitter.
    pub fn is_forced_once(&self) -> bool {
        self.has_flag(sqe_flags::ASYNC) && !self.multishot
    }

    pub fn is_linked(&self) -> bool {
        self.has_flag(sqe_flags::IO_LINK | sqe_flags::IO_HARDLINK)
    }

    /// Marks a request that may be tried for the first time after its submission, when threads may
    /// have different rights.
    pub fn mark_for_later(&mut self) {
        self.sqe.flags |= HAS_GROUP;
    }

    /// Returns whether the request is a LINK_TIMEOUT, the timeout of the request before it in its
    /// chain.
    pub fn is_link_timeout(&self) -> bool {
        self.sqe.opcode == opcode::LINK_TIMEOUT && matches!(self.operation, Operation::LinkTimeout(_))
    }

    /// Returns whether the request's file is known to be a socket: its operation was tried, and
    /// works on sockets only.
    pub fn has_met_socket(&self) -> bool {
        match &self.operation {
            Operation::SendReceive(transfer) => !transfer.has(POLL_FIRST),
            _ => false,
        }
    }

    /// Returns the events that a request's file is polled for when it would block.
    #[inline]
    pub fn poll_events(&self) -> u32 {
        match &self.operation {
            Operation::SendReceive(transfer) => transfer.poll_events(self.properties.poll_events),
            _ => self.properties.poll_events,
        }
    }

    /// Returns whether a worker's result breaks an ordinary link: an error, or fewer bytes than
    /// asked for.
    pub fn is_failure(&self, result: i32) -> bool {
        match &self.operation {
            Operation::ReadWrite(operation) => operation.is_short(result),
            Operation::Splice(_) => result < 0 || result as u32 != self.sqe.len,
            _ => result < 0 && !self.properties.errors_keep_link,
        }
    }

    /// Returns whether the request is a transfer that would be direct I/O if its file is open with
    /// O_DIRECT.
    #[inline]
    pub fn may_be_direct(&self) -> bool {
        matches!(&self.operation, Operation::ReadWrite(transfer) if transfer.may_be_direct())
    }

    /// Suppresses SIGPIPE for the request's writes from now on. In the kernel a worker would make
    /// the write, and workers take no signals. If the kernel does not know RWF_NOSIGNAL, a worker
    /// of usring's makes the write.
    #[cold]
    pub fn raise_nothing(&mut self) {
        if let Operation::ReadWrite(transfer) = &mut self.operation {
            transfer.raise_nothing();
        }
    }

    /// Returns the descriptor number of the request's file, if it works on one.
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
            fixed_buffer: BufferHold::Nothing,
            link: None,
            link_timeout: None,
            journal: None,
            progress: Progress::New,
            multishot: false,
            place: 0,
            ready_for: 0,
            result: 0,
            cqe_flags: 0,
            event: None,
        }
    }

    /// Initialises a spare request from the SQE that was copied into it. `properties`: those of its
    /// opcode.
    #[inline(always)]
    pub fn begin(&mut self, properties: &'static Properties) {
        self.properties = properties;
        self.progress = Progress::New;
        self.multishot = false;
        self.place = 0;
        self.ready_for = 0;
        self.cqe_flags = 0;
        self.file.number = self.sqe.fd;
    }

    /// Sets the operation of a request that has just begun. It replaces [`Operation::Nothing`], and
    /// `forget` keeps the compiler from generating code to drop that.
    #[inline(always)]
    pub fn begin_operation(&mut self, operation: Operation) {
        debug_assert!(matches!(self.operation, Operation::Nothing));
        core::mem::forget(core::mem::replace(&mut self.operation, operation));
    }

    /// Returns the second half of a 32-byte CQE. On the ring of an AIO context, returns the event's
    /// `data` instead, and queues the signal of the request's eventfd until the event is published.
    #[inline(never)]
    pub fn extension(&mut self, has_events: bool, events: &mut RequestEvents) -> [u64; 2] {
        if !has_events {
            return self.operation.cqe_extra();
        }
        events.end(self.event.take());
        [self.sqe.pad2, 0]
    }

    /// Releases everything that the request held, so that none of it is left when the request is
    /// reused.
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
        if !matches!(self.file.hold, Hold::Submitter) {
            self.file.hold = Hold::Submitter;
        }
        self.fixed_buffer.release();
        debug_assert!(self.link.is_none() && self.link_timeout.is_none() && self.buffer.is_none());
        debug_assert!(self.event.is_none());
    }
}

/// Drops the chain in a loop: it may be as long as the SQ, too long for recursion.
impl Drop for Request {
    fn drop(&mut self) {
        let mut next = self.link.take();
        while let Some(mut request) = next {
            next = request.link.take();
        }
    }
}
