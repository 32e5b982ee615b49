//! RECV and RECVMSG as multishots: a buffer and a completion for each receive, until one of five
//! events ends the request (see `receive_multishot_ends`).

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::buffers::{Group, SIZE, group_of, incremental_group_of};
use crate::case::{Case, case};
use crate::files;
use crate::memory::{Pages, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, link_timeout, message, nop, sqe};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("receive_multishot.stream", stream),
    case("receive_multishot.datagrams", datagrams),
    case("receive_multishot.data_is_there", data_is_there),
    case("receive_multishot.exactly_full", exactly_full),
    case("receive_multishot.length_is_a_cap", length_is_a_cap),
    case("receive_multishot.limit", limit),
    case("receive_multishot.wrong", wrong),
    case("receive_multishot.do_not_wait", do_not_wait),
    case("receive_multishot.do_not_wait_has_one_turn", do_not_wait_has_one_turn),
    case("receive_multishot.poll_first", poll_first),
    case("receive_multishot.peek", peek),
    case("receive_multishot.link_timeout", bounded),
    case("receive_multishot.drain", drain),
    case("receive_multishot.fixed_file", fixed_file),
    case("receive_multishot.forced_async", forced_async),
    case("receive_multishot.descriptor_closes", descriptor_closes),
    case("receive_multishot.first_generation", first_generation),
    case("receive_multishot.incremental", incremental),
    case("receive_multishot.many_at_once", many_at_once),
    case("receive_multishot.without_entering", without_entering),
    case("receive_multishot.message", message_multishot),
    case("receive_multishot.message_ends", message_ends),
    case("receive_multishot.message_rooms", message_rooms),
    case("receive_multishot.message_truncated", message_truncated),
];

pub const GROUP: u16 = 3;
const MANY: u16 = u::IORING_RECV_MULTISHOT as u16;
pub const DEFER: u32 = u::IORING_SETUP_DEFER_TASKRUN | u::IORING_SETUP_SINGLE_ISSUER;

pub fn multishot(fd: i32, user_data: u64) -> Sqe {
    sqe(opcode::RECV, fd, user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.ioprio = MANY;
        sqe.buf_index = GROUP;
    })
}

/// With MSG_DONTWAIT a multishot ends with its time slice, though there is more data.
fn do_not_wait_has_one_turn(t: &mut Transcript) {
    for (options, length) in [(0, 0), (0, 2), (u::IORING_RECVSEND_BUNDLE, 8)] {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 0, 0);
        for slot in 0..60 {
            group.add_at(memory.at(0), 2, slot);
        }
        let (reader, writer) = files::sockets();
        files::put(&writer, &[b'x'; 100]);
        ring.push(multishot(reader.as_raw_fd(), 1).with(|sqe| {
            sqe.ioprio |= options as u16;
            (sqe.len, sqe.op_flags) = (length, libc::MSG_DONTWAIT as u32);
        }));
        ring.submit();
        let entries = ring.reap();
        t.say(format_args!("{} completions", entries.len()));
        t.in_order(&entries[entries.len().saturating_sub(2)..]);
    }
}

/// Makes a ring with a group of `buffers` buffers.
pub fn ring_of(memory: &Pages, buffers: u16, flags: u32) -> (Ring, Group) {
    let ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE | flags;
        params.cq_entries = 256;
    })
    .expect("a ring");
    let mut group = group_of(&ring, memory, 128, GROUP);
    group.add_slots(0..buffers);
    (ring, group)
}

fn streams() -> [(OwnedFd, OwnedFd); 2] {
    [files::sockets(), files::tcp()]
}

pub fn udp() -> (OwnedFd, OwnedFd) {
    let (reader, writer, _) = files::udp();
    (reader, writer)
}

pub fn arm(ring: &mut Ring, socket: &OwnedFd) {
    ring.push(multishot(socket.as_raw_fd(), 1));
    ring.submit();
}

fn stream(t: &mut Transcript) {
    for (reader, writer) in streams() {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 8, 0);
        arm(&mut ring, &reader);
        for text in ["one", "two", "three"] {
            files::put(&writer, text.as_bytes());
            t.in_order(&ring.wait(1));
        }
        t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
    }
}

