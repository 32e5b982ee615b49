//! Bundles that receive with MSG_WAITALL.

use super::{head, receiving, ring_of};
use crate::files;
use crate::memory::Pages;
use crate::sqe::{Change, nop};
use crate::transcript::Transcript;
use usring_uapi::io_uring as u;

fn receive_wait_all(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8);
    let (reader, writer) = files::sockets_of(libc::SOCK_DGRAM);
    files::put(&writer, &[b'x'; 20]);
    ring.push(receiving(&reader, 32, 1).op_flags(libc::MSG_WAITALL as u32).linked());
    ring.push(nop(2));
    ring.submit();
    t.sorted(&ring.wait(2));
    head(t, &ring);
}
case!(receive_wait_all => "
    cqe 1: 20 BUFFER(0)
    cqe 2: -ECANCELED
    head 2
");

fn receive_wait_all_continues(t: &mut Transcript) {
    for length in [8, 0] {
        let memory = Pages::new(1);
        let (mut ring, mut group) = ring_of(&memory, 8);
        let (reader, writer) = files::sockets();
        ring.push(receiving(&reader, length, 1).op_flags(libc::MSG_WAITALL as u32));
        ring.submit();
        for part in [b"0123".as_slice(), b"45", b"abcdefghijklmnopqrstuvwxyzabcdefghijkl"] {
            t.in_order(&ring.reap());
            files::put(&writer, part);
            crate::time::long_enough_to_notice();
            ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        }
        t.in_order(&ring.wait(1));
        t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
        head(t, &ring);
    }
}
case!(receive_wait_all_continues => "
    no cqe
    no cqe
    no cqe
    cqe 1: 8 SOCK_NONEMPTY|BUFFER(0)
    012345ab........ ................ ................
    head 1
    no cqe
    no cqe
    no cqe
    cqe 1: 32 SOCK_NONEMPTY|BUFFER(0)
    012345abcdefghij klmnopqrstuvwxyz ................
    head 2
");

/// A shutdown of the reading side completes the receive, whose result is the number of bytes so
/// far. With MSG_WAITALL this result counts as a failure, so the linked request is cancelled.
fn receive_wait_all_shut_down(t: &mut Transcript) {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        for flags in [0, libc::MSG_WAITALL as u32] {
            for bytes in [&b""[..], b"abc"] {
                let memory = Pages::new(1);
                let (mut ring, _group) = ring_of(&memory, 8);
                let (reader, writer) = files::sockets_of(kind);
                ring.push(receiving(&reader, 32, 1).op_flags(flags).linked());
                ring.push(nop(2));
                ring.submit();
                if !bytes.is_empty() {
                    files::put(&writer, bytes);
                }
                files::shut_down(&reader, libc::SHUT_RD);
                for entry in ring.wait(2) {
                    t.say(format_args!("{}: {}", entry.user_data, entry.res));
                }
            }
        }
    }
}
case!(receive_wait_all_shut_down => "
    1: 0
    2: 0
    1: 3
    2: 0
    1: 0
    2: -125
    1: 3
    2: -125
    1: 0
    2: 0
    1: 3
    2: 0
    1: 0
    2: -125
    1: 3
    2: -125
    1: 0
    2: 0
    1: 3
    2: 0
    1: 0
    2: -125
    1: 3
    2: -125
");

/// If a receive completes with fewer bytes than requested, its result is the number of these bytes.
/// The buffers that the receive has not filled return to the group.
fn receive_wait_all_ends_short(t: &mut Transcript) {
    for length in [0, 64, 40] {
        for first in [&b"0123"[..], b"0123456789abcdefghijkl"] {
            let memory = Pages::new(1);
            let (mut ring, _group) = ring_of(&memory, 4);
            let (reader, writer) = files::sockets();
            files::put(&writer, first);
            ring.push(receiving(&reader, length, 1).op_flags(libc::MSG_WAITALL as u32));
            ring.submit();
            crate::time::long_enough_to_notice();
            t.in_order(&ring.reap());
            drop(writer);
            if first.len() < 22 || length != 0 {
                t.in_order(&ring.wait(1));
            }
            head(t, &ring);
            let (reader, writer) = files::sockets();
            files::put(&writer, b"more");
            t.entry(&ring.one(receiving(&reader, 0, 2)));
            head(t, &ring);
        }
    }
}
case!(receive_wait_all_ends_short => include_str!("receive_wait_all_ends_short.txt"));

/// A first receive waits for more bytes. On the kernel it owns only the buffers in which it has
/// bytes. A second receive uses the later buffers, and keeps them when the first receive ends.
fn receive_wait_all_beside_another(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 6);
    let (first, first_peer) = files::sockets();
    let (second, second_peer) = files::sockets();
    files::put(&first_peer, b"0123");
    ring.push(receiving(&first, 64, 1).op_flags(libc::MSG_WAITALL as u32));
    ring.submit();
    head(t, &ring);
    for user_data in 2..4 {
        files::put(&second_peer, b"more");
        t.entry(&ring.one(receiving(&second, 0, user_data)));
        head(t, &ring);
    }
    drop(first_peer);
    t.in_order(&ring.wait(1));
    for user_data in 5..8 {
        files::put(&second_peer, b"more");
        t.entry(&ring.one(receiving(&second, 0, user_data)));
        head(t, &ring);
    }
}
case!(receive_wait_all_beside_another => "
    head 1
    cqe 2: 4 BUFFER(1)
    head 2
    cqe 3: 4 BUFFER(2)
    head 3
    cqe 1: 4 BUFFER(0)
    cqe 5: 4 BUFFER(3)
    head 4
    cqe 6: 4 BUFFER(4)
    head 5
    cqe 7: 4 BUFFER(5)
    head 6
", usring => "
    head 4
    cqe 2: 4 BUFFER(4)
    head 5
    cqe 3: 4 BUFFER(5)
    head 6
    cqe 1: 4 BUFFER(0)
    cqe 5: -ENOBUFS
    head 6
    cqe 6: -ENOBUFS
    head 6
    cqe 7: -ENOBUFS
    head 6
", because
    "a bundle with MSG_WAITALL keeps the buffers that it waits to fill; 6.18 leaves them in the group");
