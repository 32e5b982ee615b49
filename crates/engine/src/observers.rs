//! Observers of requests: code outside the engine that sees when each request is submitted and
//! completed (`usring run --check`).
//!
//! - Without an observer, requests take the usual path, which has no check for observers.
//! - With one, the process is in the state [`Unusual::Observed`]. Each request that is submitted in
//!   this state is marked (`Request::is_watched`).
//! - The engine calls an observer under the ring's lock. So an observer must not use a ring.

use core::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::plain::IoVector;
use usring_sys::set_once::SetOnce;
use usring_sys::unusual::{self, Unusual};
use usring_uapi::Sqe;

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
    /// The ring's number in its process.
    pub ring_number: u32,
    pub sqe: &'a Sqe,
    /// The file's descriptor number. `None`: the request has no file, or a registered one.
    pub descriptor: Option<i32>,
    pub transfer: Transfer<'a>,
    pub held_back: HeldBack,
    /// The request is part of a chain.
    pub is_linked: bool,
}

/// A request that is complete, before its CQE is published.
pub struct Completed {
    pub request: Identity,
    pub result: i32,
    /// The position in the CQ at which this CQE will be: the CQ's tail after all earlier CQEs.
    /// `None`: the request posts no CQE.
    pub position: Option<u32>,
    /// The CQ's head, as the program has last stored it.
    pub consumed: u32,
    /// The request has moved fewer bytes than it was asked for, and so cancels the rest of its
    /// chain.
    pub breaks_chain: bool,
    /// The request never began, because its chain broke.
    pub has_not_begun: bool,
}

/// The functions of an observer.
pub struct Observer {
    pub submitted: fn(&Submitted),
    pub completed: fn(&Completed),
    /// Called when the ring or its process ends. Arguments: the ring's address, the CQ's head and
    /// tail. The CQEs of the backlog are not in the CQ, and would lie after that tail.
    pub closed: fn(u64, u32, u32),
}

/// Maximum number of observers of a process.
const MOST: usize = 2;

static OBSERVERS: [SetOnce<Observer>; MOST] = [const { SetOnce::new() }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Adds an observer. Called while the process has one thread. Returns `false` if the process has
/// `MOST` observers already.
pub fn add(observer: &'static Observer) -> bool {
    let Some(slot) = OBSERVERS.get(COUNT.load(Ordering::Relaxed)) else { return false };
    slot.set(observer);
    COUNT.fetch_add(1, Ordering::Relaxed);
    unusual::set(Unusual::Observed);
    true
}

/// Returns whether the process has an observer.
#[inline]
pub(crate) fn are_any() -> bool {
    unusual::has(Unusual::Observed)
}

/// Calls `notify` for each observer.
pub(crate) fn for_each(notify: impl Fn(&Observer)) {
    OBSERVERS.iter().filter_map(SetOnce::get).for_each(notify);
}
