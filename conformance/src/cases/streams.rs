//! READ and WRITE on files that can make a request wait: pipes, sockets, eventfds.

use std::os::fd::AsRawFd;

use crate::case::{Case, case};
use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, nop, read, write};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("streams.read_waits_for_data", read_waits_for_data),
    case("streams.data_is_there", data_is_there),
    case("streams.offset_is_ignored", offset_is_ignored),
    case("streams.nonblocking_descriptor_waits_too", nonblocking_waits_too),
    case("streams.writer_closes", writer_closes),
    case("streams.reader_closes", reader_closes),
    case("streams.write_waits_for_room", write_waits_for_room),
    case("streams.large_write_to_pipe", large_write_to_pipe),
    case("streams.several_readers", several_readers),
    case("streams.eventfd", eventfd),
    case("streams.sockets", sockets),
    case("streams.datagrams", datagrams),
    case("streams.shutdown_ends_read", shutdown_ends_read),
    case("streams.unconnected_socket", unconnected_socket),
    case("streams.broken_pipe_signal", broken_pipe_signal),
    case("streams.forced_async_read_waits", forced_async_read_waits),
    case("streams.watched_in_memory", watched_in_memory),
    case("streams.timerfd", timerfd),
    case("streams.data_before_submit_of_many", data_before_submit_of_many),
    case("streams.shut_datagrams", shut_datagrams),
    case("streams.offset_of_a_socket", offset_of_a_socket),
    case("streams.offset_of_other_files", offset_of_other_files),
];

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
    // Other requests are not delayed.
    ring.push(nop(2));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&writer, b"hello");
    t.in_order(&ring.wait(1));
    t.say(shown(&buffer));
}

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

fn offset_is_ignored(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 2];
    for offset in [0, CURRENT, 5, 1 << 40] {
        t.entry(&ring.one(write(writer.as_raw_fd(), b"ab", offset, 1)));
        t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, offset, 2)));
    }
}

/// O_NONBLOCK on the file does not make a request fail: it still waits.
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

/// More data than a pipe holds. Only a request that must not wait returns a short count after the
/// bytes that fit. This request writes on.
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

fn unconnected_socket(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ignore_broken_pipes();
    // SAFETY: the call touches no memory; the descriptor ends with the process.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(fd, &mut buffer, 0, 1)));
    t.entry(&ring.one(write(fd, &buffer, 0, 2)));
}

/// SIGPIPE is raised as by write(2).
fn broken_pipe_signal(t: &mut Transcript) {
    let ending = process::forked(|| {
        // SAFETY: the call changes only this process's signal disposition, which Rust's start-up
        // code sets to ignore.
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
    // RWF_NOSIGNAL (6.18) suppresses the signal.
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

/// A program that only reads the CQ in memory sees the completion.
fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 4];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    files::put(&writer, b"abcd");
    t.say(format_args!("seen {}", ring.watch(1)));
    t.in_order(&ring.reap());
}

fn timerfd(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    // SAFETY: `time` is readable; the descriptor ends with the process.
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

fn data_before_submit_of_many(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffers = [[0u8; 2]; 3];
    files::put(&writer, b"aabbcc");
    for (index, buffer) in buffers.iter_mut().enumerate() {
        ring.push(read(reader.as_raw_fd(), buffer, 0, index as u64 + 1));
    }
    t.result("submit", ring.submit());
    // All complete inline, so their order is fixed.
    t.in_order(&ring.reap());
    t.say(format_args!("{} {} {}", shown(&buffers[0]), shown(&buffers[1]), shown(&buffers[2])));
}

/// A read of a socket that was shut down before, or is shut down while the read waits.
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

/// Reads and writes in each way, one after another, at these offsets.
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
                // A read that finds nothing must not wait.
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

fn offset_of_other_files(t: &mut Transcript) {
    t.say("pipe");
    let (reader, writer) = files::pipe();
    at_offsets(t, &reader, &writer, b"text");
    t.say("eventfd");
    let event = files::eventfd(1);
    at_offsets(t, &event, &event, &1u64.to_ne_bytes());
}
