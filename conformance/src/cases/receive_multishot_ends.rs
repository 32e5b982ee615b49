//! Five events end a multishot receive: the end of the stream, an error, a group without buffers, a
//! cancel, and a full CQ. The cases run on streams and on datagrams, and on rings with and without
//! deferred task work.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;

use super::receive_multishot::{GROUP, arm, multishot, ring_of, udp};
use crate::buffers::group_of;
use crate::files;
use crate::memory::Pages;
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel, nop};
use crate::transcript::Transcript;

fn file_ends(t: &mut Transcript, flags: u32) {
    for (reader, writer) in [files::sockets(), files::tcp(), files::sockets_of(libc::SOCK_SEQPACKET)] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 8, flags);
        ring.push(multishot(reader.as_raw_fd(), 1).linked());
        ring.push(nop(2));
        ring.submit();
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
        drop(writer);
        t.in_order(&ring.wait(2));
    }
}

fn ends_with_file(t: &mut Transcript) {
    file_ends(t, 0);
}
case!(ends_with_file as with_file => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 0
    cqe 2: 0
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 0 SOCK_NONEMPTY
    cqe 2: 0
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 0
    cqe 2: 0
");

fn ends_with_file_deferred(t: &mut Transcript) {
    file_ends(t, ring::DEFER);
}
case!(ends_with_file_deferred as with_file_deferred => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 0
    cqe 2: 0
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 0 SOCK_NONEMPTY
    cqe 2: 0
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 0
    cqe 2: 0
");

fn connection_is_reset(t: &mut Transcript, flags: u32) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, flags);
    let (reader, writer) = files::tcp();
    ring.push(multishot(reader.as_raw_fd(), 1).linked());
    ring.push(nop(2));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    files::reset_on_close(&writer);
    drop(writer);
    t.in_order(&ring.wait(2));
    // The socket sends a datagram to a port at which no socket is. The answer is an error on the
    // sending socket.
    let (reader, writer) = udp();
    drop(reader);
    arm(&mut ring, &writer);
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
}

fn ends_with_reset(t: &mut Transcript) {
    connection_is_reset(t, 0);
}
case!(ends_with_reset as with_reset => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: -ECONNRESET
    cqe 2: -ECANCELED
    cqe 1: -ECONNREFUSED
");

fn ends_with_reset_deferred(t: &mut Transcript) {
    connection_is_reset(t, ring::DEFER);
}
case!(ends_with_reset_deferred as with_reset_deferred => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: -ECONNRESET
    cqe 2: -ECANCELED
    cqe 1: -ECONNREFUSED
");

fn buffers_run_out(t: &mut Transcript, flags: u32) {
    for (reader, writer) in [files::sockets(), files::tcp(), udp()] {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 2, flags);
        arm(&mut ring, &reader);
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
        files::put(&writer, b"y");
        t.in_order(&ring.wait(1));
        crate::time::long_enough_to_notice();
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.in_order(&ring.reap());
        files::put(&writer, b"z");
        crate::time::long_enough_to_notice();
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.in_order(&ring.reap());
        // The data that has arrived after the end of the multishot is still in the socket.
        group.add_slots(2..4);
        arm(&mut ring, &reader);
        t.in_order(&ring.wait(1));
    }
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 0, flags);
    let (idle, _writer) = files::sockets();
    t.entry(&ring.one(multishot(idle.as_raw_fd(), 1)));
}

fn ends_without_buffers(t: &mut Transcript) {
    buffers_run_out(t, 0);
}
case!(ends_without_buffers as without_buffers => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    no cqe
    cqe 1: -ENOBUFS
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    no cqe
    cqe 1: -ENOBUFS
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: -ENOBUFS
    no cqe
    no cqe
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: -ENOBUFS
");

fn ends_without_buffers_deferred(t: &mut Transcript) {
    buffers_run_out(t, ring::DEFER);
}
case!(ends_without_buffers_deferred as without_buffers_deferred => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    no cqe
    cqe 1: -ENOBUFS
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    no cqe
    cqe 1: -ENOBUFS
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: -ENOBUFS
    no cqe
    no cqe
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: -ENOBUFS
");

fn is_cancelled(t: &mut Transcript, flags: u32) {
    for (reader, writer) in [files::sockets(), files::tcp(), udp()] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 8, flags);
        arm(&mut ring, &reader);
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.in_order(&ring.wait(2));
        arm(&mut ring, &reader);
        ring.push(cancel(0, u::IORING_ASYNC_CANCEL_FD, 3).with(|sqe| sqe.fd = reader.as_raw_fd()));
        ring.submit();
        t.in_order(&ring.wait(2));
        files::put(&writer, b"left");
        crate::time::long_enough_to_notice();
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.in_order(&ring.reap());
    }
}

