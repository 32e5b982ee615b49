//! SEND, SENDMSG, SEND_ZC and SENDMSG_ZC. SEND_ZC and SENDMSG_ZC also copy the data. With
//! REPORT_USAGE, their notification reports the copy. usring cannot use MSG_ZEROCOPY for them: the
//! kernel would report the end of the transfer on the socket's error queue. That queue belongs to
//! the program.

use super::bundle;
use super::send_receive::{self, transfer_of};
use crate::completion::complete;
use crate::registered::registered_buffers::BufferReference;
use crate::request::operation::send_receive::{Address, BUNDLE, FIXED_BUFFER, POLL_FIRST, SendReceive};
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use usring_sys::message::{self, send_call, send_message_call};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, SystemCall, descriptor, epoll, width};
use usring_uapi::{opcode, sqe_flags};

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    match try_to_send(locked, request) {
        Ok(outcome) => outcome,
        Err(error) => IssueOutcome::done(error.negative()),
    }
}

#[inline]
fn try_to_send(locked: &mut LockedRing, request: &mut Request) -> Result<IssueOutcome, Errno> {
    let number = request.file.number;
    if matches!(request.sqe.opcode, opcode::SEND_ZC | opcode::SENDMSG_ZC) {
        check_without_copy(locked, request)?;
    }
    let selects = request.has_flag(sqe_flags::BUFFER_SELECT);
    let waited = request.ready_for != 0;
    if transfer_of(request)?.has(POLL_FIRST) && !waited {
        send_receive::check_socket(number)?;
        let outcome = transfer_of(request)?.polls_first();
        if !send_receive::has_polled_in_worker(request, &outcome) {
            return Ok(outcome);
        }
    }
    if selects {
        if request.buffer.is_none() {
            // The socket is checked before a buffer is taken. A file that is no socket uses up no
            // buffer.
            send_receive::check_socket(number)?;
        }
        if transfer_of(request)?.has(BUNDLE) {
            return bundle::send(locked, request);
        }
        if request.buffer.is_none() {
            select_buffer(locked, request)?;
        }
    }
    let transfer = transfer_of(request)?;
    let outcome = attempt(transfer, number);
    if transfer.has(BUNDLE) && !waited {
        return end_of_bundle(locked, request, outcome);
    }
    Ok(outcome)
}

/// Prepares a request that a worker has to carry out, because the calling thread does not have the
/// rights of the request's submitter. `None`: the request first polls its socket, which needs no
/// rights.
#[cold]
pub(crate) fn leave_to_worker(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    match prepare_for_worker(locked, request) {
        Ok(polls_first) => (!polls_first).then_some(IssueOutcome::NeedsWorker),
        Err(error) => Some(IssueOutcome::done(error.negative())),
    }
}

/// Takes the buffers of a request that goes to a worker. If the request first polls its socket,
/// returns `true` and takes nothing.
fn prepare_for_worker(locked: &mut LockedRing, request: &mut Request) -> Result<bool, Errno> {
    if transfer_of(request)?.has(POLL_FIRST) && request.ready_for == 0 {
        return Ok(true);
    }
    if matches!(request.sqe.opcode, opcode::SEND_ZC | opcode::SENDMSG_ZC) {
        check_without_copy(locked, request)?;
    }
    if request.has_flag(sqe_flags::BUFFER_SELECT) && request.buffer.is_none() {
        send_receive::check_socket(request.file.number)?;
        if transfer_of(request)?.has(BUNDLE) {
            bundle::select_to_send(locked, request)?;
        } else {
            select_buffer(locked, request)?;
        }
    }
    Ok(false)
}

/// Completes a bundle without BUFFER_SELECT as the kernel does. The first result is posted with
/// F_MORE. Then the kernel sends again although no data is left, so the peer of a datagram socket
/// gets an empty message. The last CQE has the result of that second send.
#[cold]
fn end_of_bundle(locked: &mut LockedRing, request: &mut Request, outcome: IssueOutcome) -> Result<IssueOutcome, Errno> {
    let IssueOutcome::Done(answer) = outcome else { return Ok(outcome) };
    if answer.result <= 0 || !complete::post_more(locked, request, answer.result, 0) {
        return Ok(outcome);
    }
    let number = request.file.number;
    let transfer = transfer_of(request)?;
    transfer.advance(transfer.left());
    transfer.done = 0;
    Ok(attempt(transfer, number))
}

/// Returns whether the request is a sending bundle.
pub(crate) fn is_bundle(request: &Request) -> bool {
    request.sqe.opcode == opcode::SEND && request.sqe.ioprio & BUNDLE != 0
}

