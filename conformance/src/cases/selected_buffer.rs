//! SEND and RECV with a provided buffer.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::send_receive::{ALL, text};
use crate::buffers::{group_of, incremental_group_of};
use crate::files;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, sqe};
use crate::transcript::Transcript;

const GROUP: u16 = 3;

fn select(fd: i32, length: u32, user_data: u64) -> Sqe {
    sqe(opcode::RECV, fd, user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.buf_index = GROUP;
        sqe.len = length;
    })
}

fn select_to_send(fd: i32, length: u32, user_data: u64) -> Sqe {
    select(fd, length, user_data).with(|sqe| sqe.opcode = opcode::SEND)
}

/// A SEND or RECV on a pipe or a device fails, and uses up none of the group's buffers.
fn no_socket(t: &mut Transcript) {
    let header: libc::msghdr = crate::memory::zeroed();
    let header_at = &raw const header as u64;
    let operations = [
        (opcode::SEND, 0),
        (opcode::SEND, u::IORING_RECVSEND_BUNDLE),
        (opcode::RECV, 0),
        (opcode::RECV, u::IORING_RECVSEND_BUNDLE),
        (opcode::RECV, u::IORING_RECV_MULTISHOT),
        (opcode::RECVMSG, u::IORING_RECV_MULTISHOT),
    ];
    for (file, _other) in [files::pipe(), (files::null(), files::null())] {
        for (operation, flags) in operations {
            let mut ring = Ring::new(4);
            let memory = Pages::new(1);
            let mut group = group_of(&ring, &memory, 8, GROUP);
            group.add_slots(0..2);
            let request = select(file.as_raw_fd(), 0, 1).with(|sqe| {
                (sqe.opcode, sqe.ioprio) = (operation, flags as u16);
                if operation == opcode::RECVMSG {
                    sqe.addr = header_at;
                }
            });
            t.entry(&ring.one(request));
            let mut status: u::io_uring_buf_status = crate::memory::zeroed();
            status.buf_group = u32::from(GROUP);
            t.result("status", ring.register(super::reg::PBUF_STATUS, &raw mut status, 1));
            t.say(format_args!("head {}", status.head));
        }
    }
}
case!(no_socket => include_str!("selected_buffer/no_socket.txt"));

