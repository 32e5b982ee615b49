//! Finds requests that wait, and ends their wait.

use crate::request::{Progress, RequestEntry, RequestId};
use crate::ring::LockedRing;
use crate::submission::opcode_table;
use crate::waiting::{fast_poll, workers};
use usring_sys::{Errno, descriptor};
use usring_uapi::Sqe;
use usring_uapi::io_uring as abi;
use usring_uapi::sqe_flags;

/// The requests that a cancellation means (IORING_ASYNC_CANCEL_*).
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "io_cancel_data")]
pub(crate) struct CancelKey {
    pub user_data: u64,
    pub fd: i32,
    pub opcode: u8,
    pub flags: u32,
    /// After `resolve`: a descriptor number of the file that the key names.
    pub file: i32,
}

impl CancelKey {
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether all matching requests are meant, and their number is the answer.
    pub fn counts(&self) -> bool {
        self.has(abi::IORING_ASYNC_CANCEL_ALL | abi::IORING_ASYNC_CANCEL_ANY)
    }

    /// Finds the file that the key names, if it names one.
    fn resolve(&mut self, locked: &LockedRing) -> Result<(), Errno> {
        if !self.has(abi::IORING_ASYNC_CANCEL_FD) {
            return Ok(());
        }
        self.file = if self.has(abi::IORING_ASYNC_CANCEL_FD_FIXED) {
            locked.files.get(self.fd as u32).ok_or(Errno::EBADF)?.number()
        } else {
            descriptor::status_flags(self.fd)?;
            self.fd
        };
        Ok(())
    }

    /// Returns whether the key's file is that of a request, which has it by `number`. Where the
    /// kernel cannot compare the files, equal numbers in the SQEs count as the same file.
    fn is_file_of(&self, sqe: &Sqe, number: i32) -> bool {
        let fixed = self.has(abi::IORING_ASYNC_CANCEL_FD_FIXED);
        let same_number = || sqe.fd == self.fd && (sqe.flags & sqe_flags::FIXED_FILE != 0) == fixed;
        descriptor::same_file(number, self.file).unwrap_or_else(same_number)
    }

    /// Returns whether the key means a request with this SQE, which works on the file behind
    /// `number`.
    pub fn matches(&self, sqe: &Sqe, number: i32) -> bool {
        if self.has(abi::IORING_ASYNC_CANCEL_ANY) {
            return true;
        }
        let by_file = self.has(abi::IORING_ASYNC_CANCEL_FD);
        if by_file && !(opcode_table::row(sqe.opcode).needs_file && self.is_file_of(sqe, number)) {
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

/// Cancels one or all requests that match. Their CQEs with −ECANCELED come after the caller's own
/// CQE, as on the kernel.
pub(crate) fn cancel(locked: &mut LockedRing, key: &CancelKey) -> Result<i32, Errno> {
    let mut key = *key;
    key.resolve(locked)?;
    let mut count = 0;
    let mut running = false;
    loop {
        let found = locked
            .polls
            .extract(|request| key.matches(&request.sqe, request.file.number))
            .or_else(|| locked.timeouts.extract(|request| key.matches(&request.sqe, request.file.number)))
            .or_else(|| locked.devices.extract_waiting(|request| key.matches(&request.sqe, request.file.number)));
        match found {
            Some(request) => cancelled(locked, request),
            None => match workers::cancel(locked.ring, |view| key.matches(&view.sqe, view.number)) {
                workers::Cancelled::Waiting(request) => cancelled(locked, request),
                workers::Cancelled::Running(_) => {
                    running = true;
                    if !key.counts() {
                        return Err(Errno::EALREADY);
                    }
                    workers::interrupt(locked.ring, |view| key.matches(&view.sqe, view.number));
                    break;
                }
                workers::Cancelled::Nothing => break,
            },
        }
        count += 1;
        if !key.counts() {
            return Ok(0);
        }
    }
    match (count, running) {
        (0, true) => Err(Errno::EALREADY),
        (0, false) if key.counts() => Ok(0),
        (0, false) => Err(Errno::ENOENT),
        _ => Ok(count),
    }
}

/// Result of cancelling one request.
pub(crate) enum Found {
    /// The request ends with −ECANCELED.
    Cancelled,
    /// A worker has the request, whose opcode this is. The worker's system call was ended.
    Running(u8),
    Nothing,
}

/// Cancels the request with this id.
pub(crate) fn cancel_id(locked: &mut LockedRing, id: RequestId) -> Found {
    let found = fast_poll::cancel_id(locked, id);
    let found = found.or_else(|| locked.timeouts.extract(|request| request.id == id));
    let found = found.or_else(|| locked.devices.extract_waiting(|request| request.id == id));
    if let Some(request) = found {
        cancelled(locked, request);
        return Found::Cancelled;
    }
    match workers::cancel(locked.ring, |view| view.id == id) {
        workers::Cancelled::Waiting(request) => {
            cancelled(locked, request);
            Found::Cancelled
        }
        workers::Cancelled::Running(opcode) => Found::Running(opcode),
        workers::Cancelled::Nothing => Found::Nothing,
    }
}

/// Marks a request as cancelled; the driver completes it next
/// ([`crate::submission::issue::run_issuable`]).
fn cancelled(locked: &mut LockedRing, mut request: RequestEntry) {
    request.progress = Progress::Refused;
    request.result = Errno::ECANCELED.negative();
    locked.issuable.push_back(request);
}
