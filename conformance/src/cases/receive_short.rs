//! Receives that end although their stream has more data. They end after a message with
//! descriptors, at a change of the sender (SO_PASSCRED), and at urgent data. A multishot then goes
//! on. A single receive reports SOCK_NONEMPTY.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::receive_multishot::{GROUP, multishot, ring_of};
use crate::buffers::SIZE;
use crate::files;
use crate::memory::{Pages, zeroed};
use crate::ring::{self, Ring};
use crate::sqe::{Change, message, recv};
use crate::transcript::Transcript;

/// Sends text together with a file descriptor (SCM_RIGHTS).
pub fn pass(socket: &OwnedFd, text: &str) {
    let file = files::memory_file(b"passed");
    let mut room = [20, u64::from(libc::SOL_SOCKET as u32) | (libc::SCM_RIGHTS as u64) << 32, file.as_raw_fd() as u64];
    send_with(socket, text, &mut room);
}

fn send_with(socket: &OwnedFd, text: &str, room: &mut [u64]) {
    let mut part = libc::iovec { iov_base: text.as_ptr() as *mut libc::c_void, iov_len: text.len() };
    let mut header: libc::msghdr = zeroed();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = room.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(room);
    // SAFETY: the header, and the memory that the header names, live until the call returns.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, 0) };
    assert_eq!(sent, text.len() as isize, "sendmsg: {}", std::io::Error::last_os_error());
}

fn send_urgent(socket: &OwnedFd, text: &str) {
    // SAFETY: `text` is readable for its whole length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), text.as_ptr().cast(), text.len(), libc::MSG_OOB) };
    assert_eq!(sent, text.len() as isize);
}

fn set(socket: &OwnedFd, option: i32) {
    let on = 1i32;
    let (at, size) = ((&raw const on).cast(), size_of::<i32>() as u32);
    // SAFETY: the call reads one integer.
    assert_eq!(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, at, size) }, 0);
}

/// Prints all receives of a multishot that waits while `send` sends data. The ring has deferred
/// task work, so the multishot makes its receives only when all data has arrived.
fn receive_all(
    t: &mut Transcript,
    reader: &OwnedFd,
    receives: fn(&OwnedFd) -> Sqe,
    send: impl FnOnce(),
    count: usize,
) -> (Ring, Pages) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, ring::DEFER);
    ring.push(receives(reader));
    ring.submit();
    send();
    t.in_order(&ring.wait(count));
    for slot in 0..4 {
        t.say(group.text(slot));
    }
    (ring, memory)
}

fn stream(socket: &OwnedFd) -> Sqe {
    multishot(socket.as_raw_fd(), 1)
}

fn bundles(socket: &OwnedFd) -> Sqe {
    multishot(socket.as_raw_fd(), 1).with(|sqe| sqe.ioprio |= u::IORING_RECVSEND_BUNDLE as u16)
}

