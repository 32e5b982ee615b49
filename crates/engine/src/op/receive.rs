//! RECV and RECVMSG, each once or as a multishot.
//!
//! A receive from TCP that returns fewer bytes than the buffer could hold has emptied the socket's
//! queue. A multishot then need not receive again, because later data makes an event of its own.
//! But a receive also stops at urgent data and at the end of data. These may have come with the
//! event that woke the multishot. If that event reports one of them, the multishot checks for it.
//!
//! A receive from a Unix stream stops early at some messages, for example where the sender changes.
//! No event reports the data after such a message. So a Unix stream is asked how many bytes it
//! holds.

use super::send_receive::{self, after_file, transfer_of};
use super::{bundle, received_message};
use crate::completion::complete;
use crate::request::Request;
use crate::request::operation::Operation;
use crate::request::operation::send_receive::{BUNDLE, POLL_FIRST, SendReceive};
use crate::request::outcome::{Answer, IssueOutcome};
use crate::ring::LockedRing;
use crate::waiting::fast_poll::SLICE;
use usring_sys::message::{self, MessageHeader, UnreadPrediction};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, descriptor, epoll, width};
use usring_uapi::io_uring::IORING_CQE_F_SOCK_NONEMPTY;
use usring_uapi::{opcode, sqe_flags};

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let waited = request.ready_for != 0;
    let transfer = match transfer_of(request) {
        Ok(transfer) => transfer,
        Err(error) => return IssueOutcome::done(error.negative()),
    };
    let is_bundle = transfer.has(BUNDLE);
    if transfer.has(POLL_FIRST) && !waited {
        let outcome = poll_first(request);
        if !send_receive::has_polled_in_worker(request, &outcome) {
            return outcome;
        }
    }
    if is_bundle && request.has_flag(sqe_flags::BUFFER_SELECT) {
        return bundle::receive(locked, request);
    }
    if request.multishot {
        return receive_many(locked, request);
    }
    receive_once(locked, request)
}

/// Makes a request with POLL_FIRST wait before its first attempt. RECVMSG first checks that its
/// file is a socket. RECV does not check.
fn poll_first(request: &mut Request) -> IssueOutcome {
    if request.sqe.opcode == opcode::RECVMSG
        && let Err(error) = send_receive::check_socket(request.file.number)
    {
        return IssueOutcome::done(error.negative());
    }
    let outcome = transfer_of(request).map_or(IssueOutcome::PollsFirst, |transfer| transfer.polls_first());
    // With MSG_DONTWAIT, the request completes with EAGAIN and its file is not polled. A poll would
    // have reported that the file is not open. So this code checks whether the file is open.
    if matches!(outcome, IssueOutcome::Done(_))
        && let Err(error) = descriptor::status_flags(request.file.number)
    {
        return IssueOutcome::done(error.negative());
    }
    outcome
}

/// Makes a multishot with IOSQE_ASYNC wait for its file before its first attempt, as the kernel's
/// worker does. From then on, the multishot waits for more data even with MSG_DONTWAIT.
pub(crate) fn begin_forced_multishot(request: &mut Request) -> IssueOutcome {
    if let Ok(transfer) = transfer_of(request) {
        transfer.flags &= !message::DO_NOT_WAIT;
    }
    IssueOutcome::PollsFirst
}

/// Knowledge about the data left in the socket after a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftInSocket {
    Nothing,
    Something,
    /// Only another receive can find out whether data is left.
    Unknown,
}

/// Returns what is left in the socket after a receive that returned `bytes` bytes and could have
/// received `room` bytes.
pub(crate) fn rest(request: &mut Request, bytes: u64, room: u64) -> LeftInSocket {
    let (number, reported) = (request.file.number, request.ready_for);
    let Ok(transfer) = transfer_of(request) else { return LeftInSocket::Unknown };
    if transfer.flags & message::URGENT != 0 {
        return LeftInSocket::Unknown;
    }
    let is_short = bytes < room && transfer.flags & message::PEEK == 0;
    let is_left = match *transfer.counted.get_or_insert_with(|| message::unread_prediction(number)) {
        UnreadPrediction::None => return LeftInSocket::Unknown,
        UnreadPrediction::UpToSeam => message::unread(number) != 0,
        // Urgent data that comes later makes an event of its own.
        UnreadPrediction::UpToUrgent => {
            !is_short && message::unread(number) != 0 || reported & epoll::PRI != 0 && message::is_at_urgent(number)
        }
    };
    if is_left { LeftInSocket::Something } else { LeftInSocket::Nothing }
}

