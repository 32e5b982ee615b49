//! CONNECT and BIND: requests with a socket address.
//!
//! If connect(2) does not complete at once, the request waits until the socket is writable and then
//! reads the result of connecting. There is one exception: if the queue of a Unix listener is full,
//! no event reports that the queue has room. In that case, a worker makes the call.

use super::socket::check_rest;
use crate::request::operation::{Connect, Operation, SocketAddress};
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Request};
use crate::ring::LockedRing;
use usring_sys::socket::{self};
use usring_sys::{Errno, epoll};

pub(crate) fn prepare_bind(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let address = prepare_address(request)?;
    request.begin_operation(Operation::Bind(address));
    Ok(())
}

pub(crate) fn issue_bind(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::Bind(address) = &request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    IssueOutcome::of(socket::bind(request.file.number, address.bytes()).map(|()| 0))
}

/// Binds in a worker that has the request's rights.
pub(crate) fn work_bind(request: &mut Request, _: &Blocking) -> i32 {
    let Operation::Bind(address) = &request.operation else { return Errno::EINVAL.negative() };
    socket::bind(request.file.number, address.bytes()).map_or_else(Errno::negative, |()| 0)
}

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let address = prepare_address(request)?;
    request.begin_operation(Operation::Connect(Connect { address, under_way: false }));
    Ok(())
}

fn prepare_address(request: &Request) -> Result<SocketAddress, Errno> {
    check_rest(&request.sqe)?;
    if request.sqe.len != 0 {
        return Err(Errno::EINVAL);
    }
    SocketAddress::read(&request.sqe)
}

pub(crate) fn issue(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let number = request.file.number;
    let Operation::Connect(connect) = &mut request.operation else {
        return IssueOutcome::done(Errno::EINVAL.negative());
    };
    if connect.under_way
        && epoll::poll_now(number, 0).is_ok_and(|ready| ready & epoll::ERR != 0)
        && let Err(error) = socket::take_error(number)
    {
        return IssueOutcome::done(error.negative());
    }
    let mut answer = socket::connect_now(number, connect.address.bytes());
    if answer == Err(Errno::ECONNABORTED) {
        // ECONNABORTED was left on the socket by an earlier attempt. So connect(2) is called again
        // for this request.
        answer = socket::connect_now(number, connect.address.bytes());
    }
    match answer {
        Err(Errno::EINPROGRESS) => {
            connect.under_way = true;
            IssueOutcome::WouldBlock
        }
        // The connection is still being made: the event for this request came too early.
        Err(Errno::EALREADY) if connect.under_way => IssueOutcome::WouldBlock,
        Err(Errno::EISCONN) if connect.under_way => IssueOutcome::of(socket::take_error(number).map(|()| 0)),
        Err(Errno::EAGAIN) => IssueOutcome::NeedsWorker,
        answer => IssueOutcome::of(answer.map(|()| 0)),
    }
}

/// Connects in a worker, and may block. If the queue of a Unix listener is full and the socket has
/// O_NONBLOCK, the result is EAGAIN, as from the kernel's workers.
pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let Operation::Connect(connect) = &request.operation else { return Errno::EINVAL.negative() };
    super::call::answer(blocking.run(&socket::connect_call(request.file.number, connect.address.bytes())))
}
