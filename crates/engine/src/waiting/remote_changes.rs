//! The changes that this process asks other processes of a shared ring to make, because only those
//! processes have the requests to change. `ask_processes` asks the other processes.
//! `usring_ring::change_slot` has the protocol.

use crate::request::RequestEntry;
use crate::request::conditions::{CancelKey, Interest};
use crate::request::operation::{Operation, PollUpdate, TimeoutUpdate};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicI32;
use usring_ring::{OrphanFilter, change_slot};
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::width;
use usring_uapi::{io_uring as abi, opcode};

/// A cancellation or another change of waiting requests. It selects the requests by values that
/// have one meaning in all processes, such as `user_data`.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Cancel(CancelKey),
    Poll(PollUpdate),
    Timeout(TimeoutUpdate),
}

/// The kinds of an encoded change. A change is encoded in words. The low byte of the first word is
/// the kind. The next three bytes hold flags, or the opcode of a cancellation. The high half holds
/// a poll's events, or the flags of a cancellation.
const CANCEL: u64 = 1;
const POLL: u64 = 2;
const REMOVE_TIMEOUT: u64 = 3;
const UPDATE_TIMEOUT: u64 = 4;

/// Flags of a poll's change.
const HAS_USER_DATA: u64 = 1;
const HAS_EVENTS: u64 = 2;
const IS_MULTISHOT: u64 = 4;

/// Flags of a timeout's change.
const IS_LINKED: u64 = 1;
const IS_ABSOLUTE: u64 = 2;

/// Converts a number or negative errno into a result.
pub(crate) fn result_of(answer: i32) -> Result<i32, Errno> {
    if answer < 0 { Err(Errno::new(answer.unsigned_abs())) } else { Ok(answer) }
}

fn first_word(kind: u64, flags: u64, number: u32) -> u64 {
    kind | flags << 8 | u64::from(number) << 32
}

impl Change {
    /// Returns the change that a request makes; `None`: the request makes none.
    pub fn of(operation: &Operation) -> Option<Change> {
        match operation {
            Operation::Cancel(key) => Some(Change::Cancel(*key)),
            Operation::PollUpdate(update) => Some(Change::Poll(*update)),
            Operation::TimeoutUpdate(update) => Some(Change::Timeout(*update)),
            _ => None,
        }
    }

    /// Returns the `user_data` by which the change selects requests. `None`: it does not select by
    /// `user_data`.
    pub fn user_data(&self) -> Option<u64> {
        match self {
            Change::Cancel(key) => {
                let by_other_means = key.has(abi::IORING_ASYNC_CANCEL_OP | abi::IORING_ASYNC_CANCEL_FD);
                let by_user_data = key.has(abi::IORING_ASYNC_CANCEL_USERDATA) || !by_other_means;
                (by_user_data && !key.has(abi::IORING_ASYNC_CANCEL_ANY)).then_some(key.user_data)
            }
            Change::Poll(update) => Some(update.target),
            Change::Timeout(TimeoutUpdate::Remove { target } | TimeoutUpdate::Update { target, .. }) => Some(*target),
        }
    }

    /// Returns the filter for the orphans (requests of processes that have ended) that the change
    /// removes from the journal. `None`: the change removes no orphans, or selects requests by a
    /// file or by an opcode other than TIMEOUT.
    pub fn orphan_filter(&self) -> Option<OrphanFilter> {
        let (user_data, is_timeout) = match self {
            Change::Cancel(key) if key.has(abi::IORING_ASYNC_CANCEL_FD) => return None,
            Change::Cancel(key) if key.has(abi::IORING_ASYNC_CANCEL_ANY) => (None, false),
            Change::Cancel(key) if key.has(abi::IORING_ASYNC_CANCEL_OP) => {
                if key.opcode != opcode::TIMEOUT {
                    return None;
                }
                (self.user_data(), true)
            }
            Change::Cancel(_) => (self.user_data(), false),
            Change::Poll(PollUpdate { target, user_data: None, interest: None }) => (Some(*target), false),
            Change::Timeout(TimeoutUpdate::Remove { target }) => (Some(*target), true),
            Change::Poll(_) | Change::Timeout(_) => return None,
        };
        Some(OrphanFilter { user_data, is_timeout })
    }

    pub fn counts(&self) -> bool {
        matches!(self, Change::Cancel(key) if key.counts())
    }