/// Returns `rest`. For a multishot, returns `Something` instead of `Nothing` in two cases:
///
/// - The connection has ended: the end of data is still to be received.
/// - The receive has stopped at the urgent data of a TCP stream: [`message::unread`] does not count
///   the bytes after the urgent data.
///
/// An event that has woken the request also reports the end or the urgent data. So the socket is
/// asked only if no event has woken the request, or if the last event reported an end.
pub(crate) fn with_end(request: &mut Request, rest: LeftInSocket) -> LeftInSocket {
    let (number, was_woken) = (request.file.number, request.ready_for != 0);
    if rest != LeftInSocket::Nothing || !request.multishot || was_woken && !reported_end(request) {
        return rest;
    }
    let is_tcp = transfer_of(request).is_ok_and(|transfer| transfer.counted == Some(UnreadPrediction::UpToUrgent));
    let is_more = message::ends_after_unread(number) || is_tcp && !was_woken && message::is_at_urgent(number);
    if is_more { LeftInSocket::Something } else { rest }
}

fn receive_once(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    if request.has_flag(sqe_flags::BUFFER_SELECT)
        && request.buffer.is_none()
        && let Err(error) = select_buffer(locked, request)
    {
        return IssueOutcome::done(after_file(request, error).negative());
    }
    // The number of calls is limited: a peer that sends small pieces must not occupy the driver for
    // long.
    let outcome = (0..SLICE).find_map(|_| attempt(request)).unwrap_or(IssueOutcome::Yield);
    return_or_use_buffer(locked, request, &outcome);
    outcome
}

/// Makes one receive call. Returns the request's outcome. `None`: the request needs more data
/// (MSG_WAITALL), and the socket may hold more.
#[inline]
fn attempt(request: &mut Request) -> Option<IssueOutcome> {
    let number = request.file.number;
    let is_shut = is_shut(request);
    let Ok(transfer) = transfer_of(request) else { return Some(IssueOutcome::done(Errno::EINVAL.negative())) };
    let room = transfer.left();
    let received = match transfer.message {
        Some(_) => received_message::receive(transfer, number),
        None if transfer.flags & message::WAIT_ALL != 0 => receive_all(transfer, number),
        None => receive(transfer, number).map(|bytes| (bytes, false)),
    };
    let (bytes, was_cut) = match received {
        Ok(received) => received,
        Err(Errno::EAGAIN) if is_shut => (0, false),
        Err(Errno::EAGAIN) => return Some(transfer.would_block()),
        Err(error) => return Some(transfer.end(error.negative(), true)),
    };
    let Some(outcome) = after_receive(transfer, number, bytes, was_cut) else {
        // A Unix stream may hold more data after the message at which the call stopped. No event
        // would report that data.
        let is_drained = rest(request, bytes, room) == LeftInSocket::Nothing && !reported_end(request);
        return is_drained.then(|| drained(request));
    };
    if may_report_more(transfer, bytes, room) && reports_more(request, bytes, room) {
        request.cqe_flags |= IORING_CQE_F_SOCK_NONEMPTY;
    }
    Some(outcome)
}

/// Returns the outcome of a receive that has just received `bytes` more bytes. `None`: the receive
/// continues (MSG_WAITALL).
#[inline]
fn after_receive(transfer: &mut SendReceive, number: i32, bytes: u64, was_cut: bool) -> Option<IssueOutcome> {
    if transfer.flags & message::WAIT_ALL == 0 {
        return Some(transfer.end(width::int(bytes), false));
    }
    // The kernel continues no receive with control messages.
    let whole = transfer.message.as_ref().is_some_and(|message| message.header.control_length != 0);
    if whole || bytes >= transfer.left() {
        return Some(transfer.end(width::int(bytes), was_cut));
    }
    if bytes == 0 || !message::is_resumable(number) {
        return Some(transfer.end(width::int(bytes), true));
    }
    transfer.advance(bytes);
    None
}

