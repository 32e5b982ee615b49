//! The flags RWF_* of read and write requests.

use std::os::fd::AsRawFd;

use crate::files;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, read, write};
use crate::transcript::Transcript;

const HIPRI: u32 = 0x1;
const DSYNC: u32 = 0x2;
const SYNC: u32 = 0x4;
const NOWAIT: u32 = 0x8;
const APPEND: u32 = 0x10;
const NOAPPEND: u32 = 0x20;
const ATOMIC: u32 = 0x40;
const DONTCACHE: u32 = 0x80;

fn sync(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let file = scratch.file("sync", b"0123456789");
    for flags in [DSYNC, SYNC, DSYNC | SYNC] {
        t.entry(&ring.one(write(file.as_raw_fd(), b"abc", 2, 1).op_flags(flags)));
    }
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 2, 2).op_flags(DSYNC)));
    t.say(files::text(&file));
}
case!(sync => "
    cqe 1: 3
    cqe 1: 3
    cqe 1: 3
    cqe 2: 4
    01abc56789
");

fn append(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"ab");
    let fd = file.as_raw_fd();
    t.entry(&ring.one(write(fd, b"cd", 0, 1).op_flags(APPEND)));
    t.say(format_args!("{} position {}", files::text(&file), files::position(&file)));
    t.entry(&ring.one(write(fd, b"ef", CURRENT, 2).op_flags(APPEND)));
    t.say(format_args!("{} position {}", files::text(&file), files::position(&file)));
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(fd, &mut buffer, 0, 3).op_flags(APPEND)));
}
case!(append => "
    cqe 1: 2
    abcd position 0
    cqe 2: 2
    abcdef position 6
    cqe 3: 4
");

fn no_append(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"abcd");
    // SAFETY: the call touches no memory.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
    t.entry(&ring.one(write(file.as_raw_fd(), b"xy", 1, 1).op_flags(NOAPPEND)));
    t.say(files::text(&file));
    t.entry(&ring.one(write(file.as_raw_fd(), b"xy", 1, 2).op_flags(APPEND | NOAPPEND)));
    t.say(files::text(&file));
}
case!(no_append => "
    cqe 1: 2
    axyd
    cqe 2: -EINVAL
    axyd
");

/// A read with RWF_NOWAIT from an empty pipe or socket gets -EAGAIN instead of waiting.
fn nowait_on_empty(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    let (reader, writer) = files::pipe();
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, 0, 1).op_flags(NOWAIT)));
    let (here, _there) = files::sockets();
    t.entry(&ring.one(read(here.as_raw_fd(), &mut buffer, 0, 2).op_flags(NOWAIT)));
    let event = files::eventfd(0);
    let mut count = [0u8; 8];
    t.entry(&ring.one(read(event.as_raw_fd(), &mut count, 0, 3).op_flags(NOWAIT)));
    files::fill(&writer);
    t.entry(&ring.one(write(writer.as_raw_fd(), &buffer, 0, 4).op_flags(NOWAIT)));
}
case!(nowait_on_empty => "
    cqe 1: -EAGAIN
    cqe 2: -EAGAIN
    cqe 3: -EAGAIN
    cqe 4: -EAGAIN
");

fn nowait_with_data(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    let (reader, writer) = files::pipe();
    files::put(&writer, b"ab");
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, 0, 1).op_flags(NOWAIT)));
    t.entry(&ring.one(write(writer.as_raw_fd(), b"cd", 0, 2).op_flags(NOWAIT)));
    // The file system of a memfd refuses RWF_NOWAIT, although the pages of a memfd are always in
    // memory.
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 3).op_flags(NOWAIT)));
}
case!(nowait_with_data => "
    cqe 1: 2
    cqe 2: 2
    cqe 3: -EOPNOTSUPP
");

/// The file system of a memfd refuses RWF_NOWAIT. The kernel and usring may use that flag for a
/// first attempt. Requests without the flag must succeed nevertheless.
fn nowait_refused_by_file_system(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    let file = files::memory_file(b"0123456789");
    for flags in [NOWAIT, 0] {
        for offset in [2, 8, 10, crate::sqe::CURRENT] {
            t.entry(&ring.one(write(file.as_raw_fd(), b"abcd", offset, 1).op_flags(flags)));
            buffer.fill(b'.');
            t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, offset, 2).op_flags(flags)));
            t.say(String::from_utf8_lossy(&buffer));
        }
        t.say(files::text(&file));
    }
}
case!(nowait_refused_by_file_system => include_str!("rw_flags/nowait_refused_by_file_system.txt"));

