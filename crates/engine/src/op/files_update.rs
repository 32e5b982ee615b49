//! FILES_UPDATE: does what REGISTER_FILES_UPDATE does, as a request.

use crate::registered::program_files;
use crate::registered::registered_files::FILE_INDEX_ALLOC;
use crate::request::Request;
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::{Errno, UserAddress, width};
use usring_uapi::sqe_flags;

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if request.has_flag(sqe_flags::FIXED_FILE | sqe_flags::BUFFER_SELECT) {
        return Err(Errno::EINVAL);
    }
    if sqe.op_flags != 0 || sqe.file_index != 0 || sqe.len == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let (files, sqe) = (&mut locked.registered.files, request.sqe);
    let (offset, numbers, count) = (width::low(sqe.off), UserAddress(sqe.addr), sqe.len);
    IssueOutcome::of(if offset == FILE_INDEX_ALLOC {
        program_files::allocate(files, numbers, count)
    } else {
        program_files::update(files, offset, numbers, UserAddress::NULL, count)
    })
}
