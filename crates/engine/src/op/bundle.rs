//! Bundles: sends or receives that use several provided buffers and post one CQE for all of them.
//! The CQE names the first buffer.

use super::receive::{self, LeftInSocket, rest};
use super::send_receive::transfer_of;
use super::{received_message, send};
use crate::completion::complete;
use crate::registered::buffer_group::{SelectedBuffer, SelectedBuffers, Usage};
use crate::request::Request;
use crate::request::operation::send_receive::{Selections, SendReceive};
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use crate::waiting::fast_poll::SLICE;
use usring_sys::message;
use usring_sys::{Errno, UserAddress, width};
use usring_uapi::io_uring::IORING_CQE_F_SOCK_NONEMPTY;

/// Selects the next buffers of the request's group for the request's transfer, with at most `most`
/// bytes. If `most` is 0, selects only the first buffer.
fn select(locked: &mut LockedRing, request: &mut Request, most: u32) -> Result<SelectedBuffers, Errno> {
    let group = request.sqe.buf_index;
    let transfer = transfer_of(request)?;
    let members = &mut transfer.message.get_or_insert_with(|| locked.queues.pool.message()).members;
    let mut selected = Err(Errno::ENOBUFS);
    members.replace(|pieces| selected = locked.registered.buffer_groups.select_many(group, most, pieces));
    selected
}

/// Selects buffers for a receive. Records in `selections` what limits the request's next selection:
/// whether the group became empty, and whether this selection was cut. If this selection has only
/// one buffer, also records that buffer's length.
fn select_to_fill(locked: &mut LockedRing, request: &mut Request, most: u32) -> Result<SelectedBuffers, Errno> {
    let many = select(locked, request, most)?;
    let selections = &mut transfer_of(request)?.selections;
    selections.emptied |= many.emptied;
    selections.cut |= many.is_cut;
    if many.count == 1 {
        selections.lone_length = many.bytes;
    }
    Ok(many)
}

/// Returns the selection as the CQE reports it: the first buffer's id, and whether a part of the
/// last buffer is `left` in the group.
fn reported_selection(group: u16, many: &SelectedBuffers, left: bool) -> SelectedBuffer {
    SelectedBuffer {
        group,
        id: many.first,
        address: UserAddress::NULL,
        length: 0,
        whole_length: 0,
        from_ring: many.from_ring,
        usage: if left { Usage::Partial } else { Usage::Whole },
    }
}

/// Takes the next buffers of the request's group, to send their data. Returns whether the group is
/// then empty.
pub(crate) fn select_to_send(locked: &mut LockedRing, request: &mut Request) -> Result<bool, Errno> {
    let group = request.sqe.buf_index;
    // From a classic group (PROVIDE_BUFFERS), the whole buffer is sent, whatever length the SQE
    // asks for.
    let wanted = if locked.registered.buffer_groups.is_ring(group) { transfer_of(request)?.wanted } else { 0 };
    let most = if wanted == 0 { i32::MAX as u32 } else { wanted };
    let many = select(locked, request, most)?;
    let left = locked.registered.buffer_groups.use_up_all(group, &many);
    request.buffer = Some(reported_selection(group, &many, left));
    Ok(many.emptied)
}

/// Sends all buffers of the group (SEND).
pub(crate) fn send(locked: &mut LockedRing, request: &mut Request) -> Result<IssueOutcome, Errno> {
    let number = request.file.number;
    loop {
        let mut emptied = true;
        if request.buffer.is_none() {
            emptied = select_to_send(locked, request)?;
        }
        let transfer = transfer_of(request)?;
        let outcome = match send::call(transfer, message::DO_NOT_WAIT, number).run() {
            Ok(bytes) if bytes >= transfer.left() => transfer.end(width::int(bytes), false),
            Ok(bytes) if bytes > 0 && message::is_resumable(number) => {
                send::advance_send(transfer, bytes);
                transfer.would_block()
            }
            Ok(bytes) => transfer.end(width::int(bytes), true),
            Err(Errno::EAGAIN) => transfer.would_block(),
            Err(error) => transfer.end(error.negative(), true),
        };
        let IssueOutcome::Done(answer) = outcome else { return Ok(outcome) };
        if answer.result <= 0 || emptied || request.ready_for != 0 {
            return Ok(outcome);
        }
        let flags = locked.registered.buffer_groups.flags_of(&mut request.buffer);
        if !complete::post_more(locked, request, answer.result, flags) {
            request.cqe_flags |= flags;
            return Ok(outcome);
        }
        // Only the first attempt is limited by the SQE's length. Later attempts send all buffers of
        // the group.
        let transfer = transfer_of(request)?;
        (transfer.done, transfer.wanted) = (0, 0);
    }
}

