//! READV and WRITEV: which vectors the kernel refuses, and when it copies the vectors.

use std::os::fd::AsRawFd;

use crate::files;
use crate::memory::{BAD, KERNEL_HALF, Pages};
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, nop, read_at, readv, vector, writev};
use crate::transcript::Transcript;

use usring_uapi::{opcode, sqe_flags};

fn of(buffer: &mut [u8]) -> libc::iovec {
    vector(buffer.as_mut_ptr() as u64, buffer.len())
}

fn shown(buffer: &[u8]) -> String {
    String::from_utf8_lossy(buffer).replace('\0', ".")
}

fn scatter_gather(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (mut a, mut b, mut c) = ([0u8; 2], [0u8; 3], [0u8; 4]);
    let vectors = [of(&mut a), of(&mut b), of(&mut c)];
    t.entry(&ring.one(readv(file.as_raw_fd(), &vectors, 1, 1)));
    t.say(format_args!("{} {} {}", shown(&a), shown(&b), shown(&c)));
    t.entry(&ring.one(writev(file.as_raw_fd(), &vectors, 20, 2)));
    t.say(shown(&files::content(&file)));
}
case!(scatter_gather => "
    cqe 1: 9
    12 345 6789
    cqe 2: 9
    0123456789..........123456789
");

fn at_position(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (mut a, mut b) = ([0u8; 2], [0u8; 3]);
    let vectors = [of(&mut a), of(&mut b)];
    t.entry(&ring.one(readv(file.as_raw_fd(), &vectors, CURRENT, 1)));
    t.entry(&ring.one(writev(file.as_raw_fd(), &vectors, CURRENT, 2)));
    t.say(format_args!("{} position {}", files::text(&file), files::position(&file)));
}
case!(at_position => "
    cqe 1: 5
    cqe 2: 5
    0123401234 position 10
");

fn counts(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(&[b'x'; 2000]);
    let fd = file.as_raw_fd();
    let mut buffer = [0u8; 1];
    let vectors = vec![of(&mut buffer); 1025];
    for count in [0, 1, 8, 9, 1023, 1024, 1025] {
        let entry = ring.one(readv(fd, &vectors[..count], 0, count as u64));
        t.entry(&entry);
    }
    let count = |sqe: usring_uapi::Sqe, count| usring_uapi::Sqe { len: count, ..sqe };
    t.entry(&ring.one(count(readv(fd, &vectors, 0, 1), u32::MAX)));
    // The number of vectors is zero, so the kernel ignores the bad address of the array.
    t.entry(&ring.one(read_at(fd, BAD, 0, 0, 2).with(|sqe| sqe.opcode = opcode::READV)));
}
case!(counts => "
    cqe 0: 0
    cqe 1: 1
    cqe 8: 8
    cqe 9: 9
    cqe 1023: 1023
    cqe 1024: 1024
    cqe 1025: -EINVAL
    cqe 1: -EINVAL
    cqe 2: 0
");

fn bad_vectors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    for (number, address) in [0, BAD, KERNEL_HALF, u64::MAX - 7].into_iter().enumerate() {
        for opcode in [opcode::READV, opcode::WRITEV] {
            let bad = read_at(fd, address, 1, 0, number as u64).with(|sqe| sqe.opcode = opcode);
            t.entry(&ring.one(bad));
        }
    }
    // The array of vectors begins in an accessible page and ends in an inaccessible one.
    let mut pages = Pages::new(2);
    let mut buffer = [0u8; 4];
    let good = of(&mut buffer);
    let start = 4096 - size_of::<libc::iovec>();
    // SAFETY: the address is that of the first page's last 16 bytes, which is the size of a vector.
    unsafe { pages.bytes().as_mut_ptr().add(start).cast::<libc::iovec>().write(good) };
    pages.forbid_last();
    let vectors = |count| read_at(fd, pages.at(start), count, 0, 10);
    t.entry(&ring.one(vectors(1).with(|sqe| sqe.opcode = opcode::READV)));
    t.entry(&ring.one(vectors(2).with(|sqe| sqe.opcode = opcode::READV)));
}
case!(bad_vectors => "
    cqe 0: -EFAULT
    cqe 0: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 3: -EFAULT
    cqe 10: 4
    cqe 10: -EFAULT
");

fn partly_bad_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let mut buffer = [0u8; 4];
    let vectors = [of(&mut buffer), vector(BAD, 4)];
    t.entry(&ring.one(readv(fd, &vectors, 0, 1)));
    t.say(shown(&buffer));
    let vectors = [vector(BAD, 4), of(&mut buffer)];
    t.entry(&ring.one(readv(fd, &vectors, 0, 2)));
    let vectors = [of(&mut buffer), vector(KERNEL_HALF, 4)];
    t.entry(&ring.one(readv(fd, &vectors, 0, 3)));
    t.entry(&ring.one(writev(fd, &vectors, 0, 4)));
}
case!(partly_bad_memory => "
    cqe 1: 4
    0123
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EFAULT
");

fn lengths(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let pages = Pages::new(1);
    let address = pages.at(0);
    for (number, length) in [usize::MAX, 1 << 63, (1 << 63) - 1, 1 << 32].into_iter().enumerate() {
        t.entry(&ring.one(readv(fd, &[vector(address, length)], 0, number as u64)));
    }
    let half = (1 << 62) + 1;
    t.entry(&ring.one(readv(fd, &[vector(address, half), vector(address, half)], 0, 9)));
}
case!(lengths => "
    cqe 0: -EINVAL
    cqe 1: -EINVAL
    cqe 2: 10
    cqe 3: 10
    cqe 9: -EFAULT
");

fn short_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"01234");
    let (mut a, mut b) = ([0u8; 4], [0u8; 4]);
    t.entry(&ring.one(readv(file.as_raw_fd(), &[of(&mut a), of(&mut b)], 0, 1)));
    t.say(format_args!("{} {}", shown(&a), shown(&b)));
}
case!(short_read => "
    cqe 1: 5
    0123 4...
");

/// The kernel copies the vectors of a read at submission. While the read waits, the program changes
/// its array. The read still fills the buffers of the original vectors.
fn copied_by_submit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let (mut a, mut b) = ([0u8; 4], [0u8; 4]);
    let mut vectors = vec![of(&mut a[..2]), of(&mut b[..2])];
    ring.push(readv(reader.as_raw_fd(), &vectors, 0, 1));
    t.result("submit", ring.submit());
    vectors.fill(vector(BAD, 4));
    files::put(&writer, b"wxyz");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} {}", shown(&a), shown(&b)));
}
case!(copied_by_submit => "
    submit = 1
    cqe 1: 4
    wx.. yz..
");

/// IO_DRAIN holds back a request. The kernel has copied its vectors when io_uring_enter(2) returns,
/// although the request has not started.
fn copied_when_drained(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let file = files::memory_file(b"0123456789");
    let (mut a, mut b) = ([0u8; 1], [0u8; 4]);
    let mut first = vec![of(&mut a)];
    let mut second = vec![of(&mut b)];
    ring.push(readv(reader.as_raw_fd(), &first, 0, 1));
    ring.push(readv(file.as_raw_fd(), &second, 0, 2).flagged(sqe_flags::IO_DRAIN));
    ring.push(nop(3).flagged(sqe_flags::IO_DRAIN));
    t.result("submit", ring.submit());
    first.fill(vector(BAD, 1));
    second.fill(vector(BAD, 4));
    files::put(&writer, b"w");
    t.in_order(&ring.wait(3));
    t.say(format_args!("{} {}", shown(&a), shown(&b)));
}
case!(copied_when_drained => "
    submit = 3
    cqe 1: 1
    cqe 2: 4
    cqe 3: 0
    w 0123
");

fn on_pipe(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let (mut a, mut b) = (*b"abc", *b"defg");
    t.entry(&ring.one(writev(writer.as_raw_fd(), &[of(&mut a), of(&mut b)], 0, 1)));
    t.entry(&ring.one(readv(reader.as_raw_fd(), &[of(&mut b), of(&mut a)], 0, 2)));
    t.say(format_args!("{} {}", shown(&b), shown(&a)));
}
case!(on_pipe => "
    cqe 1: 7
    cqe 2: 7
    abcd efg
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let (mut a, mut b) = ([0u8; 2], [0u8; 3]);
    let mut vectors = vec![of(&mut a), of(&mut b)];
    ring.push(readv(file.as_raw_fd(), &vectors, 2, 1).forced_async());
    t.result("submit", ring.submit());
    vectors.fill(vector(BAD, 4));
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} {}", shown(&a), shown(&b)));
}
case!(forced_async => "
    submit = 1
    cqe 1: 5
    23 456
");

fn zero_length_elements(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let mut a = [0u8; 3];
    t.entry(&ring.one(readv(fd, &[vector(0, 0), of(&mut a), vector(BAD, 0)], 0, 1)));
    t.say(shown(&a));
    t.entry(&ring.one(readv(fd, &[vector(0, 0), vector(BAD, 0)], 0, 2)));
    t.entry(&ring.one(readv(fd, &[vector(KERNEL_HALF, 0)], 0, 3)));
}
case!(zero_length_elements => "
    cqe 1: 3
    012
    cqe 2: 0
    cqe 3: -EFAULT
");
