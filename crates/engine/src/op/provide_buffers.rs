//! PROVIDE_BUFFERS and REMOVE_BUFFERS.

use crate::request::Request;
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::{Errno, UserAddress, user_memory, width};

/// Number of different buffer ids, which have 16 bits.
const ID_LIMIT: u64 = 1 << 16;

pub(crate) fn prepare_provide(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.op_flags != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let count = sqe.fd;
    if count <= 0 || width::word(count) > ID_LIMIT {
        return Err(Errno::E2BIG);
    }
    if sqe.len == 0 {
        return Err(Errno::EINVAL);
    }
    let size = u64::from(sqe.len).checked_mul(width::word(count)).ok_or(Errno::EOVERFLOW)?;
    let end = sqe.addr.checked_add(size).ok_or(Errno::EOVERFLOW)?;
    if end > user_memory::END {
        return Err(Errno::EFAULT);
    }
    if sqe.off > u64::from(u16::MAX) {
        return Err(Errno::E2BIG);
    }
    if sqe.off + width::word(count) > ID_LIMIT {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

pub(crate) fn issue_provide(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let sqe = request.sqe;
    let provided = locked.registered.buffer_groups.provide(
        sqe.buf_index,
        UserAddress(sqe.addr),
        sqe.len,
        width::short(sqe.off),
        sqe.fd.cast_unsigned(),
    );
    locked.note_registration(None);
    IssueOutcome::of(provided.map(|()| 0))
}

pub(crate) fn prepare_remove(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.op_flags != 0 || sqe.addr != 0 || sqe.len != 0 || sqe.off != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    if sqe.fd <= 0 || width::word(sqe.fd) > ID_LIMIT {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

pub(crate) fn issue_remove(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let removed = locked.registered.buffer_groups.remove(request.sqe.buf_index, request.sqe.fd.cast_unsigned());
    IssueOutcome::of(removed.map(|count| count.cast_signed()))
}