fn selected_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, GROUP);
    group.add_slots(0..4);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"0123456789abcdefghijklmnopqrstuvwxyz");
    for (user_data, length) in [(1, 4), (2, 0), (3, 100), (4, 16)] {
        t.entry(&ring.one(select(reader.as_raw_fd(), length, user_data)));
        if user_data == 3 {
            files::put(&writer, b"x");
        }
    }
    t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
    // The group is empty. A receive that selects from it gets -ENOBUFS at once, whether the file
    // has data or not.
    t.entry(&ring.one(select(reader.as_raw_fd(), 0, 5)));
    let pipe = files::pipe();
    t.entry(&ring.one(select(pipe.0.as_raw_fd(), 0, 6)));
    group.add_slots(4..6);
    t.entry(&ring.one(select(pipe.0.as_raw_fd(), 0, 7)));
    drop(writer);
    t.entry(&ring.one(select(reader.as_raw_fd(), 0, 8)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 0, 9)));
}
case!(selected_buffer as receive => "
    cqe 1: 4 SOCK_NONEMPTY|BUFFER(0)
    cqe 2: 16 SOCK_NONEMPTY|BUFFER(1)
    cqe 3: 16 BUFFER(2)
    cqe 4: 1 BUFFER(3)
    0123............ 456789abcdefghij klmnopqrstuvwxyz
    cqe 5: -ENOBUFS
    cqe 6: -ENOTSOCK
    cqe 7: -ENOTSOCK
    cqe 8: 0
    cqe 9: 0
");

fn selected_buffer_waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, GROUP);
    group.add_slots(0..2);
    let (reader, writer) = files::sockets();
    let (other, other_writer) = files::sockets();
    ring.push(select(reader.as_raw_fd(), 0, 1));
    ring.submit();
    files::put(&other_writer, b"second");
    t.entry(&ring.one(select(other.as_raw_fd(), 0, 2)));
    files::put(&writer, b"first");
    t.in_order(&ring.wait(1));
}
case!(selected_buffer_waits as receive_waits => "
    cqe 2: 6 BUFFER(0)
    cqe 1: 5 BUFFER(1)
");

fn selected_buffer_wait_all(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, GROUP);
    group.add_slots(0..3);
    let (reader, writer) = files::sockets();
    let (other, other_writer) = files::sockets();
    ring.push(select(reader.as_raw_fd(), 8, 1).op_flags(ALL));
    ring.submit();
    files::put(&writer, b"abc");
    crate::time::long_enough_to_notice();
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    t.in_order(&ring.reap());
    files::put(&other_writer, b"other");
    t.entry(&ring.one(select(other.as_raw_fd(), 0, 2)));
    files::put(&writer, b"defghijk");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} {}", group.text(0), group.text(1)));
    // This receive is cancelled after some bytes have arrived. Its result is the number of these
    // bytes, and its buffer is used up.
    let _ = files::take(&reader, 100);
    ring.push(select(reader.as_raw_fd(), 8, 3).op_flags(ALL));
    ring.submit();
    files::put(&writer, b"abc");
    crate::time::long_enough_to_notice();
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    ring.push(cancel(3, 0, 4));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(selected_buffer_wait_all as receive_all => "
    no cqe
    cqe 2: 5 BUFFER(1)
    cqe 1: 8 SOCK_NONEMPTY|BUFFER(0)
    abcdefgh........ other...........
    cqe 4: 0
    cqe 3: 3 BUFFER(2)
");

fn selected_buffer_incremental(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = incremental_group_of(&ring, &memory, 8, GROUP);
    group.add_slots(0..2);
    let (reader, writer) = files::sockets();
    for (user_data, length) in [(1, 0), (2, 6), (3, 0), (4, 0)] {
        ring.push(select(reader.as_raw_fd(), length, user_data));
        ring.submit();
        files::put(&writer, b"1234567");
        t.in_order(&ring.wait(1));
        t.say(format_args!("{}, {}", group.state(0), group.state(1)));
    }
}
case!(selected_buffer_incremental as receive_incremental => "
    cqe 1: 7 BUF_MORE|BUFFER(0)
    at 7 left 9, at 0 left 16
    cqe 2: 6 SOCK_NONEMPTY|BUF_MORE|BUFFER(0)
    at 13 left 3, at 0 left 16
    cqe 3: 1 BUF_MORE|BUFFER(0)
    at 14 left 2, at 0 left 16
    cqe 4: 2 SOCK_NONEMPTY|BUFFER(0)
    at 14 left 0, at 0 left 16
");

fn send_selected_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, GROUP);
    group.buffers.bytes()[..32].copy_from_slice(b"0123456789abcdefghijklmnopqrstuv");
    group.add_slots(0..2);
    let (reader, writer) = files::sockets();
    for (user_data, length) in [(1, 4), (2, 0), (3, 0)] {
        t.entry(&ring.one(select_to_send(writer.as_raw_fd(), length, user_data)));
    }
    t.say(text(&files::take(&reader, 100).unwrap_or_default()));
    let mut other = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = incremental_group_of(&other, &memory, 8, GROUP);
    group.buffers.bytes()[..32].copy_from_slice(b"0123456789abcdefghijklmnopqrstuv");
    group.add_slots(0..2);
    for (user_data, length) in [(1, 4), (2, 0), (3, 4)] {
        t.entry(&other.one(select_to_send(writer.as_raw_fd(), length, user_data)));
        t.say(format_args!("{}, {}", group.state(0), group.state(1)));
    }
    t.say(text(&files::take(&reader, 100).unwrap_or_default()));
}
case!(send_selected_buffer as send => "
    cqe 1: 4 BUFFER(0)
    cqe 2: 16 BUFFER(1)
    cqe 3: -ENOBUFS
    0123ghijklmnopqrstuv
    cqe 1: 4 BUF_MORE|BUFFER(0)
    at 4 left 12, at 0 left 16
    cqe 2: 12 BUFFER(0)
    at 4 left 0, at 0 left 16
    cqe 3: 4 BUF_MORE|BUFFER(1)
    at 4 left 0, at 4 left 12
    0123456789abcdefghij
");

/// A send that waits keeps its buffer. A send that fails uses up its buffer.
fn send_selected_buffer_fails(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, GROUP);
    group.add_slots(0..6);
    let (reader, writer) = files::sockets();
    let (_other, other_writer) = files::sockets();
    files::fill(&writer);
    ring.push(select_to_send(writer.as_raw_fd(), 4, 1));
    ring.submit();
    t.entry(&ring.one(select_to_send(other_writer.as_raw_fd(), 4, 2)));
    ring.push(cancel(1, 0, 3));
    ring.submit();
    t.in_order(&ring.wait(2));
    t.entry(&ring.one(select_to_send(other_writer.as_raw_fd(), 4, 4)));
    drop(reader);
    t.entry(&ring.one(select_to_send(writer.as_raw_fd(), 4, 5)));
    t.entry(&ring.one(select_to_send(other_writer.as_raw_fd(), 4, 6)));
}
case!(send_selected_buffer_fails as send_fails => "
    cqe 2: 4 BUFFER(1)
    cqe 3: 0
    cqe 1: -ECANCELED BUFFER(0)
    cqe 4: 4 BUFFER(2)
    cqe 5: -EPIPE BUFFER(3)
    cqe 6: 4 BUFFER(4)
");

fn first_generation(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(8);
    let provide = sqe(opcode::PROVIDE_BUFFERS, 8, 1).with(|sqe| {
        sqe.addr = buffers.at(0);
        sqe.len = 16;
        sqe.buf_index = GROUP;
    });
    t.entry(&ring.one(provide));
    let (reader, writer) = files::sockets();
    let (other, other_writer) = files::sockets();
    ring.push(select(reader.as_raw_fd(), 0, 2));
    ring.submit();
    files::put(&other_writer, b"other");
    t.entry(&ring.one(select(other.as_raw_fd(), 0, 3)));
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    t.entry(&ring.one(select_to_send(other_writer.as_raw_fd(), 4, 4)));
    ring.push(select(reader.as_raw_fd(), 0, 5));
    ring.submit();
    ring.push(cancel(5, 0, 6));
    ring.submit();
    t.in_order(&ring.wait(2));
    files::fill(&writer);
    ring.push(select_to_send(writer.as_raw_fd(), 4, 7));
    ring.submit();
    ring.push(cancel(7, 0, 8));
    ring.submit();
    t.in_order(&ring.wait(2));
    drop(other);
    t.entry(&ring.one(select_to_send(other_writer.as_raw_fd(), 4, 9)));
}
case!(first_generation => "
    cqe 1: 0
    cqe 3: 5 BUFFER(0)
    cqe 2: 1 BUFFER(1)
    cqe 4: 16 BUFFER(2)
    cqe 6: 0
    cqe 5: -ECANCELED
    cqe 8: 0
    cqe 7: -ECANCELED BUFFER(3)
    cqe 9: -EPIPE BUFFER(4)
");

/// A receive with length 4 selects a buffer of 16 bytes. It has to wait, so it returns the buffer
/// to the group. The next receive can use all 16 bytes of that buffer.
fn returned_whole(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(8);
    let provide = sqe(opcode::PROVIDE_BUFFERS, 2, 1).with(|sqe| {
        sqe.addr = buffers.at(0);
        sqe.len = 16;
        sqe.buf_index = GROUP;
    });
    t.entry(&ring.one(provide));
    let (reader, _writer) = files::sockets();
    let (other, other_writer) = files::sockets();
    ring.push(select(reader.as_raw_fd(), 4, 2));
    t.result("submit", ring.submit());
    files::put(&other_writer, b"0123456789abcdefghijklmnopqrstuvwxyz");
    t.entry(&ring.one(select(other.as_raw_fd(), 0, 3)));
    let bundle = select_to_send(other_writer.as_raw_fd(), 4, 4);
    t.entry(&ring.one(bundle.with(|sqe| sqe.ioprio = u::IORING_RECVSEND_BUNDLE as u16)));
}
case!(returned_whole => "
    cqe 1: 0
    submit = 1
    cqe 3: 16 SOCK_NONEMPTY|BUFFER(0)
    cqe 4: 16 BUFFER(1)
");

/// The receives that the cases test. Each entry has an opcode, message flags, options for `ioprio`,
/// and a length.
const RECEIVES: &[(u8, i32, u32, u32)] = &[
    (opcode::RECV, 0, 0, 0),
    (opcode::RECV, 0, 0, 4),
    (opcode::RECV, libc::MSG_TRUNC, 0, 0),
    (opcode::RECV, libc::MSG_TRUNC, 0, 4),
    (opcode::RECV, libc::MSG_TRUNC | libc::MSG_PEEK, 0, 0),
    (opcode::RECV, libc::MSG_TRUNC, u::IORING_RECV_MULTISHOT, 0),
    (opcode::RECV, libc::MSG_TRUNC, u::IORING_RECVSEND_BUNDLE, 0),
    (opcode::RECV, libc::MSG_TRUNC, u::IORING_RECVSEND_BUNDLE, 4),
    (opcode::RECV, libc::MSG_TRUNC, u::IORING_RECVSEND_BUNDLE, 40),
    (opcode::RECV, libc::MSG_TRUNC, u::IORING_RECVSEND_BUNDLE | u::IORING_RECV_MULTISHOT, 0),
    (opcode::RECV, libc::MSG_TRUNC, u::IORING_RECVSEND_BUNDLE | u::IORING_RECV_MULTISHOT, 20),
    (opcode::RECVMSG, libc::MSG_TRUNC, 0, 0),
];

/// Submits a receive `how` from `reader` that selects from a group, and prints its CQEs. `kind` is
/// "incremental" or "ring" for a buffer ring, or "classic". For a buffer ring, also prints its head
/// and entries.
fn received(t: &mut Transcript, kind: &str, reader: &std::os::fd::OwnedFd, how: (u8, i32, u32, u32)) {
    let (operation, flags, options, length) = how;
    let mut ring = Ring::new(16);
    let memory = Pages::new(1);
    let mut group = match kind {
        "incremental" => Some(crate::buffers::incremental_group_of(&ring, &memory, 8, 3)),
        "ring" => Some(crate::buffers::group_of(&ring, &memory, 8, 3)),
        _ => None,
    };
    match &mut group {
        Some(group) => group.add_slots(0..3),
        None => drop(ring.one(sqe(opcode::PROVIDE_BUFFERS, 3, 9).with(|sqe| {
            (sqe.addr, sqe.len, sqe.buf_index) = (memory.at(1024), 16, 3);
        }))),
    }
    let header: libc::msghdr = crate::memory::zeroed();
    let request = sqe(operation, reader.as_raw_fd(), 1).flagged(sqe_flags::BUFFER_SELECT).op_flags(flags as u32);
    ring.push(request.with(|sqe| {
        (sqe.len, sqe.buf_index, sqe.ioprio) = (length, 3, options as u16);
        if operation == opcode::RECVMSG {
            (sqe.addr, sqe.len) = (&raw const header as u64, 1);
        }
    }));
    ring.submit();
    let mut entries = ring.wait(1);
    entries.extend(ring.reap_in_memory(0));
    ring.enter_for(0, 1, std::time::Duration::from_millis(20));
    entries.extend(ring.reap());
    t.say(format_args!("{kind} {how:?}"));
    t.in_order(&entries);
    if let Some(group) = &group {
        let mut status: u::io_uring_buf_status = crate::memory::zeroed();
        status.buf_group = 3;
        ring.register(super::reg::PBUF_STATUS, &raw mut status, 1);
        t.say(format_args!("head {} {}, {}, {}", status.head, group.state(0), group.state(1), group.state(2)));
    }
}

/// Submits receives with MSG_TRUNC: of messages that are longer than their buffer, and of data from
/// streams.
fn truncated_messages(t: &mut Transcript) {
    for kind in ["classic", "ring", "incremental"] {
        for how in RECEIVES {
            let (reader, writer) = files::sockets_of(libc::SOCK_SEQPACKET);
            files::put(&writer, &[b'x'; 50]);
            files::put(&writer, &[b'y'; 5]);
            files::put(&writer, &[b'z'; 100]);
            t.say("packets");
            received(t, kind, &reader, *how);
            let (reader, writer) = files::tcp();
            files::put(&writer, &[b'x'; 50]);
            t.say("tcp");
            received(t, kind, &reader, *how);
            let (reader, writer) = files::sockets();
            files::put(&writer, &[b'x'; 50]);
            t.say("stream");
            received(t, kind, &reader, *how);
        }
    }
}
case!(truncated_messages => include_str!("selected_buffer/truncated_messages.txt"));

/// Prints whether a CQE names a buffer if no bytes were received: at the end of a stream, and for
/// an empty message.
fn nothing_received(t: &mut Transcript) {
    for kind in ["classic", "ring", "incremental"] {
        for how in RECEIVES {
            let (reader, writer) = files::sockets();
            drop(writer);
            t.say("end of a stream");
            received(t, kind, &reader, *how);
            let (reader, writer) = files::sockets_of(libc::SOCK_DGRAM);
            // SAFETY: the call touches no memory.
            unsafe { libc::send(writer.as_raw_fd(), std::ptr::null(), 0, 0) };
            t.say("an empty datagram");
            received(t, kind, &reader, *how);
        }
    }
}
case!(nothing_received => include_str!("selected_buffer/nothing_received.txt"));

/// A receive waits. Its first attempt has limited its length to the length of the group's next
/// buffer. Another request then takes that buffer, but the limit remains.
fn first_selection_limits(t: &mut Transcript) {
    let header: libc::msghdr = crate::memory::zeroed();
    let multishot = u::IORING_RECV_MULTISHOT;
    let ways = [
        (opcode::RECV, 0, 0),
        (opcode::RECV, 12, 0),
        (opcode::RECV, 0, multishot),
        (opcode::RECVMSG, 1, 0),
        (opcode::READ, 12, 0),
        (opcode::READ_MULTISHOT, 0, 0),
    ];
    for kind in ["classic", "ring", "incremental"] {
        for (operation, length, options) in ways {
            t.say(format_args!("{kind}, opcode {operation}, length {length}, options {options}"));
            let mut ring = Ring::new(8);
            let memory = Pages::new(1);
            let mut group = match kind {
                "incremental" => Some(incremental_group_of(&ring, &memory, 8, GROUP)),
                "ring" => Some(group_of(&ring, &memory, 8, GROUP)),
                _ => None,
            };
            for (slot, length) in [(0, 5), (1, 16), (2, 16)] {
                match &mut group {
                    Some(group) => group.add(slot, length, slot),
                    None => drop(ring.one(sqe(opcode::PROVIDE_BUFFERS, 1, 9).with(|sqe| {
                        (sqe.addr, sqe.len, sqe.off) = (memory.at(64 * usize::from(slot)), length, slot.into());
                        sqe.buf_index = GROUP;
                    }))),
                }
            }
            let (reader, writer) = files::sockets();
            ring.push(select(reader.as_raw_fd(), length, 1).with(|sqe| {
                (sqe.opcode, sqe.ioprio, sqe.off) = (operation, options as u16, 0);
                if operation == opcode::RECVMSG {
                    sqe.addr = &raw const header as u64;
                }
            }));
            ring.submit();
            let (other, other_writer) = files::sockets();
            files::put(&other_writer, b"other");
            t.entry(&ring.one(select(other.as_raw_fd(), 0, 2)));
            files::put(&writer, b"0123456789ab");
            ring.enter_for(0, 1, std::time::Duration::from_millis(20));
            t.in_order(&ring.reap());
            files::put(&writer, b"0123456789ab");
            ring.enter_for(0, 1, std::time::Duration::from_millis(20));
            t.in_order(&ring.reap());
        }
    }
}
case!(first_selection_limits => include_str!("selected_buffer/first_selection_limits.txt"));
