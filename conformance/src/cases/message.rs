//! SENDMSG and RECVMSG: vectors, addresses, control messages.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, opcode, sqe_flags};

use crate::buffers::group_of;
use crate::case::{Case, case};
use crate::files;
use crate::memory::{BAD, KERNEL_HALF, Pages, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, message, nop, vector};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("message.vectors", vectors),
    case("message.receive_waits", receive_waits),
    case("message.header_may_be_reused", header_may_be_reused),
    case("message.sender_is_told", sender_is_told),
    case("message.send_to_address", send_to_address),
    case("message.name_lengths", name_lengths),
    case("message.truncated", truncated),
    case("message.passes_descriptors", passes_descriptors),
    case("message.control_is_cut", control_is_cut),
    case("message.wait_all", wait_all),
    case("message.wait_all_send", wait_all_send),
    case("message.wait_all_with_control", wait_all_with_control),
    case("message.bad_memory", bad_memory),
    case("message.bad_vectors", bad_vectors),
    case("message.empty_vector", empty_vector),
    case("message.selected_buffer", selected_buffer),
    case("message.selected_buffer_wrong", selected_buffer_wrong),
    case("message.unknown_options", unknown_options),
    case("message.reserved_fields", reserved_fields),
    case("message.peer_is_gone", peer_is_gone),
    case("message.not_a_socket", not_a_socket),
    case("message.cancelled", cancelled),
    case("message.error_queue", error_queue),
    case("message.end_of_file", end_of_file),
    case("message.compatible_control", compatible_control),
];

/// A name, and a function that changes one field of a valid request.
type Changed = (&'static str, fn(&mut Sqe));

const ALL: u32 = libc::MSG_WAITALL as u32;

fn header(vectors: &mut [libc::iovec]) -> libc::msghdr {
    let mut header: libc::msghdr = zeroed();
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    header
}

fn over(bytes: &mut [u8]) -> libc::iovec {
    vector(bytes.as_mut_ptr() as u64, bytes.len())
}

fn from(bytes: &[u8]) -> libc::iovec {
    vector(bytes.as_ptr() as u64, bytes.len())
}

fn receiving(socket: &OwnedFd, header: &libc::msghdr, user_data: u64) -> Sqe {
    message(opcode::RECVMSG, socket.as_raw_fd(), header, user_data)
}

fn sending(socket: &OwnedFd, header: &libc::msghdr, user_data: u64) -> Sqe {
    message(opcode::SENDMSG, socket.as_raw_fd(), header, user_data)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', ".")
}

fn told(t: &mut Transcript, header: &libc::msghdr) {
    let libc::msghdr { msg_namelen, msg_controllen, msg_flags, .. } = *header;
    t.say(format_args!("name {msg_namelen} control {msg_controllen} flags {msg_flags:#x}"));
}

fn vectors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut out = [from(b"one "), from(b""), from(b"two "), from(b"three")];
        let (mut one, mut two) = ([0; 6], [0; 10]);
        let mut into = [over(&mut one), over(&mut two)];
        let (sent, received) = (header(&mut out), header(&mut into));
        t.entry(&ring.one(sending(&writer, &sent, 1)));
        t.entry(&ring.one(receiving(&reader, &received, 2)));
        told(t, &received);
        t.say(format_args!("{} {}", text(&one), text(&two)));
    }
}

fn receive_waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let received = header(&mut into);
    ring.push(receiving(&reader, &received, 1));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
    t.say(text(&bytes));
}

/// The request does not need the header after submission, except for the fields that the kernel
/// writes.
fn header_may_be_reused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let mut received = header(&mut into);
    ring.push(receiving(&reader, &received, 1));
    ring.submit();
    received.msg_iovlen = 99;
    received.msg_iov = BAD as *mut libc::iovec;
    into[0] = vector(BAD, 1000);
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
    t.say(text(&bytes));
    std::hint::black_box((&into, &received));
}

fn sender_is_told(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    for room in [16u32, 4, 128, 300] {
        let mut name: libc::sockaddr_storage = zeroed();
        let mut bytes = [0; 8];
        let mut into = [over(&mut bytes)];
        let mut received = header(&mut into);
        received.msg_name = (&raw mut name).cast();
        received.msg_namelen = room;
        files::put(&writer, b"x");
        t.entry(&ring.one(receiving(&reader, &received, 1)));
        told(t, &received);
        t.say(format_args!("family {}", name.ss_family));
    }
}

