//! The outcomes of an attempt to carry a request out.

use usring_sys::Errno;

/// A result with its effect on the rest of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub result: i32,
    /// Breaks an ordinary link: an error, or fewer bytes than asked for.
    pub failed: bool,
}

impl From<i32> for Answer {
    fn from(result: i32) -> Self {
        Answer { result, failed: result < 0 }
    }
}

/// Outcome of an attempt to issue a request. Small enough for one register.
pub(crate) enum IssueOutcome {
    Done(Answer),
    /// The request's file was not ready: poll for the row's events, then try again.
    WouldBlock,
    /// The request has to wait for its file. But it is not known whether the file is ready already,
    /// so it is polled first.
    PollsFirst,
    /// The request has used its time slice and may have more to do: other requests come first.
    Yield,
    /// Only a thread that may block can carry the request out.
    NeedsWorker,
    /// The request is a transfer for this queue pair of a device.
    OnDevice(ChannelIndex),
    /// The request waits for poll events on its file; its operation names them.
    AwaitsPoll,
    /// The request waits for time or for completions; its operation names them.
    AwaitsTime,
    /// The request goes to another ring, whose driver holds the lock, and comes back.
    Visits,
}

impl IssueOutcome {
    #[inline]
    pub fn done(result: i32) -> Self {
        IssueOutcome::Done(result.into())
    }

    /// Returns the outcome of an operation that answers with an errno.
    pub fn of(result: Result<i32, Errno>) -> Self {
        Self::done(result.unwrap_or_else(Errno::negative))
    }
}

/// Names a channel of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelIndex(pub u32);