fn datagrams(t: &mut Transcript) {
    for (reader, writer) in [udp(), files::sockets_of(libc::SOCK_DGRAM), files::sockets_of(libc::SOCK_SEQPACKET)] {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 8, 0);
        arm(&mut ring, &reader);
        files::put(&writer, b"one");
        t.in_order(&ring.wait(1));
        for text in ["two", "three"] {
            files::put(&writer, text.as_bytes());
        }
        t.in_order(&ring.wait(2));
        t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
    }
}

fn data_is_there(t: &mut Transcript) {
    for (reader, writer) in streams() {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 8, 0);
        files::put(&writer, b"0123456789abcdefghijklmnopqrstuvwxyzABCD");
        arm(&mut ring, &reader);
        t.in_order(&ring.wait(3));
        files::put(&writer, b"0123456789abcdefg");
        t.in_order(&ring.wait(2));
        t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
    }
}

/// The buffers hold exactly the data that there is: neither data nor a buffer is left.
fn exactly_full(t: &mut Transcript) {
    for (reader, writer) in streams() {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 2, 0);
        files::put(&writer, &[b'x'; 32]);
        arm(&mut ring, &reader);
        t.in_order(&ring.wait(2));
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
        group.add_slots(2..3);
        files::put(&writer, b"y");
        t.in_order(&ring.wait(1));
    }
    let (reader, writer) = udp();
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 2, 0);
    for _ in 0..2 {
        files::put(&writer, b"x");
    }
    arm(&mut ring, &reader);
    t.in_order(&ring.wait(3));
}

fn length_is_a_cap(t: &mut Transcript) {
    for (reader, writer) in streams() {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 8, 0);
        files::put(&writer, b"0123456789");
        ring.push(multishot(reader.as_raw_fd(), 1).with(|sqe| sqe.len = 4));
        ring.submit();
        t.in_order(&ring.wait(3));
        files::put(&writer, b"abcdef");
        t.in_order(&ring.wait(2));
    }
}

/// The limit counts all receives together.
fn limit(t: &mut Transcript) {
    for (total, length) in [(20, 0), (20, 6), (16, 0), (4, 0), (20, 16)] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 8, 0);
        let (reader, writer) = files::sockets();
        files::put(&writer, &[b'x'; 40]);
        let request = multishot(reader.as_raw_fd(), 1).with(|sqe| {
            sqe.file_index = total;
            sqe.len = length;
        });
        ring.push(request);
        ring.submit();
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
        t.say(format_args!("{} bytes left", files::take(&reader, 100).map_or(0, |bytes| bytes.len())));
    }
}

fn wrong(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"x");
    let good = multishot(reader.as_raw_fd(), 1);
    t.entry(&ring.one(good.with(|sqe| sqe.flags = 0)));
    t.entry(&ring.one(good.op_flags(libc::MSG_WAITALL as u32)));
    t.entry(&ring.one(good.with(|sqe| sqe.buf_index = 9)));
    t.entry(&ring.one(good.with(|sqe| sqe.fd = -1)));
    t.entry(&ring.one(good.with(|sqe| sqe.off = 1)));
    let pipe = files::pipe();
    t.entry(&ring.one(good.with(|sqe| sqe.fd = pipe.0.as_raw_fd())));
    let send = good.with(|sqe| sqe.opcode = opcode::SEND);
    t.entry(&ring.one(send));
    let file = files::memory_file(b"content");
    t.entry(&ring.one(good.with(|sqe| sqe.fd = file.as_raw_fd())));
    t.entry(&ring.one(good.with(|sqe| sqe.fd = file.as_raw_fd()).forced_async()));
}

fn do_not_wait(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    let flags = libc::MSG_DONTWAIT as u32;
    t.entry(&ring.one(multishot(reader.as_raw_fd(), 1).op_flags(flags)));
    files::put(&writer, b"x");
    ring.push(multishot(reader.as_raw_fd(), 2).op_flags(flags));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}

