//! Invalid arguments of SEND and RECV.

use super::options;
use crate::files;
use crate::memory::{BAD, KERNEL_HALF};
use crate::ring::Ring;
use crate::sqe::{Change, fields, nop, recv, send, sqe};
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::{Sqe, io_uring as u, opcode};

/// A SEND fails if the pointer or the length of its destination address is bad.
fn bad_addresses(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, _writer, address) = files::udp();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let to = |at: u64, length: u32| {
        send(socket.as_raw_fd(), b"x", 1).with(|sqe| {
            sqe.off = at;
            sqe.file_index = length;
        })
    };
    let good = &raw const address as u64;
    for (at, length) in [(0, 16), (good, 0), (good, 2), (good, 129), (good, 0xffff), (BAD, 16), (KERNEL_HALF, 16)] {
        t.entry(&ring.one(to(at, length)));
    }
    t.entry(&ring.one(to(good, 0x10010)));
    // A stream socket ignores the address.
    let (_one, other) = files::tcp();
    t.entry(&ring.one(to(good, 16).with(|sqe| sqe.fd = other.as_raw_fd())));
}
case!(bad_addresses => "
    cqe 1: -EDESTADDRREQ
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EINVAL
    cqe 1: 1
");

fn not_connected(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut bytes = [0; 8];
    for (domain, kind) in [(libc::AF_INET, libc::SOCK_STREAM), (libc::AF_UNIX, libc::SOCK_STREAM)] {
        let socket = files::socket(domain, kind);
        t.entry(&ring.one(recv(socket.as_raw_fd(), &mut bytes, 1)));
        t.entry(&ring.one(send(socket.as_raw_fd(), b"x", 2)));
    }
    let socket = files::socket(libc::AF_INET, libc::SOCK_DGRAM);
    t.entry(&ring.one(send(socket.as_raw_fd(), b"x", 3)));
}
case!(not_connected => "
    cqe 1: -ENOTCONN
    cqe 2: -EPIPE
    cqe 1: -EINVAL
    cqe 2: -ENOTCONN
    cqe 3: -EDESTADDRREQ
");

fn not_a_socket(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let file = files::memory_file(b"content");
    let mut bytes = [0; 8];
    t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 1)));
    t.entry(&ring.one(send(writer.as_raw_fd(), b"x", 2)));
    t.entry(&ring.one(recv(file.as_raw_fd(), &mut bytes, 3)));
    t.entry(&ring.one(send(file.as_raw_fd(), b"x", 4)));
    t.entry(&ring.one(recv(-1, &mut bytes, 5)));
    t.entry(&ring.one(send(9999, b"x", 6)));
    t.entry(&ring.one(send(file.as_raw_fd(), b"x", 7).forced_async()));
}
case!(not_a_socket => "
    cqe 1: -ENOTSOCK
    cqe 2: -ENOTSOCK
    cqe 3: -ENOTSOCK
    cqe 4: -ENOTSOCK
    cqe 5: -EBADF
    cqe 6: -EBADF
    cqe 7: -ENOTSOCK
");

fn bad_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    for address in [0, BAD, KERNEL_HALF, u64::MAX - 1] {
        let at = |opcode, fd: i32, user_data| Sqe { addr: address, len: 8, ..sqe(opcode, fd, user_data) };
        files::put(&writer, b"x");
        t.entry(&ring.one(at(opcode::RECV, reader.as_raw_fd(), 1)));
        t.entry(&ring.one(at(opcode::SEND, writer.as_raw_fd(), 2)));
    }
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}
case!(bad_memory => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    4 bytes left
");

fn bad_lengths(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    files::put(&writer, b"abc");
    for length in [u32::MAX, 1 << 31] {
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 1).with(|sqe| sqe.len = length)));
        t.entry(&ring.one(send(writer.as_raw_fd(), b"x", 2).with(|sqe| sqe.len = length)));
    }
    t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes[..0], 3)));
    t.entry(&ring.one(send(writer.as_raw_fd(), b"", 4)));
    t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 5)));
}
case!(bad_lengths => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: 0 SOCK_NONEMPTY
    cqe 4: 0
    cqe 5: 3
");

fn unknown_options(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    for bit in 1..16 {
        files::put(&writer, b"x");
        let entry = ring.one(options(recv(reader.as_raw_fd(), &mut bytes, bit), 1 << bit));
        t.say(format_args!("recv {entry}"));
        if bit != 5 {
            ring.push(options(send(writer.as_raw_fd(), b"y", bit), 1 << bit));
            ring.submit();
            // Bit 4 is BUNDLE. A SEND with BUNDLE but without a group posts two CQEs.
            t.in_order(&ring.wait(if bit == 4 { 2 } else { 1 }));
        }
    }
}
case!(unknown_options => include_str!("unknown_options.txt"));

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let changes = fields! {
        off = 8, file_index = 1, "upper file_index" file_index = 1 << 16, addr3 = 1, "pad" pad2 = 1,
        buf_index = 1,
    };
    for (name, change) in changes {
        files::put(&writer, b"x");
        t.say(format_args!("{name}: recv {}", ring.one(recv(reader.as_raw_fd(), &mut bytes, 1).with(change))));
        t.say(format_args!("{name}: send {}", ring.one(send(writer.as_raw_fd(), b"y", 2).with(change))));
    }
}
case!(reserved_fields => "
    off: recv 1: -EINVAL
    off: send 2: 1
    file_index: recv 1: -EINVAL
    file_index: send 2: 1
    upper file_index: recv 1: -EINVAL
    upper file_index: send 2: -EINVAL
    addr3: recv 1: 6
    addr3: send 2: 1
    pad: recv 1: 2
    pad: send 2: 1
    buf_index: recv 1: 2
    buf_index: send 2: 1
");

/// POLL_FIRST on a file that is no socket. Every opcode except RECV checks the kind of the file
/// before it polls the file.
fn poll_first_on_no_socket(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let (memory, event, null) = (files::memory_file(b"text"), files::eventfd(0), files::null());
    let mut bytes = [0u8; 4];
    let part = crate::sqe::vector(bytes.as_mut_ptr() as u64, 4);
    let mut header: libc::msghdr = crate::memory::zeroed();
    (header.msg_iov, header.msg_iovlen) = ((&raw const part).cast_mut(), 1);
    for (name, file) in
        [("reader", &reader), ("writer", &writer), ("memory", &memory), ("event", &event), ("null", &null)]
    {
        let fd = file.as_raw_fd();
        let is_pipe = matches!(name, "reader" | "writer" | "event");
        for request in [
            if is_pipe { nop(1) } else { recv(fd, &mut bytes, 1) },
            send(fd, b"text", 2),
            crate::sqe::message(opcode::RECVMSG, fd, &raw const header, 3),
            crate::sqe::message(opcode::SENDMSG, fd, &raw const header, 4),
            send(fd, b"text", 5).with(|sqe| sqe.opcode = opcode::SEND_ZC),
        ] {
            let mut ring = Ring::new(4);
            let asks = request.opcode != opcode::NOP;
            ring.push(request.with(|sqe| sqe.ioprio = if asks { u::IORING_RECVSEND_POLL_FIRST as u16 } else { 0 }));
            ring.submit();
            t.say(name);
            t.in_order(&ring.wait(1));
            t.in_order(&ring.reap_in_memory(0));
        }
    }
}
case!(poll_first_on_no_socket => include_str!("poll_first_on_no_socket.txt"));

/// A request with POLL_FIRST and MSG_DONTWAIT fails at once instead of polling its file. With a
/// descriptor that is not open, it gets -EBADF.
fn poll_first_without_waiting(t: &mut Transcript) {
    let (reader, _writer) = files::sockets();
    let pipe = files::pipe();
    let mut bytes = [0u8; 4];
    for fd in [reader.as_raw_fd(), pipe.0.as_raw_fd(), -1, 5000] {
        let mut ring = Ring::new(4);
        for request in [recv(fd, &mut bytes, 1), recv(fd, &mut bytes, 2).forced_async(), send(fd, b"text", 3)] {
            t.entry(&ring.one(request.with(|sqe| {
                sqe.ioprio = u::IORING_RECVSEND_POLL_FIRST as u16;
                sqe.op_flags = libc::MSG_DONTWAIT as u32;
            })));
        }
    }
}
case!(poll_first_without_waiting => "
    cqe 1: -EAGAIN
    cqe 2: -EAGAIN
    cqe 3: -EAGAIN
    cqe 1: -EAGAIN
    cqe 2: -EAGAIN
    cqe 3: -ENOTSOCK
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 3: -EBADF
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 3: -EBADF
");