    /// Returns whether one more process has to be asked for the change. `answer`: the combined
    /// answer of the processes asked so far.
    pub fn needs_next_process(&self, answer: i32) -> bool {
        match self.counts() {
            true => answer >= 0 || answer == Errno::EALREADY.negative(),
            false => answer == Errno::ENOENT.negative(),
        }
    }

    /// Returns the combined answer of two processes. `first`, `second`: the answer of each.
    pub fn combined(&self, first: i32, second: i32) -> i32 {
        let count = first.max(0).saturating_add(second.max(0));
        match self.counts() {
            false => second,
            true if count == 0 && [first, second].contains(&Errno::EALREADY.negative()) => Errno::EALREADY.negative(),
            true => count,
        }
    }

    /// Encodes the change for another process.
    pub fn encode(&self) -> change_slot::Change {
        match *self {
            Change::Cancel(key) => {
                let first = first_word(CANCEL, u64::from(key.opcode), key.flags);
                [first, key.user_data, width::word(key.file), 0, 0]
            }
            Change::Poll(PollUpdate { target, user_data, interest }) => {
                let new_data = if user_data.is_some() { HAS_USER_DATA } else { 0 };
                let new_events = if interest.is_some() { HAS_EVENTS } else { 0 };
                let Interest { events, multishot } = interest.unwrap_or_default();
                let multishot = if multishot { IS_MULTISHOT } else { 0 };
                let first = first_word(POLL, new_data | new_events | multishot, events);
                [first, target, user_data.unwrap_or(0), 0, 0]
            }
            Change::Timeout(TimeoutUpdate::Remove { target }) => [first_word(REMOVE_TIMEOUT, 0, 0), target, 0, 0, 0],
            Change::Timeout(TimeoutUpdate::Update { target, linked, absolute, span }) => {
                let linked = if linked { IS_LINKED } else { 0 };
                let absolute = if absolute { IS_ABSOLUTE } else { 0 };
                [first_word(UPDATE_TIMEOUT, linked | absolute, 0), target, span, 0, 0]
            }
        }
    }

    /// Decodes the change that another process asks for; `None`: the words are not a change.
    pub fn decode([first, target, second, ..]: change_slot::Change) -> Option<Change> {
        let (flags, number) = (first >> 8 & 0xff_ffff, (first >> 32) as u32);
        let has = |flag| flags & flag != 0;
        match first & 0xff {
            CANCEL => {
                let opcode = width::byte(flags);
                let file = width::int(second);
                Some(Change::Cancel(CancelKey {
                    user_data: target,
                    fd: -1,
                    opcode,
                    flags: number,
                    file,
                    process: None,
                }))
            }
            POLL => {
                let interest = Interest { events: number, multishot: has(IS_MULTISHOT) };
                Some(Change::Poll(PollUpdate {
                    target,
                    user_data: has(HAS_USER_DATA).then_some(second),
                    interest: has(HAS_EVENTS).then_some(interest),
                }))
            }
            REMOVE_TIMEOUT => Some(Change::Timeout(TimeoutUpdate::Remove { target })),
            UPDATE_TIMEOUT => {
                let (linked, absolute) = (has(IS_LINKED), has(IS_ABSOLUTE));
                Some(Change::Timeout(TimeoutUpdate::Update { target, linked, absolute, span: second }))
            }
            _ => None,
        }
    }
}

/// Value of the word in which a waiting system call gets its answer, as long as the answer has not
/// arrived. No answer to a change has this value.
pub(crate) const PENDING: i32 = i32::MIN;

/// The request or system call that gets the answer to a remote change.
pub(crate) enum Asker {
    Request(RequestEntry),
    /// A system call of the program waits until this word has the answer.
    Call(Arc<AtomicI32>),
}

/// A change that this process asks other processes to make, one process after the other.
pub(crate) struct RemoteChange {
    /// Number of the remote change; counts up in this process.
    pub number: u64,
    pub change: Change,
    pub asker: Asker,
    /// The process that is asked now, and the time at which it was asked.
    pub target: Option<(u32, Nanoseconds)>,
    /// The processes to ask after `target`.
    pub rest: Vec<u32>,
    /// The answer of the processes so far.
    pub answer: i32,
    /// Keeps the file open that the change names.
    pub _file: Option<OwnedDescriptor>,
}

impl RemoteChange {
    /// Combines the answer of the process that was asked last with the earlier answers.
    pub fn note(&mut self, answer: i32) {
        self.target = None;
        self.answer = self.change.combined(self.answer, answer);
        if !self.change.needs_next_process(self.answer) {
            self.rest.clear();
        }
    }
}

