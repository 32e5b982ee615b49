//! Cancellation: finds requests that wait, and ends their wait.

use crate::request::conditions::{CancelKey, RequestId};
use crate::request::{Progress, RequestEntry};
use crate::ring::LockedRing;
use crate::waiting::{fast_poll, workers};
use usring_sys::{Errno, descriptor};
use usring_uapi::io_uring as abi;

/// Finds the file that the key names, if it names one.
fn resolve(key: &mut CancelKey, locked: &LockedRing) -> Result<(), Errno> {
    if !key.has(abi::IORING_ASYNC_CANCEL_FD) {
        return Ok(());
    }
    key.file = if key.has(abi::IORING_ASYNC_CANCEL_FD_FIXED) {
        locked.registered.files.get(key.fd as u32).ok_or(Errno::EBADF)?.number()
    } else {
        descriptor::status_flags(key.fd)?;
        key.fd
    };
    Ok(())
}

/// Cancels the first request that matches, or all of them, as the key asks. Their CQEs with
/// −ECANCELED come after the caller's own CQE, as on the kernel. Returns 0, or the number of
/// requests if the key cancels all.
///
/// Errors: `ENOENT` if no request matches; `EALREADY` if a worker runs the request (its system call
/// is ended if the key cancels all); `EBADF` if the key names no file.
pub(crate) fn cancel(locked: &mut LockedRing, key: &CancelKey) -> Result<i32, Errno> {
    let mut key = *key;
    resolve(&mut key, locked)?;
    let mut count = 0;
    let mut running = false;
    loop {
        let found = locked
            .waiting
            .polls
            .extract(|request| key.matches(&request.sqe, request.file_number()))
            .or_else(|| locked.waiting.timeouts.extract(|request| key.matches(&request.sqe, request.file_number())))
            .or_else(|| {
                locked.devices.queues.extract_waiting(|request| key.matches(&request.sqe, request.file_number()))
            });
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
    /// A worker has the request, whose opcode this is. The worker's system call has been ended, and
    /// the request completes later.
    Running(u8),
    Nothing,
}

/// Cancels the request with this id.
pub(crate) fn cancel_id(locked: &mut LockedRing, id: RequestId) -> Found {
    let found = fast_poll::cancel_id(locked, id);
    let found = found.or_else(|| locked.waiting.timeouts.extract(|request| request.id == id));
    let found = found.or_else(|| locked.devices.queues.extract_waiting(|request| request.id == id));
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
/// ([`crate::driving::batch::run_issuable`]).
fn cancelled(locked: &mut LockedRing, mut request: RequestEntry) {
    request.progress = Progress::Refused;
    request.result = Errno::ECANCELED.negative();
    locked.queues.issuable.push_back(request);
}
