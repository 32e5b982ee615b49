//! Requests that the kernel forces to its workers: requests with IOSQE_ASYNC, and requests that the
//! program submits while a ring drains.
//!
//! - The worker first polls the request's file. If the file is not ready, the request waits.
//! - A multishot makes its attempts after that poll, outside of the worker. A SEND with BUNDLE is
//!   cancelled as soon as its socket has room.
//! - A request that selects from a buffer ring uses up its buffer at the first attempt.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use crate::buffers::{Group, group_of, incremental_group_of};
use crate::files;
use crate::memory::Pages;
use crate::net::{self, Family};
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, poll, send, sqe};
use crate::transcript::Transcript;

const GROUP: u16 = 3;
const BUNDLE: u16 = u::IORING_RECVSEND_BUNDLE as u16;

/// The SQE flags by which the cases force a request to a worker, with the names to print.
const WORKER_FLAGS: [(&str, u8); 2] = [("IOSQE_ASYNC", sqe_flags::ASYNC), ("IOSQE_IO_DRAIN", sqe_flags::IO_DRAIN)];

fn submit(t: &mut Transcript, ring: &mut Ring, sqe: Sqe, way: u8) {
    ring.push(sqe.flagged(way));
    t.result("submit", ring.submit());
}

/// Makes a ring with the buffer group [`GROUP`], which has a buffer for each slot in `slots`. Also
/// returns the group and the memory of its buffer ring.
fn with_group(slots: Range<u16>) -> (Ring, Group, Pages) {
    let (ring, memory) = (Ring::new(8), Pages::new(1));
    let mut group = group_of(&ring, &memory, 8, GROUP);
    group.add_slots(slots);
    (ring, group, memory)
}

/// Prints the completions that arrive within 30 ms.
fn print_arrived(t: &mut Transcript, ring: &mut Ring) {
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}

/// Returns a request of `fd` that selects its buffers from [`GROUP`]. `options` are the flags in
/// `ioprio`.
fn selecting(opcode: u8, fd: &OwnedFd, options: u16) -> Sqe {
    sqe(opcode, fd.as_raw_fd(), 1).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.ioprio = options;
        sqe.buf_index = GROUP;
    })
}

/// Prints the head of the buffer ring of [`GROUP`]: the number of buffers used up so far.
fn print_head(t: &mut Transcript, ring: &Ring) {
    let mut status: u::io_uring_buf_status = crate::memory::zeroed();
    status.buf_group = u32::from(GROUP);
    assert_eq!(ring.register(super::reg::PBUF_STATUS, &raw mut status, 1), 0);
    t.say(format_args!("head {}", status.head));
}