/// The changes that this process asks other processes to make, oldest first. Only the first may use
/// the ring's change slot, once no other process uses the slot. The others wait.
#[derive(Default)]
pub(crate) struct RemoteChanges {
    queue: VecDeque<RemoteChange>,
    next_number: u64,
}

impl RemoteChanges {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number that the next remote change will have.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Returns whether a remote change with one of these numbers still waits for its answer.
    pub fn has(&self, numbers: &Range<u64>) -> bool {
        self.queue.iter().any(|ask| numbers.contains(&ask.number))
    }

    /// Returns whether a second remote change waits until the first has its answer.
    pub fn has_several(&self) -> bool {
        self.queue.len() > 1
    }

    /// Adds a remote change at the end of the queue. `rest`: the processes to ask. `answer`: the
    /// change's result for the requests of this process. `file`: the file that the change names.
    pub fn add(&mut self, change: Change, asker: Asker, rest: Vec<u32>, answer: i32, file: Option<OwnedDescriptor>) {
        let number = self.next_number;
        self.queue.push_back(RemoteChange { number, change, asker, target: None, rest, answer, _file: file });
        self.next_number += 1;
    }

    pub fn first(&self) -> Option<&RemoteChange> {
        self.queue.front()
    }

    pub fn first_mut(&mut self) -> Option<&mut RemoteChange> {
        self.queue.front_mut()
    }

    pub fn take_first(&mut self) -> Option<RemoteChange> {
        self.queue.pop_front()
    }

    /// Moves the first remote change to the end of the queue. The process that was asked to make
    /// this change (`target`) is asked again later.
    pub fn requeue_first(&mut self) {
        if let Some(mut first) = self.queue.pop_front() {
            first.rest.extend(first.target.take().map(|(process, _)| process));
            self.queue.push_back(first);
        }
    }

    /// Removes the remote change of the system call that waits for `answer_word`. Returns whether
    /// the remote change was the first of the queue.
    pub fn withdraw(&mut self, answer_word: &Arc<AtomicI32>) -> bool {
        let is_meant = |ask: &RemoteChange| matches!(&ask.asker, Asker::Call(other) if Arc::ptr_eq(other, answer_word));
        let index = self.queue.iter().position(is_meant);
        index.inspect(|index| drop(self.queue.remove(*index))) == Some(0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::request::operation::Operation;

    fn cancel(flags: u32) -> Change {
        Change::Cancel(CancelKey { user_data: 7, fd: 5, opcode: 9, flags, file: -1, process: None })
    }

    fn again(change: Change) -> change_slot::Change {
        Change::decode(change.encode()).unwrap().encode()
    }

    #[test]
    fn a_change_arrives_as_it_was_sent() {
        let interest = Some(Interest { events: 0x8000_0011, multishot: true });
        let changes = [
            cancel(abi::IORING_ASYNC_CANCEL_OP | abi::IORING_ASYNC_CANCEL_ALL),
            Change::Poll(PollUpdate { target: 1, user_data: None, interest }),
            Change::Poll(PollUpdate { target: 2, user_data: Some(u64::MAX), interest: None }),
            Change::Timeout(TimeoutUpdate::Remove { target: 3 }),
            Change::Timeout(TimeoutUpdate::Update { target: 4, linked: true, absolute: false, span: u64::MAX }),
        ];
        for change in changes {
            assert_eq!(again(change), change.encode());
        }
        assert!(Change::decode([0; 5]).is_none());
        assert!(Change::of(&Operation::Nothing).is_none());
    }

    #[test]
    fn a_cancellation_of_one_request_ends_with_the_process_that_has_it() {
        let (missing, running) = (Errno::ENOENT.negative(), Errno::EALREADY.negative());
        let change = cancel(0);
        assert!(
            change.needs_next_process(missing) && !change.needs_next_process(0) && !change.needs_next_process(running)
        );
        assert_eq!(change.combined(missing, running), running);
    }

    #[test]
    fn a_cancellation_of_all_requests_counts_those_of_each_process() {
        let (missing, running) = (Errno::ENOENT.negative(), Errno::EALREADY.negative());
        let change = cancel(abi::IORING_ASYNC_CANCEL_ALL);
        assert!(change.needs_next_process(2) && change.needs_next_process(running));
        assert_eq!(change.combined(2, 3), 5);
        assert_eq!(change.combined(running, 3), 3);
        assert_eq!(change.combined(0, running), running);
        assert_eq!(change.combined(1, missing), 1);
    }
}