fn ends_when_cancelled(t: &mut Transcript) {
    is_cancelled(t, 0);
}
case!(ends_when_cancelled as when_cancelled => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
    cqe 1: 1 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
    cqe 1: 1 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
");

fn ends_when_cancelled_deferred(t: &mut Transcript) {
    is_cancelled(t, ring::DEFER);
}
case!(ends_when_cancelled_deferred as when_cancelled_deferred => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
    cqe 1: 1 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
    cqe 1: 1 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
");

/// A multishot ends with the CQE for which the CQ has no room.
fn overflows(t: &mut Transcript, flags: u32) {
    for (reader, writer) in [files::sockets(), files::tcp(), udp()] {
        let memory = Pages::new(1);
        let mut ring = Ring::with(4, |params| {
            params.flags = u::IORING_SETUP_CQSIZE | flags;
            params.cq_entries = 4;
        })
        .expect("a ring");
        let mut group = group_of(&ring, &memory, 128, GROUP);
        group.add_slots(0..16);
        arm(&mut ring, &reader);
        for sent in 1..=7 {
            files::put(&writer, b"x");
            // Waits for the CQE of this byte before the next write.
            crate::time::until(|| {
                ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
                ring.ready() == sent || ring.sq_flags() & u::IORING_SQ_CQ_OVERFLOW != 0
            });
        }
        crate::time::long_enough_to_notice();
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.say(format_args!("ready {}", ring.ready()));
        t.in_order(&ring.reap());
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.in_order(&ring.reap());
        files::set_nonblocking(&reader, true);
        t.say(format_args!("left {:?}", files::take(&reader, 10).map(|bytes| bytes.len())));
    }
}

fn ends_by_overflow(t: &mut Transcript) {
    overflows(t, 0);
}
case!(ends_by_overflow as by_overflow => "
    ready 4
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 1 BUFFER(4)
    left Ok(2)
    ready 4
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 1 BUFFER(4)
    left Ok(2)
    ready 4
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 1 BUFFER(4)
    left Ok(1)
");

fn ends_by_overflow_deferred(t: &mut Transcript) {
    overflows(t, ring::DEFER);
}
case!(ends_by_overflow_deferred as by_overflow_deferred => "
    ready 4
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 1 BUFFER(4)
    left Ok(2)
    ready 4
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 1 BUFFER(4)
    left Ok(2)
    ready 4
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 1 BUFFER(4)
    left Ok(1)
");

/// The last data and the end of the stream arrive together. The end of the stream nevertheless gets
/// its own CQE.
fn data_before_end(t: &mut Transcript) {
    for armed in [true, false] {
        let (reader, writer) = files::sockets();
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 8, ring::DEFER);
        if armed {
            arm(&mut ring, &reader);
        }
        files::put(&writer, b"0123456789abcdefghij");
        drop(writer);
        if !armed {
            arm(&mut ring, &reader);
        }
        t.in_order(&ring.wait(3));
    }
}
case!(data_before_end => "
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 4 MORE|BUFFER(1)
    cqe 1: 0
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 4 MORE|BUFFER(1)
    cqe 1: 0
");

/// Before the multishot starts, the peer sends `sent` bytes and shuts down its sending direction.
/// If `own` is `Some(true)`, this side has shut down its sending direction before that. With
/// `Some(false)` it does so afterwards, and with `None` never.
fn end_is_there(t: &mut Transcript) {
    let bundle = u::IORING_RECVSEND_BUNDLE as u16;
    for (own, sent) in [(None, 3), (None, 16), (Some(true), 3), (Some(false), 3)] {
        for (options, length) in [(0, 0), (bundle, 50)] {
            for flags in [0, libc::MSG_DONTWAIT] {
                let memory = Pages::new(1);
                let (mut ring, _group) = ring_of(&memory, 8, 0);
                let (reader, writer) = files::tcp();
                if own == Some(true) {
                    files::shut_down(&reader, libc::SHUT_WR);
                }
                files::put(&writer, &[b'x'; 16][..sent]);
                files::shut_down(&writer, libc::SHUT_WR);
                if own == Some(false) {
                    files::shut_down(&reader, libc::SHUT_WR);
                }
                crate::time::long_enough_to_notice();
                ring.push(multishot(reader.as_raw_fd(), 1).with(|sqe| {
                    sqe.ioprio |= options;
                    (sqe.len, sqe.op_flags) = (length, flags as u32);
                }));
                ring.submit();
                t.in_order(&ring.wait(2));
            }
        }
    }
}
case!(end_is_there => include_str!("receive_multishot_ends/end_is_there.txt"));

/// Data and the end of the connection arrive together. They arrive while the multishot waits
/// (`is_armed`), or before it starts.
fn end_comes_with_data(t: &mut Transcript) {
    let bundle = u::IORING_RECVSEND_BUNDLE as u16;
    for (options, length) in [(0, 0), (0, 4), (bundle, 0), (bundle, 4), (bundle, 50)] {
        for is_armed in [true, false] {
            t.say(format_args!("options {options:#x} length {length} is_armed {is_armed}"));
            let memory = Pages::new(1);
            let (mut ring, _group) = ring_of(&memory, 8, ring::DEFER);
            let (reader, writer) = files::tcp();
            ring.push(multishot(reader.as_raw_fd(), 1).with(|sqe| {
                sqe.ioprio |= options;
                sqe.len = length;
            }));
            if is_armed {
                ring.submit();
            }
            files::put(&writer, &[b'x'; 10]);
            files::shut_down(&writer, libc::SHUT_WR);
            if !is_armed {
                crate::time::long_enough_to_notice();
                ring.submit();
            }
            crate::time::until(|| {
                let entries = ring.wait(1);
                t.in_order(&entries);
                entries.last().is_none_or(|entry| entry.flags & u::IORING_CQE_F_MORE == 0)
            });
        }
    }
}
case!(end_comes_with_data => include_str!("receive_multishot_ends/end_comes_with_data.txt"));

/// A stream has 13 bytes and then ends. The first receive of a bundle ends at its length of 8
/// bytes, and the second gets the other bytes. On the kernel, the multishot then notices the end of
/// the stream only when a further event comes.
fn shut_for_reading(t: &mut Transcript) {
    for ((reader, writer), by_peer) in [(files::tcp(), false), (files::sockets(), false), (files::sockets(), true)] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 8, 0);
        files::put(&writer, b"text and more");
        if by_peer {
            files::shut_down(&writer, libc::SHUT_WR);
        } else {
            files::shut_down(&reader, libc::SHUT_RD);
        }
        ring.push(multishot(reader.as_raw_fd(), 1).with(|sqe| {
            sqe.ioprio |= u::IORING_RECVSEND_BUNDLE as u16;
            sqe.len = 8;
        }));
        ring.submit();
        t.in_order(&ring.wait(2));
        crate::time::long_enough_to_notice();
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.in_order(&ring.reap());
    }
}
case!(shut_for_reading => "
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(1)
    no cqe
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(1)
    no cqe
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(1)
    no cqe
", usring => "
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(1)
    cqe 1: 0
    no cqe
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(1)
    cqe 1: 0
    no cqe
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(1)
    cqe 1: 0
    no cqe
", because "the end is reported as soon as nothing is left before it");

fn empty_datagram(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = udp();
    arm(&mut ring, &reader);
    files::put(&writer, b"");
    t.in_order(&ring.wait(1));
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(empty_datagram => "
    cqe 1: 0
    no cqe
");

/// RECVMSG writes a header before the data. Here the header alone fills the whole buffer, so no
/// data fits.
fn no_room_for_data(t: &mut Transcript) {
    for (reader, writer) in [files::sockets(), files::tcp()] {
        for sent in [0, 1] {
            let memory = Pages::new(1);
            let mut ring = Ring::new(4);
            let mut group = group_of(&ring, &memory, 8, GROUP);
            group.add(0, 16, 0);
            files::put(&writer, &b"a"[..sent]);
            let header: libc::msghdr = crate::memory::zeroed();
            let request = crate::sqe::message(usring_uapi::opcode::RECVMSG, reader.as_raw_fd(), &header, 1);
            ring.push(multishot(reader.as_raw_fd(), 1).with(|sqe| {
                (sqe.opcode, sqe.addr, sqe.len) = (request.opcode, request.addr, request.len);
            }));
            ring.submit();
            crate::time::long_enough_to_notice();
            ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
            t.in_order(&ring.reap());
        }
    }
}
case!(no_room_for_data => "
    no cqe
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(0)
    no cqe
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(0)
");
