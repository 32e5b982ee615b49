//! Requests on a socket in which an earlier request has left data. The next request must find that
//! data, although the socket reports no new readiness event. The sockets are registered files,
//! because the ring keeps these open between requests.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use super::receive_multishot::{multishot, ring_of};
use super::receive_short::pass;
use super::send_receive::{ALL, text};
use crate::files;
use crate::memory::Pages;
use crate::net;
use crate::ring::{self, Ring};
use crate::sqe::{Change, recv, send};
use crate::transcript::Transcript;

const FIRST: u16 = u::IORING_RECVSEND_POLL_FIRST as u16;

fn register(ring: &Ring, file: &OwnedFd) {
    assert_eq!(ring.register(super::reg::FILES, &[file.as_raw_fd()], 1), 0);
}

/// Makes a pair of unix stream sockets and a pair of TCP sockets. For each pair, returns a ring
/// with the first socket as its registered file, and the second socket.
fn streams(flags: u32) -> impl Iterator<Item = (Ring, OwnedFd)> {
    [files::sockets(), files::tcp()].into_iter().map(move |(reader, writer)| {
        let ring = Ring::flags(4, flags);
        register(&ring, &reader);
        (ring, writer)
    })
}

fn send_poll_first(t: &mut Transcript) {
    for flags in ring::BOTH {
        for (mut ring, _peer) in streams(flags) {
            for user_data in 1..4 {
                ring.push(send(0, b"some text", user_data).fixed().with(|sqe| sqe.ioprio = FIRST));
                ring.submit();
                t.in_order(&ring.wait(1));
            }
        }
    }
}
case!(send_poll_first => "
    cqe 1: 9
    cqe 2: 9
    cqe 3: 9
    cqe 1: 9
    cqe 2: 9
    cqe 3: 9
    cqe 1: 9
    cqe 2: 9
    cqe 3: 9
    cqe 1: 9
    cqe 2: 9
    cqe 3: 9
");

fn receive_poll_first(t: &mut Transcript) {
    for flags in ring::BOTH {
        for (mut ring, writer) in streams(flags) {
            files::put(&writer, b"onetwosix");
            for user_data in 1..4 {
                let mut bytes = [0; 3];
                ring.push(recv(0, &mut bytes, user_data).fixed().with(|sqe| sqe.ioprio = FIRST));
                ring.submit();
                t.in_order(&ring.wait(1));
                t.say(text(&bytes));
            }
        }
    }
}
case!(receive_poll_first => "
    cqe 1: 3 SOCK_NONEMPTY
    one
    cqe 2: 3 SOCK_NONEMPTY
    two
    cqe 3: 3
    six
    cqe 1: 3 SOCK_NONEMPTY
    one
    cqe 2: 3 SOCK_NONEMPTY
    two
    cqe 3: 3
    six
    cqe 1: 3 SOCK_NONEMPTY
    one
    cqe 2: 3 SOCK_NONEMPTY
    two
    cqe 3: 3
    six
    cqe 1: 3 SOCK_NONEMPTY
    one
    cqe 2: 3 SOCK_NONEMPTY
    two
    cqe 3: 3
    six
");

fn accept_poll_first(t: &mut Transcript) {
    for family in net::FAMILIES {
        let mut ring = Ring::new(4);
        let (listener, address) = net::listener(family);
        register(&ring, &listener);
        let _clients = [net::connected(family, &address), net::connected(family, &address)];
        for user_data in 1..3 {
            let accept = net::accept(0, user_data).fixed().with(|sqe| sqe.ioprio = u::IORING_ACCEPT_POLL_FIRST as u16);
            ring.push(accept);
            ring.submit();
            let entries = ring.wait(1);
            t.say(format_args!("{family:?}: {}", entries.first().is_some_and(|entry| entry.res > 0)));
        }
    }
}
case!(accept_poll_first => "
    V4: true
    V4: true
    V6: true
    V6: true
    Unix: true
    Unix: true
");

/// The peer sends a header and a part of a body, and closes. All these bytes arrive before the
/// receive of the header runs. The receive of the body must return that part, and not wait for the
/// rest.
fn end_behind_whole_receive(t: &mut Transcript) {
    for (mut ring, writer) in streams(ring::DEFER) {
        let (mut header, mut body) = ([0; 4], [0; 8]);
        ring.push(recv(0, &mut header, 1).fixed().op_flags(ALL));
        ring.submit();
        files::put(&writer, b"headbody");
        drop(writer);
        t.in_order(&ring.wait(1));
        ring.push(recv(0, &mut body, 2).fixed().op_flags(ALL));
        ring.submit();
        t.in_order(&ring.wait(1));
        t.say(text(&body));
    }
}
case!(end_behind_whole_receive => "
    cqe 1: 4 SOCK_NONEMPTY
    cqe 2: 4
    body....
    cqe 1: 4 SOCK_NONEMPTY
    cqe 2: 4 SOCK_NONEMPTY
    body....
");

/// A multishot ends because its group is out of buffers. Its peer has already closed. The next
/// multishot receives the remaining bytes and then the end of the stream.
fn end_behind(t: &mut Transcript, options: u32, completions: usize) {
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 1, ring::DEFER);
        register(&ring, &reader);
        drop(reader);
        let receive = |user_data| multishot(0, user_data).fixed().with(|sqe| sqe.ioprio |= options as u16);
        ring.push(receive(1));
        ring.submit();
        files::put(&writer, b"0123456789abcdef and so on");
        drop(writer);
        t.in_order(&ring.wait(completions));
        group.add_slots(1..4);
        ring.push(receive(2));
        ring.submit();
        let mut entries = ring.wait(2);
        // SOCK_NONEMPTY is only a hint: see `receive_short.more_data_behind_an_early_end`.
        entries.iter_mut().for_each(|entry| entry.flags &= !u::IORING_CQE_F_SOCK_NONEMPTY);
        t.in_order(&entries);
        t.say(group.text(1));
    }
}

fn end_behind_multishot(t: &mut Transcript) {
    end_behind(t, 0, 2);
}
case!(end_behind_multishot => "
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: -ENOBUFS
    cqe 2: 10 MORE|BUFFER(1)
    cqe 2: 0
     and so on......
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: -ENOBUFS
    cqe 2: 10 MORE|BUFFER(1)
    cqe 2: 0
     and so on......
");

fn end_behind_bundle(t: &mut Transcript) {
    end_behind(t, u::IORING_RECVSEND_BUNDLE, 1);
}
case!(end_behind_bundle => "
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(0)
    cqe 2: 10 MORE|BUFFER(1)
    cqe 2: 0
     and so on......
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(0)
    cqe 2: 10 MORE|BUFFER(1)
    cqe 2: 0
     and so on......
");

/// Number of messages that a case sends to one socket. One recv(2) returns fewer messages than
/// that. All messages have arrived, so a RECV with MSG_WAITALL must fill its buffer nevertheless.
const PIECES: usize = 70;

fn fill(t: &mut Transcript, kind: i32, put: fn(&OwnedFd)) {
    for options in [0, u::IORING_RECVSEND_BUNDLE] {
        for is_there in [false, true] {
            let memory = Pages::new(1);
            let (mut ring, mut group) = ring_of(&memory, 16, 0);
            let (reader, writer) = files::sockets_of(kind);
            register(&ring, &reader);
            let put_all = || (0..PIECES).for_each(|_| put(&writer));
            let mut bytes = [0; 3 * PIECES];
            let receive = if options == 0 { recv(0, &mut bytes, 1) } else { multishot(0, 1) };
            if is_there {
                put_all();
            }
            ring.push(receive.fixed().op_flags(ALL).with(|sqe| {
                sqe.ioprio = options as u16;
                sqe.len = 3 * PIECES as u32;
            }));
            ring.submit();
            if !is_there {
                put_all();
            }
            t.in_order(&ring.wait(1));
            t.say(format_args!("{} {}", bytes.iter().filter(|byte| **byte != 0).count(), group.text(1)));
        }
    }
}

fn many_packets(t: &mut Transcript) {
    fill(t, libc::SOCK_SEQPACKET, |writer| assert_eq!(files::put(writer, b"one"), 3));
}
case!(many_packets => "
    cqe 1: 210
    210 ................
    cqe 1: 210
    210 ................
    cqe 1: 208 BUFFER(0)
    0 neoneoneoneoneon
    cqe 1: 208 BUFFER(0)
    0 neoneoneoneoneon
");

fn many_descriptors(t: &mut Transcript) {
    fill(t, libc::SOCK_STREAM, |writer| pass(writer, "one"));
}
case!(many_descriptors => "
    cqe 1: 210
    210 ................
    cqe 1: 210
    210 ................
    cqe 1: 208 SOCK_NONEMPTY|BUFFER(0)
    0 neoneoneoneoneon
    cqe 1: 208 SOCK_NONEMPTY|BUFFER(0)
    0 neoneoneoneoneon
");