fn send_to_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer, mut address) = files::udp();
    let socket: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").into();
    let mut out = [from(b"to you")];
    let mut sent = header(&mut out);
    sent.msg_name = (&raw mut address).cast();
    for length in [16, 2, 0, 200, u32::MAX] {
        sent.msg_namelen = length;
        t.entry(&ring.one(sending(&socket, &sent, 1)));
    }
    t.say(text(&files::take(&reader, 10).unwrap_or_default()));
}

fn name_lengths(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    for (at, length) in [(BAD, 16), (0, u32::MAX), (0, 16), (BAD, u32::MAX), (BAD, 0)] {
        files::put(&writer, b"x");
        let mut received = header(&mut into);
        received.msg_name = at as *mut libc::c_void;
        received.msg_namelen = length;
        t.entry(&ring.one(receiving(&reader, &received, 1)));
        t.say(format_args!("name {}", received.msg_namelen));
    }
}

fn truncated(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let mut bytes = [0; 4];
    let mut into = [over(&mut bytes)];
    for flags in [0, libc::MSG_TRUNC as u32, ALL] {
        files::put(&writer, b"12345678");
        let received = header(&mut into);
        ring.push(receiving(&reader, &received, 1).op_flags(flags).linked());
        ring.push(nop(2));
        ring.submit();
        t.sorted(&ring.wait(2));
        told(t, &received);
    }
}

/// Writes a control message that passes a descriptor.
fn rights(number: i32, room: &mut [u64; 3]) {
    room[0] = 20;
    room[1] = u64::from(libc::SOL_SOCKET as u32) | (libc::SCM_RIGHTS as u64) << 32;
    room[2] = u64::from(number as u32);
}

fn passes_descriptors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let file = files::memory_file(b"passed");
    let mut room = [0u64; 3];
    rights(file.as_raw_fd(), &mut room);
    let mut out = [from(b"x")];
    let mut sent = header(&mut out);
    sent.msg_control = room.as_mut_ptr().cast();
    sent.msg_controllen = 24;
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let mut received = header(&mut into);
    let mut taken = [0u64; 4];
    received.msg_control = taken.as_mut_ptr().cast();
    received.msg_controllen = 32;
    ring.push(receiving(&reader, &received, 1).op_flags(libc::MSG_CMSG_CLOEXEC as u32));
    ring.submit();
    ring.push(sending(&writer, &sent, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    told(t, &received);
    // SAFETY: the descriptor is new, and nothing else owns it.
    let passed = unsafe { OwnedFd::from_raw_fd(taken[2] as i32) };
    t.say(files::text(&passed));
    // SAFETY: the call touches no memory.
    t.say(format_args!("close on exec {}", unsafe { libc::fcntl(passed.as_raw_fd(), libc::F_GETFD) }));
    // Descriptors that do not exist, and malformed control messages.
    rights(-1, &mut room);
    t.entry(&ring.one(sending(&writer, &sent, 3)));
    sent.msg_control = BAD as *mut libc::c_void;
    t.entry(&ring.one(sending(&writer, &sent, 4)));
}

fn control_is_cut(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let file = files::memory_file(b"passed");
    let mut room = [0u64; 3];
    rights(file.as_raw_fd(), &mut room);
    let mut out = [from(b"x")];
    let mut sent = header(&mut out);
    sent.msg_control = room.as_mut_ptr().cast();
    sent.msg_controllen = 24;
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    for flags in [0, ALL] {
        t.entry(&ring.one(sending(&writer, &sent, 1)));
        let received = header(&mut into);
        ring.push(receiving(&reader, &received, 2).op_flags(flags).linked());
        ring.push(nop(3));
        ring.submit();
        if flags != 0 {
            files::put(&writer, b"1234567");
        }
        t.sorted(&ring.wait(2));
        told(t, &received);
    }
}

fn wait_all(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let (mut one, mut two) = ([0; 4], [0; 6]);
        let mut into = [over(&mut one), over(&mut two)];
        let received = header(&mut into);
        ring.push(receiving(&reader, &received, 1).op_flags(ALL));
        ring.submit();
        for part in ["abc", "de", "fghijk"] {
            t.in_order(&ring.reap());
            files::put(&writer, part.as_bytes());
            crate::time::long_enough_to_notice();
            ring.enter(0, 0, usring_uapi::io_uring::IORING_ENTER_GETEVENTS);
        }
        t.in_order(&ring.wait(1));
        t.say(format_args!("{} {}", text(&one), text(&two)));
    }
}

