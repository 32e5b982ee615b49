//! EPOLL_CTL: changes one of the program's own epoll sets. If libuv uses a ring, it makes all
//! changes of its epoll sets by this opcode.

use crate::completion::readiness;
use crate::host;
use crate::request::Request;
use crate::request::operation::{EpollControl, Operation};
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    let event = if sqe.len == linux::EPOLL_CTL_DEL { [0; 12] } else { user_memory::read(UserAddress(sqe.addr))? };
    request.operation =
        Operation::EpollControl(EpollControl { set: sqe.fd, operation: sqe.len, target: width::int(sqe.off), event });
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::EpollControl(control) = request.operation else {
        return IssueOutcome::done(Errno::EINVAL.negative());
    };
    if host::watch(control.target) {
        readiness::clear_emptied_from(locked);
    }
    let event = (&raw const control.event) as u64;
    let arguments = [width::word(control.set), u64::from(control.operation), width::word(control.target), event, 0];
    IssueOutcome::of(SystemCall::new(linux::__NR_epoll_ctl, arguments).run().map(|_| 0))
}
