//! The fault that a request gets (`usring run --inject`), and the stage that the fault has reached.
//! `submission::faults` begins the fault, and `completion::faults` ends it.

use super::outcome::Answer;
use alloc::vec::Vec;
use usring_inject::Fault;
use usring_sys::plain::IoVector;

/// A fault under way.
pub(crate) struct PendingFault {
    pub fault: Fault,
    pub stage: FaultStage,
    /// If the fault shortens the transfer: the bytes that the request would have transferred
    /// without the fault.
    pub whole: Option<u64>,
    /// If the fault damages the data that the request reads: the memory that the request reads
    /// into.
    pub memory: Vec<IoVector>,
    /// The value stands for no fault: `usring run --order` holds the request back, and chooses when
    /// the request completes.
    pub is_ordered: bool,
}

/// Device and inode of a regular file.
pub(crate) type FileKey = (u64, u64);

/// The stage that a fault has reached. A delayed request waits in the ring's list of timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultStage {
    /// The fault was decided.
    Decided,
    /// The request is delayed before its issue.
    Entering,
    /// The request was issued, or the fault has set its result without an issue.
    Begun,
    /// The request is delayed with this answer.
    Leaving(Answer),
}
