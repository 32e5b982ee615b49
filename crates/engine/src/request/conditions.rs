//! The conditions that requests wait for, and the keys by which cancellations select waiting
//! requests. All types are plain values: they know neither a request nor the tables in which
//! requests wait.

use alloc::sync::Arc;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::descriptor::{self, HeldDescriptor, OwnedDescriptor};
use usring_sys::epoll::Epoll;
use usring_uapi::io_uring as abi;
use usring_uapi::{Sqe, sqe_flags};

/// Identifies a request within its ring. No two requests of a ring ever have the same id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub u64);

/// The events that all requests of one epoll registration wait for, and whether they wait again
/// after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    /// EPOLL* events. Error and hang-up are reported even if they are not included.
    pub events: u32,
    /// The request waits again after an event.
    pub multishot: bool,
}

/// The event data of an epoll registration. The tag names a slot of the poll table: the low half is
/// the slot's index, and the high half is the slot's generation. The generation changes with each
/// new use of the slot.
pub(crate) type Tag = u64;

/// A duplicate descriptor that several requests share while they wait for one file. A request that
/// goes on to a worker still shares the duplicate.
pub(crate) struct SharedDuplicate {
    pub descriptor: HeldDescriptor,
    /// The slot of the poll table whose waiting requests share the duplicate.
    pub tag: Tag,
}

/// Whether the last attempt of a waiting request used up its time slice (`fast_poll::SLICE`
/// results). This decides when the request can be tried again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeSlice {
    /// The request waits for an event of its file: the last attempt found that the file was not
    /// ready.
    Over,
    /// The request waits only for its next time slice: the last attempt used up its slice, and the
    /// file may still be ready.
    Runnable,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Issue the request again.
    Retry,
    /// The request is a poll: complete it with the events that came.
    Report,
}

/// The condition on which a timeout completes: a time, a number of completions, or both.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deadline {
    pub clock: Clock,
    /// The time of expiry, in nanoseconds on `clock`. Until the request is issued, the value is the
    /// SQE's: a time or a span.
    pub at: Nanoseconds,
    /// The timeout also completes once this many more CQEs have been posted, not counting those of
    /// expired TIMEOUTs. 0: it completes only at its time.
    pub completions: u32,
    /// Nanoseconds after which a multishot timeout expires again; 0 for any other timeout.
    pub repeat_every: Nanoseconds,
    /// Remaining number of expiries of a multishot timeout (0: no limit).
    pub repeats: u32,
    /// Expiry counts as success and breaks no link (ETIME_SUCCESS).
    pub expiry_succeeds: bool,
    /// For a LINK_TIMEOUT: the request that it limits.
    pub watches: Option<RequestId>,
}

/// The entry of a file in the ring's epoll set. Dropping the value deletes the entry before usring
/// closes its own descriptor of the file. close(2) alone does not delete the entry while the
/// program has the file open.
pub(crate) struct Registration {
    pub set: Arc<Epoll>,
    pub number: i32,
    /// A duplicate made for this registration, because an epoll set takes each descriptor number of
    /// a file only once. `None` for the file's first registration.
    pub _own: Option<OwnedDescriptor>,
    pub interest: Interest,
    pub tag: Tag,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = self.set.delete(self.number);
    }
}

/// Selects the requests that a cancellation applies to, by IORING_ASYNC_CANCEL_* flags.
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "io_cancel_data")]
pub(crate) struct CancelKey {
    pub user_data: u64,
    pub fd: i32,
    pub opcode: u8,
    pub flags: u32,
    /// Descriptor number of the file that the key names. `waiting::cancel` sets it.
    pub file: i32,
    /// Process id of the process that has the file. `None`: this process has it.
    pub process: Option<u32>,
}

impl CancelKey {
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether the key selects all matching requests (ALL, ANY). The result of the
    /// cancellation is then the number of cancelled requests.
    pub fn counts(&self) -> bool {
        self.has(abi::IORING_ASYNC_CANCEL_ALL | abi::IORING_ASYNC_CANCEL_ANY)
    }

    /// Returns whether the key names a request's file. `number` is the descriptor number of that
    /// file. Where the kernel cannot compare the two files, the descriptor numbers in the request's
    /// SQE and in the key are compared instead.
    fn is_file_of(&self, sqe: &Sqe, number: i32) -> bool {
        let fixed = self.has(abi::IORING_ASYNC_CANCEL_FD_FIXED);
        let same_number = || sqe.fd == self.fd && (sqe.flags & sqe_flags::FIXED_FILE != 0) == fixed;
        match self.process {
            Some(process) => descriptor::is_file_of(process, self.file, number),
            None => descriptor::same_file(number, self.file).unwrap_or_else(same_number),
        }
    }

    /// Returns whether the key selects a request with this SQE. `file`: descriptor number of the
    /// request's file, if the request works on one.
    pub fn matches(&self, sqe: &Sqe, file: Option<i32>) -> bool {
        if self.has(abi::IORING_ASYNC_CANCEL_ANY) {
            return true;
        }
        let by_file = self.has(abi::IORING_ASYNC_CANCEL_FD);
        if by_file && !file.is_some_and(|number| self.is_file_of(sqe, number)) {
            return false;
        }
        let by_opcode = self.has(abi::IORING_ASYNC_CANCEL_OP);
        if by_opcode && sqe.opcode != self.opcode {
            return false;
        }
        let by_user_data = self.has(abi::IORING_ASYNC_CANCEL_USERDATA) || !(by_file || by_opcode);
        !by_user_data || sqe.user_data == self.user_data
    }
}
