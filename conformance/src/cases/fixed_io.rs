//! READ_FIXED and WRITE_FIXED, which use registered buffers. Also reads and writes with FIXED_FILE,
//! which use registered files.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, opcode};

use super::reg;
use crate::files;
use crate::memory::{BAD, Pages};
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, read, read_at, vector, write};
use crate::transcript::Transcript;

/// Makes a ring and registers each of `buffers` as one buffer.
fn ring_with(buffers: &[&Pages]) -> Ring {
    let ring = Ring::new(8);
    let vectors: Vec<_> = buffers.iter().map(|pages| vector(pages.at(0), pages.length)).collect();
    assert_eq!(ring.register(reg::BUFFERS, vectors.as_ptr(), vectors.len() as u32), 0);
    ring
}

fn read_fixed(fd: i32, address: u64, length: u32, index: u16, user_data: u64) -> Sqe {
    read_at(fd, address, length, 0, user_data).with(|sqe| {
        sqe.opcode = opcode::READ_FIXED;
        sqe.buf_index = index;
    })
}

fn write_fixed(fd: i32, address: u64, length: u32, index: u16, user_data: u64) -> Sqe {
    read_fixed(fd, address, length, index, user_data).with(|sqe| sqe.opcode = opcode::WRITE_FIXED)
}

