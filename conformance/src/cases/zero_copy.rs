//! SEND_ZC and SENDMSG_ZC: a completion, and a notification that the program may reuse the memory.
//! The kernel does not promise when the notification arrives. It reports whether the data was
//! copied only if the request asks for that.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::case::{Case, case};
use crate::files;
use crate::memory::{BAD, Pages, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, message, nop, send, vector};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("zero_copy.send", sends),
    case("zero_copy.message", sends_message),
    case("zero_copy.reports_usage", reports_usage),
    case("zero_copy.registered_buffer", registered_buffer),
    case("zero_copy.registered_buffer_wrong", registered_buffer_wrong),
    case("zero_copy.vectorized", vectorized),
    case("zero_copy.to_address", to_address),
    case("zero_copy.errors_notify", errors_notify),
    case("zero_copy.refused", refused),
    case("zero_copy.unknown_options", unknown_options),
    case("zero_copy.link", link),
    case("zero_copy.refused_chain", refused_chain),
    case("zero_copy.waits", waits),
    case("zero_copy.cancelled", cancelled),
    case("zero_copy.poll_first", poll_first),
    case("zero_copy.fixed_file", fixed_file),
    case("zero_copy.forced_async", forced_async),
];

fn sending(socket: &OwnedFd, bytes: &[u8], user_data: u64) -> Sqe {
    send(socket.as_raw_fd(), bytes, user_data).with(|sqe| sqe.opcode = opcode::SEND_ZC)
}

/// Submits one request and prints its completions. The notification comes after the completion, but
/// not necessarily before everything else.
fn show(t: &mut Transcript, ring: &mut Ring, reader: &OwnedFd, sqe: Sqe) {
    ring.push(sqe);
    ring.submit();
    let mut entries = ring.wait(1);
    if entries.first().is_some_and(|entry| entry.flags & u::IORING_CQE_F_MORE != 0) && entries.len() == 1 {
        // The kernel notifies when the data has been received.
        files::set_nonblocking(reader, true);
        let _ = files::take(reader, 1 << 16);
        entries.extend(ring.wait(1));
    }
    t.in_order(&entries);
}

fn sends(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    show(t, &mut ring, &reader, sending(&writer, b"hello", 1));
    let (reader, writer, _) = files::udp();
    show(t, &mut ring, &reader, sending(&writer, b"hello", 2));
}

fn sends_message(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let mut pieces = [vector(b"one".as_ptr() as u64, 3), vector(b"two".as_ptr() as u64, 3)];
    let mut header: libc::msghdr = zeroed();
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = 2;
    show(t, &mut ring, &reader, message(opcode::SENDMSG_ZC, writer.as_raw_fd(), &header, 1));
}

/// On the loopback every send is copied.
fn reports_usage(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let bytes = vec![b'x'; 20_000];
    let request = sending(&writer, &bytes, 1).with(|sqe| sqe.ioprio = u::IORING_SEND_ZC_REPORT_USAGE as u16);
    ring.push(request);
    ring.submit();
    let mut taken = 0;
    while taken < bytes.len() {
        taken += files::take(&reader, 1 << 16).map_or(usize::MAX, |bytes| bytes.len());
    }
    for entry in ring.wait(2) {
        t.say(format_args!("{:#x} {}", entry.res, crate::names::cqe_flags(entry.flags)));
    }
}

fn fixed(sqe: Sqe, index: u16) -> Sqe {
    sqe.with(|sqe| {
        sqe.ioprio |= u::IORING_RECVSEND_FIXED_BUF as u16;
        sqe.buf_index = index;
    })
}

fn registered_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut pages = Pages::new(1);
    pages.bytes()[..8].copy_from_slice(b"register");
    let vectors = [vector(pages.at(0), 4096)];
    t.result("register", ring.register(reg::BUFFERS, vectors.as_ptr(), 1));
    let (reader, writer) = files::tcp();
    ring.push(fixed(sending(&writer, &pages.bytes()[..8], 1), 0));
    ring.submit();
    let received = files::take(&reader, 100).unwrap_or_default();
    t.in_order(&ring.wait(2));
    t.say(String::from_utf8_lossy(&received));
}

fn registered_buffer_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(2);
    let (reader, writer) = files::tcp();
    let at = |offset: usize, length: u32| {
        sending(&writer, b"", 1).with(|sqe| {
            sqe.addr = pages.at(offset);
            sqe.len = length;
        })
    };
    show(t, &mut ring, &reader, fixed(at(0, 8), 0));
    let vectors = [vector(pages.at(0), 4096)];
    ring.register(reg::BUFFERS, vectors.as_ptr(), 1);
    show(t, &mut ring, &reader, fixed(at(4090, 8), 0));
    show(t, &mut ring, &reader, fixed(at(0, 8), 1));
    show(t, &mut ring, &reader, fixed(at(0, 8), 0));
}

fn vectorized(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pieces = [vector(b"one ".as_ptr() as u64, 4), vector(b"two".as_ptr() as u64, 3)];
    let flag = u::IORING_SEND_VECTORIZED as u16;
    for opcode in [opcode::SEND, opcode::SEND_ZC] {
        let (reader, writer) = files::tcp();
        let request = sending(&writer, b"", 1).with(|sqe| {
            sqe.opcode = opcode;
            sqe.addr = pieces.as_ptr() as u64;
            sqe.len = 2;
            sqe.ioprio = flag;
        });
        ring.push(request);
        ring.submit();
        let received = files::take(&reader, 100).unwrap_or_default();
        t.in_order(&ring.wait(if opcode == opcode::SEND_ZC { 2 } else { 1 }));
        t.say(String::from_utf8_lossy(&received));
        show(t, &mut ring, &reader, request.with(|sqe| sqe.addr = BAD));
        show(t, &mut ring, &reader, request.with(|sqe| sqe.len = 1025));
    }
}

