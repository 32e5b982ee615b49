//! Common parts of sends and receives: the prepare from the SQE, and checks. `send` and `receive`
//! carry the requests out. `bundle` carries out requests that use several buffers for one CQE.
//!
//! A transfer is tried as if its socket were non-blocking. If the transfer would block, the request
//! waits for the socket. With MSG_DONTWAIT, the request completes with EAGAIN instead. With
//! MSG_WAITALL, a short transfer is continued on sockets of type SOCK_STREAM or SOCK_SEQPACKET.

use super::received_message;
use crate::request::Request;
use crate::request::operation::send_receive::{
    Address, BUNDLE, FIXED_BUFFER, MULTISHOT, POLL_FIRST, REPORT_USAGE, SendReceive, SocketMessage, VECTORIZED,
};
use crate::request::operation::{Operation, vector};
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::message::{self, MessageHeader};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, descriptor, epoll, user_memory, width};
use usring_uapi::io_uring as abi;
use usring_uapi::{opcode, sqe_flags};

/// Returns the operation of a request that sends or receives. Error: `EINVAL` for any other
/// request.
#[inline]
pub(crate) fn transfer_of(request: &mut Request) -> Result<&mut SendReceive, Errno> {
    match &mut request.operation {
        Operation::SendReceive(transfer) => Ok(transfer),
        _ => Err(Errno::EINVAL),
    }
}

/// Prepares SEND, SENDMSG, SEND_ZC and SENDMSG_ZC.
pub(crate) fn prepare_send(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let mut transfer = SendReceive::of(&request.sqe);
    let sqe = &request.sqe;
    let without_copy = matches!(sqe.opcode, opcode::SEND_ZC | opcode::SENDMSG_ZC);
    if without_copy && (sqe.pad2 != 0 || sqe.addr3 != 0 || sqe.flags & sqe_flags::CQE_SKIP_SUCCESS != 0) {
        return Err(Errno::EINVAL);
    }
    if without_copy {
        // From here on, a notification follows the zero-copy send's CQE, even if the send fails.
        request.cqe_flags = abi::IORING_CQE_F_MORE;
    }
    let known = POLL_FIRST | VECTORIZED | if without_copy { FIXED_BUFFER | REPORT_USAGE } else { BUNDLE };
    if transfer.options & !known != 0 || sqe.len.cast_signed() < 0 && !without_copy {
        return Err(Errno::EINVAL);
    }
    transfer.flags |= message::NO_SIGNAL;
    if transfer.has(BUNDLE) {
        if sqe.opcode == opcode::SENDMSG {
            return Err(Errno::EINVAL);
        }
        transfer.flags |= message::WAIT_ALL;
    }
    let selects = sqe.flags & sqe_flags::BUFFER_SELECT != 0;
    if matches!(sqe.opcode, opcode::SEND | opcode::SEND_ZC) {
        prepare_send_fields(locked, &mut transfer, sqe, selects)?;
    } else {
        if sqe.off != 0 || sqe.file_index != 0 {
            return Err(Errno::EINVAL);
        }
        let mut message = locked.queues.pool.message();
        message.read(UserAddress(sqe.addr), false)?;
        let (from, count) = (message.header.vector, message.header.count);
        message.members.read(from, count, !transfer.has(FIXED_BUFFER))?;
        transfer.message = Some(message);
        transfer.part = IoVector::default();
    }
    request.begin_operation(Operation::SendReceive(transfer));
    Ok(())
}

#[inline]
fn prepare_send_fields(
    locked: &mut LockedRing,
    transfer: &mut SendReceive,
    sqe: &usring_uapi::Sqe,
    selects: bool,
) -> Result<(), Errno> {
    let address_length = sqe.file_index & 0xffff;
    if sqe.file_index >> 16 != 0 {
        return Err(Errno::EINVAL);
    }
    if sqe.off != 0 {
        let address = Some(Address::read(UserAddress(sqe.off), address_length)?);
        let mut message = locked.queues.pool.message();
        message.address = address;
        transfer.message = Some(message);
    }
    if selects {
        return Ok(());
    }
    if transfer.has(VECTORIZED) {
        let checked = !transfer.has(FIXED_BUFFER);
        let message = transfer.message.get_or_insert_with(|| locked.queues.pool.message());
        message.members.read(UserAddress(sqe.addr), u64::from(sqe.len), checked)?;
        return Ok(());
    }
    if transfer.has(FIXED_BUFFER) { Ok(()) } else { vector::check_part(transfer.part) }
}