/// Begins a bundle with IOSQE_ASYNC. In the kernel a worker would begin the bundle, and workers may
/// not post several CQEs. So if the socket is writable, the bundle completes with `ECANCELED`.
/// Otherwise the bundle waits until the socket is writable, and is then tried like a new request.
#[cold]
pub(crate) fn begin_forced_bundle(request: &Request) -> IssueOutcome {
    if is_ready(request.file.number) {
        return IssueOutcome::done(Errno::ECANCELED.negative());
    }
    IssueOutcome::PollsFirst
}

/// Makes one send call. Returns the request's outcome.
#[inline]
fn attempt(transfer: &mut SendReceive, number: i32) -> IssueOutcome {
    let sent = call(transfer, message::DO_NOT_WAIT, number).run();
    match sent {
        Ok(bytes) if transfer.flags & message::WAIT_ALL == 0 || bytes >= transfer.left() => {
            transfer.end(width::int(bytes), false)
        }
        Ok(bytes) if bytes > 0 && message::is_resumable(number) => {
            advance_send(transfer, bytes);
            transfer.would_block()
        }
        Ok(bytes) => transfer.end(width::int(bytes), true),
        // The sending socket is writable, but the receiving socket has no room for the message. No
        // event of the sending socket reports such room, so a worker waits for it.
        Err(Errno::EAGAIN)
            if transfer.has_address() && transfer.flags & message::DO_NOT_WAIT == 0 && is_ready(number) =>
        {
            IssueOutcome::NeedsWorker
        }
        Err(Errno::EAGAIN) => transfer.would_block(),
        Err(error) => transfer.end(error.negative(), true),
    }
}

#[cold]
fn is_ready(number: i32) -> bool {
    epoll::poll_now(number, epoll::OUT).is_ok_and(|ready| ready & epoll::OUT != 0)
}

/// Advances the send by `bytes` bytes; the data after them is sent later. Control messages were
/// sent with the first bytes, so they are dropped.
pub(crate) fn advance_send(transfer: &mut SendReceive, bytes: u64) {
    transfer.advance(bytes);
    if let Some(message) = &mut transfer.message {
        message.header.control_length = 0;
    }
}

/// Returns the system call that sends the data that is left.
#[inline]
pub(crate) fn call(transfer: &mut SendReceive, extra_flags: u32, number: i32) -> SystemCall {
    let (part, flags) = (transfer.part, transfer.flags | extra_flags);
    match &mut transfer.message {
        None => send_call(number, part, flags, None),
        Some(message) if message.members.is_any() || message.report_to.0 != 0 => {
            send_message_call(number, message.prepare(), flags)
        }
        Some(message) => send_call(number, part, flags, message.address.as_ref().map(Address::bytes)),
    }
}

/// Sends in a worker, and may block.
pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let number = request.file.number;
    let Ok(transfer) = transfer_of(request) else { return Errno::EINVAL.negative() };
    match blocking.run(&call(transfer, 0, number)) {
        Ok(bytes) => transfer.result(width::int(bytes)),
        Err(error) => transfer.result(error.negative()),
    }
}

/// Takes a buffer from the request's group. The request keeps the buffer while it waits, so the
/// buffer is used up now.
fn select_buffer(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let group = request.sqe.buf_index;
    if !locked.registered.buffer_groups.has(group) {
        return Err(Errno::ENOENT);
    }
    // From a classic group (PROVIDE_BUFFERS), the whole buffer is sent, whatever length the SQE
    // asks for.
    let wanted = if locked.registered.buffer_groups.is_ring(group) { transfer_of(request)?.wanted } else { 0 };
    let buffer = locked.registered.buffer_groups.select(group, wanted, || true)?;
    transfer_of(request)?.part = IoVector { base: buffer.address.0, length: u64::from(buffer.length) };
    request.buffer = Some(buffer);
    Ok(())
}

/// Makes the kernel's checks of a zero-copy send, and makes the request hold its registered buffer.
fn check_without_copy(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    if request.ready_for != 0 {
        return Ok(());
    }
    let number = request.file.number;
    if !descriptor::identity(number)?.is_socket() {
        return Err(Errno::ENOTSOCK);
    }
    if !message::sends_without_copy(number) {
        return Err(Errno::EOPNOTSUPP);
    }
    let index = request.sqe.buf_index;
    let transfer = transfer_of(request)?;
    if !transfer.has(FIXED_BUFFER) || transfer.has(POLL_FIRST) {
        return Ok(());
    }
    hold_registered_buffer(locked, request, index)
}

fn hold_registered_buffer(locked: &mut LockedRing, request: &mut Request, index: u16) -> Result<(), Errno> {
    let transfer = transfer_of(request)?;
    let mut held = BufferReference::Nothing;
    match &transfer.message {
        Some(message) if message.members.is_any() => {
            for member in message.members.left() {
                held = locked.registered.buffers.share(index, member.base, member.length)?;
            }
        }
        _ => held = locked.registered.buffers.share(index, transfer.part.base, transfer.part.length)?,
    }
    request.fixed_buffer = held;
    Ok(())
}
