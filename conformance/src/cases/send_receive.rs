//! SEND and RECV: each transfers one buffer on a socket.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode};

use super::reg;
use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, link_timeout, nop, recv, send};
use crate::transcript::Transcript;

mod arguments;

const FIRST: u16 = u::IORING_RECVSEND_POLL_FIRST as u16;

fn options(sqe: Sqe, options: u16) -> Sqe {
    sqe.with(|sqe| sqe.ioprio = options)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', ".")
}

fn data_is_there(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut bytes = [0; 8];
        t.entry(&ring.one(send(writer.as_raw_fd(), b"hello", 1)));
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 2)));
        t.say(text(&bytes));
    }
}
case!(data_is_there => "
    cqe 1: 5
    cqe 2: 5
    hello...
    cqe 1: 5
    cqe 2: 5
    hello...
");

fn receive_waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut bytes = [0; 8];
        ring.push(recv(reader.as_raw_fd(), &mut bytes, 1));
        t.result("submit", ring.submit());
        t.in_order(&ring.reap());
        files::put(&writer, b"late");
        t.in_order(&ring.wait(1));
        t.say(text(&bytes));
    }
}
case!(receive_waits => "
    submit = 1
    no cqe
    cqe 1: 4
    late....
    submit = 1
    no cqe
    cqe 1: 4
    late....
");

fn send_waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    files::fill(&writer);
    ring.push(send(writer.as_raw_fd(), b"late", 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    while files::take(&reader, 1 << 16).is_ok_and(|bytes| bytes.len() == 1 << 16) {}
    t.in_order(&ring.wait(1));
}
case!(send_waits => "
    submit = 1
    no cqe
    cqe 1: 4
");

fn kinds_of_socket(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let (reader, writer) = files::sockets_of(kind);
        let mut bytes = [0; 8];
        for _ in 0..2 {
            t.entry(&ring.one(send(writer.as_raw_fd(), b"abcd", 1)));
        }
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes[..2], 2)));
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 3)));
        t.say(text(&bytes));
    }
}
case!(kinds_of_socket => "
    cqe 1: 4
    cqe 1: 4
    cqe 2: 2 SOCK_NONEMPTY
    cqe 3: 6
    cdabcd..
    cqe 1: 4
    cqe 1: 4
    cqe 2: 2
    cqe 3: 4
    abcd....
    cqe 1: 4
    cqe 1: 4
    cqe 2: 2
    cqe 3: 4
    abcd....
");

/// The CQE of a receive has SOCK_NONEMPTY if the socket has more data.
fn more_is_there(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        files::put(&writer, b"0123456789x");
        let mut bytes = [0; 5];
        for user_data in 1..=2 {
            t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, user_data)));
        }
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes[..1], 3)));
    }
    let (reader, writer) = files::sockets_of(libc::SOCK_SEQPACKET);
    for _ in 0..2 {
        files::put(&writer, b"0123456789");
    }
    t.entry(&ring.one(recv(reader.as_raw_fd(), &mut [0; 5], 4)));
}
case!(more_is_there => "
    cqe 1: 5 SOCK_NONEMPTY
    cqe 2: 5 SOCK_NONEMPTY
    cqe 3: 1
    cqe 1: 5 SOCK_NONEMPTY
    cqe 2: 5 SOCK_NONEMPTY
    cqe 3: 1
    cqe 4: 5
");

fn end_of_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp(), files::sockets_of(libc::SOCK_SEQPACKET)] {
        let mut bytes = [0; 8];
        ring.push(recv(reader.as_raw_fd(), &mut bytes, 1));
        ring.submit();
        drop(writer);
        t.in_order(&ring.wait(1));
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 2)));
    }
}
case!(end_of_file => "
    cqe 1: 0
    cqe 2: 0
    cqe 1: 0 SOCK_NONEMPTY
    cqe 2: 0 SOCK_NONEMPTY
    cqe 1: 0
    cqe 2: 0
");

fn datagrams(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let mut bytes = [0; 8];
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1));
    ring.submit();
    ring.push(send(writer.as_raw_fd(), b"", 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    for text in ["a", "bc"] {
        t.entry(&ring.one(send(writer.as_raw_fd(), text.as_bytes(), 2)));
    }
    for user_data in 3..=4 {
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, user_data)));
    }
}
case!(datagrams => "
    cqe 1: 0
    cqe 2: 0
    cqe 2: 1
    cqe 2: 2
    cqe 3: 1
    cqe 4: 2
");

fn datagram_truncated(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let mut bytes = [0; 4];
    for flags in [0, libc::MSG_TRUNC] {
        files::put(&writer, b"12345678");
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 1).op_flags(flags as u32)));
    }
    t.say(text(&bytes));
}
case!(datagram_truncated => "
    cqe 1: 4
    cqe 1: 8
    1234
");

fn send_to_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, address) = files::udp();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let to = |length: u32| {
        send(socket.as_raw_fd(), b"to you", 1).with(|sqe| {
            sqe.off = &raw const address as u64;
            sqe.file_index = length;
        })
    };
    t.entry(&ring.one(to(16)));
    t.say(format_args!("{:?}", files::take(&reader, 10).map(|bytes| text(&bytes))));
    drop(writer);
}
case!(send_to_address => "
    cqe 1: 6
    Ok(\"to you\")
");

/// Requests wait even if the socket has O_NONBLOCK.
fn nonblocking_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    files::set_nonblocking(&reader, true);
    let mut bytes = [0; 8];
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
}
case!(nonblocking_file => "
    no cqe
    cqe 1: 1
");

fn do_not_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let flags = libc::MSG_DONTWAIT as u32;
    t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 1).op_flags(flags)));
    t.entry(&ring.one(options(recv(reader.as_raw_fd(), &mut bytes, 2).op_flags(flags), FIRST)));
    files::put(&writer, b"x");
    t.entry(&ring.one(options(recv(reader.as_raw_fd(), &mut bytes, 3).op_flags(flags), FIRST)));
    t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 4).op_flags(flags)));
    files::put(&writer, b"xyz");
    let all = flags | libc::MSG_WAITALL as u32;
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 5).op_flags(all).linked());
    ring.push(nop(6));
    ring.submit();
    t.sorted(&ring.wait(2));
    files::fill(&writer);
    t.entry(&ring.one(send(writer.as_raw_fd(), b"x", 7).op_flags(flags)));
}
case!(do_not_wait => "
    cqe 1: -EAGAIN
    cqe 2: -EAGAIN
    cqe 3: -EAGAIN
    cqe 4: 1
    cqe 5: 3
    cqe 6: -ECANCELED
    cqe 7: -EAGAIN
");

fn poll_first(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    files::put(&writer, b"x");
    ring.push(options(recv(reader.as_raw_fd(), &mut bytes, 1), FIRST));
    ring.submit();
    t.in_order(&ring.wait(1));
    ring.push(options(recv(reader.as_raw_fd(), &mut bytes, 2), FIRST));
    ring.push(options(send(writer.as_raw_fd(), b"x", 3), FIRST));
    ring.submit();
    t.sorted(&ring.wait(2));
    let pipe = files::pipe();
    files::put(&pipe.1, b"x");
    t.entry(&ring.one(options(recv(pipe.0.as_raw_fd(), &mut bytes, 4), FIRST)));
    let file = files::memory_file(b"content");
    t.entry(&ring.one(options(recv(file.as_raw_fd(), &mut bytes, 7), FIRST)));
    t.entry(&ring.one(options(send(file.as_raw_fd(), b"x", 8), FIRST)));
    t.entry(&ring.one(options(recv(-1, &mut bytes, 5), FIRST)));
    t.entry(&ring.one(options(send(pipe.1.as_raw_fd(), b"x", 6), FIRST)));
}
case!(poll_first => "
    cqe 1: 1
    cqe 2: 1
    cqe 3: 1
    cqe 4: -ENOTSOCK
    cqe 7: -EAGAIN
    cqe 8: -ENOTSOCK
    cqe 5: -EBADF
    cqe 6: -ENOTSOCK
");

pub const ALL: u32 = libc::MSG_WAITALL as u32;

fn short_breaks_link(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    files::put(&writer, b"abc");
    // Without MSG_WAITALL, a receive of fewer bytes than requested is a success. So the linked
    // request starts.
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    // Without MSG_WAITALL, the end of the stream is a success, too.
    drop(writer);
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 3).linked());
    ring.push(nop(4));
    ring.submit();
    t.sorted(&ring.wait(2));
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 5).op_flags(ALL).linked());
    ring.push(nop(6));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(short_breaks_link => "
    cqe 1: 3
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: -ECANCELED
");

fn peek(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut bytes = [0; 8];
        files::put(&writer, b"abc");
        for (flags, room) in [(libc::MSG_PEEK, 8), (libc::MSG_PEEK, 2), (0, 8)] {
            t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes[..room], 1).op_flags(flags as u32)));
        }
    }
}
case!(peek => "
    cqe 1: 3 SOCK_NONEMPTY
    cqe 1: 2 SOCK_NONEMPTY
    cqe 1: 3
    cqe 1: 3 SOCK_NONEMPTY
    cqe 1: 2 SOCK_NONEMPTY
    cqe 1: 3
");

/// The peer has closed its socket. A SEND gets -EPIPE and raises no SIGPIPE.
fn peer_is_gone(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        drop(reader);
        for user_data in 1..=2 {
            let entry = ring.one(send(writer.as_raw_fd(), b"x", user_data));
            // After the peer's close, TCP still sends one segment. So the first SEND may succeed,
            // and the case prints its result only if it fails.
            if user_data == 2 || entry.res < 0 {
                t.entry(&entry);
            }
            crate::time::long_enough_to_notice();
        }
    }
}
case!(peer_is_gone => "
    cqe 1: -EPIPE
    cqe 2: -EPIPE
    cqe 2: -EPIPE
");

fn reset(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let mut bytes = [0; 8];
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1).linked());
    ring.push(nop(2));
    ring.submit();
    files::reset_on_close(&writer);
    drop(writer);
    t.sorted(&ring.wait(2));
    t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 3)));
}
case!(reset => "
    cqe 1: -ECONNRESET
    cqe 2: -ECANCELED
    cqe 3: 0
", usring => "
    cqe 1: -ECONNRESET
    cqe 2: -ECANCELED
    cqe 3: 0 SOCK_NONEMPTY
", because "a reset and an ended connection look alike once the program has read the error");

fn fixed_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let numbers = [reader.as_raw_fd(), writer.as_raw_fd()];
    t.result("register", ring.register(reg::FILES, numbers.as_ptr(), 2));
    drop((reader, writer));
    let mut bytes = [0; 8];
    for _ in 0..2 {
        ring.push(recv(0, &mut bytes, 1).fixed());
        ring.submit();
        ring.push(send(1, b"fixed", 2).fixed());
        ring.submit();
        t.sorted(&ring.wait(2));
    }
    t.entry(&ring.one(recv(2, &mut bytes, 3).fixed()));
}
case!(fixed_file => "
    register = 0
    cqe 1: 5
    cqe 2: 5
    cqe 1: 5
    cqe 2: 5
    cqe 3: -EBADF
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1).forced_async());
    ring.submit();
    ring.push(send(writer.as_raw_fd(), b"x", 2).forced_async());
    ring.submit();
    t.sorted(&ring.wait(2));
    files::put(&writer, b"abc");
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 3).forced_async());
    ring.submit();
    t.sorted(&ring.wait(1));
}
case!(forced_async => "
    cqe 1: 1
    cqe 2: 1
    cqe 3: 3
");

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::sockets();
    files::fill(&writer);
    let (idle, _other) = files::sockets();
    let mut bytes = [0; 8];
    ring.push(recv(idle.as_raw_fd(), &mut bytes, 1));
    ring.push(send(writer.as_raw_fd(), b"x", 2));
    ring.push(recv(idle.as_raw_fd(), &mut bytes, 3));
    ring.submit();
    ring.push(cancel(1, 0, 10));
    ring.submit();
    t.in_order(&ring.wait(2));
    ring.push(cancel(0, u::IORING_ASYNC_CANCEL_FD, 11).with(|sqe| sqe.fd = writer.as_raw_fd()));
    ring.submit();
    t.in_order(&ring.wait(2));
    let by_opcode = u::IORING_ASYNC_CANCEL_OP | u::IORING_ASYNC_CANCEL_ALL;
    ring.push(cancel(0, by_opcode, 12).with(|sqe| sqe.len = u32::from(opcode::RECV)));
    ring.submit();
    t.in_order(&ring.wait(2));
    drop(reader);
}
case!(cancelled => "
    cqe 10: 0
    cqe 1: -ECANCELED
    cqe 11: 0
    cqe 2: -ECANCELED
    cqe 12: 1
    cqe 3: -ECANCELED
");

fn bounded(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::sockets();
    let mut bytes = [0; 8];
    let time = crate::time::milliseconds(30);
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(bounded as link_timeout => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

fn descriptor_closes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1));
    ring.submit();
    drop(reader);
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
}
case!(descriptor_closes => "cqe 1: 1");

