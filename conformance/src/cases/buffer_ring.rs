//! Buffer rings: provided buffers that the program puts into a ring. The memory of that ring
//! belongs to the program or to the kernel.

use std::os::fd::AsRawFd;

use usring_uapi::{io_uring as u, opcode};

use super::buffer_group::select;
use super::reg;
use crate::buffers::{Group, SIZE, group_of, incremental_group_of, register, registration};
use crate::files;
use crate::memory::{BAD, Pages, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, sqe};
use crate::syscalls;
use crate::transcript::Transcript;

fn filled(bytes: &[u8]) -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    let (reader, writer) = files::pipe();
    files::put(&writer, bytes);
    (reader, writer)
}

fn select_from_ring(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 4, 3);
    group.add(0, SIZE, 10);
    group.add(1, SIZE, 11);
    let (reader, _writer) = filled(b"hello, ring");
    t.entry(&ring.one(select(reader.as_raw_fd(), 5, 3, 1)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 0, 3, 2)));
    t.say(format_args!("{} {}", group.text(0), group.text(1)));
}
case!(select_from_ring as select => "
    cqe 1: 5 BUFFER(10)
    cqe 2: 6 BUFFER(11)
    hello........... , ring..........
");

fn empty(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 4, 3);
    let (reader, _writer) = filled(b"abc");
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 3, 1)));
    group.add(0, SIZE, 10);
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 3, 2)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 3, 3)));
    // A read that selects from an empty group gets -ENOBUFS at once: it does not wait for data.
    let (idle, _other) = files::pipe();
    t.entry(&ring.one(select(idle.as_raw_fd(), 1, 3, 4)));
}
case!(empty => "
    cqe 1: -ENOBUFS
    cqe 2: 1 BUFFER(10)
    cqe 3: -ENOBUFS
    cqe 4: -ENOBUFS
");

fn wraps(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 2, 3);
    let (reader, writer) = files::pipe();
    for round in 0..7u16 {
        group.add(round % 2, SIZE, round);
        files::put(&writer, b"x");
        t.entry(&ring.one(select(reader.as_raw_fd(), 1, 3, u64::from(round))));
    }
}
case!(wraps => "
    cqe 0: 1 BUFFER(0)
    cqe 1: 1 BUFFER(1)
    cqe 2: 1 BUFFER(2)
    cqe 3: 1 BUFFER(3)
    cqe 4: 1 BUFFER(4)
    cqe 5: 1 BUFFER(5)
    cqe 6: 1 BUFFER(6)
");

fn map_group(ring: &Ring, group: u16, length: usize) -> i64 {
    let offset = u64::from(u::IORING_OFF_PBUF_RING) | u64::from(group) << u::IORING_OFF_PBUF_SHIFT;
    syscalls::map(ring.fd, length, offset)
}

fn mapped_by_kernel(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let wanted = registration(0, 8, 5, 1);
    t.result("register", register(&ring, &wanted));
    let address = map_group(&ring, 5, 8 * 16);
    t.outcome("map", address);
    let mut group = Group::new(address as *mut u8, 8);
    group.add(0, SIZE, 1);
    group.add(1, SIZE, 2);
    let (reader, _writer) = filled(b"mapped");
    t.entry(&ring.one(select(reader.as_raw_fd(), 3, 5, 1)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 3, 5, 2)));
    t.say(format_args!("{} {}", group.text(0), group.text(1)));
    t.outcome("map a group that is not", map_group(&ring, 6, 4096));
}
case!(mapped_by_kernel => "
    register = 0
    map = ok
    cqe 1: 3 BUFFER(1)
    cqe 2: 3 BUFFER(2)
    map............. ped.............
    map a group that is not = -ENOMEM
");

fn mapped_several(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = filled(b"abc");
    for number in [0u16, 1, 1000] {
        t.result("register", register(&ring, &registration(0, 4, number, 1)));
        let address = map_group(&ring, number, 64);
        t.outcome("map", address);
        let mut group = Group::new(address as *mut u8, 4);
        group.add(0, SIZE, number);
        t.entry(&ring.one(select(reader.as_raw_fd(), 1, number, u64::from(number))));
    }
    // mmap(2) of the io_uring's descriptor can map only buffer rings in the kernel's memory. This
    // buffer ring lies in the program's memory.
    let memory = Pages::new(1);
    t.result("own memory", register(&ring, &registration(memory.at(0), 4, 7, 0)));
    t.outcome("map", map_group(&ring, 7, 64));
}
case!(mapped_several => "
    register = 0
    map = ok
    cqe 0: 1 BUFFER(0)
    register = 0
    map = ok
    cqe 1: 1 BUFFER(1)
    register = 0
    map = ok
    cqe 1000: 1 BUFFER(1000)
    own memory = 0
    map = -ENOMEM
");

fn register_wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let memory = Pages::new(1);
    let good = registration(memory.at(0), 4, 1, 0);
    t.result("null", ring.register::<u8>(reg::PBUF_RING, std::ptr::null(), 1));
    t.result("count 0", ring.register(reg::PBUF_RING, &raw const good, 0));
    t.result("count 2", ring.register(reg::PBUF_RING, &raw const good, 2));
    let mut wrong = |name: &str, change: fn(&mut u::io_uring_buf_reg)| {
        let mut bad = good;
        change(&mut bad);
        t.result(name, register(&ring, &bad));
    };
    wrong("address null", |bad| bad.ring_addr = 0);
    wrong("address not of a page", |bad| bad.ring_addr += 16);
    wrong("address unmapped", |bad| bad.ring_addr = 0x1000);
    wrong("unknown flag", |bad| bad.flags = 1 << 7);
    wrong("reserved", |bad| bad.resv[0] = 1);
    wrong("address and mapping", |bad| bad.flags = 1);
}
case!(register_wrong => "
    null = -EINVAL
    count 0 = -EINVAL
    count 2 = -EINVAL
    address null = -EFAULT
    address not of a page = -EINVAL
    address unmapped = -EFAULT
    unknown flag = -EINVAL
    reserved = -EINVAL
    address and mapping = 0
");

fn sizes(t: &mut Transcript) {
    let ring = Ring::new(4);
    for entries in [0, 1, 2, 3, 6, 32_768, 65_536, u32::MAX] {
        let wanted = registration(0, entries, 1, 1);
        let answer = register(&ring, &wanted);
        t.result(format_args!("{entries} entries"), answer);
        if answer == 0 {
            let mut gone: u::io_uring_buf_reg = zeroed();
            gone.bgid = 1;
            ring.register(reg::UNREGISTER_PBUF_RING, &raw const gone, 1);
        }
    }
}
case!(sizes => "
    0 entries = -EINVAL
    1 entries = 0
    2 entries = 0
    3 entries = -EINVAL
    6 entries = -EINVAL
    32768 entries = 0
    65536 entries = -EINVAL
    4294967295 entries = -EINVAL
");

fn register_twice(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (memory, other) = (Pages::new(1), Pages::new(1));
    t.result("register", register(&ring, &registration(memory.at(0), 4, 1, 0)));
    t.result("again", register(&ring, &registration(other.at(0), 4, 1, 0)));
    t.result("another group", register(&ring, &registration(other.at(0), 4, 2, 0)));
    t.entry(&ring.one(crate::sqe::nop(1)));
}
case!(register_twice => "
    register = 0
    again = -EEXIST
    another group = 0
    cqe 1: 0
");

fn unregister_group(ring: &Ring, group: u16) -> i32 {
    let mut gone: u::io_uring_buf_reg = zeroed();
    gone.bgid = group;
    ring.register(reg::UNREGISTER_PBUF_RING, &raw const gone, 1)
}

fn unregister(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    t.result("none", unregister_group(&ring, 1));
    let mut group = group_of(&ring, &memory, 4, 1);
    group.add(0, SIZE, 1);
    t.result("unregister", unregister_group(&ring, 1));
    let (reader, _writer) = filled(b"x");
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 1)));
    t.result("again", unregister_group(&ring, 1));
    let mut group = group_of(&ring, &memory, 4, 1);
    group.add(0, SIZE, 2);
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 2)));
    let mut bad: u::io_uring_buf_reg = zeroed();
    bad.bgid = 1;
    bad.resv[1] = 1;
    t.result("reserved", ring.register(reg::UNREGISTER_PBUF_RING, &raw const bad, 1));
    t.result("null", ring.register::<u8>(reg::UNREGISTER_PBUF_RING, std::ptr::null(), 1));
}
case!(unregister => "
    none = -ENOENT
    unregister = 0
    cqe 1: -ENOBUFS
    again = -ENOENT
    cqe 2: 1 BUFFER(2)
    reserved = -EINVAL
    null = -EINVAL
");

fn status(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let ask = |ring: &Ring, group: u32| {
        let mut status: u::io_uring_buf_status = zeroed();
        status.buf_group = group;
        let answer = ring.register(reg::PBUF_STATUS, &raw mut status, 1);
        format!("{} head {}", crate::names::result(answer), status.head)
    };
    t.say(ask(&ring, 1));
    let mut group = group_of(&ring, &memory, 4, 1);
    t.say(ask(&ring, 1));
    group.add(0, SIZE, 1);
    group.add(1, SIZE, 2);
    t.say(ask(&ring, 1));
    let (reader, _writer) = filled(b"xy");
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 1)));
    t.say(ask(&ring, 1));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 1)));
    t.say(ask(&ring, 1));
    let mut bad: u::io_uring_buf_status = zeroed();
    bad.buf_group = 1;
    bad.resv[0] = 1;
    t.result("reserved", ring.register(reg::PBUF_STATUS, &raw mut bad, 1));
    t.result("null", ring.register::<u8>(reg::PBUF_STATUS, std::ptr::null(), 1));
}
case!(status => "
    -ENOENT head 0
    0 head 0
    0 head 0
    cqe 1: 1 BUFFER(1)
    0 head 1
    cqe 1: 1 BUFFER(2)
    0 head 2
    reserved = -EINVAL
    null = -EINVAL
");

/// A group id can belong to classic buffers or to a buffer ring, but not to both at one time.
fn with_first_generation(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (memory, buffers) = (Pages::new(1), Pages::new(1));
    let provide = |user_data| {
        sqe(opcode::PROVIDE_BUFFERS, 1, user_data).with(|sqe| {
            sqe.addr = buffers.at(0);
            sqe.len = SIZE;
            sqe.buf_index = 1;
        })
    };
    t.result("register", register(&ring, &registration(memory.at(0), 4, 1, 0)));
    t.entry(&ring.one(provide(1)));
    let remove = sqe(opcode::REMOVE_BUFFERS, 1, 2).with(|sqe| sqe.buf_index = 1);
    t.entry(&ring.one(remove));
    let mut other = Ring::new(4);
    t.entry(&other.one(provide(3)));
    t.result("register over one", register(&other, &registration(memory.at(0), 4, 1, 0)));
    t.entry(&other.one(remove));
    t.result("register over none", register(&other, &registration(memory.at(0), 4, 1, 0)));
}
case!(with_first_generation => "
    register = 0
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: 0
    register over one = -EEXIST
    cqe 2: 1
    register over none = 0
");

fn waiting_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 4, 3);
    group.add(0, SIZE, 10);
    let (reader, writer) = files::pipe();
    ring.push(select(reader.as_raw_fd(), SIZE, 3, 1));
    ring.submit();
    t.in_order(&ring.reap());
    // The first read waits and has returned its buffer to the group. So this read can use that
    // buffer.
    let (other, _writer) = filled(b"first");
    t.entry(&ring.one(select(other.as_raw_fd(), SIZE, 3, 2)));
    group.add(1, SIZE, 11);
    files::put(&writer, b"second");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} {}", group.text(0), group.text(1)));
}
case!(waiting_read => "
    no cqe
    cqe 2: 5 BUFFER(10)
    cqe 1: 6 BUFFER(11)
    first........... second..........
");

fn cancelled_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 4, 3);
    group.add(0, SIZE, 10);
    let (reader, writer) = files::pipe();
    ring.push(select(reader.as_raw_fd(), SIZE, 3, 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    files::put(&writer, b"x");
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 3, 3)));
}
case!(cancelled_read => "
    cqe 1: -ECANCELED
    cqe 2: 0
    cqe 3: 1 BUFFER(10)
");

fn length_is_a_cap(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 8, 3);
    let (reader, _writer) = filled(&[b'x'; 100]);
    for (slot, length) in [(0, 3), (1, 0), (2, SIZE), (3, 1000)] {
        group.add(slot, SIZE, slot);
        t.entry(&ring.one(select(reader.as_raw_fd(), length, 3, u64::from(length))));
    }
}
case!(length_is_a_cap => "
    cqe 3: 3 BUFFER(0)
    cqe 0: 16 BUFFER(1)
    cqe 16: 16 BUFFER(2)
    cqe 1000: 16 BUFFER(3)
");

fn bad_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 4, 3);
    group.add_at(BAD, SIZE, 1);
    group.add_at(0, SIZE, 2);
    group.add_at(u64::MAX - 3, SIZE, 3);
    let (reader, _writer) = filled(b"xyz");
    for user_data in 1..=3 {
        t.entry(&ring.one(select(reader.as_raw_fd(), 1, 3, user_data)));
    }
}
case!(bad_buffer => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
");

fn error_uses_buffer_up(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 4, 3);
    group.add(0, SIZE, 10);
    let root = std::fs::File::open("/").expect("/");
    t.entry(&ring.one(select(root.as_raw_fd(), SIZE, 3, 1)));
    let (reader, _writer) = filled(b"x");
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 3, 2)));
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 3, 3)));
}
case!(error_uses_buffer_up => "
    cqe 1: -EISDIR BUFFER(10)
    cqe 2: -ENOBUFS
    cqe 3: -ENOBUFS
");

/// In a buffer ring with IOU_PBUF_RING_INC, each read consumes only the bytes that it fills.
fn incremental(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    t.result("register", register(&ring, &registration(memory.at(0), 4, 3, 2)));
    let mut group = Group::new(memory.address, 4);
    group.add(0, SIZE, 10);
    group.add(1, SIZE, 11);
    let (reader, _writer) = filled(b"abcdefghijklmnopqrstuvwxyz");
    for (user_data, length) in [(1, 6), (2, 6), (3, 6), (4, 6)] {
        t.entry(&ring.one(select(reader.as_raw_fd(), length, 3, user_data)));
    }
    t.say(format_args!("{} {}", group.text(0), group.text(1)));
}
case!(incremental => "
    register = 0
    cqe 1: 6 BUF_MORE|BUFFER(10)
    cqe 2: 6 BUF_MORE|BUFFER(10)
    cqe 3: 4 BUFFER(10)
    cqe 4: 6 BUF_MORE|BUFFER(11)
    abcdefghijklmnop qrstuv..........
");

/// Registers an incremental buffer ring in `memory` and adds two buffers to it.
fn incremental_group(ring: &Ring, memory: &Pages) -> Group {
    let mut group = incremental_group_of(ring, memory, 4, 3);
    group.add(0, SIZE, 10);
    group.add(1, SIZE, 11);
    group
}

/// When a read consumes bytes of a buffer, the kernel changes the buffer's entry in the buffer
/// ring. It reduces the entry's length. Unless the whole buffer is consumed, it also advances the
/// entry's address.
fn incremental_entry(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let group = incremental_group(&ring, &memory);
    let (reader, _writer) = filled(b"abcdefghijklmnopqrstuvwxyz");
    for (user_data, length) in [(1, 6), (2, 10), (3, 6)] {
        t.entry(&ring.one(select(reader.as_raw_fd(), length, 3, user_data)));
        t.say(format_args!("{}, {}", group.state(0), group.state(1)));
    }
    // A request with length 0 asks for the whole rest of the buffer.
    t.entry(&ring.one(select(reader.as_raw_fd(), 0, 3, 4)));
    t.say(format_args!("{}, {}", group.state(0), group.state(1)));
}
case!(incremental_entry => "
    cqe 1: 6 BUF_MORE|BUFFER(10)
    at 6 left 10, at 0 left 16
    cqe 2: 10 BUFFER(10)
    at 6 left 0, at 0 left 16
    cqe 3: 6 BUF_MORE|BUFFER(11)
    at 6 left 0, at 6 left 10
    cqe 4: 4 BUF_MORE|BUFFER(11)
    at 6 left 0, at 10 left 6
");

/// A read of a regular file consumes its whole requested length of the buffer, even if it reads
/// fewer bytes.
fn incremental_from_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let group = incremental_group(&ring, &memory);
    let file = files::memory_file(b"abcdefgh");
    for (user_data, offset, length) in [(1, 0, 4), (2, 4, 6), (3, 8, 4), (4, 0, 4)] {
        let from = select(file.as_raw_fd(), length, 3, user_data).with(|sqe| sqe.off = offset);
        t.entry(&ring.one(from));
        t.say(format_args!("{}, {}", group.state(0), group.state(1)));
    }
}
case!(incremental_from_file => "
    cqe 1: 4 BUF_MORE|BUFFER(10)
    at 4 left 12, at 0 left 16
    cqe 2: 4 BUF_MORE|BUFFER(10)
    at 10 left 6, at 0 left 16
    cqe 3: 0 BUF_MORE|BUFFER(10)
    at 14 left 2, at 0 left 16
    cqe 4: 2 BUFFER(10)
    at 14 left 0, at 0 left 16
");

/// A read that fails, or reads 0 bytes, consumes nothing of its buffer.
fn incremental_nothing_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let group = incremental_group(&ring, &memory);
    let (reader, writer) = files::pipe();
    t.entry(&ring.one(select(writer.as_raw_fd(), 4, 3, 1)));
    t.say(group.state(0));
    drop(writer);
    t.entry(&ring.one(select(reader.as_raw_fd(), 4, 3, 2)));
    t.say(group.state(0));
}
case!(incremental_nothing_read => "
    cqe 1: -EBADF
    at 0 left 16
    cqe 2: 0 BUF_MORE|BUFFER(10)
    at 0 left 16
");

/// A read that waits has consumed nothing of its buffer. A second read completes first and fills
/// the beginning of the buffer. The first read then continues behind these bytes.
fn incremental_waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = incremental_group(&ring, &memory);
    let (reader, writer) = files::pipe();
    ring.push(select(reader.as_raw_fd(), 4, 3, 1));
    ring.submit();
    t.say(group.state(0));
    let (other, _writer) = filled(b"first");
    t.entry(&ring.one(select(other.as_raw_fd(), 16, 3, 2)));
    files::put(&writer, b"second");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} {}", group.text(0), group.state(0)));
}
case!(incremental_waits => "
    at 0 left 16
    cqe 2: 5 BUF_MORE|BUFFER(10)
    cqe 1: 4 BUF_MORE|BUFFER(10)
    firstseco....... at 9 left 7
");

fn unregister_while_waiting(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let memory = Pages::new(1);
    let mut group = group_of(&ring, &memory, 4, 3);
    group.add(0, SIZE, 10);
    let (reader, writer) = files::pipe();
    ring.push(select(reader.as_raw_fd(), SIZE, 3, 1));
    ring.submit();
    t.result("unregister", unregister_group(&ring, 3));
    drop(memory);
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
}
case!(unregister_while_waiting => "
    unregister = 0
    cqe 1: -ENOBUFS
");
