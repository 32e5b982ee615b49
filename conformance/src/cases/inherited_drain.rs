//! Rings that several processes use: IO_DRAIN holds back requests while a process forks.

use std::os::fd::AsRawFd;

use usring_uapi::sqe_flags;

use crate::files;
use crate::shared::{self, Partner};
use crate::sqe::{Change, nop, poll, read_at, write};
use crate::transcript::Transcript;

/// IO_DRAIN holds back a request while the parent forks. Then the child submits a request, and the
/// parent submits two. All requests start in the order of their submission.
fn drain_held_at_the_fork(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
        ring.submit();
        let partner = Partner::start(ring, |ring| ring.push(nop(3)));
        ring.push(nop(4).flagged(sqe_flags::IO_DRAIN));
        ring.push(nop(5));
        ring.submit();
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(5));
        t.entry(&ring.one(nop(6)));
        partner.leave(t);
    });
}
case!(drain_held_at_the_fork => "
    a mapped ring:
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    child: exit 0
    a ring in shared memory:
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    child: exit 0
");

/// A request with IO_DRAIN and a read behind it are held back while the parent forks. The parent's
/// later write provides the read's data. So the read and the write must both start after the
/// IO_DRAIN request has completed.
fn read_held_at_the_fork(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (first, first_writer) = files::pipe();
        let (second, second_writer) = files::pipe();
        ring.push(read_at(first.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
        ring.push(read_at(second.as_raw_fd(), shared.slot(1), 8, 0, 3));
        ring.submit();
        let partner = Partner::start(ring, |ring| ring.push(nop(4)));
        ring.push(write(second_writer.as_raw_fd(), b"y", 0, 5));
        ring.submit();
        files::put(&first_writer, b"x");
        t.sorted(&ring.wait(5));
        partner.leave(t);
    });
}
case!(read_held_at_the_fork => "
    a mapped ring:
    cqe 1: 1
    cqe 2: 0
    cqe 3: 1
    cqe 4: 0
    cqe 5: 1
    child: exit 0
    a ring in shared memory:
    cqe 1: 1
    cqe 2: 0
    cqe 3: 1
    cqe 4: 0
    cqe 5: 1
    child: exit 0
");

/// A chain with an IO_DRAIN request, and a request behind the chain, are held back while the parent
/// forks. The child's request completes last.
fn chain_held_at_the_fork(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.push(nop(2).flagged(sqe_flags::IO_DRAIN).linked());
        ring.push(nop(3));
        ring.push(nop(4).flagged(sqe_flags::IO_DRAIN));
        ring.submit();
        let partner = Partner::start(ring, |ring| ring.push(nop(5).flagged(sqe_flags::IO_DRAIN)));
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(5));
        partner.leave(t);
    });
}
case!(chain_held_at_the_fork => "
    a mapped ring:
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    child: exit 0
    a ring in shared memory:
    no cqe
    cqe 1: 1
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    child: exit 0
");

/// A case keeps `3 * MANY` polls of two processes in flight at one time. usring's list of the
/// requests of all processes has room for only 1,024.
const MANY: u64 = 400;

/// Two processes have many polls in flight. Then each process submits a request with IO_DRAIN and a
/// request behind it. All requests complete, and each IO_DRAIN request before the one behind it.
fn drain_behind_many_requests(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (reader, writer) = files::pipe();
        let push_many = |ring: &mut crate::ring::Ring, first: u64| {
            for user_data in first..first + MANY {
                ring.push(poll(reader.as_raw_fd(), libc::POLLIN, user_data));
                ring.submit();
            }
        };
        push_many(ring, 1000);
        let partner = Partner::start(ring, |ring| {
            push_many(ring, 2000);
            ring.push(nop(1).flagged(sqe_flags::IO_DRAIN));
            ring.push(nop(2));
        });
        push_many(ring, 3000);
        ring.push(nop(3).flagged(sqe_flags::IO_DRAIN));
        ring.push(nop(4));
        ring.submit();
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        let entries = ring.wait(3 * MANY as usize + 4);
        let index = |user_data| entries.iter().position(|entry| entry.user_data == user_data);
        t.say(format_args!("the child's drain is in order: {}", index(1) < index(2)));
        t.say(format_args!("the parent's drain is in order: {}", index(3) < index(4)));
        partner.leave(t);
    });
}
case!(drain_behind_many_requests => "
    a mapped ring:
    no cqe
    the child's drain is in order: true
    the parent's drain is in order: true
    child: exit 0
    a ring in shared memory:
    no cqe
    the child's drain is in order: true
    the parent's drain is in order: true
    child: exit 0
");
