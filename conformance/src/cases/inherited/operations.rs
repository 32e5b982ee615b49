//! Operations that wait in different ways. A child submits them to a ring first, then its parent,
//! and then a second child.

use std::os::fd::AsRawFd;

use crate::files;
use crate::ring::Ring;
use crate::shared;
use crate::sqe::{Change, nop, poll, read, recv, send, timeout, write};
use crate::time::milliseconds;
use crate::transcript::Transcript;

/// Makes one ring of each kind. Runs `operations` on it in a child, then in the parent, and then in
/// a second child.
fn in_each_process(t: &mut Transcript, operations: fn(&mut Transcript, &mut Ring)) {
    let mut rings = [shared::Kind::Mapped, shared::Kind::OwnMemory].map(|kind| kind.ring(8, 0));
    for ring in &mut rings {
        shared::run_child(t, |t| operations(t, ring));
        ring.catch_up();
        operations(t, ring);
        shared::run_child(t, |t| operations(t, ring));
    }
}

fn polls(t: &mut Transcript) {
    in_each_process(t, |t, ring| {
        let (reader, writer) = files::pipe();
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
        ring.submit();
        t.in_order(&ring.reap());
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    });
}
case!(polls => "
    no cqe
    cqe 1: 1
    child: exit 0
    no cqe
    cqe 1: 1
    no cqe
    cqe 1: 1
    child: exit 0
    no cqe
    cqe 1: 1
    child: exit 0
    no cqe
    cqe 1: 1
    no cqe
    cqe 1: 1
    child: exit 0
");

fn timeouts(t: &mut Transcript) {
    in_each_process(t, |t, ring| {
        let time = milliseconds(5);
        t.entry(&ring.one(timeout(&time, 0, 0, 1)));
    });
}
case!(timeouts => "
    cqe 1: -ETIME
    child: exit 0
    cqe 1: -ETIME
    cqe 1: -ETIME
    child: exit 0
    cqe 1: -ETIME
    child: exit 0
    cqe 1: -ETIME
    cqe 1: -ETIME
    child: exit 0
");

/// A RECV waits. The process that submitted it then sends the data by a second request on this
/// ring.
fn sends_and_receives(t: &mut Transcript) {
    in_each_process(t, |t, ring| {
        let (here, there) = files::sockets();
        let mut buffer = [0u8; 8];
        ring.push(recv(here.as_raw_fd(), &mut buffer, 1));
        ring.submit();
        t.in_order(&ring.reap());
        ring.push(send(there.as_raw_fd(), b"hello", 2));
        ring.submit();
        t.sorted(&ring.wait(2));
        t.say(String::from_utf8_lossy(&buffer[..5]));
    });
}
case!(sends_and_receives => include_str!("sends_and_receives.txt"));

fn forced_workers(t: &mut Transcript) {
    in_each_process(t, |t, ring| {
        let file = files::memory_file(b"0123");
        let mut buffer = [0u8; 4];
        t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 1).forced_async()));
        t.entry(&ring.one(write(file.as_raw_fd(), b"abcdef", 2, 2).forced_async()));
        t.say(format_args!("{} {}", String::from_utf8_lossy(&buffer), files::text(&file)));
    });
}
case!(forced_workers => "
    cqe 1: 4
    cqe 2: 6
    0123 01abcdef
    child: exit 0
    cqe 1: 4
    cqe 2: 6
    0123 01abcdef
    cqe 1: 4
    cqe 2: 6
    0123 01abcdef
    child: exit 0
    cqe 1: 4
    cqe 2: 6
    0123 01abcdef
    child: exit 0
    cqe 1: 4
    cqe 2: 6
    0123 01abcdef
    cqe 1: 4
    cqe 2: 6
    0123 01abcdef
    child: exit 0
");

/// An open of a FIFO blocks a worker until another process opens the FIFO's other end.
fn worker_that_waits(t: &mut Transcript) {
    in_each_process(t, |t, ring| {
        let fifo = files::Fifo::new();
        ring.push(fifo.open(1));
        ring.submit();
        t.in_order(&ring.reap());
        let _end = fifo.release();
        let opened = ring.wait(1);
        t.outcome("open", opened.first().map_or(-1, |entry| i64::from(entry.res)));
    });
}
case!(worker_that_waits => "
    no cqe
    open = ok
    child: exit 0
    no cqe
    open = ok
    no cqe
    open = ok
    child: exit 0
    no cqe
    open = ok
    child: exit 0
    no cqe
    open = ok
    no cqe
    open = ok
    child: exit 0
");

/// One submission contains a chain. Each of its requests starts after the previous one has
/// completed.
fn chains(t: &mut Transcript) {
    in_each_process(t, |t, ring| {
        let (reader, writer) = files::pipe();
        let mut buffer = [0u8; 4];
        ring.push(nop(1).linked());
        ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 2).linked());
        ring.push(nop(3));
        ring.submit();
        t.in_order(&ring.reap());
        files::put(&writer, b"data");
        t.in_order(&ring.wait(2));
    });
}
case!(chains => "
    cqe 1: 0
    cqe 2: 4
    cqe 3: 0
    child: exit 0
    cqe 1: 0
    cqe 2: 4
    cqe 3: 0
    cqe 1: 0
    cqe 2: 4
    cqe 3: 0
    child: exit 0
    cqe 1: 0
    cqe 2: 4
    cqe 3: 0
    child: exit 0
    cqe 1: 0
    cqe 2: 4
    cqe 3: 0
    cqe 1: 0
    cqe 2: 4
    cqe 3: 0
    child: exit 0
");

/// The second request of a chain fails, so the third request is cancelled.
fn broken_chains(t: &mut Transcript) {
    in_each_process(t, |t, ring| {
        let mut buffer = [0u8; 4];
        ring.push(nop(1).linked());
        ring.push(read(9999, &mut buffer, 0, 2).linked());
        ring.push(nop(3));
        ring.submit();
        t.sorted(&ring.wait(3));
    });
}
case!(broken_chains => "
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: -ECANCELED
    child: exit 0
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: -ECANCELED
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: -ECANCELED
    child: exit 0
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: -ECANCELED
    child: exit 0
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: -ECANCELED
    cqe 1: 0
    cqe 2: -EBADF
    cqe 3: -ECANCELED
    child: exit 0
");
