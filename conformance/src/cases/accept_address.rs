//! ACCEPT writes the peer's address to the program's memory. These cases also pass memory to which
//! ACCEPT cannot write.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::accept::is_ready;
use super::socket::taken;
use crate::files;
use crate::memory::{BAD, KERNEL_HALF};
use crate::net::{self, Address, FAMILIES, Family};
use crate::ring::Ring;
use crate::sqe::Change;
use crate::transcript::Transcript;

fn shown(t: &mut Transcript, address: &Address, peer: &Address) {
    let whole = address.written() == peer.length as usize;
    let same = address.bytes[..peer.length as usize] == peer.bytes[..peer.length as usize];
    t.say(format_args!("length {}, whole {whole}, the client's {same}", address.length));
}

fn peer_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        if family == Family::Unix {
            let mut named: libc::sockaddr_un = crate::memory::zeroed();
            named.sun_family = libc::AF_UNIX as u16;
            let name = format!("\0conformance-{}", std::process::id());
            for (place, byte) in named.sun_path.iter_mut().zip(name.bytes()) {
                *place = byte as libc::c_char;
            }
            assert_eq!(net::bind(&client, &Address::of(&named, 2 + 19)), 0);
        }
        assert_eq!(net::connect_now(client.as_raw_fd(), &address), 0);
        let room = Address::room(128);
        let entry = ring.one(net::accept_from(listener.as_raw_fd(), &room, 1));
        taken(t, &entry);
        let room = std::hint::black_box(room);
        shown(t, &room, &net::address_of(client.as_raw_fd()));
        // The next ACCEPT is submitted before its client connects. In the unix family the client's
        // socket has no name, so its address consists of the address family alone.
        let room = Address::room(128);
        ring.push(net::accept_from(listener.as_raw_fd(), &room, 2));
        ring.submit();
        let client = net::connected(family, &address);
        for entry in ring.wait(1) {
            taken(t, &entry);
        }
        let room = std::hint::black_box(room);
        shown(t, &room, &net::address_of(client.as_raw_fd()));
    }
}
case!(peer_address as peer => "
    cqe 1: ok
    length 16, whole true, the client's true
    cqe 2: ok
    length 16, whole true, the client's true
    cqe 1: ok
    length 28, whole true, the client's true
    cqe 2: ok
    length 28, whole true, the client's true
    cqe 1: ok
    length 21, whole true, the client's true
    cqe 2: ok
    length 2, whole true, the client's true
");

/// ACCEPT truncates a peer address that is longer than the program's buffer. It writes the full
/// length of the address to the program's length word.
fn peer_address_cut(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        for length in [0, 1, 2, 8, 16, 28, 64] {
            let client = net::connected(family, &address);
            let room = Address::room(length);
            let entry = ring.one(net::accept_from(listener.as_raw_fd(), &room, 1));
            drop(taken(t, &entry));
            let room = std::hint::black_box(room);
            // The address buffer was filled with a pattern, to show how many bytes ACCEPT writes.
            // An address may itself end in a byte of that pattern, which would look unwritten. So
            // the case compares the written bytes with the peer's address.
            let peer = net::address_of(client.as_raw_fd());
            let kept = (length as usize).min(peer.length as usize);
            let same = room.bytes[..kept] == peer.bytes[..kept];
            let rest = room.bytes[kept..].iter().all(|byte| *byte == 0xaa);
            t.say(format_args!("{family:?} room {length}: {}, cut right {}", room.length, same && rest));
        }
    }
}
case!(peer_address_cut as cut => include_str!("accept_address/cut.txt"));

/// If ACCEPT cannot write the peer's address, the connection is lost: ACCEPT has taken the
/// connection from the listener's queue before the write.
fn peer_address_wrong(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let room = Address::room(128);
        let negative = Address::room(u32::MAX);
        let huge = Address::room(i32::MAX as u32);
        let ways = [
            ("bad length address", room.at(), BAD),
            ("no length address", room.at(), 0),
            ("length in the kernel's half", room.at(), KERNEL_HALF),
            ("bad address", BAD, room.length_at()),
            ("address in the kernel's half", KERNEL_HALF, room.length_at()),
            ("negative length", room.at(), negative.length_at()),
            ("huge length", room.at(), huge.length_at()),
            ("only a length", 0, room.length_at()),
            ("only a bad length", 0, BAD),
        ];
        for (name, at, length_at) in ways {
            let client = net::connected(family, &address);
            let entry =
                ring.one(net::accept(listener.as_raw_fd(), 1).with(|sqe| (sqe.addr, sqe.off) = (at, length_at)));
            t.say(format_args!("{family:?} {name}: {}", crate::names::outcome(i64::from(entry.res))));
            // SAFETY: if the request has succeeded, the descriptor is new, and nothing else owns
            // it.
            drop((entry.res >= 0).then(|| unsafe { OwnedFd::from_raw_fd(entry.res) }));
            let left = is_ready(&listener);
            t.say(format_args!("still queued {left}"));
            if left {
                // SAFETY: accept(2) gets no address pointer. This function owns the new descriptor
                // and closes it.
                unsafe { libc::close(libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut())) };
            }
            drop(client);
        }
    }
    drop(ring);
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}
case!(peer_address_wrong as wrong => include_str!("accept_address/wrong.txt"));

fn peer_address_wrong_while_waiting(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1).with(|sqe| (sqe.addr, sqe.off) = (BAD, BAD)));
    ring.submit();
    t.in_order(&ring.reap());
    let client = net::connected(Family::V4, &address);
    t.in_order(&ring.wait(1));
    t.say(format_args!("still queued {}", is_ready(&listener)));
    // The kernel has closed the connection.
    t.say(format_args!("the client reads {:?}", files::take(&client, 1).map(|bytes| bytes.len())));
}
case!(peer_address_wrong_while_waiting as wrong_while_waiting => "
    no cqe
    cqe 1: -EFAULT
    still queued false
    the client reads Ok(0)
");

/// While an ACCEPT waits for a connection, the program may change the length of its address buffer.
/// The kernel reads that length only when a connection arrives.
fn length_is_read_late(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let mut room = Box::new(Address::room(0));
    ring.push(net::accept_from(listener.as_raw_fd(), &room, 1));
    ring.submit();
    t.in_order(&ring.reap());
    // SAFETY: the length word belongs to this case. The ACCEPT reads it only when a connection
    // arrives.
    unsafe { (&raw mut room.length).write_volatile(8) };
    let _client = net::connected(Family::V4, &address);
    for entry in ring.wait(1) {
        taken(t, &entry);
    }
    let room = std::hint::black_box(room);
    t.say(format_args!("length {}, written {}", room.length, room.bytes[8] == 0xaa && room.bytes[0] == 2));
}
case!(length_is_read_late => "
    no cqe
    cqe 1: ok
    length 16, written true
");
