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

use crate::completion::event_descriptor::EventDescriptor;
use crate::completion::told::Told;
use crate::op::Operation;
use crate::op::send_receive::Message;
use crate::registered::buffer_group::SelectedBuffer;
use crate::registered::registered_buffers::BufferHold;
use crate::registered::registered_files::RegisteredFile;
use crate::ring::Ring;
use crate::submission::opcode_table::{self, Row};
use crate::waiting::poll_table::{SharedHold, Tag};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use usring_device::OpenDevice;
use usring_sys::Errno;
use usring_sys::descriptor::{self, HeldDescriptor};
use usring_sys::memory_reserve;
use usring_sys::queue::Entry;
use usring_uapi::{Sqe, sqe_flags};

/// The owning pointer by which a request moves between modules.
pub(crate) type RequestEntry = Entry<Request>;

/// Names a request within its ring, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub u64);

pub(crate) struct Request {
    pub id: RequestId,
    /// The opcode's row of the opcode table.
    pub row: &'static Row,
    /// The private copy: read once from shared memory, never again.
    pub sqe: Sqe,
    /// The operation that the family's prepare made of the SQE.
    pub operation: Operation,
    pub file: FileUse,
    /// The provided buffer that the request has taken, until its CQE names it.
    pub buffer: Option<SelectedBuffer>,
    /// The registered buffer that the request transfers from or to.
    pub fixed_buffer: BufferHold,
    /// The next request of its chain.
    pub link: Option<RequestEntry>,
    /// The armed LINK_TIMEOUT that watches it.
    pub link_timeout: Option<RequestId>,
    pub progress: Progress,
    /// The request has many CQEs, all but the last with F_MORE, and waits again after each.
    pub multishot: bool,
    /// The slot where it waits, or has last waited; 0 before that.
    pub place: Tag,
    /// The events for which its file was ready at the last call; 0 before it waited.
    pub ready_for: u32,
    /// Result of the prepare that failed, or of the worker that ran it.
    pub result: i32,
    /// Flags of its next CQE.
    pub cqe_flags: u32,
    /// The eventfd that it names, on a ring whose completions are events.
    pub told: Option<Arc<EventDescriptor>>,
}

/// A request's progress, as far as it decides what is done next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    #[default]
    New,
    /// Its prepare failed, for the reason in `result`; it is never issued.
    Refused,
    /// Its chain broke before it started: it is cancelled.
    Unbegun,
    /// A worker has run it; `result` is its answer.
    Ran,
    /// A message to this ring instead of a request: `user_data`, `result` and `cqe_flags` are a
    /// CQE.
    Message,
    /// Another ring's request, with a descriptor for this ring.
    Visiting,
    /// Back from another ring; `result` is its answer.
    Returned,
}

impl Request {
    pub fn has_flag(&self, flag: u8) -> bool {
        self.sqe.flags & flag != 0
    }

    /// Returns whether a worker of the kernel would make each attempt of the request (IOSQE_ASYNC).
    /// A multishot waits for its file first, and its submitter makes the attempts.
    pub fn is_forced_once(&self) -> bool {
        self.has_flag(sqe_flags::ASYNC) && !self.multishot
    }

    pub fn is_linked(&self) -> bool {
        self.has_flag(sqe_flags::IO_LINK | sqe_flags::IO_HARDLINK)
    }

    fn new() -> Self {
        Request {
            id: RequestId(0),
            row: opcode_table::row(u8::MAX),
            sqe: Sqe::default(),
            operation: Operation::Nothing,
            file: FileUse::default(),
            buffer: None,
            fixed_buffer: BufferHold::Nothing,
            link: None,
            link_timeout: None,
            progress: Progress::New,
            multishot: false,
            place: 0,
            ready_for: 0,
            result: 0,
            cqe_flags: 0,
            told: None,
        }
    }

    /// Initialises a spare request from the SQE that was copied into it.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.row = opcode_table::row(self.sqe.opcode);
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

