//! The system calls that make and connect sockets: socket(2), bind(2), listen(2), accept4(2),
//! connect(2), shutdown(2). Also the queries that the engine makes about a socket.

use crate::descriptor::{self, OwnedDescriptor};
use crate::{Errno, SystemCall, UserAddress, width};
use linux_raw_sys::general as linux;

// linux/socket.h, linux/net.h, asm-generic/socket.h; `linux-raw-sys` has them only in another
// module.
pub const AF_INET: i32 = 2;
pub const AF_INET6: i32 = 10;
/// Mask of socket(2)'s type without SOCK_CLOEXEC and SOCK_NONBLOCK.
pub const TYPE_MASK: u32 = 0xf;
pub const CLOSE_ON_EXEC: u32 = linux::O_CLOEXEC;
pub const NONBLOCK: u32 = linux::O_NONBLOCK;
const SOL_SOCKET: u64 = 1;
const SO_ERROR: u64 = 4;
const SO_ACCEPTCONN: u64 = 30;
const SO_DOMAIN: u64 = 39;
const SOL_TCP: u64 = 6;
const TCP_INFO: u64 = 11;
const TCP_LISTEN: u8 = 10;

/// Longest address of any address family, in bytes: the size of `struct sockaddr_storage`.
pub const ADDRESS_LIMIT: usize = 128;

/// Makes a socket by socket(2). `kind` is the type with its flags.
pub fn open(domain: i32, kind: u32, protocol: i32) -> Result<OwnedDescriptor, Errno> {
    let arguments = [width::word(domain), u64::from(kind), width::word(protocol), 0, 0];
    SystemCall::new(linux::__NR_socket, arguments).run().map(|number| OwnedDescriptor::from_raw(width::int(number)))
}

pub fn bind(number: i32, address: &[u8]) -> Result<(), Errno> {
    with_address(linux::__NR_bind, number, address).run().map(drop)
}

pub fn listen(number: i32, backlog: i32) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_listen, [width::word(number), width::word(backlog), 0, 0, 0]).run().map(drop)
}

pub fn shutdown(number: i32, how: i32) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_shutdown, [width::word(number), width::word(how), 0, 0, 0]).run().map(drop)
}

/// Builds an accept4(2) call, for a caller that can wait in it. The call blocks unless the listener
/// has O_NONBLOCK. usring must not set this flag, because the listener is the program's. The kernel
/// writes the peer's address to the program's memory.
pub fn accept_call(number: i32, address: UserAddress, length: UserAddress, flags: u32) -> SystemCall {
    SystemCall::new(linux::__NR_accept4, [width::word(number), address.0, length.0, u64::from(flags), 0])
}

/// Builds a connect(2) call, for a caller that can wait in it.
pub fn connect_call(number: i32, address: &[u8]) -> SystemCall {
    with_address(linux::__NR_connect, number, address)
}

/// Calls connect(2) as if the socket had O_NONBLOCK. If the socket is blocking, usring sets the
/// flag for the duration of the call. Other threads hardly notice this, because a socket that is
/// not connected yet transfers nothing.
pub fn connect_now(number: i32, address: &[u8]) -> Result<(), Errno> {
    let flags = descriptor::status_flags(number)?;
    let call = connect_call(number, address);
    if flags & linux::O_NONBLOCK != 0 {
        return call.run_once().map(drop);
    }
    descriptor::set_status_flags(number, flags | linux::O_NONBLOCK)?;
    let answer = call.run_once().map(drop);
    descriptor::set_status_flags(number, flags)?;
    answer
}

fn with_address(call: u32, number: i32, address: &[u8]) -> SystemCall {
    SystemCall::new(call, [width::word(number), address.as_ptr() as u64, address.len() as u64, 0, 0])
}

/// Returns the socket's pending error and clears it (SO_ERROR). `Ok` if there is none.
pub fn take_error(number: i32) -> Result<(), Errno> {
    match option(number, SO_ERROR)? {
        0 => Ok(()),
        error => Err(Errno::new(error.cast_unsigned())),
    }
}

/// Returns whether the socket is a listener (SO_ACCEPTCONN). Also true for a Unix listener that was
/// shut down.
pub fn is_listener(number: i32) -> bool {
    option(number, SO_ACCEPTCONN) == Ok(1)
}

/// The first fields of `struct tcp_info`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct TcpInformation {
    state: u8,
    others: [u8; 7],
    times: [u32; 2],
    sizes: [u32; 2],
    /// If the socket is a listener: number of connections that wait to be accepted
    /// (`tcpi_unacked`).
    unacknowledged: u32,
}

/// Returns the number of connections that wait to be accepted. `None` if the socket is no TCP
/// listener.
pub fn queue_length(number: i32) -> Option<u32> {
    let mut information = TcpInformation::default();
    let mut size = width::count(size_of::<TcpInformation>());
    let (to, size) = (&raw mut information as u64, &raw mut size as u64);
    SystemCall::new(linux::__NR_getsockopt, [width::word(number), SOL_TCP, TCP_INFO, to, size]).run().ok()?;
    (information.state == TCP_LISTEN).then_some(information.unacknowledged)
}

/// Returns the socket's domain, AF_*.
pub fn domain(number: i32) -> Result<i32, Errno> {
    option(number, SO_DOMAIN)
}

fn option(number: i32, name: u64) -> Result<i32, Errno> {
    let (mut value, mut size) = (0i32, 4u32);
    let arguments = [width::word(number), SOL_SOCKET, name, &raw mut value as u64, &raw mut size as u64];
    SystemCall::new(linux::__NR_getsockopt, arguments).run()?;
    Ok(value)
}
