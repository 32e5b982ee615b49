//! Send requests with IORING_RECVSEND_BUNDLE: one request sends the content of several provided
//! buffers.

use std::os::fd::AsRawFd;

use super::{BUNDLE, GROUP, head, provide, ring_of, sending};
use crate::buffers::{group_of, incremental_group_of};
use crate::files;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::sqe::{self, Change};
use crate::transcript::Transcript;

fn send(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 0);
    group.buffers.bytes()[..48].copy_from_slice(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL");
    group.add_slots(0..3);
    let (reader, writer) = files::sockets();
    t.entry(&ring.one(sending(&writer, 0, 1)));
    head(t, &ring);
    t.say(String::from_utf8_lossy(&files::take(&reader, 100).unwrap_or_default()));
}
case!(send => "
    cqe 1: 48 BUFFER(0)
    head 3
    0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL
");

fn send_length(t: &mut Transcript) {
    for length in [4, 16, 20, 32] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 3);
        let (reader, writer) = files::sockets();
        ring.push(sending(&writer, length, 1));
        ring.submit();
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
        head(t, &ring);
        t.say(format_args!("{} bytes", files::take(&reader, 100).map_or(0, |bytes| bytes.len())));
    }
}
case!(send_length => "
    cqe 1: 4 MORE|BUFFER(0)
    cqe 1: 32 BUFFER(1)
    head 3
    36 bytes
    cqe 1: 16 MORE|BUFFER(0)
    cqe 1: 32 BUFFER(1)
    head 3
    48 bytes
    cqe 1: 16 MORE|BUFFER(0)
    cqe 1: 32 BUFFER(1)
    head 3
    48 bytes
    cqe 1: 32 MORE|BUFFER(0)
    cqe 1: 16 BUFFER(2)
    head 3
    48 bytes
");

fn send_waits(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 3);
    let (reader, writer) = files::sockets();
    files::fill(&writer);
    ring.push(sending(&writer, 0, 1));
    ring.submit();
    head(t, &ring);
    while files::take(&reader, 1 << 16).is_ok_and(|bytes| bytes.len() == 1 << 16) {}
    t.in_order(&ring.wait(1));
}
case!(send_waits => "
    head 3
    cqe 1: 48 BUFFER(0)
");

/// A bundle can have more buffers than one sendmsg(2) accepts. The kernel then sends the bundle in
/// several parts, each with a CQE.
fn send_many(t: &mut Transcript) {
    let memory = Pages::new(2);
    let mut ring = Ring::new(4);
    let mut group = group_of(&ring, &memory, 512, GROUP);
    for slot in 0..300 {
        let address = group.buffers.at(0);
        group.add_at(address, 4, slot);
    }
    let (reader, writer) = files::sockets();
    ring.push(sending(&writer, 0, 1));
    ring.submit();
    t.in_order(&ring.wait(2));
    head(t, &ring);
    t.say(format_args!("{} bytes", files::take(&reader, 10_000).map_or(0, |bytes| bytes.len())));
}
case!(send_many => "
    cqe 1: 1024 MORE|BUFFER(0)
    cqe 1: 176 BUFFER(256)
    head 300
    1200 bytes
");

fn send_fails(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 3);
    let (reader, writer) = files::sockets();
    drop(reader);
    t.entry(&ring.one(sending(&writer, 0, 1)));
    head(t, &ring);
}
case!(send_fails => "
    cqe 1: -EPIPE BUFFER(0)
    head 3
");

fn send_datagrams(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 3);
    let (reader, writer, _) = files::udp();
    t.entry(&ring.one(sending(&writer, 0, 1)));
    t.say(format_args!("{} bytes", files::take(&reader, 100).map_or(0, |bytes| bytes.len())));
}
case!(send_datagrams => "
    cqe 1: 48 BUFFER(0)
    48 bytes
");

fn send_incremental(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(4);
    let mut group = incremental_group_of(&ring, &memory, 8, GROUP);
    group.add_slots(0..2);
    let (_reader, writer) = files::sockets();
    ring.push(sending(&writer, 20, 1));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.say(format_args!("{}, {}", group.state(0), group.state(1)));
}
case!(send_incremental => "
    cqe 1: 20 MORE|BUF_MORE|BUFFER(0)
    cqe 1: 12 BUFFER(1)
    at 0 left 0, at 4 left 0
");

fn send_first_generation(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(4);
    ring.one(provide(&buffers, 2));
    let (_reader, writer) = files::sockets();
    ring.push(sending(&writer, 0, 2));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(send_first_generation => "
    cqe 2: 16 MORE|BUFFER(0)
    cqe 2: 16 BUFFER(1)
");

fn send_first_generation_length(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(4);
    ring.one(provide(&buffers, 1));
    let (_reader, writer) = files::sockets();
    t.entry(&ring.one(sending(&writer, 5, 2)));
}
case!(send_first_generation_length => "cqe 2: 16 BUFFER(0)");

fn send_empty_at_the_end(t: &mut Transcript) {
    for wanted in [0, 8, 16] {
        for lengths in [&[8, 0][..], &[8, 0, 0], &[8, 8, 0], &[0], &[0, 0], &[8, 0, 8, 0]] {
            let memory = Pages::new(1);
            let (mut ring, mut group) = ring_of(&memory, 0);
            for (slot, length) in (0..).zip(lengths) {
                group.add(slot, *length, slot);
            }
            let (one, other) = files::sockets();
            ring.push(sending(&one, wanted, 1));
            ring.submit();
            t.in_order(&ring.reap());
            head(t, &ring);
            files::set_nonblocking(&other, true);
            t.say(files::take(&other, 100).map_or(0, |bytes| bytes.len()));
        }
    }
}
case!(send_empty_at_the_end => include_str!("send_empty_at_the_end.txt"));

/// For a SEND with BUNDLE but without BUFFER_SELECT, the kernel sends twice, the second time with
/// length 0. So the peer of a datagram socket also gets an empty message.
fn send_without_group(t: &mut Transcript) {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        for length in [3, 0] {
            t.say(format_args!("kind {kind} length {length}"));
            let mut ring = Ring::new(8);
            let (socket, peer) = files::sockets_of(kind);
            ring.push(sqe::send(socket.as_raw_fd(), &b"abc"[..length], 1).with(|sqe| sqe.ioprio = BUNDLE));
            t.result("submit", ring.submit());
            t.in_order(&ring.reap());
            files::set_nonblocking(&peer, true);
            for _ in 0..3 {
                t.say(format_args!("{:?}", files::take(&peer, 8)));
            }
        }
    }
}
case!(send_without_group => include_str!("send_without_group.txt"));
