//! A request of a chain makes a file ready for which another request waits. The kernel then tries
//! the waiting request again before it starts the chain's next request. Other cases of chains are
//! in `link`.

use std::fmt::Display;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use usring_uapi::{Sqe, opcode};

use super::files_update::update;
use super::message_ring::message;
use super::reg;
use super::socket_command::set;
use crate::ring::{self, Ring};
use crate::sqe::{CURRENT, Change, cancel, close, nop, poll, poll_remove, read, recv, send, sqe, write};
use crate::transcript::Transcript;
use crate::{files, names, net};

const DO_NOT_WAIT: u32 = libc::MSG_DONTWAIT as u32;

/// Submits a request that waits, and after that a chain in a second call. Does this on a ring of
/// each kind. `make` returns the request, the chain, and the files and memory that they use. Prints
/// all completions in the order of arrival.
fn wake_by_chain<Used, const LENGTH: usize>(t: &mut Transcript, mut make: impl FnMut() -> (Sqe, [Sqe; LENGTH], Used)) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(8, flags);
        let (waiting, chain, _used) = make();
        ring.push(waiting);
        ring.submit();
        t.in_order(&ring.reap());
        for sqe in chain {
            ring.push(sqe);
        }
        ring.submit();
        t.in_order(&ring.wait(LENGTH + 1));
    }
}

