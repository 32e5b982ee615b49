//! Chains whose requests make a file ready that another request waits for. The waiting request is
//! tried before the chain's next request starts. `link` has the other cases of chains.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u};

use crate::files;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, cancel, nop, poll, poll_remove, read, recv, send, write};
use crate::transcript::Transcript;

/// The setup flags of the rings of each case: task work is run at once, or deferred.
const RINGS: [u32; 2] = [0, u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN];
const DO_NOT_WAIT: u32 = libc::MSG_DONTWAIT as u32;

/// Submits `waiting`, and after it the chain, each in a call of its own. Prints all completions in
/// their order.
fn wake_by_chain(t: &mut Transcript, ring: &mut Ring, waiting: Sqe, chain: &[Sqe]) {
    ring.push(waiting);
    ring.submit();
    t.in_order(&ring.reap());
    for sqe in chain {
        ring.push(*sqe);
    }
    ring.submit();
    t.in_order(&ring.wait(chain.len() + 1));
}

fn receive_comes_before_successor(t: &mut Transcript) {
    for flags in RINGS {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::sockets();
        let (mut first, mut second) = ([0u8; 8], [0u8; 8]);
        let waiting = recv(reader.as_raw_fd(), &mut first, 1);
        let chain = [
            nop(2).linked(),
            send(writer.as_raw_fd(), b"12345678", 3).linked(),
            recv(reader.as_raw_fd(), &mut second, 4).op_flags(DO_NOT_WAIT).linked(),
            nop(5),
        ];
        wake_by_chain(t, &mut ring, waiting, &chain);
    }
}
case!(receive_comes_before_successor => "
    no cqe
    cqe 2: 0
    cqe 3: 8
    cqe 1: 8
    cqe 4: -EAGAIN
    cqe 5: -ECANCELED
    no cqe
    cqe 2: 0
    cqe 3: 8
    cqe 1: 8
    cqe 4: -EAGAIN
    cqe 5: -ECANCELED
");

fn poll_comes_before_its_cancellation(t: &mut Transcript) {
    for flags in RINGS {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::sockets();
        let waiting = poll(reader.as_raw_fd(), libc::POLLIN, 1);
        let chain = [send(writer.as_raw_fd(), b"12345678", 2).linked(), cancel(1, 0, 3)];
        wake_by_chain(t, &mut ring, waiting, &chain);
    }
}
case!(poll_comes_before_its_cancellation => "
    no cqe
    cqe 2: 8
    cqe 1: 1
    cqe 3: -ENOENT
    no cqe
    cqe 2: 8
    cqe 1: 1
    cqe 3: -ENOENT
");

/// A WRITE to a pipe names an offset or the file's position. A pipe has neither.
fn write_wakes_poll_of_pipe(t: &mut Transcript) {
    for flags in RINGS {
        for offset in [0, CURRENT] {
            let mut ring = Ring::flags(8, flags);
            let (reader, writer) = files::pipe();
            let waiting = poll(reader.as_raw_fd(), libc::POLLIN, 1);
            let chain = [write(writer.as_raw_fd(), b"12345678", offset, 2).linked(), poll_remove(1, 3)];
            wake_by_chain(t, &mut ring, waiting, &chain);
        }
    }
}
case!(write_wakes_poll_of_pipe => "
    no cqe
    cqe 2: 8
    cqe 1: 1
    cqe 3: -ENOENT
    no cqe
    cqe 2: 8
    cqe 1: 1
    cqe 3: -ENOENT
    no cqe
    cqe 2: 8
    cqe 1: 1
    cqe 3: -ENOENT
    no cqe
    cqe 2: 8
    cqe 1: 1
    cqe 3: -ENOENT
");

/// The chain's READ makes room in a full pipe, for which a poll waits.
fn read_wakes_poll_for_room(t: &mut Transcript) {
    for flags in RINGS {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::pipe();
        files::fill(&writer);
        let mut room = vec![0u8; 1 << 16];
        let waiting = poll(writer.as_raw_fd(), libc::POLLOUT, 1);
        let chain = [read(reader.as_raw_fd(), &mut room, CURRENT, 2).linked(), poll_remove(1, 3)];
        wake_by_chain(t, &mut ring, waiting, &chain);
    }
}
case!(read_wakes_poll_for_room => "
    no cqe
    cqe 2: 65536
    cqe 1: 4
    cqe 3: -ENOENT
    no cqe
    cqe 2: 65536
    cqe 1: 4
    cqe 3: -ENOENT
");

/// A SEND beside the chain wakes the poll, and the chain's second request starts after that.
fn send_beside_the_chain(t: &mut Transcript) {
    for flags in RINGS {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::sockets();
        let waiting = poll(reader.as_raw_fd(), libc::POLLIN, 1);
        let batch = [nop(2).linked(), cancel(1, 0, 3), send(writer.as_raw_fd(), b"12345678", 4)];
        wake_by_chain(t, &mut ring, waiting, &batch);
    }
}
case!(send_beside_the_chain => "
    no cqe
    cqe 2: 0
    cqe 4: 8
    cqe 1: 1
    cqe 3: -ENOENT
    no cqe
    cqe 2: 0
    cqe 4: 8
    cqe 1: 1
    cqe 3: -ENOENT
");