fn wait_all_send(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let bytes = vec![b'x'; 1 << 20];
    let mut out = [from(&bytes[..1000]), from(&bytes[1000..])];
    let sent = header(&mut out);
    ring.push(sending(&writer, &sent, 1).op_flags(ALL));
    ring.submit();
    let mut taken = 0;
    while taken < 1 << 20 {
        taken += files::take(&reader, 1 << 16).map_or(0, |bytes| bytes.len());
        ring.enter(0, 0, usring_uapi::io_uring::IORING_ENTER_GETEVENTS);
    }
    t.in_order(&ring.wait(1));
}

/// With room for control messages MSG_WAITALL does not continue: the receive ends with the bytes
/// that are there.
fn wait_all_with_control(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 10];
    let mut into = [over(&mut bytes)];
    let mut received = header(&mut into);
    let mut room = [0u64; 4];
    received.msg_control = room.as_mut_ptr().cast();
    received.msg_controllen = 32;
    files::put(&writer, b"abc");
    ring.push(receiving(&reader, &received, 1).op_flags(ALL).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    told(t, &received);
}

fn bad_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    for address in [0, BAD, KERNEL_HALF] {
        files::put(&writer, b"x");
        let header = address as *const libc::msghdr;
        t.entry(&ring.one(message(opcode::RECVMSG, reader.as_raw_fd(), header, 1)));
        t.entry(&ring.one(message(opcode::SENDMSG, writer.as_raw_fd(), header, 2)));
    }
    for address in [0, BAD, KERNEL_HALF] {
        let mut pieces = [vector(address, 4)];
        let mut header = header(&mut pieces);
        t.entry(&ring.one(receiving(&reader, &header, 3)));
        t.entry(&ring.one(sending(&writer, &header, 4)));
        header.msg_iov = address as *mut libc::iovec;
        t.entry(&ring.one(receiving(&reader, &header, 5)));
        t.entry(&ring.one(sending(&writer, &header, 6)));
    }
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}

fn bad_vectors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    // Far from the end of the address space, so that only the lengths are bad.
    let memory = Pages::new(1);
    let at = |length| vector(memory.at(0), length);
    let mut pieces: Vec<libc::iovec> = (0..1026).map(|_| at(1)).collect();
    for count in [1024, 1025, usize::MAX] {
        let mut header = header(&mut pieces);
        header.msg_iovlen = count;
        files::put(&writer, b"x");
        t.entry(&ring.one(receiving(&reader, &header, 1)));
        t.entry(&ring.one(sending(&writer, &header, 2)));
    }
    let _ = files::take(&reader, 10_000);
    for lengths in [&[usize::MAX][..], &[1, usize::MAX], &[1 << 62, 1 << 62], &[1 << 47]] {
        files::put(&writer, b"x");
        let mut pieces: Vec<libc::iovec> = lengths.iter().map(|length| at(*length)).collect();
        let header = header(&mut pieces);
        t.entry(&ring.one(receiving(&reader, &header, 3)));
        let sent = ring.one(sending(&writer, &header, 4));
        t.say(if sent.res > 0 { "sent".into() } else { crate::names::result(sent.res) });
    }
}

fn empty_vector(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let nothing = header(&mut []);
    t.entry(&ring.one(sending(&writer, &nothing, 1)));
    files::put(&writer, b"x");
    t.result("receive", ring.one(receiving(&reader, &nothing, 2)).res);
    let (reader, writer, _) = files::udp();
    t.entry(&ring.one(sending(&writer, &nothing, 3)));
    t.entry(&ring.one(receiving(&reader, &nothing, 4)));
    files::put(&writer, b"x");
    t.entry(&ring.one(receiving(&reader, &nothing, 5)));
    told(t, &nothing);
}

fn selected_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, 3);
    group.add_slots(0..4);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"0123456789abcdefghijklmnopqrstuvwxyz");
    for length in [None, Some(4), Some(0), Some(100)] {
        let mut pieces = [vector(BAD, length.unwrap_or(0))];
        let header = header(if length.is_some() { &mut pieces[..] } else { &mut [] });
        let request = receiving(&reader, &header, 1).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = 3);
        if length == Some(100) {
            files::put(&writer, b"x");
        }
        t.entry(&ring.one(request));
        told(t, &header);
    }
    t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
    let header = header(&mut []);
    let request = receiving(&reader, &header, 5).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = 3);
    t.entry(&ring.one(request));
}

