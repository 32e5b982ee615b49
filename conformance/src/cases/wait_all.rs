//! MSG_WAITALL: a send or receive that goes on until it has transferred all bytes.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;
use usring_uapi::sqe_flags;

use super::receive_short::pass;
use super::send_receive::{ALL, text};
use crate::buffers::incremental_group_of;
use crate::files;
use crate::memory::Pages;
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel, nop, recv, send};
use crate::transcript::Transcript;

fn receive(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut bytes = [0; 10];
        files::put(&writer, b"abc");
        ring.push(recv(reader.as_raw_fd(), &mut bytes, 1).op_flags(ALL));
        ring.submit();
        files::put(&writer, b"def");
        crate::time::long_enough_to_notice();
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.in_order(&ring.reap());
        files::put(&writer, b"ghijkl");
        t.in_order(&ring.wait(1));
        t.say(text(&bytes));
    }
}
case!(receive => "
    no cqe
    cqe 1: 10 SOCK_NONEMPTY
    abcdefghij
    no cqe
    cqe 1: 10 SOCK_NONEMPTY
    abcdefghij
");

fn ends_short(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let mut bytes = [0; 10];
        files::put(&writer, b"abc");
        ring.push(recv(reader.as_raw_fd(), &mut bytes, 1).op_flags(ALL).linked());
        ring.push(nop(2));
        ring.submit();
        drop(writer);
        t.sorted(&ring.wait(2));
    }
}
case!(ends_short => "
    cqe 1: 3
    cqe 2: -ECANCELED
    cqe 1: 3 SOCK_NONEMPTY
    cqe 2: -ECANCELED
");

/// A receive is cancelled after some bytes have arrived. Its result is the number of these bytes.
fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut bytes = [0; 10];
    files::put(&writer, b"abc");
    ring.push(recv(reader.as_raw_fd(), &mut bytes, 1).op_flags(ALL).linked());
    ring.push(nop(2));
    ring.submit();
    crate::time::long_enough_to_notice();
    ring.push(cancel(1, 0, 3));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(cancelled => "
    cqe 1: 3
    cqe 2: -ECANCELED
    cqe 3: 0
");

fn sends(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let bytes = vec![b'x'; 1 << 20];
    ring.push(send(writer.as_raw_fd(), &bytes, 1).op_flags(ALL));
    ring.submit();
    let mut taken = 0;
    while taken < 1 << 20 {
        taken += files::take(&reader, 1 << 16).map_or(0, |bytes| bytes.len());
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    }
    t.in_order(&ring.wait(1));
    // Without MSG_WAITALL a short send is a success.
    ring.push(send(writer.as_raw_fd(), &bytes, 2).linked());
    ring.push(nop(3));
    ring.submit();
    let entries = ring.wait(2);
    t.say(format_args!("short: {}", entries[0].res > 0 && entries[0].res < 1 << 20));
    t.in_order(&entries[1..]);
}
case!(sends as send => "
    cqe 1: 1048576
    short: true
    cqe 3: 0
");

fn datagram(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let mut bytes = [0; 8];
    for (sent, room) in [(3, 8), (8, 8), (8, 4)] {
        files::put(&writer, &b"12345678"[..sent]);
        ring.push(recv(reader.as_raw_fd(), &mut bytes[..room], 1).op_flags(ALL).linked());
        ring.push(nop(2));
        ring.submit();
        t.sorted(&ring.wait(2));
    }
}
case!(datagram => "
    cqe 1: 3
    cqe 2: -ECANCELED
    cqe 1: 8
    cqe 2: 0
    cqe 1: 4
    cqe 2: -ECANCELED
");

/// The program shuts down the socket on which its receive waits. This ends the receive, even on a
/// datagram socket, where a non-blocking recv(2) would still return EAGAIN.
fn shut_datagrams(t: &mut Transcript) {
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_DGRAM] {
        let mut ring = Ring::new(4);
        let (reader, _writer) = files::sockets_of(kind);
        let mut bytes = [0; 4];
        ring.push(recv(reader.as_raw_fd(), &mut bytes, 1));
        ring.submit();
        files::shut_down(&reader, libc::SHUT_RD);
        t.in_order(&ring.wait(1));
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 2)));
    }
}
case!(shut_datagrams => "
    cqe 1: 0
    cqe 2: 0
    cqe 1: 0
    cqe 2: 0
    cqe 1: 0
    cqe 2: 0
");

/// A receive fills an incremental buffer and waits for more bytes. On the kernel, a second receive
/// selects this buffer, too. Both then write to the bytes that are not yet filled.
fn incremental_buffer_is_taken(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(4);
    let mut group = incremental_group_of(&ring, &memory, 4, 1);
    group.add_slots(0..3);
    let pairs = [files::sockets(), files::sockets()];
    let from = |place: usize| {
        let socket = pairs[place].0.as_raw_fd();
        recv(socket, &mut [], place as u64).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = 1)
    };
    files::put(&pairs[0].1, b"abcd");
    ring.push(from(0).op_flags(ALL));
    ring.submit();
    files::put(&pairs[1].1, b"0123456789");
    t.entry(&ring.one(from(1)));
    files::put(&pairs[0].1, b"efghijklmnop");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} {}", group.text(0), group.text(1)));
}
case!(incremental_buffer_is_taken => "
    cqe 1: 10 BUF_MORE|BUFFER(0)
    cqe 0: 16 BUFFER(0)
    abcdefghijklmnop ................
", usring => "
    cqe 1: 10 BUF_MORE|BUFFER(1)
    cqe 0: 16 BUFFER(0)
    abcdefghijklmnop 0123456789......
", because "6.18 gives what a waiting receive still has to fill to another, and both write there");

/// A message passes a descriptor, which ends one recv(2). A receive with MSG_WAITALL must then
/// continue with the remaining data. All data has arrived in one readiness event, so no further
/// event comes.
fn continues_after_a_passed_descriptor(t: &mut Transcript) {
    for end in [false, true] {
        let mut ring = Ring::flags(4, ring::DEFER);
        let (reader, writer) = files::sockets();
        ring.register(super::reg::FILES, &[reader.as_raw_fd()], 1);
        let mut bytes = [0; 9];
        ring.push(recv(0, &mut bytes, 1).op_flags(ALL).flagged(sqe_flags::FIXED_FILE).linked());
        ring.push(nop(2));
        ring.submit();
        for text in ["one", "two"] {
            pass(&writer, text);
        }
        files::put(&writer, if end { b"en" } else { b"six" });
        if end {
            drop(writer);
        }
        t.in_order(&ring.wait(2));
        t.say(text(&bytes));
    }
}
case!(continues_after_a_passed_descriptor => "
    cqe 1: 9
    cqe 2: 0
    onetwosix
    cqe 1: 8
    cqe 2: -ECANCELED
    onetwoen.
");

fn packets(t: &mut Transcript) {
    let mut ring = Ring::flags(4, ring::DEFER);
    let (reader, writer) = files::sockets_of(libc::SOCK_SEQPACKET);
    ring.register(super::reg::FILES, &[reader.as_raw_fd()], 1);
    let mut bytes = [0; 6];
    ring.push(recv(0, &mut bytes, 1).op_flags(ALL).flagged(sqe_flags::FIXED_FILE));
    ring.submit();
    for text in ["one", "two"] {
        files::put(&writer, text.as_bytes());
    }
    t.in_order(&ring.wait(1));
    t.say(text(&bytes));
}
case!(packets => "
    cqe 1: 6
    onetwo
");

/// A RECV is cancelled after some bytes have arrived. Its result is the number of these bytes.
fn receive_is_cancelled(t: &mut Transcript) {
    for forced in [false, true] {
        let mut ring = Ring::new(8);
        let (socket, peer) = files::sockets();
        let mut memory = [0u8; 100];
        let receive = recv(socket.as_raw_fd(), &mut memory, 1).op_flags(ALL);
        ring.push(if forced { receive.forced_async() } else { receive });
        ring.submit();
        files::put(&peer, b"0123456789");
        crate::time::long_enough_to_notice();
        ring.push(cancel(0, u::IORING_ASYNC_CANCEL_ANY | u::IORING_ASYNC_CANCEL_ALL, 2));
        ring.submit();
        t.sorted(&ring.wait(2));
    }
}
case!(receive_is_cancelled => "
    cqe 1: 10
    cqe 2: 1
    cqe 1: 10
    cqe 2: 1
");