fn descriptors_first(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    let send = || {
        pass(&writer, "one");
        files::put(&writer, b"two");
    };
    let (mut ring, _memory) = receive_all(t, &reader, stream, send, 2);
    files::put(&writer, b"three");
    t.in_order(&ring.wait(1));
}
case!(descriptors_first => "
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    one.............
    two.............
    ................
    ................
    cqe 1: -EFAULT
");

fn descriptors_in_between(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    let send = || {
        files::put(&writer, b"one");
        pass(&writer, "two");
        pass(&writer, "three");
        files::put(&writer, b"four");
    };
    receive_all(t, &reader, stream, send, 3);
}
case!(descriptors_in_between => "
    cqe 1: 6 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 5 MORE|SOCK_NONEMPTY|BUFFER(1)
    cqe 1: 4 MORE|BUFFER(2)
    onetwo..........
    three...........
    four............
    ................
");

fn descriptors_are_there(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    pass(&writer, "one");
    files::put(&writer, b"two");
    receive_all(t, &reader, stream, || (), 2);
}
case!(descriptors_are_there => "
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    one.............
    two.............
    ................
    ................
");

fn descriptors_in_message(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 0, ring::DEFER);
    for slot in 0..4u16 {
        group.add_at(group.buffers.at(usize::from(slot) * 64), 64, slot);
    }
    let mut header: libc::msghdr = zeroed();
    header.msg_controllen = 24;
    ring.push(message(opcode::RECVMSG, reader.as_raw_fd(), &header, 1).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.ioprio = u::IORING_RECV_MULTISHOT as u16;
        sqe.buf_index = GROUP;
    }));
    ring.submit();
    pass(&writer, "one");
    files::put(&writer, b"two");
    t.in_order(&ring.wait(2));
    for slot in [0, 1] {
        let bytes = &group.buffers.bytes()[slot * 64..][..64];
        t.say(String::from_utf8_lossy(&bytes[40..48]).replace('\0', "."));
    }
}
case!(descriptors_in_message => "
    cqe 1: 43 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 43 MORE|BUFFER(1)
    one.....
    two.....
");

fn descriptors_in_bundle(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    let send = || {
        pass(&writer, "a text that is longer than one buffer");
        files::put(&writer, b"two");
    };
    receive_all(t, &reader, bundles, send, 2);
}
case!(descriptors_in_bundle => "
    cqe 1: 32 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 8 MORE|BUFFER(2)
    a text that is l
    onger than one b
    uffertwo........
    ................
");

/// On a socket with SO_PASSCRED, one receive does not return data of two senders. Data that was
/// sent before the option was set counts as data of another sender.
fn credentials(t: &mut Transcript) {
    for receives in [stream, bundles] {
        let (reader, writer) = files::sockets();
        let send = || {
            files::put(&writer, b"one");
            set(&reader, libc::SO_PASSCRED);
            files::put(&writer, b"two");
        };
        receive_all(t, &reader, receives, send, 2);
    }
}
case!(credentials => "
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    one.............
    two.............
    ................
    ................
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    one.............
    two.............
    ................
    ................
");

fn send_around_urgent(writer: &OwnedFd) {
    files::put(writer, b"one");
    send_urgent(writer, "!");
    files::put(writer, b"two");
}

/// A receive of a multishot ends before the urgent byte. The next receive skips that byte and gets
/// the bytes behind it.
fn urgent_data(t: &mut Transcript) {
    for (reader, writer) in [files::sockets(), files::tcp()] {
        let (mut ring, _memory) = receive_all(t, &reader, stream, || send_around_urgent(&writer), 2);
        files::put(&writer, b"three");
        t.in_order(&ring.wait(1));
    }
}
case!(urgent_data => "
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(1)
    one.............
    two.............
    ................
    ................
    cqe 1: -EFAULT
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    one.............
    two.............
    ................
    ................
    cqe 1: -EFAULT
");

fn urgent_data_among_the_rest(t: &mut Transcript) {
    for (reader, writer) in [files::sockets(), files::tcp()] {
        set(&reader, libc::SO_OOBINLINE);
        receive_all(t, &reader, stream, || send_around_urgent(&writer), 2);
    }
}
case!(urgent_data_among_the_rest => "
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 4 MORE|BUFFER(1)
    one.............
    !two............
    ................
    ................
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 4 MORE|BUFFER(1)
    one.............
    !two............
    ................
    ................
");

fn urgent_data_is_there(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    send_around_urgent(&writer);
    receive_all(t, &reader, stream, || (), 2);
}
case!(urgent_data_is_there => "
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(1)
    one.............
    two.............
    ................
    ................
");

/// The urgent byte of a TCP stream arrives before the submission. The first receive of each
/// multishot ends before that byte. The third multishot has MSG_DONTWAIT, and its first receive
/// fills the whole buffer.
fn urgent_data_of_tcp_is_there(t: &mut Transcript) {
    for receives in [stream, bundles] {
        let (reader, writer) = files::tcp();
        send_around_urgent(&writer);
        receive_all(t, &reader, receives, || (), 2);
    }
    let (reader, writer) = files::tcp();
    files::put(&writer, &[b'x'; SIZE as usize]);
    send_urgent(&writer, "!");
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    ring.push(stream(&reader).op_flags(libc::MSG_DONTWAIT as u32));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(urgent_data_of_tcp_is_there => "
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    one.............
    two.............
    ................
    ................
    cqe 1: 3 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    one.............
    two.............
    ................
    ................
    cqe 1: 16 MORE|SOCK_NONEMPTY|BUFFER(0)
    cqe 1: -EAGAIN
");

/// Submits receives around an urgent byte: two for the bytes before it, one for it (MSG_OOB), and
/// one for the bytes behind it. Prints their CQEs.
fn receive_around_urgent(t: &mut Transcript, (reader, writer): (OwnedFd, OwnedFd)) {
    let mut ring = Ring::new(4);
    send_around_urgent(&writer);
    let mut bytes = [0; SIZE as usize];
    for (length, flags) in [(1, 0), (2, 0), (1, libc::MSG_OOB), (SIZE, 0)] {
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes[..length as usize], 1).op_flags(flags as u32)));
    }
}

fn urgent_data_of_unix_sockets(t: &mut Transcript) {
    receive_around_urgent(t, files::sockets());
}
case!(urgent_data_of_unix_sockets => "
    cqe 1: 1 SOCK_NONEMPTY
    cqe 1: 2 SOCK_NONEMPTY
    cqe 1: 1
    cqe 1: 3
");

/// Prints the CQEs of receives that end early, before urgent data or after a message with a
/// descriptor. More data is in the socket. The kernel reports this by SOCK_NONEMPTY.
fn more_data_behind_an_early_end(t: &mut Transcript) {
    receive_around_urgent(t, files::tcp());
    let (reader, writer) = files::sockets();
    let mut ring = Ring::new(4);
    pass(&writer, "one");
    files::put(&writer, b"two");
    let mut bytes = [0; SIZE as usize];
    for _ in 0..2 {
        t.entry(&ring.one(recv(reader.as_raw_fd(), &mut bytes, 1)));
    }
}
case!(more_data_behind_an_early_end => "
    cqe 1: 1 SOCK_NONEMPTY
    cqe 1: 2 SOCK_NONEMPTY
    cqe 1: 1 SOCK_NONEMPTY
    cqe 1: 3
    cqe 1: 3 SOCK_NONEMPTY
    cqe 1: 3
", usring => "
    cqe 1: 1 SOCK_NONEMPTY
    cqe 1: 2
    cqe 1: 1
    cqe 1: 3
    cqe 1: 3
    cqe 1: 3
", because "SOCK_NONEMPTY is a hint; here it would cost every single receive a system call");
