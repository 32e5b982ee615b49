//! Sends and receives: sendto(2), recvfrom(2), sendmsg(2), recvmsg(2). Also the queries by which
//! the engine decides whether a socket has more data.

use crate::plain::IoVector;
use crate::{Errno, SystemCall, UserAddress, epoll};
use linux_raw_sys::{general as linux, ioctl};

// linux/socket.h; `linux-raw-sys` has them only in another module.
pub const URGENT: u32 = 0x1;
pub const PEEK: u32 = 0x2;
pub const CONTROL_TRUNCATED: u32 = 0x8;
pub const TRUNCATED: u32 = 0x20;
pub const DO_NOT_WAIT: u32 = 0x40;
pub const WAIT_ALL: u32 = 0x100;
pub const ERROR_QUEUE: u32 = 0x2000;
pub const NO_SIGNAL: u32 = 0x4000;
pub const COMPATIBLE_CONTROL: u32 = 0x8000_0000;

/// linux/sockios.h
const SIOCATMARK: u64 = 0x8905;
const SOL_SOCKET: u32 = 1;
const SOL_TCP: u32 = 6;
const SO_TYPE: u32 = 3;
const SO_SNDBUF: u32 = 7;
const SO_PROTOCOL: u32 = 38;
const SO_DOMAIN: u32 = 39;
const TCP_INFO: u32 = 11;
const TCP_ULP: u32 = 31;
const TCP_TIME_WAIT: u32 = 6;
const TCP_CLOSE: u32 = 7;
const TCP_CLOSE_WAIT: u32 = 8;
const TCP_LAST_ACK: u32 = 9;
const TCP_CLOSING: u32 = 11;
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const IPPROTO_MPTCP: u32 = 262;
const SOCK_STREAM: u32 = 1;
const SOCK_DATAGRAM: u32 = 2;
const SOCK_SEQPACKET: u32 = 5;

/// Longest address of a socket (`struct sockaddr_storage`).
pub const ADDRESS_LIMIT: usize = 128;
/// Most elements of a vector (UIO_MAXIOV).
pub const VECTOR_LIMIT: u64 = 1024;

/// `struct msghdr`, with its padding as fields.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MessageHeader {
    pub name: UserAddress,
    pub name_length: u32,
    pub padding: u32,
    pub vector: UserAddress,
    pub count: u64,
    pub control: UserAddress,
    pub control_length: u64,
    pub flags: u32,
    pub padding_behind: u32,
}

/// Offsets, in [`MessageHeader`], of the fields that recvmsg(2) writes.
pub const NAME_LENGTH_OFFSET: u64 = 8;
pub const CONTROL_LENGTH_OFFSET: u64 = 40;
pub const FLAGS_OFFSET: u64 = 48;

/// Receives by recvfrom(2), without the sender's address.
#[inline]
pub fn receive(number: i32, part: IoVector, flags: u32) -> Result<u64, Errno> {
    SystemCall::with_six(linux::__NR_recvfrom, [number as u64, part.base, part.length, u64::from(flags), 0, 0]).run()
}

/// Builds a sendto(2) call.
#[inline]
pub fn send_call(number: i32, part: IoVector, flags: u32, to: Option<&[u8]>) -> SystemCall {
    let (name, length) = to.map_or((0, 0), |to| (to.as_ptr() as u64, to.len() as u64));
    let arguments = [number as u64, part.base, part.length, u64::from(flags), name, length];
    SystemCall::with_six(linux::__NR_sendto, arguments)
}

/// Receives by recvmsg(2); the kernel writes its answers to the header.
pub fn receive_message(number: i32, header: &mut MessageHeader, flags: u32) -> Result<u64, Errno> {
    SystemCall::new(linux::__NR_recvmsg, [number as u64, &raw mut *header as u64, u64::from(flags), 0, 0]).run()
}

/// Builds a sendmsg(2) call.
pub fn send_message_call(number: i32, header: &MessageHeader, flags: u32) -> SystemCall {
    SystemCall::new(linux::__NR_sendmsg, [number as u64, &raw const *header as u64, u64::from(flags), 0, 0])
}

/// Returns the number of bytes that a stream holds and that were not received yet. 0 if the kernel
/// does not say.
pub fn unread(number: i32) -> u32 {
    let mut bytes = 0i32;
    let arguments = [number as u64, u64::from(ioctl::FIONREAD), &raw mut bytes as u64, 0, 0];
    match SystemCall::new(linux::__NR_ioctl, arguments).run() {
        Ok(_) => bytes as u32,
        Err(_) => 0,
    }
}