fn selected_buffer_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, 3);
    group.add_slots(0..4);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"x");
    let select = |header: &libc::msghdr| {
        receiving(&reader, header, 1).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = 3)
    };
    let mut pieces = [vector(BAD, 1), vector(BAD, 1)];
    let two = header(&mut pieces);
    t.entry(&ring.one(select(&two)));
    let mut bad = header(&mut pieces[..1]);
    bad.msg_iov = BAD as *mut libc::iovec;
    t.entry(&ring.one(select(&bad)));
    t.entry(&ring.one(select(&two).with(|sqe| sqe.opcode = opcode::SENDMSG)));
    t.entry(&ring.one(select(&header(&mut [])).with(|sqe| sqe.buf_index = 9)));
}

fn unknown_options(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    for bit in 1..16 {
        files::put(&writer, b"x");
        let mut into = [over(&mut bytes)];
        let received = header(&mut into);
        let entry = ring.one(receiving(&reader, &received, bit).with(|sqe| sqe.ioprio = 1 << bit));
        t.say(format_args!("recvmsg {entry}"));
        let mut out = [from(b"y")];
        let sent = header(&mut out);
        let entry = ring.one(sending(&writer, &sent, bit).with(|sqe| sqe.ioprio = 1 << bit));
        t.say(format_args!("sendmsg {entry}"));
    }
}

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let changes: [Changed; 7] = [
        ("off", |sqe| sqe.off = 8),
        ("len", |sqe| sqe.len = 77),
        ("negative len", |sqe| sqe.len = u32::MAX),
        ("file_index", |sqe| sqe.file_index = 1),
        ("addr3", |sqe| sqe.addr3 = 1),
        ("pad", |sqe| sqe.pad2 = 1),
        ("buf_index", |sqe| sqe.buf_index = 1),
    ];
    for (name, change) in changes {
        files::put(&writer, b"x");
        let mut into = [over(&mut bytes)];
        let received = header(&mut into);
        t.say(format_args!("{name}: recvmsg {}", ring.one(receiving(&reader, &received, 1).with(change))));
        let mut out = [from(b"y")];
        let sent = header(&mut out);
        t.say(format_args!("{name}: sendmsg {}", ring.one(sending(&writer, &sent, 2).with(change))));
    }
}

fn peer_is_gone(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    drop(reader);
    let mut out = [from(b"y")];
    let sent = header(&mut out);
    t.entry(&ring.one(sending(&writer, &sent, 1)));
}

fn not_a_socket(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let header = header(&mut into);
    t.entry(&ring.one(receiving(&reader, &header, 1)));
    t.entry(&ring.one(sending(&writer, &header, 2)));
    t.entry(&ring.one(message(opcode::RECVMSG, -1, &header, 3)));
}

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let received = header(&mut into);
    ring.push(receiving(&reader, &received, 1).op_flags(ALL));
    ring.submit();
    files::put(&writer, b"abc");
    crate::time::long_enough_to_notice();
    ring.enter(0, 0, usring_uapi::io_uring::IORING_ENTER_GETEVENTS);
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}

/// A request that waits for errors is not woken for data.
fn error_queue(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let on = 1i32;
    let at = (&raw const on).cast();
    // SAFETY: `on` is read.
    unsafe { libc::setsockopt(writer.as_raw_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, at, 4) };
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let mut received = header(&mut into);
    let mut room = [0u64; 16];
    received.msg_control = room.as_mut_ptr().cast();
    received.msg_controllen = 128;
    ring.push(receiving(&writer, &received, 1).op_flags(libc::MSG_ERRQUEUE as u32));
    ring.submit();
    t.in_order(&ring.reap());
    drop(reader);
    files::put(&writer, b"lost");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} flags {:#x}", text(&bytes), received.msg_flags));
}

fn end_of_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut bytes = [0; 8];
        let mut into = [over(&mut bytes)];
        let received = header(&mut into);
        ring.push(receiving(&reader, &received, 1));
        ring.submit();
        drop(writer);
        t.in_order(&ring.wait(1));
        told(t, &received);
    }
}

/// MSG_CMSG_COMPAT is reserved for the kernel.
fn compatible_control(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut out = [from(b"x")];
    let sent = header(&mut out);
    let compatible = 1 << 31;
    t.entry(&ring.one(sending(&writer, &sent, 1).op_flags(compatible)));
    files::put(&writer, b"x");
    let mut bytes = [0; 8];
    let mut into = [over(&mut bytes)];
    let received = header(&mut into);
    t.entry(&ring.one(receiving(&reader, &received, 2).op_flags(compatible)));
    t.say(text(&bytes));
    t.entry(&ring.one(crate::sqe::send(writer.as_raw_fd(), b"y", 3).op_flags(compatible)));
    t.entry(&ring.one(crate::sqe::recv(reader.as_raw_fd(), &mut bytes, 4).op_flags(compatible)));
}