/// Prepares RECV and RECVMSG.
pub(crate) fn prepare_receive(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let mut transfer = SendReceive::of(&request.sqe);
    let sqe = &request.sqe;
    let selects = sqe.flags & sqe_flags::BUFFER_SELECT != 0;
    let plain = sqe.opcode == opcode::RECV;
    if sqe.off != 0 || transfer.options & !(POLL_FIRST | MULTISHOT | BUNDLE) != 0 || sqe.len.cast_signed() < 0 {
        return Err(Errno::EINVAL);
    }
    if transfer.has(MULTISHOT) {
        if !selects || transfer.flags & message::WAIT_ALL != 0 {
            return Err(Errno::EINVAL);
        }
        if plain && sqe.file_index != 0 {
            transfer.limit = Some(sqe.file_index);
        }
    }
    if sqe.file_index != 0 && transfer.limit.is_none() || transfer.has(BUNDLE) && !plain {
        return Err(Errno::EINVAL);
    }
    if !plain {
        let mut message = locked.queues.pool.message();
        read_received(&mut message, &mut transfer, sqe, selects)?;
        transfer.message = Some(message);
    } else if !selects {
        vector::check_part(transfer.part)?;
    }
    let multishot = transfer.has(MULTISHOT);
    request.begin_operation(Operation::SendReceive(transfer));
    request.multishot = multishot;
    Ok(())
}

/// Reads the program's header for a RECVMSG. With provided buffers, the vector in the header only
/// limits how much of a buffer is used.
fn read_received(
    message: &mut SocketMessage,
    transfer: &mut SendReceive,
    sqe: &usring_uapi::Sqe,
    selects: bool,
) -> Result<(), Errno> {
    message.read(UserAddress(sqe.addr), true)?;
    transfer.part = IoVector::default();
    let MessageHeader { vector, count, .. } = message.header;
    if !selects {
        return message.members.read(vector, count, true);
    }
    if transfer.has(MULTISHOT) {
        received_message::check_sizes(message)?;
    }
    transfer.wanted = match count {
        0 => 0,
        1 => width::low(user_memory::read::<IoVector>(vector)?.length),
        _ => return Err(Errno::EINVAL),
    };
    Ok(())
}

/// Returns the result of a request that a cancellation or timeout ends: for a send or receive, the
/// bytes transferred so far, or `result` if there are none.
pub(crate) fn result_when_ended(request: &Request, result: i32) -> i32 {
    match &request.operation {
        Operation::SendReceive(transfer) => transfer.result(result),
        _ => result,
    }
}

/// Returns whether a request with POLL_FIRST is tried at once, although its first `outcome` is to
/// poll its socket. That is so for a request with IOSQE_ASYNC whose socket is ready: a worker of
/// the kernel would poll the socket, find it ready, and make the transfer at once.
#[cold]
pub(crate) fn has_polled_in_worker(request: &Request, outcome: &IssueOutcome) -> bool {
    matches!(outcome, IssueOutcome::PollsFirst)
        && request.is_forced_once()
        && epoll::poll_now(request.file.number, request.poll_events()).is_ok_and(|ready| ready != 0)
}

/// Checks that a descriptor number names a socket. Errors: `ENOTSOCK` for another file, `EBADF` if
/// the number is not open.
pub(crate) fn check_socket(number: i32) -> Result<(), Errno> {
    if descriptor::identity(number)?.is_socket() { Ok(()) } else { Err(Errno::ENOTSOCK) }
}

/// Returns `EBADF` if the request's file is not open, `ENOTSOCK` if it is no socket, else `error`:
/// the kernel checks the file first.
#[cold]
pub(crate) fn after_file(request: &Request, error: Errno) -> Errno {
    check_socket(request.file.number).err().unwrap_or(error)
}
