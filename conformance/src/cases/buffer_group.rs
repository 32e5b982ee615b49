//! Classic provided buffers: PROVIDE_BUFFERS, REMOVE_BUFFERS, and reads with BUFFER_SELECT.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, opcode, sqe_flags};

use crate::files;
use crate::memory::{BAD, Pages};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, fields, nop, read_at, sqe};
use crate::transcript::Transcript;

const SIZE: u32 = 16;

fn provide(pages: &Pages, count: i32, group: u16, first: u64, user_data: u64) -> Sqe {
    sqe(opcode::PROVIDE_BUFFERS, count, user_data).with(|sqe| {
        sqe.addr = pages.at(0);
        sqe.len = SIZE;
        sqe.off = first;
        sqe.buf_index = group;
    })
}

fn removing(count: i32, group: u16, user_data: u64) -> Sqe {
    sqe(opcode::REMOVE_BUFFERS, count, user_data).with(|sqe| sqe.buf_index = group)
}

/// Returns a read of `fd` that selects a buffer of the group `group`.
pub fn select(fd: i32, length: u32, group: u16, user_data: u64) -> Sqe {
    read_at(fd, 0, length, 0, user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.buf_index = group;
    })
}

/// Returns a pipe that contains these bytes.
fn filled(bytes: &[u8]) -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    let (reader, writer) = files::pipe();
    files::put(&writer, bytes);
    (reader, writer)
}

fn text(pages: &mut Pages, buffer: usize) -> String {
    let start = buffer * SIZE as usize;
    let bytes = &pages.bytes()[start..start + SIZE as usize];
    String::from_utf8_lossy(bytes).replace('\0', ".")
}