fn to_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer, address) = files::udp();
    let socket: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").into();
    let request = sending(&socket, b"to you", 1).with(|sqe| {
        sqe.off = &raw const address as u64;
        sqe.file_index = 16;
    });
    show(t, &mut ring, &reader, request);
}

/// A request that was accepted posts a notification, however it ends.
fn errors_notify(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    show(t, &mut ring, &reader, sending(&writer, b"x", 1));
    let pipe = files::pipe();
    show(t, &mut ring, &reader, sending(&pipe.1, b"x", 2));
    show(t, &mut ring, &reader, sending(&writer, b"x", 3).with(|sqe| sqe.fd = -1));
    let socket = files::socket(libc::AF_INET, libc::SOCK_STREAM);
    show(t, &mut ring, &reader, sending(&socket, b"x", 4));
    let (reader, writer) = files::tcp();
    show(t, &mut ring, &reader, sending(&writer, b"x", 5).with(|sqe| sqe.addr = BAD));
    let request = sending(&writer, b"x", 6).with(|sqe| sqe.ioprio = u::IORING_SEND_ZC_REPORT_USAGE as u16);
    show(t, &mut ring, &reader, request.with(|sqe| sqe.addr = BAD));
}

/// A refused request posts no notification.
fn refused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let good = sending(&writer, b"x", 1);
    show(t, &mut ring, &reader, good.flagged(sqe_flags::CQE_SKIP_SUCCESS));
    show(t, &mut ring, &reader, good.flagged(sqe_flags::BUFFER_SELECT));
    show(t, &mut ring, &reader, good.with(|sqe| sqe.addr3 = 1));
    show(t, &mut ring, &reader, good.with(|sqe| sqe.pad2 = 1));
    show(t, &mut ring, &reader, good.with(|sqe| sqe.off = BAD));
    show(t, &mut ring, &reader, good.with(|sqe| sqe.file_index = 1 << 16));
    show(t, &mut ring, &reader, good.with(|sqe| sqe.opcode = opcode::SENDMSG_ZC));
    show(t, &mut ring, &reader, good.with(|sqe| sqe.addr = crate::memory::KERNEL_HALF));
}

fn unknown_options(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    for bit in 4..16 {
        if 1 << bit != u::IORING_SEND_VECTORIZED {
            show(t, &mut ring, &reader, sending(&writer, b"x", bit).with(|sqe| sqe.ioprio = 1 << bit));
        }
    }
}

fn link(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    ring.push(sending(&writer, b"x", 1).linked());
    ring.push(nop(2));
    ring.submit();
    let _ = files::take(&reader, 10);
    let mut entries = ring.wait(3);
    entries.sort_by_key(|entry| (entry.user_data, entry.flags & u::IORING_CQE_F_NOTIF));
    t.in_order(&entries);
    ring.push(sending(&writer, b"x", 3).with(|sqe| sqe.addr = BAD).linked());
    ring.push(nop(4));
    ring.submit();
    let mut entries = ring.wait(3);
    entries.sort_by_key(|entry| (entry.user_data, entry.flags & u::IORING_CQE_F_NOTIF));
    t.in_order(&entries);
    // A request that is cancelled before it starts.
    ring.push(nop(5).with(|sqe| sqe.opcode = 200).linked());
    ring.push(sending(&writer, b"x", 6));
    ring.submit();
    t.sorted(&ring.wait(3));
    let mut byte = [0];
    ring.push(crate::sqe::recv(-1, &mut byte, 7).linked());
    ring.push(sending(&writer, b"x", 8));
    ring.submit();
    t.sorted(&ring.wait(3));
}

fn waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    files::fill(&writer);
    let all = libc::MSG_WAITALL as u32;
    ring.push(sending(&writer, &[b'x'; 100_000], 1).op_flags(all));
    ring.submit();
    t.in_order(&ring.reap());
    files::set_nonblocking(&reader, true);
    let mut entries = Vec::new();
    crate::time::until(|| {
        while files::take(&reader, 1 << 20).is_ok() {}
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        entries.extend(ring.reap());
        entries.len() == 2
    });
    t.in_order(&entries);
}

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::tcp();
    files::fill(&writer);
    ring.push(sending(&writer, b"x", 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(3));
}

fn poll_first(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let request = sending(&writer, b"x", 1).with(|sqe| sqe.ioprio = u::IORING_RECVSEND_POLL_FIRST as u16);
    show(t, &mut ring, &reader, request);
}

fn fixed_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    let numbers = [writer.as_raw_fd()];
    ring.register(reg::FILES, numbers.as_ptr(), 1);
    show(t, &mut ring, &reader, sending(&writer, b"x", 1).with(|sqe| sqe.fd = 0).fixed());
    show(t, &mut ring, &reader, sending(&writer, b"x", 2).with(|sqe| sqe.fd = 1).fixed());
}

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::tcp();
    show(t, &mut ring, &reader, sending(&writer, b"x", 1).forced_async());
}

/// A chain that is refused because of another member.
fn refused_chain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::tcp();
    ring.push(sending(&writer, b"x", 1).linked());
    ring.push(sending(&writer, b"x", 2).linked());
    ring.push(crate::sqe::sqe(u8::MAX, -1, 3));
    ring.submit();
    t.sorted(&ring.wait(5));
}