fn hipri_without_iopoll(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 1).op_flags(HIPRI)));
    t.entry(&ring.one(write(file.as_raw_fd(), &buffer, 0, 2).op_flags(HIPRI)));
}
case!(hipri_without_iopoll => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

fn unknown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    let file = files::memory_file(b"0123456789");
    for bit in 9..32 {
        let entry = ring.one(read(file.as_raw_fd(), &mut buffer, 0, bit).op_flags(1 << bit));
        t.entry(&entry);
    }
    t.entry(&ring.one(write(file.as_raw_fd(), b"x", 0, 1).op_flags(u32::MAX)));
}
case!(unknown => "
    cqe 9: -EOPNOTSUPP
    cqe 10: -EOPNOTSUPP
    cqe 11: -EOPNOTSUPP
    cqe 12: -EOPNOTSUPP
    cqe 13: -EOPNOTSUPP
    cqe 14: -EOPNOTSUPP
    cqe 15: -EOPNOTSUPP
    cqe 16: -EOPNOTSUPP
    cqe 17: -EOPNOTSUPP
    cqe 18: -EOPNOTSUPP
    cqe 19: -EOPNOTSUPP
    cqe 20: -EOPNOTSUPP
    cqe 21: -EOPNOTSUPP
    cqe 22: -EOPNOTSUPP
    cqe 23: -EOPNOTSUPP
    cqe 24: -EOPNOTSUPP
    cqe 25: -EOPNOTSUPP
    cqe 26: -EOPNOTSUPP
    cqe 27: -EOPNOTSUPP
    cqe 28: -EOPNOTSUPP
    cqe 29: -EOPNOTSUPP
    cqe 30: -EOPNOTSUPP
    cqe 31: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
");

fn not_on_this_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    let (reader, writer) = files::pipe();
    files::put(&writer, b"ab");
    for flags in [ATOMIC, DONTCACHE] {
        t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, 0, 1).op_flags(flags)));
        t.entry(&ring.one(write(writer.as_raw_fd(), b"x", 0, 2).op_flags(flags)));
    }
    // A pipe accepts the flags DSYNC, SYNC and APPEND, although they have no effect on it.
    for flags in [DSYNC, SYNC, APPEND] {
        t.entry(&ring.one(write(writer.as_raw_fd(), b"x", 0, 3).op_flags(flags)));
    }
}
case!(not_on_this_file => "
    cqe 1: -EOPNOTSUPP
    cqe 2: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 2: -EOPNOTSUPP
    cqe 3: 1
    cqe 3: 1
    cqe 3: 1
");

/// A priority level without a class is refused.
fn priority(t: &mut Transcript) {
    const BEST_EFFORT: u16 = 2 << 13;
    const IDLE: u16 = 3 << 13;
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"abcd");
    for priority in [0, 1, 7, 8, BEST_EFFORT, BEST_EFFORT | 7, IDLE, IDLE | 1, 4 << 13] {
        let mut buffer = [0u8; 4];
        t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 1).with(|sqe| sqe.ioprio = priority)));
        t.entry(&ring.one(write(file.as_raw_fd(), b"x", 0, 2).with(|sqe| sqe.ioprio = priority)));
    }
}
case!(priority => "
    cqe 1: 4
    cqe 2: 1
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 1: 4
    cqe 2: 1
    cqe 1: 4
    cqe 2: 1
    cqe 1: 4
    cqe 2: 1
    cqe 1: 4
    cqe 2: 1
    cqe 1: 4
    cqe 2: 1
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

/// A request with a flag that the file does not support is refused, even if the file is empty.
fn on_empty_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 8];
    let (pipe, _writer) = files::pipe();
    let (stream, _peer) = files::sockets();
    let (datagrams, _other) = files::sockets_of(libc::SOCK_DGRAM);
    for file in [pipe, stream, datagrams, files::eventfd(0)] {
        for flags in [ATOMIC, DONTCACHE, 1 << 31] {
            ring.push(read(file.as_raw_fd(), &mut buffer, CURRENT, 1).op_flags(flags));
            ring.submit();
            t.in_order(&ring.wait(1));
        }
    }
}
case!(on_empty_file => "
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
    cqe 1: -EOPNOTSUPP
");

/// A ring without IOPOLL refuses a request with RWF_HIPRI. The kernel checks the request's file
/// before it refuses the flag.
fn hipri_on_kinds(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 8];
    let (reader, writer) = files::pipe();
    let (socket, _other) = files::sockets();
    let count = files::eventfd(1);
    let null = std::fs::File::open("/dev/null").expect("it is there");
    files::put(&writer, b"abcdefgh");
    let numbers = [reader.as_raw_fd(), writer.as_raw_fd(), socket.as_raw_fd(), count.as_raw_fd(), null.as_raw_fd(), -1];
    for number in numbers {
        for flags in [HIPRI, HIPRI | 1 << 20, HIPRI | NOWAIT, HIPRI | APPEND | NOAPPEND] {
            let entry = ring.one(read(number, &mut buffer, 0, 1).op_flags(flags));
            let other = ring.one(write(number, &buffer, 0, 2).op_flags(flags));
            t.say(format_args!("{flags:#x}: {} {}", crate::names::result(entry.res), crate::names::result(other.res)));
        }
    }
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 3).op_flags(HIPRI).forced_async()));
    t.entry(&ring.one(read(file.as_raw_fd(), &mut [], 0, 4).op_flags(HIPRI)));
    let nobody = read(file.as_raw_fd(), &mut buffer, 0, 5).op_flags(HIPRI);
    t.entry(&ring.one(nobody.flagged(usring_uapi::sqe_flags::BUFFER_SELECT)));
    t.entry(&ring.one(nobody.with(|sqe| sqe.opcode = usring_uapi::opcode::READ_FIXED)));
}
case!(hipri_on_kinds => include_str!("rw_flags/hipri_on_kinds.txt"));