fn receive_comes_before_successor(t: &mut Transcript) {
    wake_by_chain(t, || {
        let (reader, writer) = files::sockets();
        let mut buffers = Box::new([[0u8; 8]; 2]);
        let [first, second] = &mut *buffers;
        let waiting = recv(reader.as_raw_fd(), first, 1);
        let chain = [
            nop(2).linked(),
            send(writer.as_raw_fd(), b"12345678", 3).linked(),
            recv(reader.as_raw_fd(), second, 4).op_flags(DO_NOT_WAIT).linked(),
            nop(5),
        ];
        (waiting, chain, (reader, writer, buffers))
    });
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
    wake_by_chain(t, || {
        let (reader, writer) = files::sockets();
        let chain = [send(writer.as_raw_fd(), b"12345678", 2).linked(), cancel(1, 0, 3)];
        (poll(reader.as_raw_fd(), libc::POLLIN, 1), chain, (reader, writer))
    });
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

/// A WRITE to a pipe wakes a poll of the pipe. This holds if the WRITE names an offset, and if it
/// names the current position, although a pipe has neither.
fn write_wakes_poll_of_pipe(t: &mut Transcript) {
    for offset in [0, CURRENT] {
        wake_by_chain(t, || {
            let (reader, writer) = files::pipe();
            let chain = [write(writer.as_raw_fd(), b"12345678", offset, 2).linked(), poll_remove(1, 3)];
            (poll(reader.as_raw_fd(), libc::POLLIN, 1), chain, (reader, writer))
        });
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

/// A poll waits for room in a full pipe. The chain's READ makes that room.
fn read_wakes_poll_for_room(t: &mut Transcript) {
    wake_by_chain(t, || {
        let (reader, writer) = files::pipe();
        files::fill(&writer);
        let mut room = vec![0u8; 1 << 16];
        let chain = [read(reader.as_raw_fd(), &mut room, CURRENT, 2).linked(), poll_remove(1, 3)];
        (poll(writer.as_raw_fd(), libc::POLLOUT, 1), chain, (reader, writer, room))
    });
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

/// A batch consists of a chain and, behind it, a SEND. The SEND wakes a waiting poll before the
/// chain's second request starts.
fn send_beside_the_chain(t: &mut Transcript) {
    wake_by_chain(t, || {
        let (reader, writer) = files::sockets();
        let batch = [nop(2).linked(), cancel(1, 0, 3), send(writer.as_raw_fd(), b"12345678", 4)];
        (poll(reader.as_raw_fd(), libc::POLLIN, 1), batch, (reader, writer))
    });
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

/// Submits a poll that waits, and then a chain of `waker` and a POLL_REMOVE of that poll. Prints
/// whether `waker` completes the poll before the POLL_REMOVE can remove it. `make` returns the
/// file, the poll's events, and `waker`.
///
/// If a worker executes `waker`, the poll and `waker` can complete in any order. So the POLL_REMOVE
/// may fail with ENOENT or EALREADY.
fn poll_is_too_late_to_remove<Used>(
    t: &mut Transcript,
    name: impl Display,
    mut make: impl FnMut() -> (i32, i16, Sqe, Used),
) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(8, flags);
        let (file, events, waker, _used) = make();
        ring.push(poll(file, events, 1));
        ring.submit();
        ring.push(waker.linked());
        ring.push(poll_remove(1, 3));
        ring.submit();
        let mut entries = ring.wait(3);
        entries.sort_by_key(|entry| entry.user_data);
        let results: Vec<i32> = entries.iter().map(|entry| entry.res).collect();
        let &[poll, waker, remove] = results.as_slice() else { return t.say("a request did not complete") };
        let is_late = [-libc::ENOENT, -libc::EALREADY].contains(&remove);
        let [poll, waker] = [poll, waker.min(0)].map(names::result);
        t.say(format_args!("{name}: {waker}, poll {poll}, too late to remove: {is_late}"));
    }
}

fn calls_wake_poll(t: &mut Transcript) {
    poll_is_too_late_to_remove(t, "SHUTDOWN", || {
        let (reader, peer) = files::sockets();
        let waker = net::shutdown(peer.as_raw_fd(), libc::SHUT_WR, 2);
        (reader.as_raw_fd(), libc::POLLIN, waker, (reader, peer))
    });
    poll_is_too_late_to_remove(t, "MSG_RING", || {
        let target = Ring::new(8);
        (target.fd, libc::POLLIN, message(target.fd, 9, 9, 2), target)
    });
    poll_is_too_late_to_remove(t, "EPOLL_CTL", || {
        // SAFETY: the descriptor is new, and nothing else owns it.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let ready = files::eventfd(1);
        let event = Box::new(libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 });
        let waker = sqe(opcode::EPOLL_CTL, set.as_raw_fd(), 2).with(|sqe| {
            (sqe.addr, sqe.len) = (&raw const *event as u64, libc::EPOLL_CTL_ADD as u32);
            sqe.off = ready.as_raw_fd() as u64;
        });
        (set.as_raw_fd(), libc::POLLIN, waker, (set, ready, event))
    });
    for (name, number) in [("SPLICE", opcode::SPLICE), ("TEE", opcode::TEE)] {
        poll_is_too_late_to_remove(t, name, || {
            let ((source, filler), (reader, writer)) = (files::pipe(), files::pipe());
            files::put(&filler, b"12345");
            let waker = sqe(number, writer.as_raw_fd(), 2).with(|sqe| {
                (sqe.file_index, sqe.len) = (source.as_raw_fd() as u32, 5);
                sqe.off = if number == opcode::SPLICE { CURRENT } else { 0 };
                sqe.addr = sqe.off;
            });
            (reader.as_raw_fd(), libc::POLLIN, waker, (source, filler, reader, writer))
        });
    }
}
case!(calls_wake_poll => "
    SHUTDOWN: 0, poll 8193, too late to remove: true
    SHUTDOWN: 0, poll 8193, too late to remove: true
    MSG_RING: 0, poll 1, too late to remove: true
    MSG_RING: 0, poll 1, too late to remove: true
    EPOLL_CTL: 0, poll 1, too late to remove: true
    EPOLL_CTL: 0, poll 1, too late to remove: true
    SPLICE: 0, poll 1, too late to remove: true
    SPLICE: 0, poll 1, too late to remove: true
    TEE: 0, poll 1, too late to remove: true
    TEE: 0, poll 1, too late to remove: true
");

/// A socket contains five bytes, and its SO_RCVLOWAT is 100, so a poll waits. The poll completes
/// when a request of the chain sets SO_RCVLOWAT to 1.
fn socket_option_wakes_poll(t: &mut Transcript) {
    poll_is_too_late_to_remove(t, "SO_RCVLOWAT", || {
        let (reader, writer) = files::tcp();
        let mut ring = Ring::new(2);
        assert_eq!(ring.one(set(reader.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, &100, 1)).res, 0);
        files::put(&writer, b"12345");
        let waker = set(reader.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1, 2);
        (reader.as_raw_fd(), libc::POLLIN, waker, (reader, writer))
    });
}
case!(socket_option_wakes_poll => "
    SO_RCVLOWAT: 0, poll 1, too late to remove: true
    SO_RCVLOWAT: 0, poll 1, too late to remove: true
");

/// Returns an inotify queue that reports `events` of files in the folder `folder`.
fn inotify_queue(folder: &files::Scratch, events: u32) -> OwnedFd {
    // SAFETY: the path is a C string. The descriptor is new, and nothing else owns it.
    unsafe {
        let queue = OwnedFd::from_raw_fd(libc::inotify_init1(libc::IN_CLOEXEC));
        libc::inotify_add_watch(queue.as_raw_fd(), folder.path_of(".").as_ptr(), events);
        queue
    }
}

fn changes_of_directory_wake_poll_of_inotify(t: &mut Transcript) {
    for (name, number) in [("OPENAT", opcode::OPENAT), ("UNLINKAT", opcode::UNLINKAT), ("FTRUNCATE", opcode::FTRUNCATE)]
    {
        poll_is_too_late_to_remove(t, name, || {
            let scratch = files::Scratch::new();
            let (file, path) = (scratch.file("file", b"123"), scratch.path_of("file"));
            let queue = inotify_queue(&scratch, libc::IN_OPEN | libc::IN_DELETE | libc::IN_MODIFY);
            let waker = match number {
                opcode::FTRUNCATE => sqe(number, file.as_raw_fd(), 2),
                _ => sqe(number, libc::AT_FDCWD, 2).with(|sqe| sqe.addr = path.as_ptr() as u64),
            };
            (queue.as_raw_fd(), libc::POLLIN, waker, (queue, file, path, scratch))
        });
    }
}
case!(changes_of_directory_wake_poll_of_inotify => "
    OPENAT: 0, poll 1, too late to remove: true
    OPENAT: 0, poll 1, too late to remove: true
    UNLINKAT: 0, poll 1, too late to remove: true
    UNLINKAT: 0, poll 1, too late to remove: true
    FTRUNCATE: 0, poll 1, too late to remove: true
    FTRUNCATE: 0, poll 1, too late to remove: true
");

/// The chain closes the writing end of a polled pipe. On a ring without deferred task work, the
/// kernel ends the pipe only after the chain's next request, a POLL_REMOVE, has begun.
fn close_does_not_wake_poll_at_once(t: &mut Transcript) {
    wake_by_chain(t, || {
        let (reader, writer) = files::pipe();
        let chain = [close(writer.into_raw_fd(), 2).linked(), poll_remove(1, 3)];
        (poll(reader.as_raw_fd(), libc::POLLIN, 1), chain, reader)
    });
}
case!(close_does_not_wake_poll_at_once => "
    no cqe
    cqe 2: 0
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
    cqe 2: 0
    cqe 3: -EALREADY
    cqe 1: 16
", usring => "
    no cqe
    cqe 2: 0
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
    cqe 2: 0
    cqe 3: 0
    cqe 1: -ECANCELED
", because "where task work is deferred, the kernel begins the POLL_REMOVE after the close has ended the pipe");

/// A registered file is the last reference to a polled pipe's writing end, and the chain removes
/// it. On a ring without deferred task work, the kernel ends the pipe only after the chain's next
/// request has begun.
fn removal_of_file_does_not_wake_poll_at_once(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::pipe();
        let number = writer.as_raw_fd();
        t.result("register", ring.register(reg::FILES, &raw const number, 1));
        drop(writer);
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
        ring.submit();
        let numbers = [-1i32];
        ring.push(update(&numbers, 0, 2).linked());
        ring.push(poll_remove(1, 3));
        ring.submit();
        t.in_order(&ring.wait(3));
    }
}
case!(removal_of_file_does_not_wake_poll_at_once => "
    register = 0
    cqe 2: 1
    cqe 3: 0
    cqe 1: -ECANCELED
    register = 0
    cqe 2: 1
    cqe 3: -EALREADY
    cqe 1: 16
", usring => "
    register = 0
    cqe 2: 1
    cqe 3: 0
    cqe 1: -ECANCELED
    register = 0
    cqe 2: 1
    cqe 3: 0
    cqe 1: -ECANCELED
", because "where task work is deferred, the kernel begins the POLL_REMOVE after the close has ended the pipe");

/// An inotify queue reports reads of a file. On the kernel, the chain's READ of that file wakes a
/// poll of the queue.
fn transfer_with_offset_wakes_poll_of_inotify(t: &mut Transcript) {
    wake_by_chain(t, || {
        let scratch = files::Scratch::new();
        let file = scratch.file("file", b"123");
        let queue = inotify_queue(&scratch, libc::IN_ACCESS);
        let mut bytes = vec![0u8; 3];
        let chain = [read(file.as_raw_fd(), &mut bytes, 0, 2).linked(), poll_remove(1, 3)];
        (poll(queue.as_raw_fd(), libc::POLLIN, 1), chain, (scratch, file, queue, bytes))
    });
}
case!(transfer_with_offset_wakes_poll_of_inotify => "
    no cqe
    cqe 2: 3
    cqe 1: 1
    cqe 3: -ENOENT
    no cqe
    cqe 2: 3
    cqe 1: 1
    cqe 3: -ENOENT
", usring => "
    no cqe
    cqe 2: 3
    cqe 3: 0
    cqe 1: -ECANCELED
    no cqe
    cqe 2: 3
    cqe 3: 0
    cqe 1: -ECANCELED
", because "usring does not ask for events after each transfer with an offset");
