//! URING_CMD on a socket: the number of unread or unsent bytes, and socket options.
//!
//! For the number of bytes, the kernel asks the socket's protocol, and only internet protocols
//! answer. ioctl(2) would answer for other sockets, too. So on any other socket, usring refuses the
//! command without a call of ioctl(2).

use crate::request::operation::Command;
use usring_sys::{Errno, SystemCall, width};
use usring_uapi::general as linux;
use usring_uapi::io_uring::io_uring_socket_op as op;

const SOL_SOCKET: u32 = 1;
const SO_DOMAIN: u32 = 39;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
/// Requests of ioctl(2).
const SIOCINQ: u64 = 0x541b;
const SIOCOUTQ: u64 = 0x5411;

const BYTES_TO_READ: u32 = op::SOCKET_URING_OP_SIOCINQ as u32;
const BYTES_TO_SEND: u32 = op::SOCKET_URING_OP_SIOCOUTQ as u32;
const GET_OPTION: u32 = op::SOCKET_URING_OP_GETSOCKOPT as u32;
const SET_OPTION: u32 = op::SOCKET_URING_OP_SETSOCKOPT as u32;

/// Carries out the command. Error: `EOPNOTSUPP` for an unknown command, or if the file is no
/// socket.
pub(super) fn run(number: i32, command: &Command) -> Result<i32, Errno> {
    let answer = match command.number {
        BYTES_TO_READ => bytes_waiting(number, SIOCINQ),
        BYTES_TO_SEND => bytes_waiting(number, SIOCOUTQ),
        GET_OPTION => get_option(number, command),
        SET_OPTION => set_option(number, command),
        _ => Err(Errno::EOPNOTSUPP),
    };
    answer.map_err(|error| if error == Errno::ENOTSOCK { Errno::EOPNOTSUPP } else { error })
}

fn bytes_waiting(number: i32, question: u64) -> Result<i32, Errno> {
    let mut family = 0i32;
    let mut length = width::count(size_of::<i32>());
    let (value, value_length) = (&raw mut family as u64, &raw mut length as u64);
    let arguments = [width::word(number), u64::from(SOL_SOCKET), u64::from(SO_DOMAIN), value, value_length];
    SystemCall::new(linux::__NR_getsockopt, arguments).run()?;
    if family != AF_INET && family != AF_INET6 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut bytes = 0i32;
    let arguments = [width::word(number), question, &raw mut bytes as u64, 0, 0];
    SystemCall::new(linux::__NR_ioctl, arguments).run()?;
    Ok(bytes)
}

/// Returns the arguments of getsockopt(2) or setsockopt(2). The SQE has level and name in `addr`,
/// the length in `optlen`, and the value's address in `optval`.
fn arguments(number: i32, command: &Command) -> [u64; 5] {
    let (level, name) = (command.address & u64::from(u32::MAX), command.address >> 32);
    [width::word(number), level, name, command.value, u64::from(command.length)]
}

/// Reads a socket option. The result of the CQE is the option's length.
fn get_option(number: i32, command: &Command) -> Result<i32, Errno> {
    if width::low(command.address) != SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP);
    }
    let mut length = command.length;
    let mut arguments = arguments(number, command);
    arguments[4] = &raw mut length as u64;
    SystemCall::new(linux::__NR_getsockopt, arguments).run()?;
    Ok(length.cast_signed())
}

fn set_option(number: i32, command: &Command) -> Result<i32, Errno> {
    SystemCall::new(linux::__NR_setsockopt, arguments(number, command)).run().map(|_| 0)
}