/// Returns whether the socket may hold more data: the receive has filled its memory, has reached
/// the end of data, or has left the data in the socket (MSG_PEEK).
#[inline]
fn may_report_more(transfer: &SendReceive, bytes: u64, room: u64) -> bool {
    bytes >= room || bytes == 0 || transfer.flags & message::PEEK != 0
}

#[cold]
fn reports_more(request: &mut Request, bytes: u64, room: u64) -> bool {
    if bytes == 0 && room > 0 {
        return message::ends_after_unread(request.file.number);
    }
    rest(request, bytes, room) == LeftInSocket::Something
}

#[inline]
fn receive(transfer: &SendReceive, number: i32) -> Result<u64, Errno> {
    message::receive(number, transfer.part, transfer.flags | message::DO_NOT_WAIT)
}

/// Receives what the socket holds, for a request with MSG_WAITALL. Also returns whether a message
/// was longer than the memory.
fn receive_all(transfer: &SendReceive, number: i32) -> Result<(u64, bool), Errno> {
    let part = transfer.part;
    let mut header =
        MessageHeader { vector: UserAddress(&raw const part as u64), count: 1, ..MessageHeader::default() };
    let bytes = message::receive_message(number, &mut header, transfer.flags | message::DO_NOT_WAIT)?;
    Ok((bytes, received_message::was_cut(&header)))
}

/// If the request's buffer holds no data, returns the buffer to its group. If it holds data, notes
/// how much of the buffer is used up.
fn return_or_use_buffer(locked: &mut LockedRing, request: &mut Request, outcome: &IssueOutcome) {
    let started = matches!(&request.operation, Operation::SendReceive(transfer) if transfer.done > 0);
    // In the kernel, a worker would carry out a request with IOSQE_ASYNC. The worker would use up a
    // buffer of a buffer ring as soon as it began. So such a request keeps its buffer.
    let keeps = request.is_forced_once() && !has_no_socket(request, outcome);
    let Some(buffer) = &mut request.buffer else { return };
    match outcome {
        IssueOutcome::Done(answer) if answer.result > 0 => {
            locked.registered.buffer_groups.used(buffer, answer.result.cast_unsigned())
        }
        _ if keeps && buffer.from_ring => {}
        IssueOutcome::WouldBlock | IssueOutcome::PollsFirst | IssueOutcome::Yield if started => {
            // The request will go on filling this buffer, so no other request may get the part that
            // is left.
            let length = buffer.length;
            locked.registered.buffer_groups.used(buffer, length);
        }
        _ => {
            let unused = request.buffer.take();
            locked.registered.buffer_groups.give_back(unused);
        }
    }
}

/// Returns whether the request has failed because its file is no socket, or is not open. The kernel
/// checks the file before it takes a buffer.
fn has_no_socket(request: &Request, outcome: &IssueOutcome) -> bool {
    const NO_FILE: i32 = Errno::EBADF.negative();
    const NO_SOCKET: i32 = Errno::ENOTSOCK.negative();
    matches!(outcome, IssueOutcome::Done(Answer { result: NO_FILE | NO_SOCKET, .. }))
        && send_receive::check_socket(request.file.number).is_err()
}

fn receive_many(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    for given in 0..SLICE {
        if let Err(error) = select_buffer(locked, request) {
            return out_of_buffers(request, given, error);
        }
        let number = request.file.number;
        let message = request.sqe.opcode == opcode::RECVMSG;
        let is_shut = is_shut(request);
        let Ok(transfer) = transfer_of(request) else { return IssueOutcome::done(Errno::EINVAL.negative()) };
        let room = transfer.part.length;
        let received = if message {
            received_message::receive_into_buffer(transfer, number)
        } else {
            receive(transfer, number).map(|bytes| (width::int(bytes), bytes == 0))
        };
        let (result, ended) = match received {
            Ok((result, ended)) => (result, ended),
            Err(Errno::EAGAIN) if is_shut => (0, true),
            Err(Errno::EAGAIN) => {
                let outcome = transfer.would_block();
                return_or_use_buffer(locked, request, &outcome);
                return outcome;
            }
            Err(error) => (error.negative(), true),
        };
        let rest = match (ended, result) {
            (false, _) => {
                let rest = rest(request, width::word(result), room);
                with_end(request, rest)
            }
            // The buffer had no room for data, so the socket may still hold data.
            (true, 0..) if width::word(result) == room => rest(request, room, room),
            (true, 0..) if message::ends_after_unread(number) => LeftInSocket::Something,
            _ => LeftInSocket::Unknown,
        };
        if let Some(outcome) = post(locked, request, result, ended, rest) {
            return outcome;
        }
        if rest == LeftInSocket::Nothing && !reported_end(request) {
            return drained(request);
        }
    }
    transfer_of(request).map_or(IssueOutcome::Yield, |transfer| transfer.outcome_after_slice())
}

