//! Rings that several processes use: one of these processes closes the ring.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use usring_uapi::io_uring as u;

use super::descriptor::held;
use crate::files;
use crate::ring::Ring;
use crate::shared;
use crate::sqe::{nop, poll, read_at, timeout};
use crate::syscalls;
use crate::time::{self, milliseconds};
use crate::transcript::Transcript;

fn child_closes_and_parent_goes_on(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        shared::run_child(t, |t| {
            t.entry(&ring.one(nop(1)));
            t.result("close", syscalls::close(ring.fd));
            t.result("enter", ring.enter(0, 0, 0));
        });
        ring.catch_up();
        t.entry(&ring.one(nop(2)));
        shared::run_child(t, |t| t.entry(&ring.one(nop(3))));
    });
}
case!(child_closes_and_parent_goes_on => "
    a mapped ring:
    cqe 1: 0
    close = 0
    enter = -EBADF
    child: exit 0
    cqe 2: 0
    cqe 3: 0
    child: exit 0
    a ring in shared memory:
    cqe 1: 0
    close = 0
    enter = -EBADF
    child: exit 0
    cqe 2: 0
    cqe 3: 0
    child: exit 0
");

/// The process that made the ring closes it. Its child and a grandchild still use the ring.
fn parent_closes_and_child_goes_on(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let child = shared::child(|| {
            shared.until_step(1);
            t.entry(&ring.one(nop(1)));
            shared::run_child(t, |t| t.entry(&ring.one(nop(2))));
            ring.catch_up();
            t.entry(&ring.one(nop(3)));
            0
        });
        t.result("close", ring.close());
        shared.step(1);
        shared::ended(t, child);
        t.result("enter", ring.enter(0, 0, 0));
    });
}
case!(parent_closes_and_child_goes_on => "
    a mapped ring:
    close = 0
    cqe 1: 0
    cqe 2: 0
    child: exit 0
    cqe 3: 0
    child: exit 0
    enter = -EBADF
    a ring in shared memory:
    close = 0
    cqe 1: 0
    cqe 2: 0
    child: exit 0
    cqe 3: 0
    child: exit 0
    enter = -EBADF
");

/// A child closes the ring while its own requests are in flight. The requests complete, and the
/// parent reaps their CQEs.
fn requests_of_the_closer_complete(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let child = shared::child(|| {
            let time = milliseconds(300);
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.push(poll(reader.as_raw_fd(), libc::POLLHUP, 2));
            ring.push(timeout(&time, 0, 0, 3));
            ring.submit();
            let closed = syscalls::close(ring.fd);
            syscalls::close(writer.as_raw_fd());
            shared.step(1);
            shared.until_step(2);
            closed
        });
        shared.until_step(1);
        files::put(&writer, b"data");
        t.sorted(&ring.wait(2));
        t.say(shared.text(0));
        drop(writer);
        t.in_order(&ring.wait(1));
        shared.step(2);
        shared::ended(t, child);
    });
}
case!(requests_of_the_closer_complete => "
    a mapped ring:
    cqe 1: 4
    cqe 3: -ETIME
    data
    cqe 2: 16
    child: exit 0
    a ring in shared memory:
    cqe 1: 4
    cqe 3: -ETIME
    data
    cqe 2: 16
    child: exit 0
");

/// The parent closes the ring while its own request is in flight. The child reaps the CQE of that
/// request.
fn child_reaps_the_closers_request(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let mut buffer = *b"----";
        ring.push(crate::sqe::read(reader.as_raw_fd(), &mut buffer, 0, 1));
        ring.submit();
        let child = shared::child(|| {
            shared.until_step(1);
            files::put(&writer, b"data");
            t.in_order(&ring.wait(1));
            0
        });
        t.result("close", ring.close());
        shared.step(1);
        shared::ended(t, child);
        t.say(format_args!("in the parent {}", String::from_utf8_lossy(&buffer)));
    });
}
case!(child_reaps_the_closers_request => "
    a mapped ring:
    close = 0
    cqe 1: 4
    child: exit 0
    in the parent data
    a ring in shared memory:
    close = 0
    cqe 1: 4
    child: exit 0
    in the parent data
");

/// A worker of the child executes a blocking call for a request. Meanwhile the child closes the
/// ring. The worker's request completes nevertheless.
fn worker_of_the_closer_goes_on(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let fifo = files::Fifo::new();
        let child = shared::child(|| {
            ring.push(fifo.open(1));
            ring.submit();
            time::long_enough_to_begin();
            let closed = syscalls::close(ring.fd);
            shared.step(1);
            shared.until_step(2);
            closed
        });
        shared.until_step(1);
        time::long_enough_to_notice();
        t.in_order(&ring.reap());
        let _end = fifo.release();
        let opened = ring.wait(1);
        t.outcome("open", opened.first().map_or(-1, |entry| i64::from(entry.res)));
        shared.step(2);
        shared::ended(t, child);
    });
}
case!(worker_of_the_closer_goes_on => "
    a mapped ring:
    no cqe
    open = ok
    child: exit 0
    a ring in shared memory:
    no cqe
    open = ok
    child: exit 0
");

/// All processes have closed the ring's descriptor. Only a mapping keeps the ring and its requests
/// alive.
fn mapping_keeps_the_ring(t: &mut Transcript) {
    let mut ring = shared::Kind::Mapped.ring(8, 0);
    let (reader, writer) = files::pipe();
    let mut buffer = *b"----";
    ring.push(crate::sqe::read(reader.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    shared::run_child(t, |t| t.result("close in the child", syscalls::close(ring.fd)));
    t.result("close", ring.close());
    time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"data");
    t.in_order(&ring.reap_in_memory(1));
    t.say(String::from_utf8_lossy(&buffer));
}
case!(mapping_keeps_the_ring => "
    close in the child = 0
    child: exit 0
    close = 0
    no cqe
    cqe 1: 4
    data
");

/// All descriptors of the ring are closed, and only another process still maps its memory. That
/// mapping keeps the ring and its requests alive.
fn mapping_of_the_child_keeps_the_ring(t: &mut Transcript) {
    let mut ring = shared::Kind::Mapped.ring(8, 0);
    let shared = shared::Shared::new();
    let (reader, writer) = files::pipe();
    ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
    ring.submit();
    let child = shared::child(|| {
        syscalls::close(ring.fd);
        shared.step(1);
        shared.until_step(2);
        files::put(&writer, b"data");
        t.in_order(&ring.reap_in_memory(1));
        0
    });
    shared.until_step(1);
    t.result("close", ring.close());
    ring.unmap();
    time::long_enough_to_notice();
    shared.step(2);
    shared::ended(t, child);
    t.say(shared.text(0));
}
case!(mapping_of_the_child_keeps_the_ring => "
    close = 0
    cqe 1: 4
    child: exit 0
    data
");

/// A NO_MMAP ring has no mapping that could keep it alive. So the close of its last descriptor
/// cancels its requests.
fn last_close_ends_a_ring_in_own_memory(t: &mut Transcript) {
    let mut ring = shared::Kind::OwnMemory.ring(8, 0);
    let (reader, writer) = files::pipe();
    let mut buffer = *b"----";
    ring.push(crate::sqe::read(reader.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    shared::run_child(t, |t| t.result("close in the child", syscalls::close(ring.fd)));
    t.result("close", ring.close());
    drop(reader);
    // The cancelled request had kept the pipe's last reading end open. Now a write to the pipe
    // fails.
    let ended = time::until(|| files::put(&writer, b"x") < 0);
    t.say(format_args!("the request has ended {ended}"));
    t.say(String::from_utf8_lossy(&buffer));
}
case!(last_close_ends_a_ring_in_own_memory => "
    close in the child = 0
    child: exit 0
    close = 0
    the request has ended true
    ----
");

/// The process that made a ring releases its descriptor by `give_up`, while its request is in
/// flight. The ring's last descriptor is that of a child. The child closes it later, by `close` or
/// by its exit, and only this close cancels the request.
fn close_in_a_child_after(t: &mut Transcript, give_up: impl FnOnce(&mut Ring) -> i32, close: fn(i32) -> i32) {
    let mut ring = shared::Kind::OwnMemory.ring(8, 0);
    let shared = shared::Shared::new();
    let (reader, writer) = files::pipe();
    ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
    ring.submit();
    let child = shared::child(|| {
        syscalls::close(reader.as_raw_fd());
        shared.until_step(1);
        close(ring.fd)
    });
    t.say(format_args!("given up {}", give_up(&mut ring) >= 0));
    drop(reader);
    time::long_enough_to_notice();
    t.say(format_args!("in flight {}", held(&writer)));
    shared.step(1);
    shared::ended(t, child);
    t.say(format_args!("ended {}", time::until(|| !held(&writer))));
}

fn last_close_in_a_child(t: &mut Transcript) {
    close_in_a_child_after(t, Ring::close, syscalls::close);
}
case!(last_close_in_a_child => "
    given up true
    in flight true
    child: exit 0
    ended true
");

/// In the process that made the ring, dup2(2) replaces the ring's descriptor and so closes it.
fn descriptor_is_replaced(t: &mut Transcript) {
    let other = files::memory_file(b"");
    let replace = |ring: &mut Ring| {
        // SAFETY: from here on, this process uses the number no longer for the ring.
        let answer = unsafe { libc::dup2(other.as_raw_fd(), ring.fd) };
        ring.close();
        answer
    };
    close_in_a_child_after(t, replace, syscalls::close);
}
case!(descriptor_is_replaced => "
    given up true
    in flight true
    child: exit 0
    ended true
");

/// A timeout of another ring expires again and again. Nevertheless, the closed ring ends soon after
/// the child's exit.
fn last_close_beside_timeouts(t: &mut Transcript) {
    let mut other = Ring::new(8);
    let every = milliseconds(300);
    other.push(timeout(&every, 0, u::IORING_TIMEOUT_MULTISHOT, 1));
    other.submit();
    let start = Instant::now();
    close_in_a_child_after(t, Ring::close, |_| 0);
    t.say(format_args!("soon {}", start.elapsed() < Duration::from_secs(5)));
}
case!(last_close_beside_timeouts => "
    given up true
    in flight true
    child: exit 0
    ended true
    soon true
");