/// Two receives wait on one socket. Each of two messages goes to one of the receives. The kernel
/// does not guarantee to which.
fn two_receive(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets_of(libc::SOCK_SEQPACKET);
    let (mut one, mut two) = ([0; 8], [0; 8]);
    ring.push(recv(reader.as_raw_fd(), &mut one, 1));
    ring.push(recv(reader.as_raw_fd(), &mut two, 1));
    ring.submit();
    for packet in ["first", "second"] {
        files::put(&writer, packet.as_bytes());
        t.in_order(&ring.wait(1));
    }
}
case!(two_receive => "
    cqe 1: 5
    cqe 1: 6
");

fn out_of_band(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let mut bytes = [0; 8];
    let band = libc::MSG_OOB as u32;
    t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 1).op_flags(band)));
    t.entry(&ring.one(send(writer.as_raw_fd(), b"!", 2).op_flags(band)));
    crate::time::long_enough_to_notice();
    t.result("urgent", ring.one(recv(reader.as_raw_fd(), &mut bytes, 3).op_flags(band)).res);
    t.say(text(&bytes));
}
case!(out_of_band => "
    cqe 1: -EINVAL
    cqe 2: 1
    urgent = 1
    !.......
");

fn shut_down_ends_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, _writer) in [files::sockets(), files::tcp()] {
        let mut bytes = [0; 8];
        ring.push(recv(reader.as_raw_fd(), &mut bytes, 1));
        ring.submit();
        files::shut_down(&reader, libc::SHUT_RD);
        t.in_order(&ring.wait(1));
    }
}
case!(shut_down_ends_wait => "
    cqe 1: 0
    cqe 1: 0
");

fn after_reset(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (one, other) = files::tcp();
    files::reset_on_close(&other);
    drop(other);
    let mut bytes = [0; 4];
    for user_data in 1..=3 {
        let entry = ring.one(recv(one.as_raw_fd(), &mut bytes, user_data));
        t.say(crate::names::result(entry.res));
    }
}
case!(after_reset => "
    -ECONNRESET
    0
    0
");
