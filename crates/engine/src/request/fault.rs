//! The fault that a request gets (`usring run --inject`), and how far it is. `submission::faults`
//! begins it, and `completion::faults` ends it.

use super::outcome::Answer;
use alloc::vec::Vec;
use usring_inject::Fault;
use usring_sys::plain::IoVector;

/// A fault under way.
pub(crate) struct PendingFault {
    pub fault: Fault,
    pub stage: FaultStage,
    /// Bytes that the request would transfer without the fault, if the fault shortens it.
    pub whole: Option<u64>,
    /// Memory that the request reads into, if the fault damages what is read.
    pub memory: Vec<IoVector>,
}

/// How far a fault is. A request that is delayed waits among the timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultStage {
    /// The fault was decided.
    Decided,
    /// The request is delayed before its issue.
    Entering,
    /// The request was issued, or gets its answer without that.
    Begun,
    /// The request is delayed with this answer.
    Leaving(Answer),
}
