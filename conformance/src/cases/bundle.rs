//! Bundles: one SEND or RECV request uses as many provided buffers as it needs.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use crate::buffers::{Group, SIZE, group_of, incremental_group_of};
use crate::files;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, sqe};
use crate::transcript::Transcript;

mod sending;
mod wait_all;

pub const GROUP: u16 = 3;
pub const BUNDLE: u16 = u::IORING_RECVSEND_BUNDLE as u16;
pub const MANY: u16 = u::IORING_RECV_MULTISHOT as u16;

pub fn receiving(socket: &OwnedFd, length: u32, user_data: u64) -> Sqe {
    sqe(opcode::RECV, socket.as_raw_fd(), user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.ioprio = BUNDLE;
        sqe.buf_index = GROUP;
        sqe.len = length;
    })
}

fn sending(socket: &OwnedFd, length: u32, user_data: u64) -> Sqe {
    receiving(socket, length, user_data).with(|sqe| sqe.opcode = opcode::SEND)
}

fn ring_of(memory: &Pages, buffers: u16) -> (Ring, Group) {
    let ring = Ring::new(16);
    let mut group = group_of(&ring, memory, 128, GROUP);
    group.add_slots(0..buffers);
    (ring, group)
}

/// Prints the head of the buffer ring: the number of buffers that requests have consumed so far.
fn head(t: &mut Transcript, ring: &Ring) {
    let mut status: u::io_uring_buf_status = crate::memory::zeroed();
    status.buf_group = u32::from(GROUP);
    ring.register(super::reg::PBUF_STATUS, &raw mut status, 1);
    t.say(format_args!("head {}", status.head));
}

