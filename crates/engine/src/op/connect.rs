//! CONNECT and BIND: the requests that bring an address.
//!
//! A connection that cannot be made at once goes on by itself. The request waits until the socket
//! is writable and then reads the result. Only for a unix listener whose queue is full is there
//! nothing to poll: a worker waits.

use super::Operation;
use super::socket::check_rest;
use crate::request::Request;
use crate::ring::LockedRing;
use crate::submission::issue::IssueOutcome;
use crate::waiting::workers::Blocking;
use alloc::boxed::Box;
use usring_sys::socket::{self, ADDRESS_LIMIT};
use usring_sys::{Errno, UserAddress, epoll, user_memory};

/// Enough for an internet address.
const SHORT: usize = 28;

/// A copy of the program's `struct sockaddr`, which the program may reuse as soon as its call has
/// returned.
pub(crate) enum SocketAddress {
    Short { length: u8, bytes: [u8; SHORT] },
    Long { length: u8, bytes: Box<[u8; ADDRESS_LIMIT]> },
}

impl SocketAddress {
    fn read(sqe: &usring_uapi::Sqe) -> Result<SocketAddress, Errno> {
        // The kernel uses an int here.
        let length = usize::try_from(sqe.off as i32).map_err(|_| Errno::EINVAL)?;
        if length > ADDRESS_LIMIT {
            return Err(Errno::EINVAL);
        }
        let from = UserAddress(sqe.addr);
        if length <= SHORT {
            let mut bytes = [0; SHORT];
            user_memory::copy_in(&mut bytes[..length], from)?;
            return Ok(SocketAddress::Short { length: length as u8, bytes });
        }
        let mut bytes = Box::new([0; ADDRESS_LIMIT]);
        user_memory::copy_in(&mut bytes[..length], from)?;
        Ok(SocketAddress::Long { length: length as u8, bytes })
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            SocketAddress::Short { length, bytes } => &bytes[..usize::from(*length)],
            SocketAddress::Long { length, bytes } => &bytes[..usize::from(*length)],
        }
    }

    pub fn owns_memory(&self) -> bool {
        matches!(self, SocketAddress::Long { .. })
    }
}

pub(crate) struct Connect {
    pub address: SocketAddress,
    /// The connection has been begun; the socket becomes writable when it is done.
    under_way: bool,
}

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
        // This reports an earlier attempt that failed; the next call is a new attempt.
        answer = socket::connect_now(number, connect.address.bytes());
    }
    match answer {
        Err(Errno::EINPROGRESS) => {
            connect.under_way = true;
            IssueOutcome::WouldBlock
        }
        // The socket was called too early.
        Err(Errno::EALREADY) if connect.under_way => IssueOutcome::WouldBlock,
        Err(Errno::EISCONN) if connect.under_way => IssueOutcome::of(socket::take_error(number).map(|()| 0)),
        Err(Errno::EAGAIN) => IssueOutcome::NeedsWorker,
        answer => IssueOutcome::of(answer.map(|()| 0)),
    }
}

/// Connects in a worker, and may block. For a unix socket with O_NONBLOCK the kernel's workers get
/// EAGAIN, too.
pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let Operation::Connect(connect) = &request.operation else { return Errno::EINVAL.negative() };
    super::call::answer(blocking.run(&socket::connect_call(request.file.number, connect.address.bytes())))
}
