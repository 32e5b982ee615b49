//! The outcomes of an attempt to carry out a request.

use usring_sys::Errno;

/// A request's result, and whether it breaks the request's chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub result: i32,
    /// The result breaks a normal link: it is an error, or fewer bytes than the request asks for.
    pub failed: bool,
}

impl From<i32> for Answer {
    fn from(result: i32) -> Self {
        Answer { result, failed: result < 0 }
    }
}

/// The outcome of an attempt to carry out a request without blocking. It fits into one register.
pub(crate) enum IssueOutcome {
    Done(Answer),
    /// The file was not ready. The engine polls the file for the events in the opcode's row of the
    /// opcode table, and then tries the request again.
    WouldBlock,
    /// The request was not tried, because it has to wait for its file first. The file may be ready
    /// already, so the engine polls the file before the request waits.
    PollsFirst,
    /// The request has used up its time slice (`fast_poll::SLICE` results) and may have more to do.
    /// The request continues after other requests.
    Yield,
    /// Only a worker, which may block, can carry out the request.
    NeedsWorker,
    /// A queue pair of a device carries out the transfer. The index names the ring's channel to
    /// that device.
    OnDevice(ChannelIndex),
    /// The request waits for poll events of its file. The events are in its operation.
    AwaitsPoll,
    /// The request waits for a time or a number of completions, which are in its operation.
    AwaitsTime,
    /// A fault delays the request (`submission::faults`).
    Delayed,
    /// The request cancels or changes requests that other processes of its shared ring may have.
    /// `Request::result` holds the answer for this process's own requests.
    AsksProcesses,
    /// The request is a message to another ring, which another thread is driving. The request
    /// itself goes to that driver and comes back with the result.
    Visits,
}

impl IssueOutcome {
    #[inline]
    pub fn done(result: i32) -> Self {
        IssueOutcome::Done(result.into())
    }

    /// Returns the outcome of a request whose operation has this result, or this error.
    pub fn of(result: Result<i32, Errno>) -> Self {
        Self::done(result.unwrap_or_else(Errno::negative))
    }
}

/// Index of one of the ring's channels, which are its queue pairs on devices
/// (`waiting::device_queues`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelIndex(pub u32);
