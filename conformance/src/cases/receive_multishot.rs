//! Multishot RECV and RECVMSG. Each receive selects a buffer and posts a CQE. Five events can end
//! the request: see `receive_multishot_ends`.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::buffers::{Group, SIZE, group_of, incremental_group_of};
use crate::files;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::sqe::{Change, fields, link_timeout, nop, sqe};
use crate::transcript::Transcript;

mod bad_memory;
mod messages;
mod slices;

pub const GROUP: u16 = 3;
const MANY: u16 = u::IORING_RECV_MULTISHOT as u16;

pub fn multishot(fd: i32, user_data: u64) -> Sqe {
    sqe(opcode::RECV, fd, user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.ioprio = MANY;
        sqe.buf_index = GROUP;
    })
}

/// The kernel makes at most 33 receives of a multishot without a pause. After these, a multishot
/// with MSG_DONTWAIT ends with -EAGAIN, even if the socket has more data.
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
case!(do_not_wait_has_one_turn => "
    34 completions
    cqe 1: 2 MORE|SOCK_NONEMPTY|BUFFER(32)
    cqe 1: -EAGAIN
    34 completions
    cqe 1: 2 MORE|SOCK_NONEMPTY|BUFFER(32)
    cqe 1: -EAGAIN
    2 completions
    cqe 1: 8 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: -EAGAIN
");

/// Makes a ring with `flags`, and a group of `buffers` buffers whose buffer ring lies in `memory`.
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
case!(stream => "
    cqe 1: 3 MORE|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    cqe 1: 5 MORE|BUFFER(2)
    one............. two............. three...........
    cqe 1: 3 MORE|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    cqe 1: 5 MORE|BUFFER(2)
    one............. two............. three...........
");

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
case!(datagrams => "
    cqe 1: 3 MORE|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    cqe 1: 5 MORE|BUFFER(2)
    one............. two............. three...........
    cqe 1: 3 MORE|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    cqe 1: 5 MORE|BUFFER(2)
    one............. two............. three...........
    cqe 1: 3 MORE|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    cqe 1: 5 MORE|BUFFER(2)
    one............. two............. three...........
");

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
case!(data_is_there => "
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(1)
    cqe 1: 8 MORE|BUFFER(2)
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(3)
    cqe 1: 1 MORE|BUFFER(4)
    0123456789abcdef ghijklmnopqrstuv wxyzABCD........
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(1)
    cqe 1: 8 MORE|BUFFER(2)
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(3)
    cqe 1: 1 MORE|BUFFER(4)
    0123456789abcdef ghijklmnopqrstuv wxyzABCD........
");

/// The data fills the group's buffers exactly. The multishot does not end, and uses no further
/// buffer.
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
case!(exactly_full => "
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 16 MORE|BUFFER(1)
    no cqe
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 16 MORE|BUFFER(1)
    no cqe
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: -ENOBUFS
");

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
case!(length_is_a_cap => "
    cqe 1: 4 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 4 MORE|SOCK_NONEMPTY|BUFFER(1)
    cqe 1: 2 MORE|BUFFER(2)
    cqe 1: 4 MORE|SOCK_NONEMPTY|BUFFER(3)
    cqe 1: 2 MORE|BUFFER(4)
    cqe 1: 4 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 4 MORE|SOCK_NONEMPTY|BUFFER(1)
    cqe 1: 2 MORE|BUFFER(2)
    cqe 1: 4 MORE|SOCK_NONEMPTY|BUFFER(3)
    cqe 1: 2 MORE|BUFFER(4)
");

/// The SQE field `file_index` limits how many bytes all receives of a multishot get in total.
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
case!(limit => "
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(1)
    8 bytes left
    cqe 1: 6 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 6 MORE|SOCK_NONEMPTY|BUFFER(1)
    cqe 1: 6 MORE|SOCK_NONEMPTY|BUFFER(2)
    cqe 1: 6 SOCK_NONEMPTY|BUFFER(3)
    16 bytes left
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(0)
    24 bytes left
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(0)
    24 bytes left
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 16 SOCK_NONEMPTY|BUFFER(1)
    8 bytes left
");

fn wrong(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"x");
    let good = multishot(reader.as_raw_fd(), 1);
    t.entry(&ring.one(good.with(|sqe| sqe.flags = 0)));
    t.entry(&ring.one(good.op_flags(libc::MSG_WAITALL as u32)));
    t.each(&mut ring, good, &fields![buf_index = 9, fd = -1, off = 1]);
    let pipe = files::pipe();
    t.entry(&ring.one(good.with(|sqe| sqe.fd = pipe.0.as_raw_fd())));
    let send = good.with(|sqe| sqe.opcode = opcode::SEND);
    t.entry(&ring.one(send));
    let file = files::memory_file(b"content");
    t.entry(&ring.one(good.with(|sqe| sqe.fd = file.as_raw_fd())));
    t.entry(&ring.one(good.with(|sqe| sqe.fd = file.as_raw_fd()).forced_async()));
}
case!(wrong => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -ENOBUFS
    cqe 1: -EBADF
    cqe 1: -EINVAL
    cqe 1: -ENOTSOCK
    cqe 1: -EINVAL
    cqe 1: -ENOTSOCK
    cqe 1: -EBADFD
");

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
case!(do_not_wait => "
    cqe 1: -EAGAIN
    cqe 2: 1 MORE|BUFFER(0)
    cqe 2: -EAGAIN
");

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
    // A multishot selects a buffer only when data is there. This part needs a new socket, because
    // the first multishot still waits on the old one.
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
case!(poll_first => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    no cqe
    cqe 2: 1 MORE|BUFFER(0)
");

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
case!(peek => "
    cqe 1: 1 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 1 MORE|SOCK_NONEMPTY|BUFFER(1)
    cqe 1: 1 MORE|SOCK_NONEMPTY|BUFFER(2)
    cqe 1: 1 MORE|SOCK_NONEMPTY|BUFFER(3)
    cqe 1: 1 SOCK_NONEMPTY|BUFFER(4)
");

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
case!(bounded as link_timeout => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: -ECANCELED
    cqe 2: -ETIME
");

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
case!(drain => "
    cqe 1: 1 MORE|BUFFER(0)
    no cqe
    cqe 1: 0
    cqe 2: 0
");

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
case!(fixed_file => "
    register = 0
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    unregister = 0
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 0 SOCK_NONEMPTY
");

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
case!(forced_async => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 0
");

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
case!(descriptor_closes => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 0 SOCK_NONEMPTY
");

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
case!(first_generation => "
    cqe 1: 0
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: -ENOBUFS
");

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
case!(incremental => "
    cqe 1: 5 MORE|BUF_MORE|BUFFER(0)
    at 5 left 11, at 0 left 16
    cqe 1: 6 MORE|BUF_MORE|BUFFER(0)
    at 11 left 5, at 0 left 16
    cqe 1: 5 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 2 MORE|BUF_MORE|BUFFER(1)
    at 11 left 0, at 2 left 14
");

/// A TCP socket has far more data than the kernel receives from it without a pause. The multishot
/// on a UDP socket gets its data nevertheless.
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
case!(many_at_once => "
    300 and 1, all with more: true
    cqe 1: 0 SOCK_NONEMPTY
");

fn without_entering(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 120, 0);
    let (reader, writer) = files::tcp();
    arm(&mut ring, &reader);
    files::put(&writer, &[b'x'; 1600]);
    t.say(format_args!("all there: {}", ring.wait_in_memory(100)));
    for count in 101..=105 {
        files::put(&writer, b"x");
        t.say(format_args!("one more: {}", ring.wait_in_memory(count)));
    }
}
case!(without_entering => "
    all there: true
    one more: true
    one more: true
    one more: true
    one more: true
    one more: true
");