fn provide_and_select(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut pages = Pages::new(1);
    let (reader, _writer) = filled(b"hello, buffers");
    t.entry(&ring.one(provide(&pages, 4, 7, 10, 1)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 5, 7, 2)));
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 7, 3)));
    for buffer in 0..4 {
        t.say(text(&mut pages, buffer));
    }
}
case!(provide_and_select => "
    cqe 1: 0
    cqe 2: 5 BUFFER(10)
    cqe 3: 9 BUFFER(11)
    hello...........
    , buffers.......
    ................
    ................
");

fn used_up(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, _writer) = filled(b"abcdef");
    t.entry(&ring.one(provide(&pages, 2, 1, 0, 1)));
    for user_data in 2..=4 {
        t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, user_data)));
    }
    // A group continues to exist after all its buffers are used up.
    t.entry(&ring.one(provide(&pages, 1, 1, 5, 5)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 6)));
}
case!(used_up => "
    cqe 1: 0
    cqe 2: 1 BUFFER(0)
    cqe 3: 1 BUFFER(1)
    cqe 4: -ENOBUFS
    cqe 5: 0
    cqe 6: 1 BUFFER(5)
");

fn given_back(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, _writer) = filled(b"abcdef");
    t.entry(&ring.one(provide(&pages, 1, 1, 3, 1)));
    for user_data in 2..=4 {
        t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, user_data)));
        t.entry(&ring.one(provide(&pages, 1, 1, 3, 9)));
    }
}
case!(given_back => "
    cqe 1: 0
    cqe 2: 1 BUFFER(3)
    cqe 9: 0
    cqe 3: 1 BUFFER(3)
    cqe 9: 0
    cqe 4: 1 BUFFER(3)
    cqe 9: 0
");

fn unknown_group(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = filled(b"abc");
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 99, 1)));
    let (empty, _other) = files::pipe();
    t.entry(&ring.one(select(empty.as_raw_fd(), 1, 99, 2)));
    t.entry(&ring.one(select(-1, 1, 99, 3)));
}
case!(unknown_group => "
    cqe 1: -ENOBUFS
    cqe 2: -ENOBUFS
    cqe 3: -EBADF
");

fn several_groups(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (a, b) = (Pages::new(1), Pages::new(1));
    let (reader, _writer) = filled(b"abcdef");
    t.entry(&ring.one(provide(&a, 2, 1, 100, 1)));
    t.entry(&ring.one(provide(&b, 2, u16::MAX, 200, 2)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, u16::MAX, 3)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 4)));
}
case!(several_groups => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 1 BUFFER(200)
    cqe 4: 1 BUFFER(100)
");

fn remove(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, _writer) = filled(b"abcdef");
    t.entry(&ring.one(provide(&pages, 5, 1, 0, 1)));
    t.entry(&ring.one(removing(2, 1, 2)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 3)));
    t.entry(&ring.one(removing(100, 1, 4)));
    t.entry(&ring.one(removing(1, 1, 5)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 6)));
    t.entry(&ring.one(removing(1, 50, 7)));
}
case!(remove => "
    cqe 1: 0
    cqe 2: 2
    cqe 3: 1 BUFFER(2)
    cqe 4: 2
    cqe 5: 0
    cqe 6: -ENOBUFS
    cqe 7: -ENOENT
");

fn provide_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let good = provide(&pages, 1, 1, 0, 1);
    for count in [0, -1, 65_537, i32::MAX, i32::MIN] {
        t.entry(&ring.one(good.with(|sqe| sqe.fd = count)));
    }
    let wrong = fields! {
        len = 0, off = 65_536, off = u64::MAX, addr = u64::MAX - 3,
        addr = crate::memory::KERNEL_HALF, addr = BAD, addr = 0, op_flags = 1, file_index = 1,
        ioprio = 1, flags = sqe_flags::BUFFER_SELECT,
    };
    t.each(&mut ring, good, &wrong);
}
case!(provide_wrong => "
    cqe 1: -E2BIG
    cqe 1: -E2BIG
    cqe 1: -E2BIG
    cqe 1: -E2BIG
    cqe 1: -E2BIG
    cqe 1: -EINVAL
    cqe 1: -E2BIG
    cqe 1: -E2BIG
    cqe 1: -EOVERFLOW
    cqe 1: -EFAULT
    cqe 1: 0
    cqe 1: 0
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EOPNOTSUPP
");

fn remove_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    t.entry(&ring.one(provide(&pages, 2, 1, 0, 1)));
    for count in [0, -1, 65_537, i32::MIN] {
        t.entry(&ring.one(removing(count, 1, 2)));
    }
    t.each(&mut ring, removing(1, 1, 3), &fields![op_flags = 1, addr = 1, len = 1, off = 1, file_index = 1]);
}
case!(remove_wrong => "
    cqe 1: 0
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
");

fn identifiers_wrap(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, _writer) = filled(b"abcdef");
    t.entry(&ring.one(provide(&pages, 3, 1, 65_534, 1)));
    t.entry(&ring.one(provide(&pages, 2, 1, 65_534, 2)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 3)));
    t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, 4)));
}
case!(identifiers_wrap => "
    cqe 1: -EINVAL
    cqe 2: 0
    cqe 3: 1 BUFFER(65534)
    cqe 4: 1 BUFFER(65535)
");

/// The request's length limits how many bytes the read puts into the selected buffer. With length
/// zero, the limit is the buffer's own length.
fn length_is_a_cap(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, _writer) = filled(&[b'x'; 100]);
    t.entry(&ring.one(provide(&pages, 4, 1, 0, 1)));
    for length in [3, 0, SIZE, 1000] {
        t.entry(&ring.one(select(reader.as_raw_fd(), length, 1, u64::from(length))));
    }
}
case!(length_is_a_cap => "
    cqe 1: 0
    cqe 3: 3 BUFFER(0)
    cqe 0: 16 BUFFER(1)
    cqe 16: 16 BUFFER(2)
    cqe 1000: 16 BUFFER(3)
");

/// The manual page io_uring_provide_buffers(3) says that the kernel selects a buffer when data is
/// there. Linux differs: it selects the buffer at the first attempt, and a waiting read keeps that
/// buffer.
fn waiting_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut pages = Pages::new(1);
    let (one, first) = files::pipe();
    let (two, second) = files::pipe();
    t.entry(&ring.one(provide(&pages, 2, 1, 0, 1)));
    ring.push(select(one.as_raw_fd(), SIZE, 1, 2));
    ring.push(select(two.as_raw_fd(), SIZE, 1, 3));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&second, b"second");
    t.in_order(&ring.wait(1));
    files::put(&first, b"first");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} {}", text(&mut pages, 0), text(&mut pages, 1)));
}
case!(waiting_read => "
    cqe 1: 0
    no cqe
    cqe 3: 6 BUFFER(1)
    cqe 2: 5 BUFFER(0)
    first........... second..........
");

/// A waiting read owns its buffer from the first attempt on. If the read is cancelled, its CQE
/// names that buffer. The buffer does not return to the group.
fn cancelled_read_uses_buffer_up(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, writer) = files::pipe();
    t.entry(&ring.one(provide(&pages, 1, 1, 7, 1)));
    ring.push(select(reader.as_raw_fd(), SIZE, 1, 2));
    ring.submit();
    ring.push(cancel(2, 0, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
    files::put(&writer, b"x");
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 1, 4)));
}
case!(cancelled_read_uses_buffer_up => "
    cqe 1: 0
    cqe 2: -ECANCELED BUFFER(7)
    cqe 3: 0
    cqe 4: -ENOBUFS
");

fn end_of_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, writer) = files::pipe();
    drop(writer);
    t.entry(&ring.one(provide(&pages, 1, 1, 7, 1)));
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 1, 2)));
    // The previous read was at the end of the file and has nevertheless used up the only buffer. So
    // the next read finds no buffer.
    let (reader, _writer) = filled(b"x");
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 1, 3)));
}
case!(end_of_file => "
    cqe 1: 0
    cqe 2: 0 BUFFER(7)
    cqe 3: -ENOBUFS
");

fn error_uses_buffer_up(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (_reader, writer) = files::pipe();
    t.entry(&ring.one(provide(&pages, 1, 1, 7, 1)));
    // The kernel checks whether the descriptor is open before it selects a buffer. It checks
    // whether the file can be read only after the selection.
    t.entry(&ring.one(select(writer.as_raw_fd(), SIZE, 1, 2)));
    t.entry(&ring.one(select(-1, SIZE, 1, 3)));
    let root = std::fs::File::open("/").expect("/");
    t.entry(&ring.one(select(root.as_raw_fd(), SIZE, 1, 4)));
    let (reader, _writer) = filled(b"x");
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 1, 5)));
}
case!(error_uses_buffer_up => "
    cqe 1: 0
    cqe 2: -EBADF BUFFER(7)
    cqe 3: -EBADF
    cqe 4: -ENOBUFS
    cqe 5: -ENOBUFS
");

/// PROVIDE_BUFFERS accepts an address at which no memory is accessible. A read that selects the
/// buffer at that address gets -EFAULT.
fn bad_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(2);
    pages.forbid_last();
    let bad = provide(&pages, 1, 1, 7, 1).with(|sqe| sqe.addr = pages.at(4096));
    t.entry(&ring.one(bad));
    let (reader, _writer) = filled(b"x");
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 1, 2)));
}
case!(bad_buffer => "
    cqe 1: 0
    cqe 2: -EFAULT BUFFER(7)
");

fn linked_provide(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, _writer) = filled(b"x");
    ring.push(provide(&pages, 1, 1, 7, 1).linked());
    ring.push(select(reader.as_raw_fd(), SIZE, 1, 2));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(2));
}
case!(linked_provide => "
    submit = 2
    cqe 1: 0
    cqe 2: 1 BUFFER(7)
");

/// READV with BUFFER_SELECT accepts exactly one vector. The vector's length limits the read.
fn readv(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut pages = Pages::new(1);
    let (reader, _writer) = filled(b"vectored");
    t.entry(&ring.one(provide(&pages, 4, 1, 0, 1)));
    let vectors = [crate::sqe::vector(0, 3), crate::sqe::vector(0, 3)];
    let select = |count: usize, user_data| {
        crate::sqe::readv(reader.as_raw_fd(), &vectors[..count], 0, user_data)
            .flagged(sqe_flags::BUFFER_SELECT)
            .with(|sqe| sqe.buf_index = 1)
    };
    t.entry(&ring.one(select(1, 2)));
    t.entry(&ring.one(select(2, 3)));
    t.entry(&ring.one(select(0, 4)));
    t.say(text(&mut pages, 0));
}
case!(readv => "
    cqe 1: 0
    cqe 2: 3 BUFFER(0)
    cqe 3: -EINVAL
    cqe 4: -EINVAL
    vec.............
");

/// Only operations that fill a buffer accept BUFFER_SELECT.
fn operations_without(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = filled(b"x");
    for (name, operation) in [
        ("nop", nop(1)),
        ("write", crate::sqe::write(writer.as_raw_fd(), b"x", 0, 1)),
        ("poll", crate::sqe::poll(reader.as_raw_fd(), libc::POLLIN, 1)),
        ("fsync", sqe(opcode::FSYNC, reader.as_raw_fd(), 1)),
        ("close", crate::sqe::close(9999, 1)),
        (
            "read fixed",
            read_at(reader.as_raw_fd(), 0, 1, 0, 1).with(|sqe| {
                sqe.opcode = opcode::READ_FIXED;
            }),
        ),
    ] {
        t.say(name);
        t.entry(&ring.one(operation.flagged(sqe_flags::BUFFER_SELECT)));
    }
}
case!(operations_without => "
    nop
    cqe 1: -EOPNOTSUPP
    write
    cqe 1: -EOPNOTSUPP
    poll
    cqe 1: -EOPNOTSUPP
    fsync
    cqe 1: -EOPNOTSUPP
    close
    cqe 1: -EOPNOTSUPP
    read fixed
    cqe 1: -EOPNOTSUPP
");

fn from_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut pages = Pages::new(1);
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(provide(&pages, 2, 1, 0, 1)));
    t.entry(&ring.one(select(file.as_raw_fd(), 4, 1, 2).with(|sqe| sqe.off = 5)));
    t.entry(&ring.one(select(file.as_raw_fd(), 4, 1, 3).with(|sqe| sqe.off = 8)));
    t.say(format_args!("{} {}", text(&mut pages, 0), text(&mut pages, 1)));
}
case!(from_file as file => "
    cqe 1: 0
    cqe 2: 4 BUFFER(0)
    cqe 3: 2 BUFFER(1)
    5678............ 89..............
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let (reader, _writer) = filled(b"x");
    t.entry(&ring.one(provide(&pages, 2, 1, 0, 1).forced_async()));
    t.entry(&ring.one(select(reader.as_raw_fd(), SIZE, 1, 2).forced_async()));
    t.entry(&ring.one(removing(5, 1, 3).forced_async()));
}
case!(forced_async => "
    cqe 1: 0
    cqe 2: 1 BUFFER(0)
    cqe 3: 1
");

/// Reads select the buffers in the order in which the program has provided them.
fn buffers_in_order(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let pages = Pages::new(1);
    let (reader, _writer) = filled(b"abcdefgh");
    t.entry(&ring.one(provide(&pages, 2, 1, 50, 1)));
    t.entry(&ring.one(provide(&pages, 2, 1, 20, 2)));
    for user_data in 3..=6 {
        t.entry(&ring.one(select(reader.as_raw_fd(), 1, 1, user_data)));
    }
}
case!(buffers_in_order => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 1 BUFFER(50)
    cqe 4: 1 BUFFER(51)
    cqe 5: 1 BUFFER(20)
    cqe 6: 1 BUFFER(21)
");

/// A request with a bad descriptor uses up no buffer. The three groups of this case have classic
/// buffers, a buffer ring, and an incremental buffer ring.
fn no_file_uses_nothing_up(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let buffers = Pages::new(1);
    t.entry(&ring.one(crate::sqe::sqe(opcode::PROVIDE_BUFFERS, 1, 1).with(|sqe| {
        (sqe.addr, sqe.len, sqe.buf_index) = (buffers.at(0), 16, 1);
    })));
    let memory = [Pages::new(1), Pages::new(1)];
    let mut groups = [
        crate::buffers::group_of(&ring, &memory[0], 8, 2),
        crate::buffers::incremental_group_of(&ring, &memory[1], 8, 3),
    ];
    groups.iter_mut().for_each(|group| group.add_slots(0..1));
    let file = files::memory_file(b"0123456789");
    for group in 1..=3 {
        let select = |fd, user_data| {
            crate::sqe::sqe(opcode::READ, fd, user_data)
                .flagged(usring_uapi::sqe_flags::BUFFER_SELECT)
                .with(|sqe| sqe.buf_index = group)
        };
        t.entry(&ring.one(select(-1, 2)));
        t.entry(&ring.one(select(7, 3).fixed()));
        t.entry(&ring.one(select(file.as_raw_fd(), 4)));
    }
}
case!(no_file_uses_nothing_up => "
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: -EBADF
    cqe 4: 10 BUFFER(0)
    cqe 2: -EBADF
    cqe 3: -EBADF
    cqe 4: 10 BUFFER(0)
    cqe 2: -EBADF
    cqe 3: -EBADF
    cqe 4: 10 BUFFER(0)
");
