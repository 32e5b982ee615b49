//! SOCKET, LISTEN and SHUTDOWN. None of these calls waits, so they usually need no worker. A worker
//! carries out SOCKET or LISTEN only if the thread that tries the request does not have the
//! submitter's rights.

use super::send_receive;
use crate::registered::registered_files::FileSlot;
use crate::request::operation::Operation;
use crate::request::outcome::{Answer, IssueOutcome};
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::{Errno, socket, width};
use usring_uapi::Sqe;

/// Checks the flags of a new socket. CLOSE_ON_EXEC is refused (`EINVAL`) for a direct descriptor,
/// which no executed program inherits.
pub(crate) fn check_flags(flags: u32, slot: FileSlot) -> Result<(), Errno> {
    let closes = slot != FileSlot::Ordinary && flags & socket::CLOSE_ON_EXEC != 0;
    if closes || flags & !(socket::CLOSE_ON_EXEC | socket::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Gives the program a new file: as an ordinary descriptor, or in a slot of the registered files.
/// Returns the CQE's result: the descriptor's number; the slot that was found free; 0 for a slot
/// that the request names.
pub(crate) fn install(locked: &mut LockedRing, slot: FileSlot, made: OwnedDescriptor) -> Result<i32, Errno> {
    match slot {
        FileSlot::Ordinary => {
            locked.waiting.polls.forget_registration(made.number());
            Ok(made.into_raw())
        }
        slot => locked.registered.files.install_unlocked(slot, made.into_private()?),
    }
}

/// Returns the flags for the system call. A direct descriptor has an ordinary number for a moment.
/// With CLOSE_ON_EXEC, no program that is executed in that moment inherits the number.
pub(crate) fn flags_for(flags: u32, slot: FileSlot) -> u32 {
    if slot == FileSlot::Ordinary { flags } else { flags | socket::CLOSE_ON_EXEC }
}

pub(crate) fn prepare_socket(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.addr != 0 || sqe.op_flags != 0 || sqe.buf_index != 0 {
        return Err(Errno::EINVAL);
    }
    check_flags(width::low(sqe.off) & !socket::TYPE_MASK, FileSlot::from_sqe(sqe.file_index))
}

pub(crate) fn issue_socket(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Sqe { fd: domain, off: kind, len: protocol, .. } = request.sqe;
    let slot = FileSlot::from_sqe(request.sqe.file_index);
    let made = socket::open(domain, flags_for(width::low(kind), slot), protocol.cast_signed());
    IssueOutcome::of(made.and_then(|made| install(locked, slot, made)))
}

/// Makes the socket in a worker that has the submitter's rights.
pub(crate) fn work_socket(request: &mut Request, _: &Blocking) -> i32 {
    let Sqe { fd: domain, off: kind, len: protocol, .. } = request.sqe;
    let slot = FileSlot::from_sqe(request.sqe.file_index);
    match socket::open(domain, flags_for(width::low(kind), slot), protocol.cast_signed()) {
        Err(error) => error.negative(),
        Ok(made) => {
            request.operation = Operation::Socket(Some(made));
            0
        }
    }
}

/// Gives the program the socket that a worker has made. Returns the CQE's result.
pub(crate) fn finish_socket(locked: &mut LockedRing, request: &mut Request, result: i32) -> i32 {
    let Operation::Socket(made) = &mut request.operation else { return result };
    let Some(made) = made.take() else { return result };
    install(locked, FileSlot::from_sqe(request.sqe.file_index), made).unwrap_or_else(Errno::negative)
}

pub(crate) fn prepare_listen(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.addr != 0 || sqe.off != 0 {
        return Err(Errno::EINVAL);
    }
    check_rest(&sqe)
}

pub(crate) fn issue_listen(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    IssueOutcome::of(socket::listen(request.file.number, request.sqe.len.cast_signed()).map(|()| 0))
}

/// Listens in a worker that has the submitter's rights. SO_PEERCRED reports to peers which user has
/// called listen(2).
pub(crate) fn work_listen(request: &mut Request, _: &Blocking) -> i32 {
    socket::listen(request.file.number, request.sqe.len.cast_signed()).map_or_else(Errno::negative, |()| 0)
}

pub(crate) fn prepare_shutdown(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.addr != 0 || sqe.off != 0 {
        return Err(Errno::EINVAL);
    }
    check_rest(&sqe)
}

pub(crate) fn issue_shutdown(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let number = request.file.number;
    let result = match socket::shutdown(number, request.sqe.len.cast_signed()) {
        Ok(()) => 0,
        Err(error) => error.negative(),
    };
    // As in the kernel, a failed shutdown(2) does not break a link. A bad descriptor or a file that
    // is no socket breaks the link.
    let failed = result != 0 && send_receive::check_socket(number).is_err();
    IssueOutcome::Done(Answer { result, failed })
}

/// Checks that the fields that BIND, CONNECT, LISTEN and SHUTDOWN do not use are zero in the SQE.
/// Error: `EINVAL`.
pub(crate) fn check_rest(sqe: &Sqe) -> Result<(), Errno> {
    if sqe.op_flags != 0 || sqe.buf_index != 0 || sqe.file_index != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}