/// Receives into buffers of the group (RECV), once or as a multishot.
pub(crate) fn receive(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    for given in 0..SLICE {
        let selections = transfer_of(request).map(|transfer| transfer.selections).unwrap_or_default();
        let mut bundle = match receive_bundle(locked, request, given > 0) {
            Ok(AttemptOutcome::Given(bundle)) => bundle,
            Ok(AttemptOutcome::GoesOn) => continue,
            Ok(AttemptOutcome::Drained) => return receive::drained(request),
            Err(Errno::EAGAIN) if receive::is_shut(request) => {
                let failed = transfer_of(request).is_ok_and(|transfer| transfer.flags & message::WAIT_ALL != 0);
                Bundle { bytes: 0, rest: LeftInSocket::Unknown, last: true, failed }
            }
            Err(Errno::EAGAIN) => return outcome_without_data(request, given, selections),
            Err(Errno::ENOBUFS) => return receive::out_of_buffers(request, given, Errno::ENOBUFS),
            Err(Errno::ENOENT) => return receive::out_of_buffers(request, given, Errno::ENOENT),
            Err(error) => {
                let error = error.negative();
                end_short(locked, request, 0);
                return transfer_of(request).map_or(IssueOutcome::done(error), |transfer| transfer.end(error, true));
            }
        };
        if let Ok(SendReceive { limit: Some(left), .. }) = transfer_of(request) {
            *left = left.saturating_sub(width::low(bundle.bytes));
            bundle.last |= *left == 0;
        }
        let nonempty = if bundle.rest == LeftInSocket::Something { IORING_CQE_F_SOCK_NONEMPTY } else { 0 };
        let flags = nonempty | locked.registered.buffer_groups.flags_of(&mut request.buffer);
        let ends = bundle.last || !request.multishot;
        if ends || !complete::post_more(locked, request, width::int(bundle.bytes), flags) {
            request.cqe_flags = flags;
            end_short(locked, request, bundle.bytes);
            return transfer_of(request)
                .map_or(IssueOutcome::WouldBlock, |transfer| transfer.end(width::int(bundle.bytes), bundle.failed));
        }
        let Ok(transfer) = transfer_of(request) else { break };
        transfer.selections = Selections::default();
        let has_reached_limit = has_reached_limit(transfer, bundle.bytes);
        if bundle.rest == LeftInSocket::Nothing && !receive::reported_end(request) {
            return receive::drained(request);
        }
        if has_reached_limit {
            break;
        }
    }
    transfer_of(request).map_or(IssueOutcome::Yield, |transfer| transfer.outcome_after_slice())
}

/// Returns the outcome of an attempt that found no data. If the attempt was the first one after a
/// wait, undoes the attempt's buffer selections. `selections`: their state before the attempt,
/// which is then restored. The kernel polls the socket before such an attempt, and selects no
/// buffers if the socket is empty.
fn outcome_without_data(request: &mut Request, given: u32, selections: Selections) -> IssueOutcome {
    let begins_later_slice = given == 0 && request.poll_slot != 0;
    let Ok(transfer) = transfer_of(request) else { return IssueOutcome::WouldBlock };
    if begins_later_slice {
        transfer.selections = selections;
    }
    transfer.would_block()
}

/// Returns whether a multishot has received as many bytes as its SQE asks for. The multishot then
/// lets other requests continue before it receives more.
fn has_reached_limit(transfer: &SendReceive, bytes: u64) -> bool {
    transfer.wanted != 0 && bytes >= u64::from(transfer.wanted)
}

/// Ends a bundle after `bytes` more bytes. Selected buffers that the bundle has not filled go back
/// to their group.
pub(crate) fn end_short(locked: &mut LockedRing, request: &mut Request, bytes: u64) {
    let group = request.sqe.buf_index;
    let Ok(transfer) = transfer_of(request) else { return };
    let done = transfer.done + bytes;
    if let Some(wait_all) = transfer.message.as_mut().and_then(|message| message.wait_all.take()) {
        locked.registered.buffer_groups.return_unfilled(group, &wait_all, width::low(done));
    }
}

/// The outcome of one attempt to receive a bundle.
enum AttemptOutcome {
    Given(Bundle),
    /// The bundle is not complete, and its socket may hold more data for it.
    GoesOn,
    /// The bundle is not complete, and its socket holds no more data for now.
    Drained,
}

/// The contents of one CQE of a bundle.
struct Bundle {
    bytes: u64,
    rest: LeftInSocket,
    /// No CQE follows: no more data will come, or the group has no buffer for more data.
    last: bool,
    failed: bool,
}

