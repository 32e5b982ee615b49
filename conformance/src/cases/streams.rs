//! READ and WRITE on files on which a request can wait: pipes, sockets and eventfds.

use std::os::fd::AsRawFd;

use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, nop, read, write};
use crate::transcript::Transcript;

fn shown(buffer: &[u8]) -> String {
    String::from_utf8_lossy(buffer).replace('\0', ".")
}

fn read_waits_for_data(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 8];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    // A NOP completes while the read waits.
    ring.push(nop(2));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&writer, b"hello");
    t.in_order(&ring.wait(1));
    t.say(shown(&buffer));
}
case!(read_waits_for_data => "
    submit = 1
    no cqe
    cqe 2: 0
    cqe 1: 5
    hello...
");

fn data_is_there(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 4];
    files::put(&writer, b"hello");
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    t.say(shown(&buffer));
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, 0, 2)));
}
case!(data_is_there => "
    submit = 1
    cqe 1: 4
    hell
    cqe 2: 1
");

fn offset_is_ignored(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 2];
    for offset in [0, CURRENT, 5, 1 << 40] {
        t.entry(&ring.one(write(writer.as_raw_fd(), b"ab", offset, 1)));
        t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, offset, 2)));
    }
}
case!(offset_is_ignored => "
    cqe 1: 2
    cqe 2: 2
    cqe 1: 2
    cqe 2: 2
    cqe 1: 2
    cqe 2: 2
    cqe 1: 2
    cqe 2: 2
");

/// A request waits for data even if its file has O_NONBLOCK.
fn nonblocking_waits_too(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe_with(libc::O_NONBLOCK);
    let mut buffer = [0u8; 4];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"abcd");
    t.in_order(&ring.wait(1));
}
case!(nonblocking_waits_too as nonblocking_descriptor_waits_too => "
    submit = 1
    no cqe
    cqe 1: 4
");

fn writer_closes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 4];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    drop(writer);
    t.in_order(&ring.wait(1));
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, 0, 2)));
}
case!(writer_closes => "
    cqe 1: 0
    cqe 2: 0
");

fn ignore_broken_pipes() {
    // SAFETY: the call changes only this process's signal disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

fn reader_closes(t: &mut Transcript) {
    ignore_broken_pipes();
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    files::fill(&writer);
    ring.push(write(writer.as_raw_fd(), b"x", 0, 1));
    ring.submit();
    t.in_order(&ring.reap());
    drop(reader);
    t.in_order(&ring.wait(1));
    t.entry(&ring.one(write(writer.as_raw_fd(), b"x", 0, 2)));
}
case!(reader_closes => "
    no cqe
    cqe 1: -EPIPE
    cqe 2: -EPIPE
");

fn write_waits_for_room(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let full = files::fill(&writer);
    ring.push(write(writer.as_raw_fd(), b"tail", 0, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    let mut taken = 0;
    while taken < full {
        taken += files::take(&reader, 65536).map_or(full, |bytes| bytes.len());
    }
    t.in_order(&ring.wait(1));
    files::set_nonblocking(&reader, true);
    t.say(shown(&files::take(&reader, 100).unwrap_or_default()));
}
case!(write_waits_for_room => "
    submit = 1
    no cqe
    cqe 1: 4
    tail
");

/// A write has more bytes than fit into the pipe. It waits until all of them are written. With
/// RWF_NOWAIT its result would be the number of bytes that fit.
fn large_write_to_pipe(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let large = vec![b'L'; 200_000];
    ring.push(write(writer.as_raw_fd(), &large, 0, 1));
    t.result("submit", ring.submit());
    let mut total = 0;
    files::set_nonblocking(&reader, true);
    let all = crate::time::until(|| {
        while let Ok(bytes) = files::take(&reader, 65536) {
            total += bytes.len();
        }
        ring.ready() > 0
    });
    while let Ok(bytes) = files::take(&reader, 65536) {
        total += bytes.len();
    }
    t.say(format_args!("completed {all}"));
    let entries = ring.reap();
    let written = entries.first().map_or(0, |entry| entry.res);
    t.say(format_args!("answer is what was read: {}", written as usize == total));
    t.say(format_args!("something written: {}", written > 0));
}
case!(large_write_to_pipe => "
    submit = 1
    completed true
    answer is what was read: true
    something written: true
");

fn several_readers(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut buffers = [[0u8; 4]; 4];
    for (index, buffer) in buffers.iter_mut().enumerate() {
        ring.push(read(reader.as_raw_fd(), buffer, 0, index as u64 + 1));
    }
    t.result("submit", ring.submit());
    files::put(&writer, b"aaaabbbbccccdddd");
    t.sorted(&ring.wait(4));
    let mut got: Vec<String> = buffers.iter().map(|buffer| shown(buffer)).collect();
    got.sort();
    t.say(got.join(" "));
}
case!(several_readers => "
    submit = 4
    cqe 1: 4
    cqe 2: 4
    cqe 3: 4
    cqe 4: 4
    aaaa bbbb cccc dddd
");

fn eventfd(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let event = files::eventfd(3);
    let fd = event.as_raw_fd();
    let mut count = [0u8; 8];
    t.entry(&ring.one(read(fd, &mut count, 0, 1)));
    t.say(format_args!("count {}", u64::from_ne_bytes(count)));
    ring.push(read(fd, &mut count, 0, 2));
    ring.submit();
    t.in_order(&ring.reap());
    ring.push(write(fd, &7u64.to_ne_bytes(), 0, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
    t.say(format_args!("count {}", u64::from_ne_bytes(count)));
    t.entry(&ring.one(write(fd, &u64::MAX.to_ne_bytes(), 0, 4)));
    t.entry(&ring.one(read(fd, &mut count[..4], 0, 5)));
}
case!(eventfd => "
    cqe 1: 8
    count 3
    no cqe
    cqe 2: 8
    cqe 3: 8
    count 7
    cqe 4: -EINVAL
    cqe 5: -EINVAL
");

fn sockets(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (here, there) = files::sockets();
    let mut buffer = [0u8; 8];
    ring.push(read(here.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    ring.push(write(there.as_raw_fd(), b"ping", 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    t.say(shown(&buffer));
    drop(there);
    t.entry(&ring.one(read(here.as_raw_fd(), &mut buffer, 0, 3)));
    ignore_broken_pipes();
    t.entry(&ring.one(write(here.as_raw_fd(), b"x", 0, 4)));
}
case!(sockets => "
    cqe 1: 4
    cqe 2: 4
    ping....
    cqe 3: 0
    cqe 4: -EPIPE
");

fn datagrams(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (here, there) = files::sockets_of(libc::SOCK_DGRAM);
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(write(there.as_raw_fd(), b"too long", 0, 1)));
    t.entry(&ring.one(write(there.as_raw_fd(), b"", 0, 2)));
    t.entry(&ring.one(write(there.as_raw_fd(), b"end", 0, 3)));
    t.entry(&ring.one(read(here.as_raw_fd(), &mut buffer, 0, 4)));
    t.entry(&ring.one(read(here.as_raw_fd(), &mut buffer, 0, 5)));
    t.entry(&ring.one(read(here.as_raw_fd(), &mut buffer, 0, 6)));
}
case!(datagrams => "
    cqe 1: 8
    cqe 2: 0
    cqe 3: 3
    cqe 4: 4
    cqe 5: 0
    cqe 6: 3
");

fn shutdown_ends_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (here, there) = files::sockets();
    let mut buffer = [0u8; 4];
    ring.push(read(here.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    // SAFETY: the call touches no memory.
    unsafe { libc::shutdown(there.as_raw_fd(), libc::SHUT_WR) };
    t.in_order(&ring.wait(1));
}
case!(shutdown_ends_read => "cqe 1: 0");

fn unconnected_socket(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ignore_broken_pipes();
    // SAFETY: the call touches no memory. The descriptor stays open until the process ends.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(fd, &mut buffer, 0, 1)));
    t.entry(&ring.one(write(fd, &buffer, 0, 2)));
}
case!(unconnected_socket => "
    cqe 1: -ENOTCONN
    cqe 2: -EPIPE
");

/// A write to a pipe whose reading end is closed raises SIGPIPE, as write(2) does.
fn broken_pipe_signal(t: &mut Transcript) {
    let ending = process::forked(|| {
        // SAFETY: the call changes only this process's signal disposition, which Rust's start-up
        // code had set to ignore SIGPIPE.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let mut ring = Ring::new(4);
        let (reader, writer) = files::pipe();
        drop(reader);
        ring.push(write(writer.as_raw_fd(), b"x", 0, 1));
        ring.submit();
        ring.wait(1);
        7
    });
    t.say(format_args!("default disposition: {ending}"));
    // RWF_NOSIGNAL (Linux 6.18) suppresses SIGPIPE.
    let ending = process::forked(|| {
        // SAFETY: the call changes only this process's signal disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let mut ring = Ring::new(4);
        let (reader, writer) = files::pipe();
        drop(reader);
        ring.push(write(writer.as_raw_fd(), b"x", 0, 1).op_flags(0x100));
        ring.submit();
        let entries = ring.wait(1);
        i32::from(entries.first().is_some_and(|entry| entry.res == -libc::EPIPE))
    });
    t.say(format_args!("RWF_NOSIGNAL: {ending}"));
}
case!(broken_pipe_signal => "
    default disposition: signal 13
    RWF_NOSIGNAL: exit 1
");

fn forced_async_read_waits(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 4];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1).forced_async());
    t.result("submit", ring.submit());
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"abcd");
    t.in_order(&ring.wait(1));
}
case!(forced_async_read_waits => "
    submit = 1
    no cqe
    cqe 1: 4
");

/// The program makes no system call after the submission and only reads the CQ in memory. It sees
/// the completion nevertheless.
fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 4];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    files::put(&writer, b"abcd");
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
    t.in_order(&ring.reap());
}
case!(watched_in_memory => "
    seen true
    cqe 1: 4
");

fn timerfd(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    // SAFETY: the call reads only `time`. The descriptor stays open until the process ends.
    let fd = unsafe {
        let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
        let mut time: libc::itimerspec = crate::memory::zeroed();
        time.it_value.tv_nsec = 20_000_000;
        libc::timerfd_settime(fd, 0, &time, std::ptr::null_mut());
        fd
    };
    let mut count = [0u8; 8];
    ring.push(read(fd, &mut count, 0, 1));
    ring.submit();
    t.in_order(&ring.wait(1));
    t.say(format_args!("expired {}", u64::from_ne_bytes(count)));
}
case!(timerfd => "
    cqe 1: 8
    expired 1
");

fn data_before_submit_of_many(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffers = [[0u8; 2]; 3];
    files::put(&writer, b"aabbcc");
    for (index, buffer) in buffers.iter_mut().enumerate() {
        ring.push(read(reader.as_raw_fd(), buffer, 0, index as u64 + 1));
    }
    t.result("submit", ring.submit());
    // The data was there before the submission, so all reads complete in the submitting call and in
    // order.
    t.in_order(&ring.reap());
    t.say(format_args!("{} {} {}", shown(&buffers[0]), shown(&buffers[1]), shown(&buffers[2])));
}
case!(data_before_submit_of_many => "
    submit = 3
    cqe 1: 2
    cqe 2: 2
    cqe 3: 2
    aa bb cc
");

/// A socket's receiving side is shut down while a read waits, or before a read. The read gets 0
/// bytes, unless data is there.
fn shut_datagrams(t: &mut Transcript) {
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_DGRAM] {
        let mut ring = Ring::new(4);
        let (reader, _writer) = files::sockets_of(kind);
        let mut bytes = [0; 4];
        ring.push(read(reader.as_raw_fd(), &mut bytes, 0, 1));
        ring.submit();
        files::shut_down(&reader, libc::SHUT_RD);
        t.in_order(&ring.wait(1));
        t.entry(&ring.one(read(reader.as_raw_fd(), &mut bytes, 0, 2)));
    }
    let mut ring = Ring::new(4);
    let (reader, writer, _) = files::udp();
    let mut bytes = [0; 4];
    ring.push(read(reader.as_raw_fd(), &mut bytes, 0, 3));
    ring.submit();
    files::shut_down(&reader, libc::SHUT_RD);
    t.in_order(&ring.wait(1));
    files::put(&writer, b"abcd");
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut bytes, 0, 4)));
}
case!(shut_datagrams => "
    cqe 1: 0
    cqe 2: 0
    cqe 1: 0
    cqe 2: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 4
");

/// Submits READ, WRITE, READV, WRITEV and transfers of 0 bytes at several offsets, although the
/// files have no positions. Prints each result.
fn at_offsets(t: &mut Transcript, reader: &std::os::fd::OwnedFd, writer: &std::os::fd::OwnedFd, text: &[u8]) {
    let mut bytes = [0u8; 8];
    let parts = [crate::sqe::vector(bytes.as_mut_ptr() as u64, 4), crate::sqe::vector(bytes.as_mut_ptr() as u64, 0)];
    for offset in [0, 1, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX - 1, CURRENT] {
        for flags in [0, usring_uapi::sqe_flags::ASYNC] {
            let mut ring = Ring::new(8);
            assert_eq!(ring.register(super::reg::BUFFERS, &parts[0], 1), 0);
            let (from, to) = (reader.as_raw_fd(), writer.as_raw_fd());
            for (name, request) in [
                ("write", write(to, text, offset, 1)),
                ("read", read(from, &mut bytes, offset, 2)),
                ("writev", crate::sqe::writev(to, &parts, offset, 3)),
                ("readv", crate::sqe::readv(from, &parts, offset, 4)),
                ("write of nothing", write(to, &[], offset, 5)),
                ("read of nothing", read(from, &mut [], offset, 6)),
            ] {
                // 0x8 is RWF_NOWAIT: a read that finds no data fails instead of waiting for ever.
                let request = if name.starts_with("read") { request.op_flags(0x8) } else { request };
                let entry = ring.one(request.flagged(flags));
                t.say(format_args!("{name} at {offset:#x} flags {flags:#x}: {}", crate::names::result(entry.res)));
            }
        }
    }
}

fn offset_of_a_socket(t: &mut Transcript) {
    for (name, (reader, writer)) in
        [("stream", files::sockets()), ("packets", files::sockets_of(libc::SOCK_SEQPACKET)), ("tcp", files::tcp())]
    {
        t.say(name);
        at_offsets(t, &reader, &writer, b"text");
    }
}
case!(offset_of_a_socket => include_str!("streams/offset_of_a_socket.txt"));

fn offset_of_other_files(t: &mut Transcript) {
    t.say("pipe");
    let (reader, writer) = files::pipe();
    at_offsets(t, &reader, &writer, b"text");
    t.say("eventfd");
    let event = files::eventfd(1);
    at_offsets(t, &event, &event, &1u64.to_ne_bytes());
}
case!(offset_of_other_files => include_str!("streams/offset_of_other_files.txt"));