fn round_trip(t: &mut Transcript) {
    let mut pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"");
    pages.bytes()[..5].copy_from_slice(b"hello");
    t.entry(&ring.one(write_fixed(file.as_raw_fd(), pages.at(0), 5, 0, 1)));
    t.say(files::text(&file));
    t.entry(&ring.one(read_fixed(file.as_raw_fd(), pages.at(100), 10, 0, 2)));
    t.say(String::from_utf8_lossy(&pages.bytes()[100..105]).into_owned());
}
case!(round_trip => "
    cqe 1: 5
    hello
    cqe 2: 5
    hello
");

fn inside_a_buffer(t: &mut Transcript) {
    let mut pages = Pages::new(3);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    // The first read crosses a page boundary inside the registered buffer. The second read ends at
    // the buffer's last byte.
    t.entry(&ring.one(read_fixed(file.as_raw_fd(), pages.at(4090), 10, 0, 1)));
    t.say(String::from_utf8_lossy(&pages.bytes()[4090..4100]).into_owned());
    let end = pages.length as u64;
    t.entry(&ring.one(read_fixed(file.as_raw_fd(), pages.at(0) + end - 10, 10, 0, 2)));
}
case!(inside_a_buffer => "
    cqe 1: 10
    0123456789
    cqe 2: 10
");

fn outside_a_buffer(t: &mut Transcript) {
    let pages = Pages::new(2);
    let ring_buffer = vector(pages.at(100), 1000);
    let mut ring = Ring::new(8);
    t.result("register", ring.register(reg::BUFFERS, &raw const ring_buffer, 1));
    let file = files::memory_file(&[b'x'; 3000]);
    let fd = file.as_raw_fd();
    for (number, (start, length)) in
        [(100, 1000), (99, 10), (100, 1001), (1099, 2), (1100, 1), (1100, 0), (0, 10), (5000, 10)]
            .into_iter()
            .enumerate()
    {
        t.entry(&ring.one(read_fixed(fd, pages.at(start), length, 0, number as u64)));
    }
    t.entry(&ring.one(read_fixed(fd, u64::MAX - 4, 10, 0, 20)));
    t.entry(&ring.one(read_fixed(fd, BAD, 10, 0, 21)));
    t.entry(&ring.one(read_fixed(fd, 0, 10, 0, 22)));
}
case!(outside_a_buffer => "
    register = 0
    cqe 0: 1000
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
    cqe 5: 0
    cqe 6: -EFAULT
    cqe 7: -EFAULT
    cqe 20: -EFAULT
    cqe 21: -EFAULT
    cqe 22: -EFAULT
");

fn bad_index(t: &mut Transcript) {
    let pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    for index in [1, 2, 100, u16::MAX] {
        t.entry(&ring.one(read_fixed(file.as_raw_fd(), pages.at(0), 10, index, 1)));
    }
    t.entry(&ring.one(read_fixed(-1, pages.at(0), 10, 9, 2)));
}
case!(bad_index => "
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EBADF
");

fn no_buffers(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let pages = Pages::new(1);
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(read_fixed(file.as_raw_fd(), pages.at(0), 10, 0, 1)));
    t.entry(&ring.one(write_fixed(file.as_raw_fd(), pages.at(0), 10, 0, 2)));
}
case!(no_buffers => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
");

fn at_position(t: &mut Transcript) {
    let pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    let current = |sqe: Sqe| Sqe { off: CURRENT, ..sqe };
    t.entry(&ring.one(current(read_fixed(file.as_raw_fd(), pages.at(0), 4, 0, 1))));
    t.say(format_args!("position {}", files::position(&file)));
    t.entry(&ring.one(current(write_fixed(file.as_raw_fd(), pages.at(0), 2, 0, 2))));
    t.say(format_args!("{} position {}", files::text(&file), files::position(&file)));
}
case!(at_position => "
    cqe 1: 4
    position 4
    cqe 2: 2
    0123016789 position 6
");

fn on_pipe(t: &mut Transcript) {
    let mut pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let (reader, writer) = files::pipe();
    pages.bytes()[..4].copy_from_slice(b"pipe");
    t.entry(&ring.one(write_fixed(writer.as_raw_fd(), pages.at(0), 4, 0, 1)));
    t.entry(&ring.one(read_fixed(reader.as_raw_fd(), pages.at(10), 9, 0, 2)));
    t.say(String::from_utf8_lossy(&pages.bytes()[10..14]).into_owned());
}
case!(on_pipe => "
    cqe 1: 4
    cqe 2: 4
    pipe
");

fn waits(t: &mut Transcript) {
    let mut pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let (reader, writer) = files::pipe();
    ring.push(read_fixed(reader.as_raw_fd(), pages.at(8), 9, 0, 1));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&pages.bytes()[8..12]).into_owned());
}
case!(waits => "
    no cqe
    cqe 1: 4
    late
");

fn fixed_file_and_buffer(t: &mut Transcript) {
    let pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    let number = file.as_raw_fd();
    t.result("register files", ring.register(reg::FILES, &raw const number, 1));
    t.entry(&ring.one(read_fixed(0, pages.at(0), 10, 0, 1).fixed()));
    t.entry(&ring.one(read_fixed(1, pages.at(0), 10, 0, 2).fixed()));
    t.entry(&ring.one(read_fixed(-1, pages.at(0), 10, 0, 3).fixed()));
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(0, &mut buffer, 3, 4).fixed()));
    t.entry(&ring.one(write(0, b"ab", 3, 5).fixed()));
    // The open file has one position, which the descriptor and the slot share.
    t.entry(&ring.one(read(0, &mut buffer, CURRENT, 6).fixed()));
    t.say(format_args!("{} position {}", files::text(&file), files::position(&file)));
}
case!(fixed_file_and_buffer => "
    register files = 0
    cqe 1: 10
    cqe 2: -EBADF
    cqe 3: -EBADF
    cqe 4: 4
    cqe 5: 2
    cqe 6: 4
    012ab56789 position 4
");

fn forced_async(t: &mut Transcript) {
    let mut pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(read_fixed(file.as_raw_fd(), pages.at(0), 10, 0, 1).forced_async()));
    t.say(String::from_utf8_lossy(&pages.bytes()[..10]).into_owned());
    t.entry(&ring.one(read_fixed(file.as_raw_fd(), pages.at(0), 10, 9, 2).forced_async()));
}
case!(forced_async => "
    cqe 1: 10
    0123456789
    cqe 2: -EFAULT
");

fn length_zero(t: &mut Transcript) {
    let pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(read_fixed(file.as_raw_fd(), pages.at(0), 0, 0, 1)));
    t.entry(&ring.one(read_fixed(file.as_raw_fd(), 0, 0, 0, 2)));
}
case!(length_zero => "
    cqe 1: 0
    cqe 2: -EFAULT
");

fn several_buffers(t: &mut Transcript) {
    let (mut a, mut b) = (Pages::new(1), Pages::new(1));
    let mut ring = ring_with(&[&a, &b]);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    t.sorted(&ring.run(&[
        read_fixed(fd, a.at(0), 3, 0, 1),
        read_fixed(fd, b.at(0), 4, 1, 2),
        // This read names one registered buffer by its index, but its address lies in another
        // registered buffer.
        read_fixed(fd, b.at(0), 4, 0, 3),
    ]));
    t.say(format_args!("{} {}", a.bytes()[0], b.bytes()[3]));
}
case!(several_buffers => "
    cqe 1: 3
    cqe 2: 4
    cqe 3: -EFAULT
    48 51
");

fn readv_fixed(fd: i32, vectors: &[libc::iovec], index: u16, user_data: u64) -> Sqe {
    crate::sqe::readv(fd, vectors, 0, user_data).with(|sqe| {
        sqe.opcode = opcode::READV_FIXED;
        sqe.buf_index = index;
    })
}

fn writev_fixed(fd: i32, vectors: &[libc::iovec], index: u16, user_data: u64) -> Sqe {
    readv_fixed(fd, vectors, index, user_data).with(|sqe| sqe.opcode = opcode::WRITEV_FIXED)
}

fn vector_round_trip(t: &mut Transcript) {
    let mut pages = Pages::new(2);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"");
    pages.bytes()[..5].copy_from_slice(b"hello");
    let parts = [vector(pages.at(3), 2), vector(pages.at(0), 3), vector(pages.at(1), 1)];
    t.entry(&ring.one(writev_fixed(file.as_raw_fd(), &parts, 0, 1)));
    t.say(files::text(&file));
    let parts = [vector(pages.at(4095), 2), vector(pages.at(100), 10)];
    for length in 1..=2 {
        t.entry(&ring.one(readv_fixed(file.as_raw_fd(), &parts[..length], 0, 2)));
        t.entry(&ring.one(readv_fixed(file.as_raw_fd(), &parts[..length], 0, 3).forced_async()));
    }
    t.say(String::from_utf8_lossy(&pages.bytes()[4095..4097]).into_owned());
    t.say(String::from_utf8_lossy(&pages.bytes()[100..104]).into_owned());
    t.in_order(&ring.run(&[readv_fixed(file.as_raw_fd(), &parts, 0, 4).linked(), crate::sqe::nop(5)]));
}
case!(vector_round_trip => "
    cqe 1: 6
    lohele
    cqe 2: 2
    cqe 3: 2
    cqe 2: 6
    cqe 3: 6
    lo
    hele
    cqe 4: 6
    cqe 5: -ECANCELED
");

fn vector_outside(t: &mut Transcript) {
    let pages = Pages::new(2);
    let part = vector(pages.at(100), 1000);
    let mut ring = Ring::new(8);
    assert_eq!(ring.register(reg::BUFFERS, &raw const part, 1), 0);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let inside = vector(pages.at(100), 4);
    for (offset, length) in [(99, 4), (1097, 4), (1096, 4), (1100, 0), (1101, 0), (99, 0), (3000, 4), (100, 1001)] {
        let outside = vector(pages.at(offset), length);
        for parts in [&[outside][..], &[inside, outside], &[outside, inside]] {
            let results = [readv_fixed(fd, parts, 0, 1), writev_fixed(fd, parts, 0, 2)];
            let [one, other] = results.map(|sqe| crate::names::result(ring.one(sqe).res));
            t.say(format_args!("{offset} {length} of {}: {one} {other}", parts.len()));
        }
    }
}
case!(vector_outside => "
    99 4 of 1: -EFAULT -EFAULT
    99 4 of 2: -EFAULT -EFAULT
    99 4 of 2: -EFAULT -EFAULT
    1097 4 of 1: -EFAULT -EFAULT
    1097 4 of 2: -EFAULT -EFAULT
    1097 4 of 2: -EFAULT -EFAULT
    1096 4 of 1: 4 4
    1096 4 of 2: 8 8
    1096 4 of 2: 8 8
    1100 0 of 1: -EFAULT -EFAULT
    1100 0 of 2: -EFAULT -EFAULT
    1100 0 of 2: -EFAULT -EFAULT
    1101 0 of 1: -EFAULT -EFAULT
    1101 0 of 2: -EFAULT -EFAULT
    1101 0 of 2: -EFAULT -EFAULT
    99 0 of 1: -EFAULT -EFAULT
    99 0 of 2: -EFAULT -EFAULT
    99 0 of 2: -EFAULT -EFAULT
    3000 4 of 1: -EFAULT -EFAULT
    3000 4 of 2: -EFAULT -EFAULT
    3000 4 of 2: -EFAULT -EFAULT
    100 1001 of 1: -EFAULT -EFAULT
    100 1001 of 2: -EFAULT -EFAULT
    100 1001 of 2: -EFAULT -EFAULT
");

fn vector_empty(t: &mut Transcript) {
    let pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let (none, some) = (vector(pages.at(0), 0), vector(pages.at(0), 4));
    for parts in [&[][..], &[none], &[none, none], &[none, some], &[some, none], &[some, none, some]] {
        t.entry(&ring.one(readv_fixed(fd, parts, 0, 1)));
        t.entry(&ring.one(writev_fixed(fd, parts, 0, 2)));
    }
}
case!(vector_empty => "
    cqe 1: 0
    cqe 2: 0
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
");

fn vector_wrong(t: &mut Transcript) {
    let pages = Pages::new(1);
    let mut bare = Ring::new(4);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let parts = vec![vector(pages.at(0), 1); 1025];
    t.entry(&bare.one(readv_fixed(fd, &parts[..2], 0, 1)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..2], 1, 2)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..1024], 0, 3)));
    t.entry(&ring.one(readv_fixed(fd, &parts, 0, 4)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..2], 0, 5).with(|sqe| sqe.addr = BAD)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..1], 0, 6).with(|sqe| sqe.addr = BAD)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..0], 0, 7).with(|sqe| sqe.addr = BAD)));
    t.entry(&ring.one(readv_fixed(-1, &parts[..2], 0, 8)));
    t.entry(&ring.one(readv_fixed(-1, &parts[..2], 1, 9)));
    t.entry(&ring.one(readv_fixed(fd, &[vector(pages.at(0), usize::MAX), parts[0]], 0, 10)));
    t.entry(&ring.one(readv_fixed(fd, &[vector(pages.at(0), usize::MAX)], 0, 11)));
    t.entry(&ring.one(readv_fixed(fd, &[vector(u64::MAX - 1, 10), parts[0]], 0, 12)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..2], 0, 13).flagged(usring_uapi::sqe_flags::BUFFER_SELECT)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..2], 0, 14).op_flags(1)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..2], 0, 15).op_flags(1 << 20)));
    t.entry(&ring.one(readv_fixed(fd, &parts[..2], 0, 16).with(|sqe| sqe.ioprio = 1)));
}
case!(vector_wrong => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: 10
    cqe 4: -EINVAL
    cqe 5: -EFAULT
    cqe 6: -EFAULT
    cqe 7: 0
    cqe 8: -EBADF
    cqe 9: -EBADF
    cqe 10: -EINVAL
    cqe 11: -EINVAL
    cqe 12: -EFAULT
    cqe 13: -EOPNOTSUPP
    cqe 14: -EINVAL
    cqe 15: -EOPNOTSUPP
    cqe 16: -EINVAL
");

fn vector_waits(t: &mut Transcript) {
    let mut pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let (reader, writer) = files::pipe();
    let parts = [vector(pages.at(10), 2), vector(pages.at(0), 10)];
    for asynchronous in [false, true] {
        let request = readv_fixed(reader.as_raw_fd(), &parts, 0, 1);
        ring.push(if asynchronous { request.forced_async() } else { request });
        ring.submit();
        crate::time::long_enough_to_begin();
        files::put(&writer, b"abcdef");
        t.in_order(&ring.wait(1));
        t.say(String::from_utf8_lossy(&pages.bytes()[..12]).replace('\0', "."));
    }
    let parts = [vector(pages.at(0), 4), vector(pages.at(2), 2)];
    t.entry(&ring.one(writev_fixed(writer.as_raw_fd(), &parts, 0, 2)));
    t.say(String::from_utf8_lossy(&files::take(&reader, 10).unwrap_or_default()).into_owned());
}
case!(vector_waits => "
    cqe 1: 6
    cdef......ab
    cqe 1: 6
    cdef......ab
    cqe 2: 6
    cdefef
");

fn vector_copied_by_submit(t: &mut Transcript) {
    let mut pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let (reader, writer) = files::pipe();
    let mut parts = [vector(pages.at(10), 2), vector(pages.at(0), 10)];
    ring.push(readv_fixed(reader.as_raw_fd(), &parts, 0, 1));
    ring.submit();
    parts.fill(vector(BAD, 5));
    files::put(&writer, b"abcdef");
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&pages.bytes()[..12]).replace('\0', "."));
}
case!(vector_copied_by_submit => "
    cqe 1: 6
    cdef......ab
");

fn vector_at_position(t: &mut Transcript) {
    let pages = Pages::new(1);
    let mut ring = ring_with(&[&pages]);
    let file = files::memory_file(b"0123456789");
    let parts = [vector(pages.at(10), 2), vector(pages.at(0), 3)];
    t.entry(&ring.one(readv_fixed(file.as_raw_fd(), &parts, 0, 1).with(|sqe| sqe.off = CURRENT)));
    t.say(files::position(&file));
    t.entry(&ring.one(writev_fixed(file.as_raw_fd(), &parts, 0, 2).with(|sqe| sqe.off = CURRENT)));
    t.say(format_args!("{} {}", files::position(&file), files::text(&file)));
}
case!(vector_at_position => "
    cqe 1: 5
    5
    cqe 2: 5
    10 0123401234
");

fn vector_on_polled_ring(t: &mut Transcript) {
    let pages = Pages::new(1);
    let part = vector(pages.at(0), pages.length);
    let mut ring = Ring::flags(4, usring_uapi::io_uring::IORING_SETUP_IOPOLL);
    assert_eq!(ring.register(reg::BUFFERS, &raw const part, 1), 0);
    let file = files::memory_file(b"0123456789");
    let parts = [vector(pages.at(10), 2), vector(pages.at(0), 3)];
    for request in [readv_fixed(file.as_raw_fd(), &parts, 0, 1), writev_fixed(file.as_raw_fd(), &parts, 0, 1)] {
        ring.push(request);
        ring.submit();
        t.in_order(&ring.wait(1));
    }
}
case!(vector_on_polled_ring => "
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
");
