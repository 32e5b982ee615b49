//! SOCKET, LISTEN, SHUTDOWN: done in place, for none of them waits.

use super::Operation;
use crate::issue::{Answer, IssueOutcome};
use crate::registered_files::Slot;
use crate::request::Request;
use crate::ring::LockedRing;
use crate::workers::Blocking;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::{Errno, socket};
use usring_uapi::Sqe;

/// The flags of a new socket; a direct descriptor is nobody's to inherit, so
/// nobody may say so of it.
pub(crate) fn check_flags(flags: u32, slot: Slot) -> Result<(), Errno> {
    let closes = slot != Slot::Ordinary && flags & socket::CLOSE_ON_EXEC != 0;
    if closes || flags & !(socket::CLOSE_ON_EXEC | socket::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Where the number of a new socket goes: to the program, or out of its way
/// into a slot.
pub(crate) fn place(locked: &mut LockedRing, slot: Slot, made: OwnedDescriptor) -> Result<i32, Errno> {
    match slot {
        Slot::Ordinary => {
            locked.polls.has_new_file(made.number());
            Ok(made.into_raw())
        }
        slot => locked.files.install_unlocked(slot, made.into_private()?),
    }
}

/// What the kernel is asked for, so that no child has the number of a direct
/// descriptor while it has one.
pub(crate) fn flags_for(flags: u32, slot: Slot) -> u32 {
    if slot == Slot::Ordinary { flags } else { flags | socket::CLOSE_ON_EXEC }
}

pub(crate) fn prepare_socket(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.addr != 0 || sqe.op_flags != 0 || sqe.buf_index != 0 {
        return Err(Errno::EINVAL);
    }
    check_flags(sqe.off as u32 & !socket::TYPE_MASK, Slot::from_sqe(sqe.file_index))
}

pub(crate) fn issue_socket(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Sqe { fd: domain, off: kind, len: protocol, .. } = request.sqe;
    let slot = Slot::from_sqe(request.sqe.file_index);
    let made = socket::open(domain, flags_for(kind as u32, slot), protocol as i32);
    IssueOutcome::of(made.and_then(|made| place(locked, slot, made)))
}

/// By a worker that has the request's rights.
pub(crate) fn work_socket(request: &mut Request, _: &Blocking) -> i32 {
    let Sqe { fd: domain, off: kind, len: protocol, .. } = request.sqe;
    let slot = Slot::from_sqe(request.sqe.file_index);
    match socket::open(domain, flags_for(kind as u32, slot), protocol as i32) {
        Err(error) => error.negative(),
        Ok(made) => {
            request.operation = Operation::Socket(Some(made));
            0
        }
    }
}

/// Gives the program what a worker has made.
pub(crate) fn finish_socket(locked: &mut LockedRing, request: &mut Request, result: i32) -> i32 {
    let Operation::Socket(made) = &mut request.operation else { return result };
    let Some(made) = made.take() else { return result };
    place(locked, Slot::from_sqe(request.sqe.file_index), made).unwrap_or_else(Errno::negative)
}

pub(crate) fn prepare_listen(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.addr != 0 || sqe.off != 0 {
        return Err(Errno::EINVAL);
    }
    check_rest(&sqe)
}

pub(crate) fn issue_listen(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    IssueOutcome::of(socket::listen(request.file.number, request.sqe.len as i32).map(|()| 0))
}

/// By a worker that has the request's rights: the other side of a connection may ask for its user.
pub(crate) fn work_listen(request: &mut Request, _: &Blocking) -> i32 {
    socket::listen(request.file.number, request.sqe.len as i32).map_or_else(Errno::negative, |()| 0)
}

pub(crate) fn prepare_shutdown(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.addr != 0 || sqe.off != 0 {
        return Err(Errno::EINVAL);
    }
    check_rest(&sqe)
}

pub(crate) fn issue_shutdown(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    // Its errors break no chain, as on the kernel.
    let result = match socket::shutdown(request.file.number, request.sqe.len as i32) {
        Ok(()) => 0,
        Err(error) => error.negative(),
    };
    IssueOutcome::Done(Answer { result, failed: false })
}

/// The fields that none of the requests on one socket has a use for.
pub(crate) fn check_rest(sqe: &Sqe) -> Result<(), Errno> {
    if sqe.op_flags != 0 || sqe.buf_index != 0 || sqe.file_index != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}
