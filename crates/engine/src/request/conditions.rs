//! The conditions that a request waits for, and the keys by which a waiting request is found. All
//! are plain values that know neither the request nor the tables that keep it.

use alloc::sync::Arc;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::descriptor::{self, HeldDescriptor, OwnedDescriptor};
use usring_sys::epoll::Epoll;
use usring_uapi::io_uring as abi;
use usring_uapi::{Sqe, sqe_flags};

/// Identifies a request within its ring. No two requests of a ring ever have the same id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub u64);

/// The properties that all requests behind one epoll registration share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    /// EPOLL* events; error and hang-up are always reported too.
    pub events: u32,
    /// The request goes on waiting after an event.
    pub multishot: bool,
}

/// The event data of a registration: its slot in the low half, the slot's generation in the high
/// half.
pub(crate) type Tag = u64;

/// A duplicate that several requests share while they wait for one file. A request that goes on to
/// a worker keeps its share.
pub(crate) struct SharedHold {
    pub descriptor: HeldDescriptor,
    /// The slot whose waiting requests share the duplicate.
    pub tag: Tag,
}

/// The thing that a request waits for after an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeSlice {
    /// An event of its file.
    Over,
    /// Its next time slice, whether there is an event or not.
    Runnable,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Issue the request again.
    Retry,
    /// The request is a poll: complete it with the events that came.
    Report,
}

/// The time, or the number of completions, at which a timeout ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deadline {
    pub clock: Clock,
    /// The end, in nanoseconds on `clock`.
    pub at: Nanoseconds,
    /// The timeout ends earlier once this many more requests have completed (0: never).
    pub completions: u32,
    /// Span after which a multishot timeout starts again.
    pub repeat_every: Nanoseconds,
    /// Number of times that a multishot timeout starts (0: until it is removed).
    pub repeats: u32,
    /// Expiry is no failure and breaks no link (ETIME_SUCCESS).
    pub expiry_succeeds: bool,
    /// The request that a LINK_TIMEOUT watches.
    pub watches: Option<RequestId>,
}

/// A file's entry in the epoll set. The entry is deleted before the file's number is closed: after
/// close(2) alone it would stay in the set for as long as the program has the file open.
pub(crate) struct Registration {
    pub set: Arc<Epoll>,
    pub number: i32,
    /// The duplicate under which the file is registered; `None` for the file's first registration.
    /// An epoll set takes each number once.
    pub _own: Option<OwnedDescriptor>,
    pub interest: Interest,
    pub tag: Tag,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = self.set.delete(self.number);
    }
}

/// The requests that a cancellation means (IORING_ASYNC_CANCEL_*).
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "io_cancel_data")]
pub(crate) struct CancelKey {
    pub user_data: u64,
    pub fd: i32,
    pub opcode: u8,
    pub flags: u32,
    /// Set by `resolve`: a descriptor number of the file that the key names.
    pub file: i32,
}

impl CancelKey {
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether the key means all matching requests (ALL, ANY). The caller then gets their
    /// number as the answer.
    pub fn counts(&self) -> bool {
        self.has(abi::IORING_ASYNC_CANCEL_ALL | abi::IORING_ASYNC_CANCEL_ANY)
    }

    /// Returns whether the key names the file of a request. `number`: descriptor number of the
    /// request's file. If the kernel cannot compare the files, equal numbers in the SQEs count as
    /// the same file.
    fn is_file_of(&self, sqe: &Sqe, number: i32) -> bool {
        let fixed = self.has(abi::IORING_ASYNC_CANCEL_FD_FIXED);
        let same_number = || sqe.fd == self.fd && (sqe.flags & sqe_flags::FIXED_FILE != 0) == fixed;
        descriptor::same_file(number, self.file).unwrap_or_else(same_number)
    }

    /// Returns whether the key means a request with this SQE. `file`: descriptor number of the
    /// request's file, if it works on one.
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
