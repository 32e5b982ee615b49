//! URING_CMD on sockets, which returns the number of waiting bytes, and reads or sets socket
//! options.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::files;
use crate::memory::BAD;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, sqe};
use crate::transcript::Transcript;

const SIOCINQ: u64 = 0;
const SIOCOUTQ: u64 = 1;
const GETSOCKOPT: u64 = 2;
const SETSOCKOPT: u64 = 3;

fn command(fd: i32, number: u64, user_data: u64) -> Sqe {
    Sqe { off: number, ..sqe(opcode::URING_CMD, fd, user_data) }
}

/// Returns a command that reads or sets a socket option. In the SQE, `addr` has the option's level
/// and name, `file_index` the length of the value, and `addr3` the value's address.
fn option(fd: i32, number: u64, level: i32, name: i32, value: u64, length: u32, user_data: u64) -> Sqe {
    command(fd, number, user_data).with(|sqe| {
        sqe.addr = u64::from(level as u32) | u64::from(name as u32) << 32;
        sqe.file_index = length;
        sqe.addr3 = value;
    })
}

fn get(fd: i32, name: i32, value: &mut i32, user_data: u64) -> Sqe {
    option(fd, GETSOCKOPT, libc::SOL_SOCKET, name, value as *mut i32 as u64, 4, user_data)
}

pub fn set(fd: i32, level: i32, name: i32, value: &i32, user_data: u64) -> Sqe {
    option(fd, SETSOCKOPT, level, name, value as *const i32 as u64, 4, user_data)
}

fn connected() -> (TcpStream, TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (server, _) = listener.accept().expect("the connection");
    (client, server, listener)
}

fn write_all(stream: &impl AsRawFd, bytes: &[u8]) {
    // SAFETY: `bytes` is readable for its whole length.
    let sent = unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(sent, bytes.len() as isize);
}

/// Waits by poll(2) until the socket is readable.
fn until_readable(stream: &impl AsRawFd) {
    let mut entry = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry.
    assert_eq!(unsafe { libc::poll(&mut entry, 1, 30_000) }, 1);
}

