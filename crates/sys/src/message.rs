//! Sends and receives on sockets: sendto(2), recvfrom(2), sendmsg(2), recvmsg(2). Also has the
//! queries by which the engine decides whether a socket has more data.

use crate::plain::IoVector;
use crate::{Errno, SystemCall, UserAddress, epoll, width};
use linux_raw_sys::{general as linux, ioctl};

// Flags of send(2) and recv(2), `MSG_*` in linux/socket.h. `linux-raw-sys` has them only in another
// module.
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

/// Longest address of a socket, in bytes: the size of `struct sockaddr_storage`.
pub const ADDRESS_LIMIT: usize = 128;
/// Maximum number of buffers in the vector of one call.
pub const VECTOR_LIMIT: u64 = linux::UIO_MAXIOV as u64;

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

/// Receives into `part` by recvfrom(2), without the sender's address. Returns the number of bytes.
#[inline]
pub fn receive(number: i32, part: IoVector, flags: u32) -> Result<u64, Errno> {
    SystemCall::with_six(linux::__NR_recvfrom, [width::word(number), part.base, part.length, u64::from(flags), 0, 0])
        .run()
}

/// Builds a sendto(2) call that sends `part`. `to`: the receiver's address; `None` for a connected
/// socket.
#[inline]
pub fn send_call(number: i32, part: IoVector, flags: u32, to: Option<&[u8]>) -> SystemCall {
    let (name, length) = to.map_or((0, 0), |to| (to.as_ptr() as u64, to.len() as u64));
    let arguments = [width::word(number), part.base, part.length, u64::from(flags), name, length];
    SystemCall::with_six(linux::__NR_sendto, arguments)
}

/// Receives by recvmsg(2). The kernel writes lengths and flags to `header`. Returns the number of
/// bytes.
pub fn receive_message(number: i32, header: &mut MessageHeader, flags: u32) -> Result<u64, Errno> {
    SystemCall::new(linux::__NR_recvmsg, [width::word(number), &raw mut *header as u64, u64::from(flags), 0, 0]).run()
}

/// Builds a sendmsg(2) call.
pub fn send_message_call(number: i32, header: &MessageHeader, flags: u32) -> SystemCall {
    SystemCall::new(linux::__NR_sendmsg, [width::word(number), &raw const *header as u64, u64::from(flags), 0, 0])
}

/// Returns whether the descriptor is an IPv4 or IPv6 socket.
pub fn is_internet_socket(number: i32) -> bool {
    matches!(option(number, SOL_SOCKET, SO_DOMAIN), Ok(AF_INET | AF_INET6))
}

/// Returns the number of bytes in a stream socket's receive queue (FIONREAD). Returns 0 if the
/// ioctl fails.
pub fn unread(number: i32) -> u32 {
    let mut bytes = 0i32;
    let arguments = [width::word(number), u64::from(ioctl::FIONREAD), &raw mut bytes as u64, 0, 0];
    match SystemCall::new(linux::__NR_ioctl, arguments).run() {
        Ok(_) => bytes.cast_unsigned(),
        Err(_) => 0,
    }
}

/// Reads a socket option whose value has four bytes.
fn option(number: i32, level: u32, name: u32) -> Result<u32, Errno> {
    let (mut value, mut length) = (0u32, 4u32);
    let (to, size) = (&raw mut value as u64, &raw mut length as u64);
    let arguments = [width::word(number), u64::from(level), u64::from(name), to, size];
    SystemCall::new(linux::__NR_getsockopt, arguments).run()?;
    // The value of the option TCP_ULP is the name of a protocol such as TLS. Its first four bytes
    // are enough here. Length 0 means that the socket has no such protocol.
    Ok(if length == 0 { 0 } else { value })
}

/// Returns whether a further call can continue a transfer that was cut short. True for streams and
/// sequenced packets.
pub fn is_resumable(number: i32) -> bool {
    matches!(option(number, SOL_SOCKET, SO_TYPE), Ok(SOCK_STREAM | SOCK_SEQPACKET))
}

/// How well the number of unread bytes ([`unread`]) predicts the number of bytes that a receive
/// returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum UnreadPrediction {
    /// The number of unread bytes predicts nothing. The socket carries messages, or a protocol on
    /// top of the socket decides how much a receive returns. (In TLS, a record can end a receive
    /// early.)
    None,
    /// TCP: a receive returns all unread bytes. The kernel does not count bytes after urgent data.
    UpToUrgent,
    /// A Unix stream: the number counts all unread bytes. But a receive may return fewer. It ends
    /// after a message with descriptors, before a message of another sender (SO_PASSCRED), and at
    /// urgent data.
    UpToSeam,
}

pub fn unread_prediction(number: i32) -> UnreadPrediction {
    if option(number, SOL_SOCKET, SO_TYPE) != Ok(SOCK_STREAM) {
        return UnreadPrediction::None;
    }
    match option(number, SOL_SOCKET, SO_PROTOCOL) {
        Ok(IPPROTO_TCP) if matches!(option(number, SOL_TCP, TCP_ULP), Ok(0) | Err(_)) => UnreadPrediction::UpToUrgent,
        _ if option(number, SOL_SOCKET, SO_DOMAIN) == Ok(AF_UNIX) => UnreadPrediction::UpToSeam,
        _ => UnreadPrediction::None,
    }
}

/// Returns whether a receive with MSG_TRUNC ([`TRUNCATED`]) discards bytes instead of copying them,
/// and returns their number. MPTCP does so. TCP does so if there is no protocol such as TLS on top.
pub fn discards_truncated(number: i32) -> bool {
    match option(number, SOL_SOCKET, SO_PROTOCOL) {
        Ok(IPPROTO_TCP) => unread_prediction(number) == UnreadPrediction::UpToUrgent,
        Ok(IPPROTO_MPTCP) => true,
        _ => false,
    }
}

/// Returns a length in bytes. If a message is longer, the socket certainly refuses it (`EMSGSIZE`).
/// `None` if no such length is known.
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

/// Returns whether the next byte to receive is urgent data (SIOCATMARK).
pub fn is_at_urgent(number: i32) -> bool {
    let mut is_there = 0i32;
    let arguments = [width::word(number), SIOCATMARK, &raw mut is_there as u64, 0, 0];
    SystemCall::new(linux::__NR_ioctl, arguments).run().is_ok() && is_there != 0
}

/// Returns whether a TCP stream ends after the bytes that are unread now: the peer has announced
/// that it will send no more.
///
/// A connection that both sides have closed is in the state CLOSE. So is a connection that was
/// reset, but after a reset the socket has a pending error (EPOLLERR).
pub fn ends_after_unread(number: i32) -> bool {
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

/// Returns whether the descriptor is a TCP or UDP socket. On these, the kernel can send without a
/// copy (MSG_ZEROCOPY).
pub fn sends_without_copy(number: i32) -> bool {
    matches!(option(number, SOL_SOCKET, SO_PROTOCOL), Ok(IPPROTO_TCP | IPPROTO_UDP))
}