fn receive(t: &mut Transcript) {
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 8);
        files::put(&writer, b"0123456789abcdefghijklmnopqrstuvwxyz");
        t.entry(&ring.one(receiving(&reader, 0, 1)));
        head(t, &ring);
        t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
        files::put(&writer, b"x");
        t.entry(&ring.one(receiving(&reader, 0, 2)));
        head(t, &ring);
    }
}
case!(receive => "
    cqe 1: 32 SOCK_NONEMPTY|BUFFER(0)
    head 2
    0123456789abcdef ghijklmnopqrstuv ................
    cqe 2: 5 BUFFER(2)
    head 3
    cqe 1: 32 SOCK_NONEMPTY|BUFFER(0)
    head 2
    0123456789abcdef ghijklmnopqrstuv ................
    cqe 2: 5 BUFFER(2)
    head 3
");

fn receive_length(t: &mut Transcript) {
    for length in [4, 16, 20, 32, 100] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 8);
        let (reader, writer) = files::sockets();
        files::put(&writer, &[b'x'; 80]);
        t.entry(&ring.one(receiving(&reader, length, 1)));
        head(t, &ring);
    }
}
case!(receive_length => "
    cqe 1: 4 SOCK_NONEMPTY|BUFFER(0)
    head 1
    cqe 1: 80 BUFFER(0)
    head 5
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(0)
    head 1
    cqe 1: 80 BUFFER(0)
    head 5
    cqe 1: 80 BUFFER(0)
    head 5
");

fn receive_ends_within_buffer(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8);
    let (reader, writer) = files::sockets();
    files::put(&writer, &[b'x'; 20]);
    t.entry(&ring.one(receiving(&reader, 64, 1)));
    head(t, &ring);
}
case!(receive_ends_within_buffer => "
    cqe 1: 20 BUFFER(0)
    head 2
");

fn receive_takes_last_buffer(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 2);
    let (reader, writer) = files::sockets();
    files::put(&writer, &[b'x'; 80]);
    t.entry(&ring.one(receiving(&reader, 0, 1)));
    t.entry(&ring.one(receiving(&reader, 0, 2)));
}
case!(receive_takes_last_buffer => "
    cqe 1: 32 SOCK_NONEMPTY|BUFFER(0)
    cqe 2: -ENOBUFS
");

fn receive_waits(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8);
    let (reader, writer) = files::sockets();
    ring.push(receiving(&reader, 40, 1));
    ring.submit();
    head(t, &ring);
    files::put(&writer, &[b'x'; 30]);
    t.in_order(&ring.wait(1));
    ring.push(receiving(&reader, 40, 2));
    ring.submit();
    ring.push(cancel(2, 0, 3));
    ring.submit();
    t.in_order(&ring.wait(2));
    head(t, &ring);
}
case!(receive_waits => "
    head 0
    cqe 1: 30 BUFFER(0)
    cqe 3: 0
    cqe 2: -ECANCELED
    head 2
");

fn receive_end_of_file(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8);
    let (reader, writer) = files::sockets();
    files::put(&writer, &[b'x'; 20]);
    drop(writer);
    for user_data in 1..=2 {
        t.entry(&ring.one(receiving(&reader, 0, user_data)));
        head(t, &ring);
    }
}
case!(receive_end_of_file => "
    cqe 1: 20 BUFFER(0)
    head 2
    cqe 2: 0
    head 2
");

fn receive_datagrams(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8);
    let (reader, writer, _) = files::udp();
    for _ in 0..3 {
        files::put(&writer, &[b'x'; 24]);
    }
    t.entry(&ring.one(receiving(&reader, 0, 1)));
    t.entry(&ring.one(receiving(&reader, 32, 2)));
    t.entry(&ring.one(receiving(&reader, 20, 3)));
    head(t, &ring);
}
case!(receive_datagrams => "
    cqe 1: 16 BUFFER(0)
    cqe 2: 24 BUFFER(1)
    cqe 3: 16 BUFFER(3)
    head 4
");

fn receive_multishot(t: &mut Transcript) {
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 16);
        ring.push(receiving(&reader, 0, 1).with(|sqe| sqe.ioprio |= MANY));
        ring.submit();
        for length in [4, 16, 40] {
            files::put(&writer, &[b'x'; 40][..length]);
            t.in_order(&ring.wait(1));
            head(t, &ring);
        }
        drop(writer);
        t.in_order(&ring.wait(1));
    }
}
case!(receive_multishot => "
    cqe 1: 4 MORE|BUFFER(0)
    head 1
    cqe 1: 16 MORE|BUFFER(1)
    head 2
    cqe 1: 32 MORE|SOCK_NONEMPTY|BUFFER(2)
    cqe 1: 8 MORE|BUFFER(4)
    head 5
    cqe 1: 0
    cqe 1: 4 MORE|BUFFER(0)
    head 1
    cqe 1: 16 MORE|BUFFER(1)
    head 2
    cqe 1: 32 MORE|SOCK_NONEMPTY|BUFFER(2)
    cqe 1: 8 MORE|BUFFER(4)
    head 5
    cqe 1: 0 SOCK_NONEMPTY
");

fn receive_multishot_length(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 16);
    let (reader, writer) = files::sockets();
    files::put(&writer, &[b'x'; 80]);
    ring.push(receiving(&reader, 32, 1).with(|sqe| sqe.ioprio |= MANY));
    ring.submit();
    crate::time::long_enough_to_notice();
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    t.say(format_args!("{} bytes", ring.reap().iter().map(|entry| entry.res).sum::<i32>()));
    head(t, &ring);
}
case!(receive_multishot_length => "
    80 bytes
    head 5
");

fn receive_multishot_ends(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 3);
    let (reader, writer) = files::sockets();
    ring.push(receiving(&reader, 0, 1).with(|sqe| sqe.ioprio |= MANY));
    ring.submit();
    files::put(&writer, &[b'x'; 16]);
    t.in_order(&ring.wait(1));
    // The next CQE uses the last buffer of the group. After that, the multishot ends.
    files::put(&writer, &[b'x'; 32]);
    t.in_order(&ring.wait(1));
    head(t, &ring);
}
case!(receive_multishot_ends => "
    cqe 1: 16 MORE|BUFFER(0)
    cqe 1: 32 MORE|BUFFER(1)
    head 3
");

fn receive_incremental(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(4);
    let mut group = incremental_group_of(&ring, &memory, 8, GROUP);
    group.add_slots(0..3);
    let (reader, writer) = files::sockets();
    for length in [5, 20, 7] {
        files::put(&writer, &[b'x'; 20][..length]);
        t.entry(&ring.one(receiving(&reader, 0, 1)));
        t.say(format_args!("{}, {}, {}", group.state(0), group.state(1), group.state(2)));
    }
}
case!(receive_incremental => "
    cqe 1: 5 BUF_MORE|BUFFER(0)
    at 5 left 11, at 0 left 16, at 0 left 16
    cqe 1: 20 BUF_MORE|BUFFER(0)
    at 5 left 0, at 9 left 7, at 0 left 16
    cqe 1: 7 BUFFER(1)
    at 5 left 0, at 9 left 0, at 0 left 16
");

fn provide(buffers: &Pages, count: i32) -> Sqe {
    sqe(opcode::PROVIDE_BUFFERS, count, 1).with(|sqe| {
        sqe.addr = buffers.at(0);
        sqe.len = SIZE;
        sqe.buf_index = GROUP;
    })
}

fn receive_first_generation(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(4);
    ring.one(provide(&buffers, 4));
    let (reader, writer) = files::sockets();
    files::put(&writer, &[b'x'; 40]);
    for (length, user_data) in [(0, 2), (40, 3)] {
        t.entry(&ring.one(receiving(&reader, length, user_data)));
    }
}
case!(receive_first_generation => "
    cqe 2: 32 SOCK_NONEMPTY|BUFFER(0)
    cqe 3: 8 BUFFER(2)
");

fn receive_forced_async(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"x");
    ring.push(receiving(&reader, 0, 1).forced_async());
    ring.submit();
    t.in_order(&ring.wait(1));
    head(t, &ring);
}
case!(receive_forced_async => "
    cqe 1: 1 BUFFER(0)
    head 1
");

fn no_buffers(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 0);
    let (reader, writer) = files::sockets();
    t.entry(&ring.one(receiving(&reader, 0, 1)));
    t.entry(&ring.one(sending(&writer, 0, 2)));
    let message = |opcode| sending(&writer, 0, 3).with(|sqe| sqe.opcode = opcode);
    t.entry(&ring.one(message(opcode::SENDMSG)));
    t.entry(&ring.one(message(opcode::RECVMSG)));
}
case!(no_buffers => "
    cqe 1: -ENOBUFS
    cqe 2: -ENOBUFS
    cqe 3: -EOPNOTSUPP
    cqe 3: -EINVAL
");

/// The requests name an unregistered buffer group. With BUNDLE, a send or receive gets -ENOENT.
/// Without BUNDLE, a receive gets -ENOBUFS. An errno for a bad descriptor or for a file that is no
/// socket takes precedence.
fn no_group(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let (pipe, _) = files::pipe();
    let alone = |sqe: Sqe| sqe.with(|sqe| sqe.ioprio = 0);
    for socket in [&reader, &writer, &pipe] {
        for sqe in [
            receiving(socket, 0, 1),
            sending(socket, 0, 2),
            alone(receiving(socket, 0, 3)),
            alone(sending(socket, 0, 4)),
        ] {
            t.entry(&ring.one(sqe));
            t.entry(&ring.one(sqe.with(|sqe| sqe.fd = -1)));
        }
    }
}
case!(no_group => "
    cqe 1: -ENOENT
    cqe 1: -EBADF
    cqe 2: -ENOENT
    cqe 2: -EBADF
    cqe 3: -ENOBUFS
    cqe 3: -EBADF
    cqe 4: -ENOENT
    cqe 4: -EBADF
    cqe 1: -ENOENT
    cqe 1: -EBADF
    cqe 2: -ENOENT
    cqe 2: -EBADF
    cqe 3: -ENOBUFS
    cqe 3: -EBADF
    cqe 4: -ENOENT
    cqe 4: -EBADF
    cqe 1: -ENOTSOCK
    cqe 1: -EBADF
    cqe 2: -ENOTSOCK
    cqe 2: -EBADF
    cqe 3: -ENOTSOCK
    cqe 3: -EBADF
    cqe 4: -ENOTSOCK
    cqe 4: -EBADF
");

fn entries(t: &mut Transcript, group: &Group) {
    t.say(format_args!("entries {}", (0..4).map(|slot| group.state(slot)).collect::<Vec<_>>().join(", ")));
}

/// The program has written the entries of the buffer ring. A receive does not change them, even if
/// it fills only a part of a buffer.
fn receive_leaves_entries(t: &mut Transcript) {
    for many in [0, MANY] {
        let memory = Pages::new(1);
        let (mut ring, group) = ring_of(&memory, 8);
        let (reader, writer) = files::sockets();
        ring.push(receiving(&reader, 8, 1).with(|sqe| sqe.ioprio |= many));
        ring.submit();
        entries(t, &group);
        files::put(&writer, &[b'x'; 20]);
        t.in_order(&ring.wait(if many == 0 { 1 } else { 3 }));
        entries(t, &group);
        head(t, &ring);
    }
}
case!(receive_leaves_entries => "
    entries at 0 left 16, at 0 left 16, at 0 left 16, at 0 left 16
    cqe 1: 8 SOCK_NONEMPTY|BUFFER(0)
    entries at 0 left 16, at 0 left 16, at 0 left 16, at 0 left 16
    head 1
    entries at 0 left 16, at 0 left 16, at 0 left 16, at 0 left 16
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(1)
    cqe 1: 4 MORE|BUFFER(2)
    entries at 0 left 16, at 0 left 16, at 0 left 16, at 0 left 16
    head 3
");

fn receive_multishot_bit_by_bit(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(16);
    let mut group = incremental_group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..2);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"abcde");
    ring.push(receiving(&reader, 1, 1).with(|sqe| sqe.ioprio |= MANY));
    ring.submit();
    t.in_order(&ring.wait(5));
}
case!(receive_multishot_bit_by_bit => "
    cqe 1: 1 MORE|SOCK_NONEMPTY|BUF_MORE|BUFFER(0)
    cqe 1: 1 MORE|SOCK_NONEMPTY|BUF_MORE|BUFFER(0)
    cqe 1: 1 MORE|SOCK_NONEMPTY|BUF_MORE|BUFFER(0)
    cqe 1: 1 MORE|SOCK_NONEMPTY|BUF_MORE|BUFFER(0)
    cqe 1: 1 MORE|BUF_MORE|BUFFER(0)
");

/// With MSG_TRUNC, TCP discards the received data and copies nothing. The receive nevertheless
/// consumes the buffers that the data would have filled.
fn receive_discards_with_trunc(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(16);
    let mut group = incremental_group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..4);
    let (reader, writer) = files::tcp();
    files::put(&writer, &[b'x'; 40]);
    t.entry(&ring.one(receiving(&reader, 8, 1).op_flags(libc::MSG_TRUNC as u32)));
    head(t, &ring);
}
case!(receive_discards_with_trunc => "
    cqe 1: 8 SOCK_NONEMPTY|BUF_MORE|BUFFER(0)
    head 0
");

/// A bundle also consumes a buffer of length 0, if the buffer lies between buffers that the bundle
/// uses.
fn empty_buffers(t: &mut Transcript) {
    for (opcode, wanted) in [(opcode::SEND, 0), (opcode::RECV, 0), (opcode::RECV, 20), (opcode::RECV, 32)] {
        for lengths in [[8, 0, 8, 8], [8, 8, 0, 8], [8, 0, 0, 8], [0, 8, 8, 8]] {
            let memory = Pages::new(1);
            let (mut ring, mut group) = ring_of(&memory, 0);
            for (slot, length) in (0..).zip(lengths) {
                group.add(slot, length, slot);
            }
            let (one, other) = files::sockets();
            files::put(&other, &[b'x'; 12]);
            t.entry(&ring.one(receiving(&one, wanted, 1).with(|sqe| sqe.opcode = opcode)));
            head(t, &ring);
        }
    }
}
case!(empty_buffers => include_str!("bundle/empty_buffers.txt"));