fn bytes_to_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, server, _listener) = connected();
    t.entry(&ring.one(command(server.as_raw_fd(), SIOCINQ, 1)));
    write_all(&client, b"12345");
    until_readable(&server);
    t.entry(&ring.one(command(server.as_raw_fd(), SIOCINQ, 2)));
    drop(client);
    t.entry(&ring.one(command(server.as_raw_fd(), SIOCINQ, 3)));
}
case!(bytes_to_read => "
    cqe 1: 0
    cqe 2: 5
    cqe 3: 5
");

fn bytes_to_send(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, server, _listener) = connected();
    t.entry(&ring.one(command(client.as_raw_fd(), SIOCOUTQ, 1)));
    let client = OwnedFd::from(client);
    let filled = files::fill(&client);
    let answer = ring.one(command(client.as_raw_fd(), SIOCOUTQ, 2));
    t.say(format_args!("some of what was sent waits {}", answer.res > 0 && answer.res as usize <= filled));
    drop(server);
}
case!(bytes_to_send => "
    cqe 1: 0
    some of what was sent waits true
");

fn datagrams(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let one = UdpSocket::bind("127.0.0.1:0").expect("the loopback");
    let two = UdpSocket::bind("127.0.0.1:0").expect("the loopback");
    two.send_to(b"abc", one.local_addr().expect("an address")).expect("sent");
    two.send_to(b"defgh", one.local_addr().expect("an address")).expect("sent");
    until_readable(&one);
    t.say("of the first datagram");
    t.entry(&ring.one(command(one.as_raw_fd(), SIOCINQ, 1)));
    t.entry(&ring.one(command(one.as_raw_fd(), SIOCOUTQ, 2)));
}
case!(datagrams => "
    of the first datagram
    cqe 1: 3
    cqe 2: 0
");

fn listening(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_client, _server, listener) = connected();
    t.entry(&ring.one(command(listener.as_raw_fd(), SIOCINQ, 1)));
    t.entry(&ring.one(command(listener.as_raw_fd(), SIOCOUTQ, 2)));
}
case!(listening => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

/// Only sockets of the inet and unix families accept these commands. Other families refuse them.
fn families(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (one, _two) = files::sockets();
    t.entry(&ring.one(command(one.as_raw_fd(), SIOCINQ, 1)));
    t.entry(&ring.one(command(one.as_raw_fd(), SIOCOUTQ, 2)));
    let mut kind = 0;
    t.entry(&ring.one(get(one.as_raw_fd(), libc::SO_TYPE, &mut kind, 3)));
    t.say(format_args!("stream {}", kind == libc::SOCK_STREAM));
    // SAFETY: the call touches no memory.
    let netlink = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    t.entry(&ring.one(command(netlink, SIOCINQ, 4)));
    // SAFETY: this case owns the descriptor.
    unsafe { libc::close(netlink) };
}
case!(families => "
    cqe 1: -EOPNOTSUPP
    cqe 2: -EOPNOTSUPP
    cqe 3: 4
    stream true
    cqe 4: -EOPNOTSUPP
");

fn get_option(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, _server, listener) = connected();
    let fd = client.as_raw_fd();
    let mut value = 0;
    t.entry(&ring.one(get(fd, libc::SO_TYPE, &mut value, 1)));
    t.say(format_args!("type {}", value == libc::SOCK_STREAM));
    t.entry(&ring.one(get(listener.as_raw_fd(), libc::SO_ACCEPTCONN, &mut value, 2)));
    t.say(format_args!("listens {value}"));
    t.entry(&ring.one(get(fd, libc::SO_ERROR, &mut value, 3)));
    t.say(format_args!("error {value}"));
    t.say("lengths");
    let address = &raw mut value as u64;
    for length in [0, 1, 3, 5, 100, u32::MAX, 1 << 31] {
        t.entry(&ring.one(option(fd, GETSOCKOPT, libc::SOL_SOCKET, libc::SO_TYPE, address, length, 4)));
    }
    let mut linger = [0i32; 2];
    let address = linger.as_mut_ptr() as u64;
    t.entry(&ring.one(option(fd, GETSOCKOPT, libc::SOL_SOCKET, libc::SO_LINGER, address, 8, 5)));
    t.say("an option that does not exist, or cannot be asked for");
    t.entry(&ring.one(get(fd, 9999, &mut value, 6)));
    t.entry(&ring.one(get(fd, libc::SO_ATTACH_BPF, &mut value, 7)));
    t.say("memory");
    t.entry(&ring.one(option(fd, GETSOCKOPT, libc::SOL_SOCKET, libc::SO_TYPE, 0, 4, 8)));
    t.entry(&ring.one(option(fd, GETSOCKOPT, libc::SOL_SOCKET, libc::SO_TYPE, BAD, 4, 9)));
}
case!(get_option => "
    cqe 1: 4
    type true
    cqe 2: 4
    listens 1
    cqe 3: 4
    error 0
    lengths
    cqe 4: 0
    cqe 4: 1
    cqe 4: 3
    cqe 4: 4
    cqe 4: 4
    cqe 4: -EINVAL
    cqe 4: -EINVAL
    cqe 5: 8
    an option that does not exist, or cannot be asked for
    cqe 6: -ENOPROTOOPT
    cqe 7: -ENOPROTOOPT
    memory
    cqe 8: -EFAULT
    cqe 9: -EFAULT
");

/// GETSOCKOPT reads only options of the level SOL_SOCKET.
fn get_option_of_levels(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, _server, _listener) = connected();
    let mut value = 0;
    let address = &raw mut value as u64;
    for (level, name) in
        [(libc::IPPROTO_TCP, libc::TCP_NODELAY), (libc::IPPROTO_IP, libc::IP_TTL), (-1, 0), (0x10001, 3)]
    {
        t.entry(&ring.one(option(client.as_raw_fd(), GETSOCKOPT, level, name, address, 4, 1)));
    }
}
case!(get_option_of_levels => "
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
");

fn set_option(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, _server, _listener) = connected();
    let fd = client.as_raw_fd();
    let one = 1;
    t.entry(&ring.one(set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &one, 1)));
    let mut value = 0;
    t.entry(&ring.one(get(fd, libc::SO_KEEPALIVE, &mut value, 2)));
    t.say(format_args!("value {value}"));
    t.say("of another level");
    t.entry(&ring.one(set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &one, 3)));
    t.say(format_args!("value {}", client.nodelay().unwrap_or(false)));
    t.entry(&ring.one(set(fd, 12345, 1, &one, 4)));
    t.entry(&ring.one(set(fd, libc::SOL_SOCKET, 9999, &one, 5)));
    t.entry(&ring.one(set(fd, libc::SOL_SOCKET, libc::SO_TYPE, &one, 6)));
    t.say("lengths and memory");
    let address = &raw const one as u64;
    for length in [0, 1, 3, 8, u32::MAX] {
        t.entry(&ring.one(option(fd, SETSOCKOPT, libc::SOL_SOCKET, libc::SO_KEEPALIVE, address, length, 7)));
    }
    t.entry(&ring.one(option(fd, SETSOCKOPT, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0, 4, 8)));
    t.entry(&ring.one(option(fd, SETSOCKOPT, libc::SOL_SOCKET, libc::SO_KEEPALIVE, BAD, 4, 9)));
}
case!(set_option => "
    cqe 1: 0
    cqe 2: 4
    value 1
    of another level
    cqe 3: 0
    value true
    cqe 4: -ENOPROTOOPT
    cqe 5: -ENOPROTOOPT
    cqe 6: -ENOPROTOOPT
    lengths and memory
    cqe 7: -EINVAL
    cqe 7: -EINVAL
    cqe 7: -EINVAL
    cqe 7: 0
    cqe 7: -EINVAL
    cqe 8: -EFAULT
    cqe 9: -EFAULT
");

fn refused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, _server, _listener) = connected();
    let fd = client.as_raw_fd();
    t.say("commands that there are not");
    t.entry(&ring.one(command(fd, 5, 1)));
    t.entry(&ring.one(command(fd, 0x1200, 2)));
    t.entry(&ring.one(command(fd, 1 << 32, 3)));
    t.say("files that are no sockets");
    let (reader, _writer) = files::pipe();
    let memory = files::memory_file(b"x");
    for file in [&reader, &memory] {
        t.entry(&ring.one(command(file.as_raw_fd(), SIOCINQ, 4)));
    }
    t.entry(&ring.one(command(-1, SIOCINQ, 5)));
    t.say("fields that the first two do not look at");
    t.entry(&ring.one(command(fd, SIOCINQ, 6).with(|sqe| (sqe.addr, sqe.addr3, sqe.len) = (1, 2, 3))));
    t.entry(&ring.one(command(fd, SIOCINQ, 7).with(|sqe| sqe.file_index = 2)));
    t.entry(&ring.one(command(fd, SIOCINQ, 7).with(|sqe| sqe.ioprio = 1)));
    t.entry(&ring.one(command(memory.as_raw_fd(), SIOCINQ, 7).with(|sqe| sqe.ioprio = 1)));
    t.entry(&ring.one(command(fd, SIOCINQ, 8).with(|sqe| sqe.buf_index = 1)));
}
case!(refused => "
    commands that there are not
    cqe 1: -EOPNOTSUPP
    cqe 2: -EOPNOTSUPP
    cqe 3: -EINVAL
    files that are no sockets
    cqe 4: -EOPNOTSUPP
    cqe 4: -EOPNOTSUPP
    cqe 5: -EBADF
    fields that the first two do not look at
    cqe 6: 0
    cqe 7: 0
    cqe 7: -EINVAL
    cqe 7: -EINVAL
    cqe 8: 0
");

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, _server, _listener) = connected();
    let fd = client.as_raw_fd();
    for flags in [1, 2, 3, 4, 1 << 31] {
        t.entry(&ring.one(command(fd, SIOCINQ, u64::from(flags)).op_flags(flags)));
    }
    t.entry(&ring.one(command(fd, SIOCINQ, 9).flagged(sqe_flags::BUFFER_SELECT)));
    t.entry(&ring.one(command(fd, SIOCINQ, 10).forced_async()));
}
case!(flags => "
    cqe 1: 0
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 4: -EINVAL
    cqe 2147483648: -EINVAL
    cqe 9: -EINVAL
    cqe 10: 0
");

fn kinds_of_rings(t: &mut Transcript) {
    let (client, _server, _listener) = connected();
    for flags in [u::IORING_SETUP_COOP_TASKRUN, ring::DEFER, u::IORING_SETUP_IOPOLL, u::IORING_SETUP_SQE128] {
        let mut ring = Ring::flags(4, flags);
        t.entry(&ring.one(command(client.as_raw_fd(), SIOCOUTQ, 1)));
    }
    let mut ring = Ring::flags(4, u::IORING_SETUP_SQPOLL);
    t.in_order(&super::sq_thread::run(&mut ring, &[command(client.as_raw_fd(), SIOCOUTQ, 1)]));
}
case!(kinds_of_rings => "
    cqe 1: 0
    cqe 1: 0
    cqe 1: -EOPNOTSUPP
    cqe 1: 0
    cqe 1: 0
");

fn chains(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, _server, _listener) = connected();
    let mut value = 0;
    let fd = client.as_raw_fd();
    ring.push(get(fd, libc::SO_TYPE, &mut value, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    ring.push(get(fd, 9999, &mut value, 3).linked());
    ring.push(nop(4));
    ring.submit();
    t.sorted(&ring.wait(2));
    ring.push(get(fd, libc::SO_TYPE, &mut value, 5).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    ring.push(nop(6));
    ring.submit();
    t.sorted(&ring.wait(1));
}
case!(chains => "
    cqe 1: 4
    cqe 2: 0
    cqe 3: -ENOPROTOOPT
    cqe 4: -ECANCELED
    cqe 6: 0
");

fn direct_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (client, server, _listener) = connected();
    let number = server.as_raw_fd();
    t.result("register", ring.register(reg::FILES, &raw const number, 1));
    drop(server);
    write_all(&client, b"123");
    // The case does not have to wait for the bytes: on the loopback interface, they have arrived
    // when the send returns.
    t.entry(&ring.one(command(0, SIOCINQ, 1).fixed()));
    let mut value = 0;
    t.entry(&ring.one(get(0, libc::SO_TYPE, &mut value, 2).fixed()));
    t.entry(&ring.one(get(1, libc::SO_TYPE, &mut value, 3).fixed()));
}
case!(direct_descriptor => "
    register = 0
    cqe 1: 3
    cqe 2: 4
    cqe 3: -EBADF
");