fn hipri_ends_no_batch(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    let file = files::memory_file(b"0123456789");
    ring.push(crate::sqe::nop(1));
    ring.push(read(file.as_raw_fd(), &mut buffer, 0, 2).op_flags(HIPRI));
    ring.push(crate::sqe::nop(3));
    t.result("submit", ring.submit());
    t.sorted(&ring.reap());
}
case!(hipri_ends_no_batch => "
    submit = 3
    cqe 1: 0
    cqe 2: -EINVAL
    cqe 3: 0
");

/// The kernel checks the flags of a request even if the request transfers 0 bytes.
fn on_zero_bytes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let (one, other) = files::sockets();
    let (memory, event) = (files::memory_file(b"text"), files::eventfd(1));
    let null = files::null();
    let kinds = [
        ("memory", &memory, &memory),
        ("pipe", &reader, &writer),
        ("socket", &one, &other),
        ("eventfd", &event, &event),
        ("null", &null, &null),
        ("wrong end", &writer, &reader),
    ];
    let all =
        [0, HIPRI, DSYNC, SYNC, NOWAIT, APPEND, NOAPPEND, APPEND | NOAPPEND, ATOMIC, DONTCACHE, 0x100, 0x200, 1 << 31];
    for (name, from, to) in kinds {
        for flags in all {
            for forced in [0, usring_uapi::sqe_flags::ASYNC] {
                let reading = ring.one(read(from.as_raw_fd(), &mut [], 0, 1).op_flags(flags).flagged(forced)).res;
                let writing = ring.one(write(to.as_raw_fd(), &[], 0, 1).op_flags(flags).flagged(forced)).res;
                let (reading, writing) = (crate::names::result(reading), crate::names::result(writing));
                t.say(format_args!("{name} {flags:#x} {forced:#x}: {reading} {writing}"));
            }
        }
    }
}
case!(on_zero_bytes => include_str!("rw_flags/on_zero_bytes.txt"));