/// Receives one bundle. If nothing limits its length, receives into one buffer first, and then the
/// bytes that wait in the socket into as many buffers as they need. `is_reported`: the receive
/// before this one has found out how many bytes wait.
fn receive_bundle(locked: &mut LockedRing, request: &mut Request, is_reported: bool) -> Result<AttemptOutcome, Errno> {
    let number = request.file.number;
    let group = request.sqe.buf_index;
    let &mut SendReceive { mut wanted, limit, selections, flags, .. } = transfer_of(request)?;
    let waits_for_all = flags & message::WAIT_ALL != 0;
    if is_reported && wanted == 0 && transfer_of(request)?.discards() {
        wanted = message::unread(number);
    }
    let bounded = |most: u32| match limit {
        Some(limit) if most == 0 => limit,
        Some(limit) => most.min(limit),
        None => most,
    };
    // A continued receive (MSG_WAITALL) already has its buffers.
    let most = bounded(if selections.lone_length == 0 { wanted } else { selections.lone_length });
    let many = if request.buffer.is_some() { None } else { Some(select_to_fill(locked, request, most)?) };
    let selections = transfer_of(request)?.selections;
    let Received { bytes, room, was_cut } = receive_into(request, number)?;
    if bytes == 0 {
        let rest = match room {
            0 => rest(request, 0, 0),
            _ if message::ends_after_unread(number) => LeftInSocket::Something,
            _ => LeftInSocket::Unknown,
        };
        return Ok(AttemptOutcome::Given(Bundle { bytes, rest, last: true, failed: waits_for_all }));
    }
    let goes_on = waits_for_all && bytes < room && message::is_resumable(number);
    let mut is_open = wanted == 0 && !selections.emptied;
    if let Some(many) = many {
        // With MSG_WAITALL, no other request may get the unfilled part of the buffers.
        let left = if goes_on {
            locked.registered.buffer_groups.use_up_all(group, &many)
        } else {
            locked.registered.buffer_groups.use_up(group, &many, width::low(bytes))
        };
        request.buffer = Some(reported_selection(group, &many, left));
        // The SQE's length limits the bytes of each CQE of a multishot.
        let is_full = request.multishot && wanted != 0 && bytes >= u64::from(wanted);
        is_open = !selections.emptied && !selections.cut && !is_full;
        if goes_on && let Some(message) = &mut transfer_of(request)?.message {
            message.wait_all = Some(locked.registered.buffer_groups.record_wait_all(group, many));
        }
    }
    if goes_on {
        transfer_of(request)?.advance(bytes);
    }
    let rest = rest(request, bytes, room);
    if goes_on {
        let is_drained = rest == LeftInSocket::Nothing && !receive::reported_end(request);
        return Ok(if is_drained { AttemptOutcome::Drained } else { AttemptOutcome::GoesOn });
    }
    let discards = transfer_of(request)?.discards();
    let failed = waits_for_all && (bytes < room || was_cut);
    let mut bundle = Bundle { bytes, rest, last: selections.emptied, failed };
    if bundle.rest == LeftInSocket::Something && bytes == room && is_open && !discards {
        receive_rest(locked, request, bounded(message::unread(number)), &mut bundle)?;
    }
    bundle.rest = receive::with_end(request, bundle.rest);
    Ok(AttemptOutcome::Given(bundle))
}

/// Receives up to `more` bytes that did not fit into the bundle's first buffer.
fn receive_rest(locked: &mut LockedRing, request: &mut Request, more: u32, bundle: &mut Bundle) -> Result<(), Errno> {
    let number = request.file.number;
    if more <= 1 {
        return Ok(());
    }
    let Ok(many) = select_to_fill(locked, request, more) else {
        // No buffer is left. The kernel then does not report that the socket holds more data.
        bundle.rest = LeftInSocket::Unknown;
        return Ok(());
    };
    match receive_into(request, number) {
        Ok(Received { bytes, room, .. }) if bytes > 0 => {
            let left = locked.registered.buffer_groups.use_up(request.sqe.buf_index, &many, width::low(bytes));
            if let Some(buffer) = &mut request.buffer {
                buffer.usage = if left { Usage::Partial } else { Usage::Whole };
            }
            bundle.bytes += bytes;
            bundle.last = transfer_of(request)?.selections.emptied;
            bundle.rest = rest(request, bytes, room);
        }
        Ok(_) | Err(Errno::EAGAIN) => {}
        // The bundle ends with the bytes that it has.
        Err(_) => (bundle.rest, bundle.last, bundle.failed) = (LeftInSocket::Unknown, true, true),
    }
    Ok(())
}

/// The result of one receive into the selected buffers.
struct Received {
    bytes: u64,
    /// Bytes that the selected buffers can hold.
    room: u64,
    /// For MSG_WAITALL: the message was longer than the buffers.
    was_cut: bool,
}

fn receive_into(request: &mut Request, number: i32) -> Result<Received, Errno> {
    let transfer = transfer_of(request)?;
    let flags = transfer.flags | message::DO_NOT_WAIT;
    let waits_for_all = transfer.flags & message::WAIT_ALL != 0;
    let room = transfer.left();
    let Some(message) = &mut transfer.message else { return Err(Errno::EINVAL) };
    if let [only] = message.members.left()
        && !waits_for_all
    {
        let bytes = message::receive(number, *only, flags)?;
        return Ok(Received { bytes, room, was_cut: false });
    }
    let header = message.prepare();
    let bytes = message::receive_message(number, header, flags)?;
    Ok(Received { bytes, room, was_cut: waits_for_all && received_message::was_cut(header) })
}