fn poll_multishot(t: &mut Transcript) {
    for (name, way) in WORKER_FLAGS {
        for is_ready in [false, true] {
            t.say(format_args!("{name}, ready {is_ready}"));
            let mut ring = Ring::new(8);
            let (reader, writer) = files::sockets();
            if is_ready {
                files::put(&writer, b"x");
            }
            let polling = poll(reader.as_raw_fd(), libc::POLLIN, 1).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI);
            submit(t, &mut ring, polling, way);
            if is_ready {
                t.in_order(&ring.wait(1));
            }
            files::put(&writer, b"y");
            t.in_order(&ring.wait(1));
        }
    }
}
case!(poll_multishot => "
    IOSQE_ASYNC, ready false
    submit = 1
    cqe 1: 1 MORE
    IOSQE_ASYNC, ready true
    submit = 1
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    IOSQE_IO_DRAIN, ready false
    submit = 1
    cqe 1: 1 MORE
    IOSQE_IO_DRAIN, ready true
    submit = 1
    cqe 1: 1 MORE
    cqe 1: 1 MORE
");

/// POLL_ADD requests on files that do not support polling are forced to a worker.
fn poll_of_unpolled_file(t: &mut Transcript) {
    for (name, way) in WORKER_FLAGS {
        for flags in [0, u::IORING_POLL_ADD_MULTI] {
            for events in [libc::POLLIN, libc::POLLPRI] {
                t.say(format_args!("{name}, flags {flags}, events {events}"));
                for file in [files::memory_file(b"x"), files::null()] {
                    let mut ring = Ring::new(8);
                    submit(t, &mut ring, poll(file.as_raw_fd(), events, 1).with(|sqe| sqe.len = flags), way);
                    crate::time::until(|| ring.ready() > 0);
                    t.in_order(&ring.reap());
                }
            }
        }
    }
}
case!(poll_of_unpolled_file => include_str!("forced/poll_of_unpolled_file.txt"));

/// A worker waits for the file's readiness before it makes the first attempt of a multishot. The
/// group is empty, but this ends the multishot only when data arrives.
fn multishot_without_buffers(t: &mut Transcript) {
    let receiving = (opcode::RECV, u::IORING_RECV_MULTISHOT as u16);
    for ((name, way), (opcode, options)) in
        WORKER_FLAGS.into_iter().flat_map(|way| [receiving, (opcode::READ_MULTISHOT, 0)].map(|kind| (way, kind)))
    {
        for is_ready in [false, true] {
            t.say(format_args!("{name}, {}, ready {is_ready}", opcode::NAMES[usize::from(opcode)]));
            let (mut ring, mut group, _memory) = with_group(0..0);
            let (reader, writer) = files::sockets();
            if is_ready {
                files::put(&writer, b"x");
            }
            submit(t, &mut ring, selecting(opcode, &reader, options), way);
            if is_ready {
                crate::time::until(|| ring.ready() > 0);
            } else {
                crate::time::long_enough_to_notice();
                ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
            }
            t.in_order(&ring.reap());
            if !is_ready {
                group.add_slots(0..1);
                files::put(&writer, b"x");
                t.in_order(&ring.wait(1));
            }
        }
    }
}
case!(multishot_without_buffers => include_str!("forced/multishot_without_buffers.txt"));

/// A worker first polls the file, even for a multishot with MSG_DONTWAIT. So this multishot waits
/// for data.
fn multishot_that_may_not_wait(t: &mut Transcript) {
    for ((name, way), bundle) in WORKER_FLAGS.into_iter().flat_map(|way| [(way, 0), (way, BUNDLE)]) {
        t.say(format_args!("{name}, options {bundle:#x}"));
        let (mut ring, _group, _memory) = with_group(0..4);
        let (reader, writer) = files::sockets();
        let receiving = selecting(opcode::RECV, &reader, u::IORING_RECV_MULTISHOT as u16 | bundle);
        submit(t, &mut ring, receiving.op_flags(libc::MSG_DONTWAIT as u32), way);
        crate::time::long_enough_to_notice();
        for text in ["x", "yz"] {
            files::put(&writer, text.as_bytes());
            t.in_order(&ring.wait(1));
        }
    }
}
case!(multishot_that_may_not_wait => "
    IOSQE_ASYNC, options 0x0
    submit = 1
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 2 MORE|BUFFER(1)
    IOSQE_ASYNC, options 0x10
    submit = 1
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 2 MORE|BUFFER(1)
    IOSQE_IO_DRAIN, options 0x0
    submit = 1
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 2 MORE|BUFFER(1)
    IOSQE_IO_DRAIN, options 0x10
    submit = 1
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 2 MORE|BUFFER(1)
");

fn accept_multishot(t: &mut Transcript) {
    for (name, way) in WORKER_FLAGS {
        t.say(name);
        let mut ring = Ring::new(8);
        assert_eq!(ring.register(super::reg::FILES, [-1i32; 4].as_ptr(), 4), 0);
        let (listener, address) = net::listener(Family::V4);
        let _first = net::connected(Family::V4, &address);
        let accepting = net::accept(listener.as_raw_fd(), 1).with(|sqe| {
            sqe.ioprio = u::IORING_ACCEPT_MULTISHOT as u16;
            sqe.file_index = u::IORING_FILE_INDEX_ALLOC as u32;
        });
        submit(t, &mut ring, accepting, way);
        t.in_order(&ring.wait(1));
        let _second = net::connected(Family::V4, &address);
        t.in_order(&ring.wait(1));
    }
}
case!(accept_multishot => "
    IOSQE_ASYNC
    submit = 1
    cqe 1: 0 MORE
    cqe 1: 1 MORE
    IOSQE_IO_DRAIN
    submit = 1
    cqe 1: 0 MORE
    cqe 1: 1 MORE
");

/// A SEND with BUNDLE is forced to a worker, and its socket has room. The SEND is cancelled,
/// whether it selects buffers from a group or not.
fn send_bundle(t: &mut Transcript) {
    for (name, way) in WORKER_FLAGS {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            for selects in [false, true] {
                t.say(format_args!("{name}, kind {kind}, selects {selects}"));
                let (mut ring, _group, _memory) = with_group(0..2);
                let (socket, peer) = files::sockets_of(kind);
                submit(t, &mut ring, bundle(&socket, selects), way);
                t.in_order(&ring.wait(1));
                print_head(t, &ring);
                t.say(format_args!(
                    "readable: {}",
                    files::is_readable_within(peer.as_raw_fd(), std::time::Duration::ZERO)
                ));
            }
        }
    }
}
case!(send_bundle => include_str!("forced/send_bundle.txt"));

fn bundle(socket: &OwnedFd, selects: bool) -> Sqe {
    if selects {
        return selecting(opcode::SEND, socket, BUNDLE);
    }
    send(socket.as_raw_fd(), b"abc", 1).with(|sqe| sqe.ioprio = BUNDLE)
}

/// A SEND with BUNDLE is forced to a worker, and its socket is full. The SEND waits until the
/// socket has room, and is then cancelled.
fn send_bundle_waits(t: &mut Transcript) {
    for (name, way) in WORKER_FLAGS {
        t.say(name);
        let mut ring = Ring::new(8);
        let (socket, peer) = files::sockets();
        files::fill(&socket);
        submit(t, &mut ring, bundle(&socket, false), way);
        print_arrived(t, &mut ring);
        files::set_nonblocking(&peer, true);
        while files::take(&peer, 1 << 16).is_ok_and(|bytes| !bytes.is_empty()) {}
        t.in_order(&ring.wait(1));
        t.say(format_args!("readable: {}", files::is_readable_within(peer.as_raw_fd(), std::time::Duration::ZERO)));
    }
}
case!(send_bundle_waits => "
    IOSQE_ASYNC
    submit = 1
    no cqe
    cqe 1: -ECANCELED
    readable: false
    IOSQE_IO_DRAIN
    submit = 1
    no cqe
    cqe 1: -ECANCELED
    readable: false
");

/// An event that ends a waiting receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Data,
    EndOfFile,
    Cancellation,
}

const ENDINGS: [Ending; 3] = [Ending::Data, Ending::EndOfFile, Ending::Cancellation];

/// Ends the waiting receive, request 1, by `ending`. Prints the receive's completion.
fn end(t: &mut Transcript, ring: &mut Ring, peer: &OwnedFd, ending: Ending) {
    match ending {
        Ending::Data => assert_eq!(files::put(peer, b"abc"), 3),
        Ending::EndOfFile => files::shut_down(peer, libc::SHUT_WR),
        Ending::Cancellation => t.result("cancel", super::sync_cancel::by_user_data(ring, 1)),
    }
    t.in_order(&ring.wait(1));
}

/// A function that registers a buffer ring as a group. Parameters: the io_uring, the buffer ring's
/// memory, its number of entries, and the group's id.
type MakeGroup = fn(&Ring, &Pages, u32, u16) -> Group;

fn keeps_buffer(t: &mut Transcript) {
    let make: [MakeGroup; 2] = [group_of, incremental_group_of];
    for (name, way) in WORKER_FLAGS {
        for (incremental, make) in make.into_iter().enumerate() {
            for opcode in [opcode::RECV, opcode::READ] {
                for ending in ENDINGS {
                    t.say(format_args!("{name}, incremental {incremental}, opcode {opcode}, {ending:?}"));
                    let mut ring = Ring::new(8);
                    let memory = Pages::new(1);
                    let mut group = make(&ring, &memory, 8, GROUP);
                    group.add_slots(0..2);
                    let (socket, peer) = files::sockets();
                    submit(t, &mut ring, selecting(opcode, &socket, 0), way);
                    print_arrived(t, &mut ring);
                    print_head(t, &ring);
                    end(t, &mut ring, &peer, ending);
                    print_head(t, &ring);
                    t.say(group.state(0));
                }
            }
        }
    }
}
case!(keeps_buffer => include_str!("forced/keeps_buffer.txt"));

fn keeps_no_classic_buffer(t: &mut Transcript) {
    for (name, way) in WORKER_FLAGS {
        for opcode in [opcode::RECV, opcode::READ] {
            for ending in ENDINGS {
                t.say(format_args!("{name}, opcode {opcode}, {ending:?}"));
                let mut ring = Ring::new(8);
                let memory = Pages::new(1);
                let (address, buf_index) = (memory.at(0), GROUP);
                let providing = sqe(opcode::PROVIDE_BUFFERS, 1, 9);
                t.entry(&ring.one(Sqe { addr: address, len: 16, buf_index, ..providing }));
                let (socket, peer) = files::sockets();
                submit(t, &mut ring, selecting(opcode, &socket, 0), way);
                print_arrived(t, &mut ring);
                end(t, &mut ring, &peer, ending);
                t.entry(&ring.one(Sqe { buf_index, ..sqe(opcode::REMOVE_BUFFERS, 1, 10) }));
            }
        }
    }
}
case!(keeps_no_classic_buffer => include_str!("forced/keeps_no_classic_buffer.txt"));

/// One member of a chain has IO_DRAIN. The kernel then forces the chain's head, this member and the
/// members behind it to a worker.
fn chain_behind_drain(t: &mut Transcript) {
    for place in 0..3 {
        for drains in (0..3).filter(|drains| place == 0 || place >= *drains) {
            t.say(format_args!("bundle at {place}, drain at {drains}"));
            let mut ring = Ring::new(8);
            let (socket, _peer) = files::sockets();
            for at in 0..3 {
                let request = if at == place { bundle(&socket, false) } else { nop(2 + at) };
                let request = if at == drains { request.flagged(sqe_flags::IO_DRAIN) } else { request };
                ring.push(if at < 2 { request.flagged(sqe_flags::IO_HARDLINK) } else { request });
            }
            t.result("submit", ring.submit());
            let entries = ring.wait(3);
            let several = entries.iter().any(|entry| entry.flags & u::IORING_CQE_F_MORE != 0);
            t.sorted(&entries);
            if several {
                t.sorted(&ring.wait(1));
            }
        }
    }
}
case!(chain_behind_drain => include_str!("forced/chain_behind_drain.txt"));

/// On a ring with deferred task work, the kernel runs task work only when the owner asks for
/// completions. So until then, only a worker can send the bytes of a SEND with POLL_FIRST.
fn poll_first_send(t: &mut Transcript) {
    for (name, way) in [("no flag", 0), WORKER_FLAGS[0]] {
        let mut ring = Ring::flags(8, ring::DEFER);
        let (socket, peer) = files::sockets();
        let sending = send(socket.as_raw_fd(), b"abc", 1).with(|sqe| sqe.ioprio = u::IORING_RECVSEND_POLL_FIRST as u16);
        t.say(name);
        submit(t, &mut ring, sending, way);
        let limit = std::time::Duration::from_millis(if way == 0 { 100 } else { 5000 });
        t.say(format_args!("readable: {}", files::is_readable_within(peer.as_raw_fd(), limit)));
        t.in_order(&ring.wait(1));
    }
}
case!(poll_first_send => "
    no flag
    submit = 1
    readable: false
    cqe 1: 3
    IOSQE_ASYNC
    submit = 1
    readable: true
    cqe 1: 3
");

/// A request whose descriptor is not open fails before it selects a buffer, so it uses up no
/// buffer. A receive from a file that is no socket fails at that point, too.
fn bad_file_uses_up_no_buffer(t: &mut Transcript) {
    let (pipe, _writer) = files::pipe();
    let closed = 9999;
    for (name, way) in WORKER_FLAGS {
        for opcode in [opcode::RECV, opcode::READ] {
            let files = if opcode == opcode::RECV { &[closed, pipe.as_raw_fd()][..] } else { &[closed] };
            for (index, fd) in files.iter().enumerate() {
                t.say(format_args!("{name}, opcode {opcode}, file {index}"));
                let (mut ring, _group, _memory) = with_group(0..2);
                let request = selecting(opcode, &pipe, 0).with(|sqe| sqe.fd = *fd);
                submit(t, &mut ring, request, way);
                t.in_order(&ring.wait(1));
                print_head(t, &ring);
            }
        }
    }
}
case!(bad_file_uses_up_no_buffer => "
    IOSQE_ASYNC, opcode 27, file 0
    submit = 1
    cqe 1: -EBADF
    head 0
    IOSQE_ASYNC, opcode 27, file 1
    submit = 1
    cqe 1: -ENOTSOCK
    head 0
    IOSQE_ASYNC, opcode 22, file 0
    submit = 1
    cqe 1: -EBADF
    head 0
    IOSQE_IO_DRAIN, opcode 27, file 0
    submit = 1
    cqe 1: -EBADF
    head 0
    IOSQE_IO_DRAIN, opcode 27, file 1
    submit = 1
    cqe 1: -ENOTSOCK
    head 0
    IOSQE_IO_DRAIN, opcode 22, file 0
    submit = 1
    cqe 1: -EBADF
    head 0
");

/// A request on a bad file fails, and takes no bytes from the next buffer of an incremental buffer
/// ring.
fn bad_file_uses_up_no_part(t: &mut Transcript) {
    let pipe = files::pipe().0;
    for (name, way) in WORKER_FLAGS {
        for opcode in [opcode::RECV, opcode::READ, opcode::SEND] {
            let files = if opcode == opcode::READ { &[-1][..] } else { &[-1, pipe.as_raw_fd()] };
            for (index, fd) in files.iter().enumerate() {
                t.say(format_args!("{name}, opcode {opcode}, file {index}"));
                let mut ring = Ring::new(8);
                let memory = Pages::new(1);
                let mut group = incremental_group_of(&ring, &memory, 8, GROUP);
                group.add_slots(0..2);
                let request = selecting(opcode, &pipe, 0).with(|sqe| (sqe.fd, sqe.len) = (*fd, 4));
                submit(t, &mut ring, request, way);
                t.in_order(&ring.wait(1));
                t.say(group.state(0));
            }
        }
    }
}
case!(bad_file_uses_up_no_part => include_str!("forced/bad_file_uses_up_no_part.txt"));
