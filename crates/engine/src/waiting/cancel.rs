//! Cancellation: finds waiting requests, and completes them with −ECANCELED.

use crate::request::conditions::{CancelKey, RequestId};
use crate::ring::LockedRing;
use crate::waiting::{fast_poll, workers};
use usring_sys::{Errno, descriptor};
use usring_uapi::io_uring as abi;

/// If a cancellation's key names a file, by a descriptor or a registered index, stores the file's
/// descriptor number in the key. Error: `EBADF` if there is no such file.
pub(super) fn resolve(key: &mut CancelKey, locked: &LockedRing) -> Result<(), Errno> {
    if !key.has(abi::IORING_ASYNC_CANCEL_FD) || key.process.is_some() {
        return Ok(());
    }
    key.file = if key.has(abi::IORING_ASYNC_CANCEL_FD_FIXED) {
        locked.registered.files.get(key.fd.cast_unsigned()).ok_or(Errno::EBADF)?.number()
    } else {
        descriptor::status_flags(key.fd)?;
        key.fd
    };
    Ok(())
}

/// Cancels the first request that matches the key, or all that match if the key says so. The CQEs
/// of the cancelled requests follow the caller's own CQE, as in the kernel. If a worker runs a
/// matching request, interrupts the worker's system call; the request completes later.
///
/// Returns 0 if the key is for one request. Otherwise returns the number of cancelled requests.
///
/// Errors:
/// - `ENOENT` if no request matches a key that cancels one.
/// - `EALREADY` if only a worker's running request matches.
/// - `EBADF` if the file that the key names does not exist.
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
            Some(request) => locked.queue_cancelled(request),
            None => match workers::cancel(locked.ring, |view| key.matches(&view.sqe, view.number)) {
                workers::Cancelled::Waiting(request) => locked.queue_cancelled(request),
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

/// Result of searching for one request to cancel.
pub(crate) enum Found {
    /// The request was waiting, and completes with −ECANCELED.
    Cancelled,
    /// A worker runs the request, which has this opcode. The worker's system call was interrupted,
    /// and the request completes later.
    Running(u8),
    Nothing,
}

/// Cancels the request with this id, wherever it waits.
pub(crate) fn cancel_id(locked: &mut LockedRing, id: RequestId) -> Found {
    let found = fast_poll::cancel_id(locked, id);
    let found = found.or_else(|| locked.waiting.timeouts.extract(|request| request.id == id));
    let found = found.or_else(|| locked.devices.queues.extract_waiting(|request| request.id == id));
    if let Some(request) = found {
        locked.queue_cancelled(request);
        return Found::Cancelled;
    }
    match workers::cancel(locked.ring, |view| view.id == id) {
        workers::Cancelled::Waiting(request) => {
            locked.queue_cancelled(request);
            Found::Cancelled
        }
        workers::Cancelled::Running(opcode) => Found::Running(opcode),
        workers::Cancelled::Nothing => Found::Nothing,
    }
}
