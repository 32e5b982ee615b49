//! Receives into provided buffers. One of these buffers is at an address at which no memory is
//! mapped.

use super::{GROUP, MANY, multishot};
use crate::buffers::group_of;
use crate::files;
use crate::memory::{BAD, Pages, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, message};
use crate::transcript::Transcript;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

const BUNDLE: u16 = u::IORING_RECVSEND_BUNDLE as u16;

/// Returns a name and two connected sockets for each kind of socket.
fn pairs() -> Vec<(&'static str, OwnedFd, OwnedFd)> {
    let of = |name, (reader, writer)| (name, reader, writer);
    let (server, client, _) = files::udp();
    vec![
        of("stream", files::sockets()),
        of("packets", files::sockets_of(libc::SOCK_SEQPACKET)),
        of("datagrams", files::sockets_of(libc::SOCK_DGRAM)),
        of("tcp", files::tcp()),
        ("udp", server, client),
    ]
}

/// Sends 24 bytes twice. The first buffer has 24 bytes, the second has 32 bytes at an address
/// without memory, and the third has 32 bytes. `is_there`: all bytes are sent before the
/// submission.
fn receive(t: &mut Transcript, request: &dyn Fn(&OwnedFd) -> Sqe, is_there: bool) {
    for (name, reader, writer) in pairs() {
        let memory = Pages::new(1);
        let mut ring = Ring::new(16);
        let mut group = group_of(&ring, &memory, 8, GROUP);
        group.add(0, 24, 0);
        group.add_at(BAD, 32, 1);
        group.add(4, 32, 2);
        t.say(name);
        if is_there {
            files::put(&writer, &[b'x'; 24]);
            files::put(&writer, &[b'y'; 24]);
        }
        ring.push(request(&reader));
        ring.submit();
        let mut entries = Vec::new();
        if !is_there {
            files::put(&writer, &[b'x'; 24]);
            entries.extend(ring.wait(1));
            files::put(&writer, &[b'y'; 24]);
        }
        while entries.last().is_none_or(|last| last.flags & u::IORING_CQE_F_MORE != 0) {
            let more = ring.wait(1);
            if more.is_empty() {
                break;
            }
            entries.extend(more);
        }
        t.in_order(&entries);
        t.say(format_args!("readable: {}", files::is_readable_within(reader.as_raw_fd(), Duration::ZERO)));
    }
}

fn each(t: &mut Transcript, request: &dyn Fn(&OwnedFd) -> Sqe) {
    for is_there in [false, true] {
        t.say(format_args!("data is there: {is_there}"));
        receive(t, request, is_there);
    }
}

fn many_into_bad_memory(t: &mut Transcript) {
    each(t, &|reader| multishot(reader.as_raw_fd(), 1));
}
case!(many_into_bad_memory => include_str!("many_into_bad_memory.txt"));

fn messages_into_bad_memory(t: &mut Transcript) {
    let header: libc::msghdr = zeroed();
    each(t, &|reader| {
        message(opcode::RECVMSG, reader.as_raw_fd(), &raw const header, 1)
            .flagged(sqe_flags::BUFFER_SELECT)
            .with(|sqe| (sqe.ioprio, sqe.buf_index) = (MANY, GROUP))
    });
}
case!(messages_into_bad_memory => include_str!("messages_into_bad_memory.txt"));

fn bundles_into_bad_memory(t: &mut Transcript) {
    each(t, &|reader| multishot(reader.as_raw_fd(), 1).with(|sqe| sqe.ioprio |= BUNDLE));
}
case!(bundles_into_bad_memory => include_str!("bundles_into_bad_memory.txt"));

fn bundle_into_bad_memory(t: &mut Transcript) {
    each(t, &|reader| multishot(reader.as_raw_fd(), 1).with(|sqe| (sqe.ioprio, sqe.len) = (BUNDLE, 48)));
}
case!(bundle_into_bad_memory => include_str!("bundle_into_bad_memory.txt"));