/// Reads a socket option of four bytes.
fn option(number: i32, level: u32, name: u32) -> Result<u32, Errno> {
    let (mut value, mut length) = (0u32, 4u32);
    let (to, size) = (&raw mut value as u64, &raw mut length as u64);
    let arguments = [number as u64, u64::from(level), u64::from(name), to, size];
    SystemCall::new(linux::__NR_getsockopt, arguments).run()?;
    // TCP_ULP returns a protocol's name, of which four bytes are enough. Length 0 means that there
    // is no name.
    Ok(if length == 0 { 0 } else { value })
}

/// Returns whether the rest of a transfer can follow in a further call: true for streams and
/// sequenced packets.
pub fn can_go_on(number: i32) -> bool {
    matches!(option(number, SOL_SOCKET, SO_TYPE), Ok(SOCK_STREAM | SOCK_SEQPACKET))
}

/// How far the kernel's count of unread bytes predicts a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Not at all. The socket holds messages, or a protocol on top of it (such as TLS, whose
    /// records end a receive early) decides how much a receive returns.
    Not,
    /// TCP: a receive returns all counted bytes. Bytes behind urgent data are not counted.
    UpToUrgent,
    /// A Unix stream: all bytes are counted. But a receive ends early behind a message with
    /// descriptors, before a message of another sender (SO_PASSCRED), and at urgent data.
    UpToSeam,
}

pub fn counted(number: i32) -> Counted {
    if option(number, SOL_SOCKET, SO_TYPE) != Ok(SOCK_STREAM) {
        return Counted::Not;
    }
    match option(number, SOL_SOCKET, SO_PROTOCOL) {
        Ok(IPPROTO_TCP) if matches!(option(number, SOL_TCP, TCP_ULP), Ok(0) | Err(_)) => Counted::UpToUrgent,
        _ if option(number, SOL_SOCKET, SO_DOMAIN) == Ok(AF_UNIX) => Counted::UpToSeam,
        _ => Counted::Not,
    }
}

/// Returns whether a receive with MSG_TRUNC ([`TRUNCATED`]) counts bytes without copying them, as
/// TCP's does.
pub fn passes_over(number: i32) -> bool {
    match option(number, SOL_SOCKET, SO_PROTOCOL) {
        Ok(IPPROTO_TCP) => counted(number) == Counted::UpToUrgent,
        Ok(IPPROTO_MPTCP) => true,
        _ => false,
    }
}

/// Returns the number of bytes above which a socket certainly refuses a message as too long
/// (`EMSGSIZE`). `None`: not known.
pub fn longest_message(number: i32) -> Option<u64> {
    let domain = option(number, SOL_SOCKET, SO_DOMAIN).ok()?;
    match (domain, option(number, SOL_SOCKET, SO_TYPE).ok()?) {
        (AF_UNIX, SOCK_DATAGRAM | SOCK_SEQPACKET) => option(number, SOL_SOCKET, SO_SNDBUF).ok().map(u64::from),
        (AF_INET | AF_INET6, SOCK_DATAGRAM) if option(number, SOL_SOCKET, SO_PROTOCOL) == Ok(IPPROTO_UDP) => {
            Some(0xffff)
        }
        _ => None,
    }
}

/// Returns whether the next byte is urgent data.
pub fn is_at_urgent(number: i32) -> bool {
    let mut is_there = 0i32;
    let arguments = [number as u64, SIOCATMARK, &raw mut is_there as u64, 0, 0];
    SystemCall::new(linux::__NR_ioctl, arguments).run().is_ok() && is_there != 0
}

/// Returns whether the end of the stream is still to be received, and nothing after it. True for
/// TCP once the peer has said that it will send no more.
///
/// A connection that both sides have ended is in the state CLOSE. So is a connection that was
/// reset, but a reset leaves an error until the program reads it.
pub fn counts_end(number: i32) -> bool {
    if option(number, SOL_SOCKET, SO_PROTOCOL) != Ok(IPPROTO_TCP) {
        return false;
    }
    // The first byte is the connection's state.
    let state = option(number, SOL_TCP, TCP_INFO).map_or(0, |info| info & 0xff);
    match state {
        TCP_TIME_WAIT | TCP_CLOSE_WAIT | TCP_LAST_ACK | TCP_CLOSING => true,
        TCP_CLOSE => epoll::poll_now(number, 0).is_ok_and(|ready| ready & epoll::ERR == 0),
        _ => false,
    }
}

/// Returns whether the kernel would send without a copy on this socket.
pub fn sends_without_copy(number: i32) -> bool {
    matches!(option(number, SOL_SOCKET, SO_PROTOCOL), Ok(IPPROTO_TCP | IPPROTO_UDP))
}
