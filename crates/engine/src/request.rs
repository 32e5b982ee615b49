//! A request: one SQE on its way to its CQE.
//!
//! A request has exactly one owner at any time, and moves: `submit` →
//! (`drain` | `link`) → `issue` → (`fast_poll` | `timeout` | `workers` →
//! `task_work`) → `complete` → back to its ring's pool. It is an owning
//! pointer, so a move never copies it and never allocates.

use crate::buffer_group::SelectedBuffer;
use crate::event_descriptor::EventDescriptor;
use crate::op::Operation;
use crate::op::send_receive::Message;
use crate::opcode_table::{self, Row};
use crate::poll_table::{SharedHold, Tag};
use crate::registered_buffers::BufferHold;
use crate::registered_files::RegisteredFile;
use crate::ring::Ring;
use crate::told::Told;
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

/// The owning pointer by which a request moves from room to room.
pub(crate) type RequestEntry = Entry<Request>;

/// Names a request within its ring, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub u64);

pub(crate) struct Request {
    pub id: RequestId,
    /// What the engine knows of its opcode.
    pub row: &'static Row,
    /// The private copy: read once from shared memory, never again.
    pub sqe: Sqe,
    /// What the family's prep made of the SQE.
    pub operation: Operation,
    pub file: FileUse,
    /// The provided buffer it has taken, until its CQE names it.
    pub buffer: Option<SelectedBuffer>,
    /// The registered buffer it transfers from or to.
    pub fixed_buffer: BufferHold,
    /// The next of its chain.
    pub link: Option<RequestEntry>,
    /// The LINK_TIMEOUT that watches it, once armed.
    pub link_timeout: Option<RequestId>,
    pub progress: Progress,
    /// Has many CQEs, all but the last with F_MORE, and waits on after each.
    pub multishot: bool,
    /// Where it waits, or has waited last; 0 before that.
    pub place: Tag,
    /// What its file was ready for when it was last called; 0 before it waited.
    pub ready_for: u32,
    /// Result of the prep that failed, or of the worker that ran it.
    pub result: i32,
    /// Flags of its CQE to come.
    pub cqe_flags: u32,
    /// The eventfd that it names, of a ring whose completions are events.
    pub told: Option<Arc<EventDescriptor>>,
}

/// How far it has come, where that decides what is done next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    #[default]
    New,
    /// Its prep failed: `result` says why; it is never issued.
    Refused,
    /// Its chain has broken before its turn: it is cancelled.
    Unbegun,
    /// A worker has run it: `result` is its answer.
    Ran,
    /// It is no request of this ring but a message to it: `user_data`, `result`
    /// and `cqe_flags` are a CQE.
    Message,
    /// It is another ring's, with a descriptor for this one.
    Visiting,
    /// It is back: `result` is its answer.
    Returned,
}

impl Request {
    pub fn has_flag(&self, flag: u8) -> bool {
        self.sqe.flags & flag != 0
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

    /// Makes a spare request one of the SQE that was copied into it.
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

    /// Gives a request that has just begun its operation. There is none to be
    /// dropped, and the compiler is told so.
    #[inline(always)]
    pub fn begin_operation(&mut self, operation: Operation) {
        debug_assert!(matches!(self.operation, Operation::Nothing));
        core::mem::forget(core::mem::replace(&mut self.operation, operation));
    }

    /// What its completion carries beside the CQE, on a ring that asks for that.
    /// An event tells the request's own eventfd once it is published.
    #[inline(never)]
    pub fn extension(&mut self, ring: &Ring, told: &mut Told) -> [u64; 2] {
        if !ring.has_events() {
            return self.operation.cqe_extra();
        }
        told.end(self.told.take());
        [self.sqe.pad2, 0]
    }

    /// Lets go of everything it held, so that nothing of it is left when it
    /// is used again.
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

/// A chain may be as long as the SQ: it is not to be dropped by recursion.
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
    /// The number that system calls are given.
    pub number: i32,
    pub hold: Hold,
    /// The device of ours that it stands for; noted where the request has to
    /// remember it.
    pub device: Option<Arc<OpenDevice>>,
}

/// What keeps that number meaning the same file.
#[derive(Default)]
pub(crate) enum Hold {
    /// Nothing: it is the program's own number, good for as long as the
    /// program's call has not returned.
    #[default]
    Submitter,
    /// A registered file, which lives on even if its slot is updated.
    Registered(Arc<RegisteredFile>),
    /// A duplicate that is shared by all who wait for the same file.
    Shared(Arc<SharedHold>),
    /// A duplicate that is shared by all transfers of that file.
    Kept(#[expect(dead_code, reason = "owned to be given up with the request")] Arc<HeldDescriptor>),
    /// A private duplicate of its own, made when the request had to wait.
    Duplicate(#[expect(dead_code, reason = "owned to be given up with the request")] HeldDescriptor),
}

impl FileUse {
    /// Makes sure that the file stays the same after the call has returned:
    /// from then on the program's close neither cancels the request nor lets a
    /// reused number answer for it.
    pub fn keep(&mut self) -> Result<(), Errno> {
        if matches!(self.hold, Hold::Submitter) {
            let duplicate = descriptor::hold(self.number)?;
            self.number = duplicate.number();
            self.hold = Hold::Duplicate(duplicate);
        }
        Ok(())
    }
}

/// Duplicates of the program's files by its own numbers, each for as long as any
/// request has it: many may wait, and descriptors are few.
#[derive(Default)]
pub(crate) struct KeptFiles {
    known: BTreeMap<i32, Weak<HeldDescriptor>>,
}

/// With so many numbers known, those that nobody waits for are forgotten.
const KNOWN_NUMBERS: usize = 64;

impl KeptFiles {
    /// The duplicate of a file of the program's, made unless there is one.
    pub fn duplicate(&mut self, number: i32) -> Result<Arc<HeldDescriptor>, Errno> {
        let known = self.known.get(&number).and_then(Weak::upgrade);
        // By that number the program may have another file by now.
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
    /// Of messages that were sent or received.
    #[expect(clippy::vec_box, reason = "requests own them by these boxes")]
    messages: Vec<Box<Message>>,
    last_id: u64,
}

/// More than this many spare requests are freed instead of kept.
const SPARE_LIMIT: usize = 256;

impl RequestPool {
    /// A spare request with an id of its own; `None` where memory is low and the pool is empty.
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

    /// A spare message.
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

/// A request that is no ring's yet.
#[cold]
pub(crate) fn new_entry() -> RequestEntry {
    Entry::new(Request::new())
}
