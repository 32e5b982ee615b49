//! Bundles: one SEND or RECV over as many provided buffers as it needs.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use crate::buffers::{Group, SIZE, group_of, incremental_group_of};
use crate::case::{Case, case, differs};
use crate::files;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, nop, sqe};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("bundle.receive", receive),
    case("bundle.receive_length", receive_length),
    case("bundle.receive_ends_within_buffer", receive_ends_within_buffer),
    case("bundle.receive_takes_last_buffer", receive_takes_last_buffer),
    case("bundle.receive_waits", receive_waits),
    case("bundle.receive_end_of_file", receive_end_of_file),
    case("bundle.receive_wait_all", receive_wait_all),
    case("bundle.receive_datagrams", receive_datagrams),
    case("bundle.receive_multishot", receive_multishot),
    case("bundle.receive_multishot_length", receive_multishot_length),
    case("bundle.receive_multishot_ends", receive_multishot_ends),
    case("bundle.receive_incremental", receive_incremental),
    case("bundle.receive_first_generation", receive_first_generation),
    case("bundle.receive_forced_async", receive_forced_async),
    case("bundle.send", send),
    case("bundle.send_length", send_length),
    case("bundle.send_waits", send_waits),
    case("bundle.send_many", send_many),
    case("bundle.send_fails", send_fails),
    case("bundle.send_datagrams", send_datagrams),
    case("bundle.send_incremental", send_incremental),
    case("bundle.send_first_generation", send_first_generation),
    case("bundle.send_first_generation_length", send_first_generation_length),
    case("bundle.no_buffers", no_buffers),
    case("bundle.no_group", no_group),
    case("bundle.receive_leaves_entries", receive_leaves_entries),
    case("bundle.receive_wait_all_goes_on", receive_wait_all_goes_on),
    case("bundle.receive_multishot_bit_by_bit", receive_multishot_bit_by_bit),
    case("bundle.receive_throws_away", receive_throws_away),
    case("bundle.receive_wait_all_is_shut", receive_wait_all_is_shut),
    case("bundle.empty_buffers", empty_buffers),
    case("bundle.receive_wait_all_ends_short", receive_wait_all_ends_short),
    differs(
        "bundle.receive_wait_all_beside_another",
        receive_wait_all_beside_another,
        "a bundle with MSG_WAITALL keeps the buffers that it waits to fill; 6.18 leaves them in the group",
    ),
    case("bundle.send_empty_at_the_end", send_empty_at_the_end),
];

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

/// Prints how far the group has been consumed.
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

fn receive_ends_within_buffer(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8);
    let (reader, writer) = files::sockets();
    files::put(&writer, &[b'x'; 20]);
    t.entry(&ring.one(receiving(&reader, 64, 1)));
    head(t, &ring);
}

fn receive_takes_last_buffer(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 2);
    let (reader, writer) = files::sockets();
    files::put(&writer, &[b'x'; 80]);
    t.entry(&ring.one(receiving(&reader, 0, 1)));
    t.entry(&ring.one(receiving(&reader, 0, 2)));
}

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

fn receive_wait_all(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8);
    let (reader, writer) = files::sockets_of(libc::SOCK_DGRAM);
    files::put(&writer, &[b'x'; 20]);
    ring.push(receiving(&reader, 32, 1).op_flags(libc::MSG_WAITALL as u32).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    head(t, &ring);
}

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

fn receive_multishot_ends(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 3);
    let (reader, writer) = files::sockets();
    ring.push(receiving(&reader, 0, 1).with(|sqe| sqe.ioprio |= MANY));
    ring.submit();
    files::put(&writer, &[b'x'; 16]);
    t.in_order(&ring.wait(1));
    // The completion that takes the last buffer is the last.
    files::put(&writer, &[b'x'; 32]);
    t.in_order(&ring.wait(1));
    head(t, &ring);
}

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

/// More buffers than one system call takes.
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

fn send_fails(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 3);
    let (reader, writer) = files::sockets();
    drop(reader);
    t.entry(&ring.one(sending(&writer, 0, 1)));
    head(t, &ring);
}

fn send_datagrams(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 3);
    let (reader, writer, _) = files::udp();
    t.entry(&ring.one(sending(&writer, 0, 1)));
    t.say(format_args!("{} bytes", files::take(&reader, 100).map_or(0, |bytes| bytes.len())));
}

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

