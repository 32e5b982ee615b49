//! EPOLL_WAIT: takes events out of one of the program's own epoll sets. If the set has no events,
//! the request waits by polling the set's descriptor.

use crate::completion::readiness;
use crate::request::Request;
use crate::request::operation::{EpollWait, Operation};
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::{Errno, SystemCall, UserAddress, width};
use usring_uapi::general as linux;

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = &request.sqe;
    if sqe.off != 0 || sqe.op_flags != 0 || sqe.buf_index != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    request.operation = Operation::EpollWait(EpollWait { events: UserAddress(sqe.addr), most: sqe.len.cast_signed() });
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::EpollWait(EpollWait { events, most }) = request.operation else {
        return IssueOutcome::done(Errno::EINVAL.negative());
    };
    // The set may contain descriptors of rings whose CQs the program has emptied. These descriptors
    // must no longer be readable.
    readiness::clear_emptied_from(locked);
    let at_once = 0;
    let arguments = [width::word(request.file.number), events.0, width::word(most), at_once, 0];
    match SystemCall::new(linux::__NR_epoll_wait, arguments).run() {
        Ok(0) => IssueOutcome::WouldBlock,
        answer => IssueOutcome::of(answer.map(width::int)),
    }
}
