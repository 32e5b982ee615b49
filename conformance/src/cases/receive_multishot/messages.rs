//! Multishot RECVMSG.

use super::{GROUP, MANY, streams, udp};
use crate::buffers::{Group, group_of};
use crate::files;
use crate::memory::{Pages, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, message, nop};
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::{Sqe, opcode, sqe_flags};

fn header(name: u32, control: usize) -> libc::msghdr {
    let mut header: libc::msghdr = zeroed();
    header.msg_namelen = name;
    header.msg_controllen = control;
    header
}

fn messages(fd: i32, header: &libc::msghdr, user_data: u64) -> Sqe {
    message(opcode::RECVMSG, fd, header, user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.ioprio = MANY;
        sqe.buf_index = GROUP;
    })
}

/// Prints the data of the message in the buffer `slot`, and the header that the kernel has written
/// before the data.
fn show(t: &mut Transcript, group: &mut Group, slot: usize, name: usize, control: usize) {
    let bytes = &group.buffers.bytes()[slot * 64..(slot + 1) * 64];
    let word = |index: usize| u32::from_ne_bytes(bytes[index * 4..][..4].try_into().expect("four bytes"));
    let family = if name >= 2 { u16::from_ne_bytes([bytes[16], bytes[17]]) } else { 0 };
    let data = String::from_utf8_lossy(&bytes[16 + name + control..][..8]).replace('\0', ".");
    t.say(format_args!(
        "name {} control {} payload {} flags {:#x} family {family} {data}",
        word(0),
        word(1),
        word(2),
        word(3)
    ));
}

/// Makes a ring and a buffer group whose buffers have 64 bytes each, so that a message's header
/// fits.
fn ring_for_messages(memory: &Pages) -> (Ring, Group) {
    let ring = Ring::new(16);
    let mut group = group_of(&ring, memory, 128, GROUP);
    for slot in 0..8u16 {
        let address = group.buffers.at(usize::from(slot) * 64);
        group.add_at(address, 64, slot);
    }
    (ring, group)
}

fn message_multishot(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_for_messages(&memory);
    let (reader, writer) = udp();
    let header = header(16, 0);
    ring.push(messages(reader.as_raw_fd(), &header, 1));
    ring.submit();
    for text in ["one", "three"] {
        files::put(&writer, text.as_bytes());
        t.in_order(&ring.wait(1));
    }
    show(t, &mut group, 0, 16, 0);
    show(t, &mut group, 1, 16, 0);
}
case!(message_multishot as message => "
    cqe 1: 35 MORE|BUFFER(0)
    cqe 1: 37 MORE|BUFFER(1)
    name 16 control 0 payload 3 flags 0x0 family 2 one.....
    name 16 control 0 payload 5 flags 0x0 family 2 three...
");

fn message_ends(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_for_messages(&memory);
    for (slot, (reader, writer)) in streams().into_iter().enumerate() {
        let header = header(0, 0);
        ring.push(messages(reader.as_raw_fd(), &header, 1).linked());
        ring.push(nop(2));
        ring.submit();
        files::put(&writer, b"text");
        t.in_order(&ring.wait(1));
        drop(writer);
        t.in_order(&ring.wait(2));
        show(t, &mut group, slot * 2, 0, 0);
        show(t, &mut group, slot * 2 + 1, 0, 0);
    }
}
case!(message_ends => "
    cqe 1: 20 MORE|BUFFER(0)
    cqe 1: 16 BUFFER(1)
    cqe 2: 0
    name 0 control 0 payload 4 flags 0x0 family 0 text....
    name 0 control 0 payload 0 flags 0x0 family 0 ........
    cqe 1: 20 MORE|BUFFER(2)
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(3)
    cqe 2: 0
    name 0 control 0 payload 4 flags 0x0 family 0 text....
    name 0 control 0 payload 0 flags 0x0 family 0 ........
");

fn message_rooms(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_for_messages(&memory);
    let (reader, writer) = udp();
    for (name, control) in [(4, 0), (0, 16), (40, 8), (48, 0), (49, 0), (0, 49), (u32::MAX, 0), (0, usize::MAX)] {
        files::put(&writer, b"text");
        let header = header(name, control);
        ring.push(messages(reader.as_raw_fd(), &header, 1));
        ring.submit();
        t.in_order(&ring.wait(1));
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.in_order(&ring.wait(1));
        ring.reap();
        files::set_nonblocking(&reader, true);
        let _ = files::take(&reader, 10);
    }
    show(t, &mut group, 0, 4, 0);
    show(t, &mut group, 1, 0, 16);
}
case!(message_rooms => "
    cqe 1: 24 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 1: 36 MORE|BUFFER(1)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 1: 64 BUFFER(2)
    cqe 2: -ENOENT
    cqe 1: 64 BUFFER(3)
    cqe 2: -ENOENT
    cqe 1: -EFAULT
    cqe 2: -ENOENT
    cqe 1: -EFAULT
    cqe 2: -ENOENT
    cqe 1: -EOVERFLOW
    cqe 2: -ENOENT
    cqe 1: -EOVERFLOW
    cqe 2: -ENOENT
    name 16 control 0 payload 4 flags 0x0 family 2 text....
    name 0 control 0 payload 4 flags 0x0 family 0 text....
");

fn message_truncated(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_for_messages(&memory);
    let (reader, writer) = udp();
    let header = header(16, 0);
    for flags in [0, libc::MSG_TRUNC] {
        ring.push(messages(reader.as_raw_fd(), &header, 1).op_flags(flags as u32));
        ring.submit();
        files::put(&writer, &[b'x'; 60]);
        t.in_order(&ring.wait(1));
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.in_order(&ring.wait(2));
    }
    show(t, &mut group, 0, 16, 0);
    show(t, &mut group, 1, 16, 0);
}
case!(message_truncated => "
    cqe 1: 64 MORE|BUFFER(0)
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 1: 64 MORE|BUFFER(1)
    cqe 2: 0
    cqe 1: -ECANCELED
    name 16 control 0 payload 32 flags 0x20 family 2 xxxxxxxx
    name 16 control 0 payload 60 flags 0x20 family 2 xxxxxxxx
");