/// Returns whether the last event of the request's file reported an end or an error.
pub(crate) fn reported_end(request: &Request) -> bool {
    request.ready_for & (epoll::PEER_HANG_UP | epoll::HUP | epoll::ERR) != 0
}

/// Returns whether the last event reported that the peer sends no more data. A receive that would
/// block has then reached the end of data. On a stream, a non-blocking receive reports the end
/// itself. On a datagram socket that was shut down, a non-blocking receive never does.
pub(crate) fn is_shut(request: &Request) -> bool {
    request.ready_for & epoll::PEER_HANG_UP != 0
}

/// Returns the outcome of a request whose socket holds no more data for now. A request that an
/// event has woken waits for the next event. For any other request, the engine polls the socket
/// first, because the end of data may already have come.
pub(crate) fn drained(request: &mut Request) -> IssueOutcome {
    let was_woken = request.ready_for != 0;
    let Ok(transfer) = transfer_of(request) else { return IssueOutcome::WouldBlock };
    if was_woken { transfer.would_block() } else { transfer.polls_first() }
}

/// Posts the CQE of one receive of a multishot. If that CQE is the multishot's last, does not post
/// it, but returns it as the request's outcome.
fn post(
    locked: &mut LockedRing,
    request: &mut Request,
    result: i32,
    ended: bool,
    rest: LeftInSocket,
) -> Option<IssueOutcome> {
    let nonempty = if rest == LeftInSocket::Something { IORING_CQE_F_SOCK_NONEMPTY } else { 0 };
    return_or_use_buffer(locked, request, &IssueOutcome::done(result));
    let limit = match transfer_of(request) {
        Ok(SendReceive { limit: Some(left), .. }) => {
            *left = left.saturating_sub(result.max(0).cast_unsigned());
            *left == 0
        }
        _ => false,
    };
    let flags = nonempty | locked.registered.buffer_groups.flags_of(&mut request.buffer);
    if ended || limit || !complete::post_more(locked, request, result, flags) {
        request.cqe_flags = flags;
        return Some(IssueOutcome::done(result));
    }
    let length = request.sqe.len;
    if request.sqe.opcode == opcode::RECV
        && let Ok(transfer) = transfer_of(request)
    {
        transfer.wanted = length;
    }
    None
}

/// Returns the outcome of a request that found no buffer, after `given` receives in this attempt.
/// If another request has received the data that the event reported, the request waits again.
pub(crate) fn out_of_buffers(request: &Request, given: u32, error: Errno) -> IssueOutcome {
    let gone = || epoll::poll_now(request.file.number, epoll::IN | epoll::PRI) == Ok(0);
    if error == Errno::ENOBUFS && given == 0 && request.poll_slot != 0 && gone() {
        return IssueOutcome::WouldBlock;
    }
    IssueOutcome::done(after_file(request, error).negative())
}

/// Takes a buffer from the request's group. The buffer's length limits the receive. As in the
/// kernel, this length also limits the later selections of a RECV, until a multishot has posted a
/// result.
fn select_buffer(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let wanted = transfer_of(request)?.wanted;
    // The kernel checks the file before it takes a buffer. So a request whose file is no socket
    // uses up no buffer.
    let keeps = || request.is_forced_once() && send_receive::check_socket(request.file.number).is_ok();
    let buffer = locked.registered.buffer_groups.select(request.sqe.buf_index, wanted, keeps)?;
    let is_limited = request.sqe.opcode == opcode::RECV;
    let transfer = transfer_of(request)?;
    transfer.part = IoVector { base: buffer.address.0, length: u64::from(buffer.length) };
    if is_limited {
        transfer.wanted = buffer.length;
    }
    request.buffer = Some(buffer);
    Ok(())
}
