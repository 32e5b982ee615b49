//! Many requests wait for one open file, or one descriptor number names many files, one after
//! another. usring may still watch a file after all waits for it have ended. The program must not
//! notice that.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u};

use super::reg;
use crate::files;
use crate::names;
use crate::ring::{Entry, Ring};
use crate::sqe::{Change, cancel, poll, read, write};
use crate::syscalls;
use crate::transcript::Transcript;

const MANY: u64 = 2000;

fn large_ring() -> Ring {
    Ring::new(2048)
}

/// Submits the first request alone and then all other requests together. All of them wait for one
/// file. So the ring already watches this file when it gets the other requests.
fn submit(t: &mut Transcript, ring: &mut Ring, mut entries: impl Iterator<Item = Sqe>) {
    if let Some(first) = entries.next() {
        ring.push(first);
        ring.submit();
    }
    entries.for_each(|entry| ring.push(entry));
    t.result("submit", ring.submit());
}

/// Prints how many completions had each result.
fn count(t: &mut Transcript, entries: &[Entry]) {
    let mut results: Vec<i32> = entries.iter().map(|entry| entry.res).collect();
    results.sort_unstable();
    for same in results.chunk_by(|one, other| one == other) {
        t.say(format_args!("{} times {}", same.len(), names::result(same[0])));
    }
}