fn send_first_generation_length(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(4);
    ring.one(provide(&buffers, 1));
    let (_reader, writer) = files::sockets();
    t.entry(&ring.one(sending(&writer, 5, 2)));
}

/// A group that does not exist differs from one without buffers, for bundles and for sends.
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

fn entries(t: &mut Transcript, group: &Group) {
    t.say(format_args!("entries {}", (0..4).map(|slot| group.state(slot)).collect::<Vec<_>>().join(", ")));
}

/// The program's entries stay as they are, also if only a part of one is used. After such a part a
/// bundle does not continue.
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

fn receive_wait_all_goes_on(t: &mut Transcript) {
    for length in [8, 0] {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 8);
        let (reader, writer) = files::sockets();
        ring.push(receiving(&reader, length, 1).op_flags(libc::MSG_WAITALL as u32));
        ring.submit();
        for part in [b"0123".as_slice(), b"45", b"abcdefghijklmnopqrstuvwxyzabcdefghijkl"] {
            t.in_order(&ring.reap());
            files::put(&writer, part);
            crate::time::long_enough_to_notice();
            ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        }
        t.in_order(&ring.wait(1));
        t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
        head(t, &ring);
    }
}

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

/// MSG_TRUNC, with which TCP discards the data instead of copying it.
fn receive_throws_away(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(16);
    let mut group = incremental_group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..4);
    let (reader, writer) = files::tcp();
    files::put(&writer, &[b'x'; 40]);
    t.entry(&ring.one(receiving(&reader, 8, 1).op_flags(libc::MSG_TRUNC as u32)));
    head(t, &ring);
}

/// The receive got less than all, so it is the last.
fn receive_wait_all_is_shut(t: &mut Transcript) {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        for flags in [0, libc::MSG_WAITALL as u32] {
            for bytes in [&b""[..], b"abc"] {
                let memory = Pages::new(1);
                let (mut ring, _group) = ring_of(&memory, 8);
                let (reader, writer) = files::sockets_of(kind);
                ring.push(receiving(&reader, 32, 1).op_flags(flags).linked());
                ring.push(nop(2));
                ring.submit();
                if !bytes.is_empty() {
                    files::put(&writer, bytes);
                }
                files::shut_down(&reader, libc::SHUT_RD);
                for entry in ring.wait(2) {
                    t.say(format_args!("{}: {}", entry.user_data, entry.res));
                }
            }
        }
    }
}

/// Empty buffers among the others are consumed with them.
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

/// The received bytes are reported, and the buffers after them return to the group.
fn receive_wait_all_ends_short(t: &mut Transcript) {
    for length in [0, 64, 40] {
        for first in [&b"0123"[..], b"0123456789abcdefghijkl"] {
            let memory = Pages::new(1);
            let (mut ring, _group) = ring_of(&memory, 4);
            let (reader, writer) = files::sockets();
            files::put(&writer, first);
            ring.push(receiving(&reader, length, 1).op_flags(libc::MSG_WAITALL as u32));
            ring.submit();
            crate::time::long_enough_to_notice();
            t.in_order(&ring.reap());
            drop(writer);
            if first.len() < 22 || length != 0 {
                t.in_order(&ring.wait(1));
            }
            head(t, &ring);
            let (reader, writer) = files::sockets();
            files::put(&writer, b"more");
            t.entry(&ring.one(receiving(&reader, 0, 2)));
            head(t, &ring);
        }
    }
}

/// Another receive takes a buffer while the first one waits for more. When the first ends short,
/// its unfilled buffers are not offered again: a later buffer belongs to another request.
fn receive_wait_all_beside_another(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 6);
    let (first, first_peer) = files::sockets();
    let (second, second_peer) = files::sockets();
    files::put(&first_peer, b"0123");
    ring.push(receiving(&first, 64, 1).op_flags(libc::MSG_WAITALL as u32));
    ring.submit();
    head(t, &ring);
    for user_data in 2..4 {
        files::put(&second_peer, b"more");
        t.entry(&ring.one(receiving(&second, 0, user_data)));
        head(t, &ring);
    }
    drop(first_peer);
    t.in_order(&ring.wait(1));
    for user_data in 5..8 {
        files::put(&second_peer, b"more");
        t.entry(&ring.one(receiving(&second, 0, user_data)));
        head(t, &ring);
    }
}

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