    /// Returns what its completion carries beside the CQE, on a ring that has that. An event
    /// signals the request's own eventfd once it is published.
    #[inline(never)]
    pub fn extension(&mut self, ring: &Ring, told: &mut Told) -> [u64; 2] {
        if !ring.has_events() {
            return self.operation.cqe_extra();
        }
        told.end(self.told.take());
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
        debug_assert!(self.told.is_none());
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

/// The file that a request works on.
#[derive(Default)]
pub(crate) struct FileUse {
    /// The number to use in system calls.
    pub number: i32,
    pub hold: Hold,
    /// The device of usring's that the file stands for; noted where the request has to remember it.
    pub device: Option<Arc<OpenDevice>>,
}

/// The hold that keeps the number meaning the same file.
#[derive(Default)]
pub(crate) enum Hold {
    /// Nothing: it is the program's own number, valid until the program's call returns.
    #[default]
    Submitter,
    /// A registered file, which lives on even if its slot is updated.
    Registered(Arc<RegisteredFile>),
    /// A duplicate that all requests waiting for the same file share.
    Shared(Arc<SharedHold>),
    /// A duplicate that all transfers of that file share.
    Kept(#[expect(dead_code, reason = "owned to be given up with the request")] Arc<HeldDescriptor>),
    /// A private duplicate, made when the request had to wait.
    Duplicate(#[expect(dead_code, reason = "owned to be given up with the request")] HeldDescriptor),
}

impl FileUse {
    /// Ensures that the file stays the same after the call has returned. From then on the program's
    /// close does not cancel the request, and the request does not see a reuse of the number.
    pub fn keep(&mut self) -> Result<(), Errno> {
        if matches!(self.hold, Hold::Submitter) {
            let duplicate = descriptor::hold(self.number)?;
            self.number = duplicate.number();
            self.hold = Hold::Duplicate(duplicate);
        }
        Ok(())
    }
}

/// Duplicates of the program's files by its own numbers. Each lives as long as any request has it:
/// many requests may wait, and descriptors are few.
#[derive(Default)]
pub(crate) struct KeptFiles {
    known: BTreeMap<i32, Weak<HeldDescriptor>>,
}

/// From this many known numbers, those without a waiting request are dropped.
const KNOWN_NUMBERS: usize = 64;

impl KeptFiles {
    /// Returns the duplicate of a file of the program's; makes it if there is none.
    pub fn duplicate(&mut self, number: i32) -> Result<Arc<HeldDescriptor>, Errno> {
        let known = self.known.get(&number).and_then(Weak::upgrade);
        // The program may have another file by that number now.
        let same = known.filter(|kept| descriptor::same_file(number, kept.number()) == Some(true));
        if let Some(kept) = same {
            return Ok(kept);
        }
        let fresh = Arc::new(descriptor::hold(number)?);
        if self.known.len() >= KNOWN_NUMBERS {
            self.known.retain(|_, kept| kept.strong_count() > 0);
        }
        self.known.insert(number, Arc::downgrade(&fresh));
        Ok(fresh)
    }
}

/// A ring's spare requests, so that the hot path never allocates.
#[derive(Default)]
pub(crate) struct RequestPool {
    spare: Vec<RequestEntry>,
    /// Messages that were sent or received, for reuse.
    #[expect(clippy::vec_box, reason = "requests own them by these boxes")]
    messages: Vec<Box<Message>>,
    last_id: u64,
}

/// Most spare requests; further ones are freed.
const SPARE_LIMIT: usize = 256;

impl RequestPool {
    /// Takes a spare request and gives it a new id; `None` where memory is low and the pool is
    /// empty.
    #[inline(always)]
    pub fn take(&mut self) -> Option<RequestEntry> {
        let mut request = match self.spare.pop() {
            Some(request) => request,
            None => new_entry_if_possible()?,
        };
        self.last_id += 1;
        request.id = RequestId(self.last_id);
        Some(request)
    }

    #[inline(always)]
    pub fn give_back(&mut self, mut request: RequestEntry) {
        if let Operation::SendReceive(transfer) = &mut request.operation
            && let Some(message) = transfer.message.take()
        {
            self.keep_message(message);
        }
        request.release();
        if self.spare.len() < self.spare.capacity() {
            self.spare.push(request);
        } else {
            self.keep_or_free(request);
        }
    }

    /// Takes a spare message.
    pub fn message(&mut self) -> Box<Message> {
        self.messages.pop().unwrap_or_default()
    }

    #[inline(never)]
    fn keep_message(&mut self, mut message: Box<Message>) {
        if self.messages.len() < SPARE_LIMIT {
            message.clear();
            self.messages.push(message);
        }
    }

    #[cold]
    fn keep_or_free(&mut self, request: RequestEntry) {
        if self.spare.capacity() == 0 {
            self.spare.reserve_exact(SPARE_LIMIT);
            self.spare.push(request);
        }
    }
}

#[cold]
fn new_entry_if_possible() -> Option<RequestEntry> {
    memory_reserve::check().ok().map(|()| new_entry())
}

/// Makes a request that belongs to no ring yet.
#[cold]
pub(crate) fn new_entry() -> RequestEntry {
    Entry::new(Request::new())
}
