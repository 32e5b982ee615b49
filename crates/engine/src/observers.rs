//! Observers of requests: code outside the engine that sees when each request is submitted and
//! completed (`usring run --check`), and its steps in between (`usring run --trace`).
//!
//! - Without an observer, requests take the usual path, which has no check for observers.
//! - With an observer, the process is in the state [`Unusual::Observed`]. Each request that is
//!   submitted in this state is marked (`Request::is_watched`).
//! - If an observer needs the steps, requests get their rows from the second opcode table
//!   (`submission::faults`). The functions of that table notify the observer.
//! - The engine calls an observer under the ring's lock, or in a worker. So an observer must not
//!   use a ring.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use usring_sys::plain::IoVector;
use usring_sys::set_once::SetOnce;
use usring_sys::unusual::{self, Unusual};
use usring_uapi::Sqe;

/// This bit is set in the number of a ring that serves a libaio context. The other bits of the
/// number distinguish the contexts.
pub const AIO_CONTEXT: u32 = 1 << 31;

/// Names one request of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The ring, by its address.
    pub ring: u64,
    /// Number of the request in its ring.
    pub number: u64,
}

/// The memory that a request transfers, in the program's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer<'a> {
    /// The request transfers no memory, or memory that is chosen later (a provided buffer).
    Unknown,
    /// The request writes to the memory.
    Into(&'a [IoVector]),
    /// The request reads the memory.
    From(&'a [IoVector]),
}

/// The reason why a request is held back after its submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBack {
    No,
    /// The request waits for the one before it in its chain.
    Chain,
    /// The request waits because of an IO_DRAIN.
    Drain,
}

/// A request that has been taken from the SQ, before it is tried.
pub struct Submitted<'a> {
    pub request: Identity,
    /// The ring's number in its process. For the ring of an AIO context, a number with the bit
    /// [`AIO_CONTEXT`].
    pub ring_number: u32,
    pub sqe: &'a Sqe,
    /// The file's descriptor number. `None`: the request has no file, or a registered one.
    pub descriptor: Option<i32>,
    /// A descriptor number by which this process can look up the request's file now. For a
    /// registered file, this is a descriptor of usring's own. `None`: the request has no file.
    pub file: Option<i32>,
    /// The name of the file that the request opens, with its NUL.
    pub path: Option<&'a [u8]>,
    /// The user_data that the program set. (The SQE of an AIO context's request has another value.)
    pub user_data: u64,
    pub transfer: Transfer<'a>,
    pub held_back: HeldBack,
    /// The request is part of a chain.
    pub is_linked: bool,
    /// The CQ's head, as the program has last stored it.
    pub consumed: u32,
    /// The position in the SQ from which the request was taken.
    pub sq_position: u32,
}

/// The reason why a request is left to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerReason {
    /// The request has IOSQE_ASYNC.
    Asked,
    /// The request was submitted while an IO_DRAIN held requests back. The kernel treats such a
    /// request as if it had IOSQE_ASYNC.
    AfterDrain,
    /// The thread that tries the request does not have the rights of the thread that submitted it.
    Rights,
    /// The request would have blocked its submitter, and its file cannot be polled.
    WouldBlock,
    /// No request of this opcode can be carried out without blocking.
    Opcode,
}

/// A step of a request between its submission and its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The request is issued after it had to wait: for other requests, for its file, or for time.
    Issued,
    /// The request waits until its file is ready.
    AwaitsFile,
    /// The request waits for a time or a number of completions.
    AwaitsTime,
    /// The request waits for an answer of other processes that share its ring.
    AwaitsProcesses,
    /// `usring run --inject` or `--order` delays the request.
    Delayed,
    /// The request is queued for a worker.
    Queued(WorkerReason),
    /// A worker begins to carry out the request.
    WorkerBegan,
    /// The worker has this result, and passes the request to the ring as task work.
    WorkerEnded(i32),
    /// The request is handed to the ring's channel with this index, a queue pair of a device.
    OnDevice(u32),
    /// The request goes to another ring, whose driver carries it out.
    OnOtherRing,
    /// The request posts a CQE and is not complete yet. `position`: the position of that CQE in the
    /// CQ.
    Posted { result: i32, flags: u32, position: u32, consumed: u32 },
}

/// A step of a request.
pub struct Stepped<'a> {
    /// Number of the request in its ring.
    pub number: u64,
    pub ring_number: u32,
    pub sqe: &'a Sqe,
    pub user_data: u64,
    pub step: Step,
}

/// A ring that the process has made.
pub struct Opened {
    pub ring_number: u32,
    /// The flags of io_uring_setup(2).
    pub flags: u32,
    pub sq_entries: u32,
    pub cq_entries: u32,
}

/// A request that is complete, before its CQE is published.
pub struct Completed<'a> {
    pub request: Identity,
    pub ring_number: u32,
    pub sqe: &'a Sqe,
    pub user_data: u64,
    pub result: i32,
    /// The flags of its CQE.
    pub flags: u32,
    /// The position in the CQ at which this CQE will be: the CQ's tail after all earlier CQEs.
    /// `None`: the request posts no CQE.
    pub position: Option<u32>,
    /// The CQ's head, as the program has last stored it.
    pub consumed: u32,
    /// The request has moved fewer bytes than the program asked for. So the rest of the request's
    /// chain is cancelled.
    pub breaks_chain: bool,
    /// The request never began, because its chain broke.
    pub has_not_begun: bool,
}

/// A ring that ends, or whose process ends.
pub struct Closed {
    /// The ring, by its address.
    pub ring: u64,
    pub ring_number: u32,
    /// The CQ's head, as the program has last stored it.
    pub consumed: u32,
    /// The CQ's tail. The CQEs of the backlog are not in the CQ: they will follow after this tail.
    pub tail: u32,
}

/// The functions of an observer.
pub struct Observer {
    pub submitted: fn(&Submitted),
    pub completed: fn(&Completed),
    /// Called for each step. `None`: the observer does not need the steps.
    pub stepped: Option<fn(&Stepped)>,
    /// Called when the process has made a ring.
    pub opened: fn(&Opened),
    /// Called when the ring or its process ends.
    pub closed: fn(&Closed),
}

/// Maximum number of observers of a process.
const MOST: usize = 4;

static OBSERVERS: [SetOnce<Observer>; MOST] = [const { SetOnce::new() }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether an observer needs the steps of requests.
static NEEDS_STEPS: AtomicBool = AtomicBool::new(false);

/// Adds an observer. Called while the process has one thread. Returns `false` if the process has
/// `MOST` observers already.
pub fn add(observer: &'static Observer) -> bool {
    let Some(slot) = OBSERVERS.get(COUNT.load(Ordering::Relaxed)) else { return false };
    slot.set(observer);
    if observer.stepped.is_some() {
        NEEDS_STEPS.store(true, Ordering::Relaxed);
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    unusual::set(Unusual::Observed);
    true
}

/// Returns whether the process has an observer.
#[inline]
pub(crate) fn are_any() -> bool {
    unusual::has(Unusual::Observed)
}

/// Returns whether an observer needs the steps of requests.
#[inline]
pub(crate) fn need_steps() -> bool {
    NEEDS_STEPS.load(Ordering::Relaxed)
}

/// Calls `notify` for each observer.
pub(crate) fn for_each(notify: impl Fn(&Observer)) {
    OBSERVERS.iter().filter_map(SetOnce::get).for_each(notify);
}
