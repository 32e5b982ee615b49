//! SEND and RECV: one buffer to or from a socket.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode};

use super::reg;
use crate::case::{Case, case, differs};
use crate::files;
use crate::memory::{BAD, KERNEL_HALF};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, link_timeout, nop, recv, send, sqe};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("send_receive.poll_first_on_no_socket", poll_first_on_no_socket),
    case("send_receive.data_is_there", data_is_there),
    case("send_receive.receive_waits", receive_waits),
    case("send_receive.send_waits", send_waits),
    case("send_receive.kinds_of_socket", kinds_of_socket),
    case("send_receive.more_is_there", more_is_there),
    case("send_receive.end_of_file", end_of_file),
    case("send_receive.datagrams", datagrams),
    case("send_receive.datagram_truncated", datagram_truncated),
    case("send_receive.send_to_address", send_to_address),
    case("send_receive.bad_addresses", bad_addresses),
    case("send_receive.nonblocking_file", nonblocking_file),
    case("send_receive.do_not_wait", do_not_wait),
    case("send_receive.poll_first", poll_first),
    case("send_receive.short_breaks_link", short_breaks_link),
    case("send_receive.peek", peek),
    case("send_receive.peer_is_gone", peer_is_gone),
    differs(
        "send_receive.reset",
        reset,
        "a reset and an ended connection look alike once the program has read the error",
    ),
    case("send_receive.not_connected", not_connected),
    case("send_receive.not_a_socket", not_a_socket),
    case("send_receive.bad_memory", bad_memory),
    case("send_receive.bad_lengths", bad_lengths),
    case("send_receive.unknown_options", unknown_options),
    case("send_receive.reserved_fields", reserved_fields),
    case("send_receive.fixed_file", fixed_file),
    case("send_receive.forced_async", forced_async),
    case("send_receive.cancelled", cancelled),
    case("send_receive.link_timeout", bounded),
    case("send_receive.descriptor_closes", descriptor_closes),
    case("send_receive.two_receive", two_receive),
    case("send_receive.out_of_band", out_of_band),
    case("send_receive.shut_down_ends_wait", shut_down_ends_wait),
    case("send_receive.after_reset", after_reset),
];

/// A name, and a function that changes one field of a valid request.
type Changed = (&'static str, fn(&mut Sqe));

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

/// SOCK_NONEMPTY means that a stream holds more than was received.
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

/// O_NONBLOCK on the file does not affect requests.
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

pub const ALL: u32 = libc::MSG_WAITALL as u32;

fn short_breaks_link(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    files::put(&writer, b"abc");
    // Without MSG_WAITALL any number of bytes is a success.
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    // The end of the file is a success, too.
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

/// The failed send raises no signal.
fn peer_is_gone(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        drop(reader);
        for user_data in 1..=2 {
            let entry = ring.one(send(writer.as_raw_fd(), b"x", user_data));
            // The first segment after the end is still sent.
            if user_data == 2 || entry.res < 0 {
                t.entry(&entry);
            }
            crate::time::long_enough_to_notice();
        }
    }
}

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
            // A bundle without a group is treated like a multishot.
            t.in_order(&ring.wait(if bit == 4 { 2 } else { 1 }));
        }
    }
}

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let changes: [Changed; 6] = [
        ("off", |sqe| sqe.off = 8),
        ("file_index", |sqe| sqe.file_index = 1),
        ("upper file_index", |sqe| sqe.file_index = 1 << 16),
        ("addr3", |sqe| sqe.addr3 = 1),
        ("pad", |sqe| sqe.pad2 = 1),
        ("buf_index", |sqe| sqe.buf_index = 1),
    ];
    for (name, change) in changes {
        files::put(&writer, b"x");
        t.say(format_args!("{name}: recv {}", ring.one(recv(reader.as_raw_fd(), &mut bytes, 1).with(change))));
        t.say(format_args!("{name}: send {}", ring.one(send(writer.as_raw_fd(), b"y", 2).with(change))));
    }
}

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

/// Each receive gets one message; the kernel does not promise which.
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

/// All opcodes but RECV first check that the file is a socket.
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
            t.in_order(&ring.arrived(0));
        }
    }
}
