//! The outcomes of an attempt to carry out a request.

use usring_sys::Errno;

/// A result, and its effect on the rest of the chain.
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

/// Outcome of an attempt to issue a request. It fits into one register.
pub(crate) enum IssueOutcome {
    Done(Answer),
    /// The file was not ready: poll for the events of the opcode's row, then try again.
    WouldBlock,
    /// The request has to wait for its file, but was not tried, so the file may be ready already.
    /// The engine polls it first.
    PollsFirst,
    /// The request has used its time slice and may have more to do: other requests come first.
    Yield,
    /// Only a thread that may block can carry the request out.
    NeedsWorker,
    /// The request is a transfer for this queue pair of a device.
    OnDevice(ChannelIndex),
    /// The request waits for poll events of its file; its operation names them.
    AwaitsPoll,
    /// The request waits for a time or a number of completions; its operation names them.
    AwaitsTime,
    /// The request is a message to another ring whose lock is taken. It goes to that ring's driver
    /// and comes back.
    Visits,
}

impl IssueOutcome {
    #[inline]
    pub fn done(result: i32) -> Self {
        IssueOutcome::Done(result.into())
    }

    /// Returns the outcome of an operation that fails with an errno.
    pub fn of(result: Result<i32, Errno>) -> Self {
        Self::done(result.unwrap_or_else(Errno::negative))
    }
}

/// Index of one of the ring's channels to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelIndex(pub u32);
