//! Errors that end a multishot READ. The failed read may have consumed the data, or the pending
//! error of the socket. The file is then no longer readable, but the multishot ends nevertheless.

use super::super::receive_multishot;
use super::{multishot, ring_of};
use crate::buffers::SIZE;
use crate::files;
use crate::memory::{BAD, KERNEL_HALF, Pages};
use crate::net;
use crate::sqe::Change;
use crate::transcript::Transcript;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use usring_uapi::{opcode, sqe_flags};

/// Returns a name and two ends for each kind of file. Bytes that are written to the second end can
/// be read from the first.
fn ends() -> Vec<(&'static str, OwnedFd, OwnedFd)> {
    let counter = files::eventfd(0);
    let same = counter.try_clone().expect("a duplicate");
    let of = |name, (reader, writer)| (name, reader, writer);
    let (server, client, _) = files::udp();
    vec![
        of("pipe", files::pipe()),
        of("stream", files::sockets()),
        of("packets", files::sockets_of(libc::SOCK_SEQPACKET)),
        of("datagrams", files::sockets_of(libc::SOCK_DGRAM)),
        of("tcp", files::tcp()),
        ("udp", server, client),
        ("counter", counter, same),
    ]
}

/// The second buffer of a multishot is at `address`. Prints, for each kind of file, how the
/// multishot ends.
fn second_buffer_at(t: &mut Transcript, address: u64) {
    for (name, reader, writer) in ends() {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 1, 0);
        group.add_at(address, SIZE, 7);
        ring.push(multishot(reader.as_raw_fd(), 1));
        ring.submit();
        t.say(name);
        for _ in 0..2 {
            files::put(&writer, &1u64.to_ne_bytes());
            t.in_order(&ring.wait(1));
        }
        t.say(format_args!("readable: {}", files::is_readable_within(reader.as_raw_fd(), Duration::ZERO)));
    }
}

fn buffer_is_not_mapped(t: &mut Transcript) {
    second_buffer_at(t, BAD);
}
case!(buffer_is_not_mapped => include_str!("buffer_is_not_mapped.txt"));

fn buffer_is_the_kernels(t: &mut Transcript) {
    second_buffer_at(t, KERNEL_HALF);
}
case!(buffer_is_the_kernels => include_str!("buffer_is_the_kernels.txt"));

/// A UDP socket sends a datagram to an address at which no socket is. The answer is an error on the
/// sending socket, and the next read gets it.
fn datagram_is_refused(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (server, client, _) = files::udp();
    let back = net::address_of(client.as_raw_fd());
    assert_eq!(net::connect_now(server.as_raw_fd(), &back), 0);
    ring.push(multishot(server.as_raw_fd(), 1));
    ring.submit();
    files::put(&client, b"datagram");
    t.in_order(&ring.wait(1));
    drop(client);
    files::put(&server, b"datagram");
    t.in_order(&ring.wait(1));
    t.say(format_args!("readable: {}", files::is_readable_within(server.as_raw_fd(), Duration::ZERO)));
}
case!(datagram_is_refused => "
    cqe 1: 8 MORE|BUFFER(0)
    cqe 1: -ECONNREFUSED
    readable: false
");

/// A multishot names a descriptor that is not open. It gets -EBADF, even if it waits behind a drain
/// or a link, or a worker executes it.
fn no_file_behind_others(t: &mut Transcript) {
    for flag in [sqe_flags::IO_DRAIN, sqe_flags::IO_HARDLINK, sqe_flags::ASYNC] {
        for opcode in [opcode::READ_MULTISHOT, opcode::RECV, opcode::ACCEPT] {
            for fd in [-1, 5000] {
                let memory = Pages::new(1);
                let (mut ring, _group) = ring_of(&memory, 8, 0);
                let (reader, writer) = files::pipe();
                let mut byte = [0];
                let first = crate::sqe::read(reader.as_raw_fd(), &mut byte, 0, 1);
                ring.push(first.flagged(flag & sqe_flags::IO_HARDLINK));
                let many = match opcode {
                    opcode::RECV => receive_multishot::multishot(fd, 2),
                    opcode::ACCEPT => net::accept(fd, 2).with(|sqe| sqe.ioprio = 1),
                    _ => multishot(fd, 2),
                };
                ring.push(many.flagged(flag & !sqe_flags::IO_HARDLINK));
                ring.submit();
                files::put(&writer, b"x");
                t.sorted(&ring.wait(2));
            }
        }
    }
}
case!(no_file_behind_others => include_str!("no_file_behind_others.txt"));