fn poll_first(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"x");
    ring.push(multishot(reader.as_raw_fd(), 1).with(|sqe| sqe.ioprio |= u::IORING_RECVSEND_POLL_FIRST as u16));
    ring.submit();
    t.in_order(&ring.wait(1));
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
    // No buffer is taken before there is data. The case uses another socket, because the first
    // request still waits on the other one.
    let (reader, writer) = files::sockets();
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 0, 0);
    ring.push(multishot(reader.as_raw_fd(), 2).with(|sqe| sqe.ioprio |= u::IORING_RECVSEND_POLL_FIRST as u16));
    ring.submit();
    t.in_order(&ring.reap());
    group.add_slots(0..1);
    files::put(&writer, b"z");
    t.in_order(&ring.wait(1));
}

fn peek(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 4;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..16);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"x");
    ring.push(multishot(reader.as_raw_fd(), 1).op_flags(libc::MSG_PEEK as u32));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    t.in_order(&ring.reap());
}

fn bounded(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    let time = crate::time::milliseconds(1000);
    ring.push(multishot(reader.as_raw_fd(), 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    t.sorted(&ring.wait(2));
}

fn drain(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    arm(&mut ring, &reader);
    ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    drop(writer);
    t.in_order(&ring.wait(2));
}

fn fixed_file(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::tcp();
    let numbers = [reader.as_raw_fd()];
    t.result("register", ring.register(reg::FILES, numbers.as_ptr(), 1));
    drop(reader);
    ring.push(multishot(0, 1).fixed());
    ring.submit();
    for _ in 0..3 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
    drop(writer);
    t.in_order(&ring.wait(1));
}

fn forced_async(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), 1).forced_async());
    ring.submit();
    for _ in 0..2 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    drop(writer);
    t.in_order(&ring.wait(1));
}

fn descriptor_closes(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::tcp();
    arm(&mut ring, &reader);
    drop(reader);
    for _ in 0..2 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    drop(writer);
    t.in_order(&ring.wait(1));
}

fn first_generation(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(8);
    let provide = sqe(opcode::PROVIDE_BUFFERS, 3, 1).with(|sqe| {
        sqe.addr = buffers.at(0);
        sqe.len = SIZE;
        sqe.buf_index = GROUP;
    });
    t.entry(&ring.one(provide));
    let (reader, writer) = files::sockets();
    arm(&mut ring, &reader);
    for _ in 0..3 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
}

fn incremental(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(8);
    let mut group = incremental_group_of(&ring, &memory, 4, GROUP);
    group.add_slots(0..2);
    let (reader, writer) = files::sockets();
    arm(&mut ring, &reader);
    for length in [5, 6, 7] {
        files::put(&writer, &[b'x'; 8][..length]);
        t.in_order(&ring.wait(if length == 7 { 2 } else { 1 }));
        t.say(format_args!("{}, {}", group.state(0), group.state(1)));
    }
}

/// Far more data than one time slice takes, while other sockets have data, too.
fn many_at_once(t: &mut Transcript) {
    let memory = Pages::new(2);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 1024;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 512, GROUP);
    for slot in 0..400u16 {
        let address = group.buffers.at(usize::from(slot));
        group.add_at(address, 1, slot);
    }
    let (reader, writer) = files::tcp();
    let (other, other_writer) = udp();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.push(multishot(other.as_raw_fd(), 2));
    ring.submit();
    files::put(&writer, &[b'x'; 300]);
    files::put(&other_writer, b"y");
    let entries = ring.wait(301);
    let of = |user_data| entries.iter().filter(move |entry| entry.user_data == user_data && entry.res == 1);
    let more = entries.iter().all(|entry| entry.flags & u::IORING_CQE_F_MORE != 0);
    t.say(format_args!("{} and {}, all with more: {more}", of(1).count(), of(2).count()));
    drop(writer);
    t.in_order(&ring.wait(1));
}

fn without_entering(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 120, 0);
    let (reader, writer) = files::tcp();
    arm(&mut ring, &reader);
    files::put(&writer, &[b'x'; 1600]);
    t.say(format_args!("all there: {}", ring.watch(100)));
    for count in 101..=105 {
        files::put(&writer, b"x");
        t.say(format_args!("one more: {}", ring.watch(count)));
    }
}

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

/// Prints the header before the data, and the data.
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

/// Makes a ring with buffers of 64 bytes.
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
