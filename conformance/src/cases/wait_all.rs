//! MSG_WAITALL: a transfer that goes on until it is whole.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;

use super::send_receive::{ALL, text};
use crate::case::{Case, case};
use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, nop, recv, send};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("wait_all.receive", receive),
    case("wait_all.ends_short", ends_short),
    case("wait_all.cancelled", cancelled),
    case("wait_all.send", sends),
    case("wait_all.datagram", datagram),
];

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

/// What has been received is not lost.
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
    // Without the flag a short send is a success.
    ring.push(send(writer.as_raw_fd(), &bytes, 2).linked());
    ring.push(nop(3));
    ring.submit();
    let entries = ring.wait(2);
    t.say(format_args!("short: {}", entries[0].res > 0 && entries[0].res < 1 << 20));
    t.in_order(&entries[1..]);
}

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