fn many_polls(t: &mut Transcript) {
    let mut ring = large_ring();
    let event = files::eventfd(0);
    wait_for(t, &mut ring, &event);
    count(t, &ring.reap());
    files::put(&event, &1u64.to_ne_bytes());
    count(t, &ring.wait(MANY as usize));
}
case!(many_polls => "
    submit = 1999
    2000 times 1
");

fn many_multishot_polls(t: &mut Transcript) {
    let mut ring = large_ring();
    let event = files::eventfd(0);
    let multishot =
        |user_data| poll(event.as_raw_fd(), libc::POLLIN, user_data).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI);
    submit(t, &mut ring, (0..MANY).map(multishot));
    files::put(&event, &1u64.to_ne_bytes());
    let entries = ring.wait(MANY as usize);
    count(t, &entries);
    t.say(format_args!("go on {}", entries.iter().filter(|entry| entry.flags == u::IORING_CQE_F_MORE).count()));
}
case!(many_multishot_polls => "
    submit = 1999
    2000 times 1
    go on 2000
");

fn many_reads(t: &mut Transcript) {
    let mut ring = large_ring();
    let (reader, writer) = files::pipe();
    let mut bytes = vec![0u8; MANY as usize];
    let one = |(user_data, byte): (usize, &mut [u8])| read(reader.as_raw_fd(), byte, 0, user_data as u64);
    submit(t, &mut ring, bytes.chunks_mut(1).enumerate().map(one));
    t.say(format_args!("written {}", files::put(&writer, &[b'x'; MANY as usize])));
    count(t, &ring.wait(MANY as usize));
    t.say(format_args!("all read {}", bytes.iter().all(|byte| *byte == b'x')));
}
case!(many_reads => "
    submit = 1999
    written 2000
    2000 times 1
    all read true
");

/// Many reads wait for one pipe. Each byte completes one of them, and the others go on waiting.
fn reads_one_by_one(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let (reader, writer) = files::pipe();
    let mut bytes = [0u8; 50];
    let one = |(user_data, byte): (usize, &mut [u8])| read(reader.as_raw_fd(), byte, 0, user_data as u64);
    submit(t, &mut ring, bytes.chunks_mut(1).enumerate().map(one));
    let mut seen = Vec::new();
    for round in 1..=50 {
        files::put(&writer, b"x");
        seen.extend(ring.wait(1));
        if seen.len() != round {
            t.say(format_args!("after {round} bytes {} completions", seen.len()));
        }
    }
    count(t, &seen);
}
case!(reads_one_by_one => "
    submit = 49
    50 times 1
");

fn cancelled(t: &mut Transcript, ring: &mut Ring, key: Sqe) {
    ring.push(key);
    ring.submit();
    let entries = ring.wait(MANY as usize + 1);
    let answer = entries.iter().find(|entry| entry.user_data == u64::MAX).map_or(0, |entry| entry.res);
    let rest: Vec<Entry> = entries.into_iter().filter(|entry| entry.user_data != u64::MAX).collect();
    t.say(format_args!("answer {answer}"));
    count(t, &rest);
}

fn wait_for(t: &mut Transcript, ring: &mut Ring, file: &OwnedFd) {
    submit(t, ring, (0..MANY).map(|user_data| poll(file.as_raw_fd(), libc::POLLIN, user_data)));
}

/// All requests that wait for a file are cancelled. Afterwards, new requests can wait for that
/// file.
fn many_cancelled(t: &mut Transcript) {
    let mut ring = large_ring();
    let event = files::eventfd(0);
    wait_for(t, &mut ring, &event);
    cancelled(t, &mut ring, cancel(0, u::IORING_ASYNC_CANCEL_ANY, u64::MAX));
    ring.push(poll(event.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    files::put(&event, &1u64.to_ne_bytes());
    count(t, &ring.wait(1));
}
case!(many_cancelled => "
    submit = 1999
    answer 2000
    2000 times -ECANCELED
    1 times 1
");

fn many_cancelled_by_file(t: &mut Transcript) {
    let mut ring = large_ring();
    let (reader, _writer) = files::pipe();
    wait_for(t, &mut ring, &reader);
    let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_ALL;
    cancelled(t, &mut ring, cancel(0, flags, u64::MAX).with(|sqe| sqe.fd = reader.as_raw_fd()));
}
case!(many_cancelled_by_file => "
    submit = 1999
    answer 2000
    2000 times -ECANCELED
");

/// One open file has many descriptors, and a request waits on each of them.
fn many_duplicates(t: &mut Transcript) {
    const NUMBERS: usize = 600;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is a variable of this function.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    let mut ring = large_ring();
    let event = files::eventfd(0);
    let duplicates: Vec<OwnedFd> = (0..NUMBERS).map(|_| event.try_clone().expect("a duplicate")).collect();
    let one = |(user_data, file): (usize, &OwnedFd)| poll(file.as_raw_fd(), libc::POLLIN, user_data as u64);
    submit(t, &mut ring, duplicates.iter().enumerate().map(one));
    count(t, &ring.reap());
    files::put(&event, &1u64.to_ne_bytes());
    count(t, &ring.wait(NUMBERS));
}
case!(many_duplicates => "
    submit = 599
    600 times 1
");

/// Submits a read of `fd`, which waits, and writes a byte to `writer`. Returns the read's result.
fn waits_for_byte(ring: &mut Ring, fd: i32, writer: &OwnedFd) -> i32 {
    let mut byte = [0u8; 1];
    ring.push(read(fd, &mut byte, 0, 1));
    ring.submit();
    let early = ring.reap().len() as i32;
    files::put(writer, b"x");
    ring.wait(1).first().map_or(-1, |entry| entry.res) + 100 * early
}

fn move_to(file: &OwnedFd, number: i32) {
    // SAFETY: this case owns the descriptor.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
}

/// Requests have waited for a file. Afterwards, the file's descriptor number names other files in
/// turn, some of them without poll support.
fn number_used_again(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    // The case chooses this descriptor number. The kernel's choices for its files are all lower.
    let number = 100;
    for _ in 0..3 {
        let (reader, writer) = files::pipe();
        move_to(&reader, number);
        drop(reader);
        t.result("pipe", waits_for_byte(&mut ring, number, &writer));
        let (reader, writer) = files::sockets();
        move_to(&reader, number);
        t.result("socket, twice open", waits_for_byte(&mut ring, number, &writer));
        let file = files::memory_file(b"content");
        move_to(&file, number);
        let mut buffer = [0u8; 7];
        t.entry(&ring.one(read(number, &mut buffer, 0, 2)));
        let event = files::eventfd(0);
        move_to(&event, number);
        ring.push(poll(number, libc::POLLIN, 3));
        ring.submit();
        files::put(&event, &1u64.to_ne_bytes());
        t.in_order(&ring.wait(1));
        t.result("close", syscalls::close(number));
        t.entry(&ring.one(read(number, &mut buffer, 0, 4)));
    }
}
case!(number_used_again => "
    pipe = 1
    socket, twice open = 1
    cqe 2: 7
    cqe 3: 1
    close = 0
    cqe 4: -EBADF
    pipe = 1
    socket, twice open = 1
    cqe 2: 7
    cqe 3: 1
    close = 0
    cqe 4: -EBADF
    pipe = 1
    socket, twice open = 1
    cqe 2: 7
    cqe 3: 1
    close = 0
    cqe 4: -EBADF
");

/// One descriptor number names first one file, then another, then the first again, and so on.
/// Requests wait for both files.
fn number_comes_back(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (one, to_one) = files::pipe();
    let (other, to_other) = files::pipe();
    let number = files::eventfd(0);
    let mut bytes = [0u8; 4];
    let (a, rest) = bytes.split_at_mut(1);
    let (b, rest) = rest.split_at_mut(1);
    let (c, d) = rest.split_at_mut(1);
    for (user_data, (file, byte)) in [(&one, a), (&other, b), (&one, c), (&other, d)].into_iter().enumerate() {
        move_to(file, number.as_raw_fd());
        ring.push(read(number.as_raw_fd(), byte, 0, user_data as u64));
        ring.submit();
    }
    files::put(&to_one, b"1");
    t.say(format_args!("for the one {}", ring.wait(1)[0].user_data % 2));
    files::put(&to_other, b"2");
    t.say(format_args!("for the other {}", ring.wait(1)[0].user_data % 2));
    files::put(&to_other, b"4");
    t.say(format_args!("for the other {}", ring.wait(1)[0].user_data % 2));
    files::put(&to_one, b"3");
    t.say(format_args!("for the one {}", ring.wait(1)[0].user_data % 2));
}
case!(number_comes_back => "
    for the one 0
    for the other 1
    for the other 1
    for the one 0
");

/// Prints whether a read of `peer` returns the end of the file at once.
fn says_end(t: &mut Transcript, peer: &OwnedFd) {
    files::set_nonblocking(peer, true);
    match files::take(peer, 1) {
        Ok(bytes) if bytes.is_empty() => t.say("the peer reads the end"),
        Ok(_) => t.say("the peer reads something"),
        Err(error) => t.result("the peer reads", error),
    }
}

/// After requests have waited for a file, the program closes it. The close must take effect at
/// once.
fn peer_sees_the_close(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for _ in 0..3 {
        let (ours, peer) = files::sockets();
        t.result("read", waits_for_byte(&mut ring, ours.as_raw_fd(), &peer));
        t.result("read again", waits_for_byte(&mut ring, ours.as_raw_fd(), &peer));
        drop(ours);
        says_end(t, &peer);
    }
}
case!(peer_sees_the_close => "
    read = 1
    read again = 1
    the peer reads the end
    read = 1
    read again = 1
    the peer reads the end
    read = 1
    read again = 1
    the peer reads the end
");

fn peer_sees_the_close_after_cancel(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (ours, peer) = files::sockets();
    ring.push(poll(ours.as_raw_fd(), libc::POLLIN, 1).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI));
    ring.push(poll(ours.as_raw_fd(), libc::POLLIN, 2));
    ring.submit();
    ring.push(cancel(0, u::IORING_ASYNC_CANCEL_ANY, 3));
    ring.submit();
    t.sorted(&ring.wait(3));
    drop(ours);
    says_end(t, &peer);
}
case!(peer_sees_the_close_after_cancel => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: 2
    the peer reads the end
");

fn peer_sees_the_unregistration(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (ours, peer) = files::sockets();
    let fd = ours.as_raw_fd();
    t.result("register", ring.register(reg::FILES, &raw const fd, 1));
    for _ in 0..3 {
        let mut byte = [0u8; 1];
        ring.push(read(0, &mut byte, 0, 1).fixed());
        ring.submit();
        files::put(&peer, b"x");
        t.in_order(&ring.wait(1));
    }
    drop(ours);
    says_end(t, &peer);
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    says_end(t, &peer);
}
case!(peer_sees_the_unregistration => "
    register = 0
    cqe 1: 1
    cqe 1: 1
    cqe 1: 1
    the peer reads = -EAGAIN
    unregister = 0
    the peer reads the end
");

/// A registered file gets data while no request waits for it. The next read must find that data.
fn registered_again_and_again(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let fd = reader.as_raw_fd();
    t.result("register", ring.register(reg::FILES, &raw const fd, 1));
    let mut bytes = [0u8; 2];
    for _ in 0..4 {
        ring.push(read(0, &mut bytes[..1], 0, 1).fixed());
        ring.submit();
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
        // No request waits for this byte.
        files::put(&writer, b"y");
        crate::time::long_enough_to_notice();
        t.entry(&ring.one(read(0, &mut bytes[1..], 0, 2).fixed()));
    }
    t.say(String::from_utf8_lossy(&bytes).into_owned());
}
case!(registered_again_and_again => "
    register = 0
    cqe 1: 1
    cqe 2: 1
    cqe 1: 1
    cqe 2: 1
    cqe 1: 1
    cqe 2: 1
    cqe 1: 1
    cqe 2: 1
    xy
");

/// On one socket, some requests wait for input and others for room for output.
fn both_directions(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (ours, peer) = files::sockets();
    let filled = files::fill(&ours);
    let mut byte = [0u8; 1];
    ring.push(read(ours.as_raw_fd(), &mut byte, 0, 1));
    ring.push(write(ours.as_raw_fd(), b"tail", 0, 2));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&peer, b"x");
    t.in_order(&ring.wait(1));
    let mut left = filled;
    while left > 0 {
        left -= files::take(&peer, left.min(4096)).map_or(left, |bytes| bytes.len());
    }
    t.in_order(&ring.wait(1));
}
case!(both_directions => "
    no cqe
    cqe 1: 1
    cqe 2: 4
");

/// A multishot waits for input on a socket. It does not complete when the socket becomes writable.
fn writable_socket_completes_no_input(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (ours, peer) = files::sockets();
    let filled = files::fill(&ours);
    ring.push(poll(ours.as_raw_fd(), libc::POLLIN, 1).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI));
    ring.push(poll(ours.as_raw_fd(), libc::POLLOUT, 2));
    ring.submit();
    files::put(&peer, b"x");
    t.in_order(&ring.wait(1));
    let mut left = filled;
    while left > 0 {
        left -= files::take(&peer, left.min(4096)).map_or(left, |bytes| bytes.len());
    }
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(writable_socket_completes_no_input => "
    cqe 1: 1 MORE
    cqe 2: 4
    no cqe
");

/// A poll is submitted between two reads of one pipe. The reads take all the data, and the poll
/// completes nevertheless.
fn poll_beside_reads(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut bytes = [0u8; 2];
    ring.push(read(reader.as_raw_fd(), &mut bytes[..1], 0, 1));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
    ring.push(read(reader.as_raw_fd(), &mut bytes[1..], 0, 3));
    ring.submit();
    files::put(&writer, b"xy");
    t.sorted(&ring.wait(3));
}
case!(poll_beside_reads => "
    cqe 1: 1
    cqe 2: 1
    cqe 3: 1
");

/// Several polls wait for one file. An update of one of them does not affect the others.
fn updated_among_others(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (ours, peer) = files::sockets();
    for user_data in 1..4 {
        ring.push(poll(ours.as_raw_fd(), libc::POLLIN, user_data));
    }
    ring.submit();
    let update = Sqe {
        addr: 2,
        len: u::IORING_POLL_UPDATE_EVENTS,
        op_flags: libc::POLLOUT as u32,
        ..crate::sqe::sqe(usring_uapi::opcode::POLL_REMOVE, -1, 9)
    };
    ring.push(update);
    ring.submit();
    t.sorted(&ring.wait(2));
    files::put(&peer, b"x");
    t.sorted(&ring.wait(2));
}
case!(updated_among_others => "
    cqe 2: 4
    cqe 9: 0
    cqe 1: 1
    cqe 3: 1
");
