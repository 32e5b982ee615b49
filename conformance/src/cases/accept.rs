//! ACCEPT of one connection: its wait, the new descriptor, the peer's address, and errors.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::sqe_flags;

use super::socket::{describe, taken};
use crate::files;
use crate::net::{self, FAMILIES, Family};
use crate::ring::Ring;
use crate::sqe::{Change, fields, nop};
use crate::transcript::Transcript;

mod waiting;

fn connection_is_there(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::connected(family, &address);
        ring.push(net::accept(listener.as_raw_fd(), 1));
        t.result("submit", ring.submit());
        for entry in ring.reap() {
            let Some(server) = taken(t, &entry) else { continue };
            t.say(format_args!("{family:?} data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
        }
    }
}
case!(connection_is_there => "
    submit = 1
    cqe 1: ok
    V4 data passes true
    submit = 1
    cqe 1: ok
    V6 data passes true
    submit = 1
    cqe 1: ok
    Unix data passes true
");

fn waits_for_connection(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        ring.push(net::accept(listener.as_raw_fd(), 1));
        t.result("submit", ring.submit());
        // A NOP completes while the ACCEPT waits.
        ring.push(nop(2));
        ring.submit();
        t.in_order(&ring.reap());
        let client = net::connected(family, &address);
        for entry in ring.wait(1) {
            let Some(server) = taken(t, &entry) else { continue };
            t.say(format_args!("{family:?} data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
        }
    }
}
case!(waits_for_connection => "
    submit = 1
    cqe 2: 0
    cqe 1: ok
    V4 data passes true
    submit = 1
    cqe 2: 0
    cqe 1: ok
    V6 data passes true
    submit = 1
    cqe 2: 0
    cqe 1: ok
    Unix data passes true
");

fn nonblocking_listener_waits_too(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    files::set_nonblocking(&listener, true);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    let _client = net::connected(Family::V4, &address);
    for entry in ring.wait(1) {
        taken(t, &entry);
    }
}
case!(nonblocking_listener_waits_too => "
    submit = 1
    no cqe
    cqe 1: ok
");

fn order_of_connections(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let clients: Vec<OwnedFd> = (0..4).map(|_| net::connected(family, &address)).collect();
        for user_data in 0..4 {
            ring.push(net::accept(listener.as_raw_fd(), user_data));
        }
        ring.submit();
        for (entry, client) in ring.wait(4).iter().zip(&clients) {
            let Some(server) = taken(t, entry) else { continue };
            t.say(format_args!("of its own client {}", net::delivers_byte(client, server.as_raw_fd())));
        }
    }
}
case!(order_of_connections => "
    cqe 0: ok SOCK_NONEMPTY
    of its own client true
    cqe 1: ok SOCK_NONEMPTY
    of its own client true
    cqe 2: ok SOCK_NONEMPTY
    of its own client true
    cqe 3: ok
    of its own client true
    cqe 0: ok SOCK_NONEMPTY
    of its own client true
    cqe 1: ok SOCK_NONEMPTY
    of its own client true
    cqe 2: ok SOCK_NONEMPTY
    of its own client true
    cqe 3: ok
    of its own client true
    cqe 0: ok
    of its own client true
    cqe 1: ok
    of its own client true
    cqe 2: ok
    of its own client true
    cqe 3: ok
    of its own client true
");

fn several_wait(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (listener, address) = net::listener(Family::V4);
    for user_data in 1..=3 {
        ring.push(net::accept(listener.as_raw_fd(), user_data));
    }
    ring.submit();
    t.in_order(&ring.reap());
    let mut clients = Vec::new();
    let mut all = Vec::new();
    for _ in 0..3 {
        clients.push(net::connected(Family::V4, &address));
        all.extend(ring.wait(1));
    }
    all.sort_by_key(|entry| entry.user_data);
    for entry in all {
        taken(t, &entry);
    }
}
case!(several_wait => "
    no cqe
    cqe 1: ok
    cqe 2: ok
    cqe 3: ok
");

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        files::set_nonblocking(&listener, true);
        for flags in [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
            let _client = net::connected(family, &address);
            let entry = ring.one(net::accept(listener.as_raw_fd(), 1).op_flags(flags as u32));
            if let Some(server) = taken(t, &entry) {
                t.say(format_args!("it is {}", describe(server.as_raw_fd())));
            }
        }
    }
}
case!(flags => "
    cqe 1: ok
    it is\x20
    cqe 1: ok
    it is close-on-exec\x20
    cqe 1: ok
    it is non-blocking\x20
    cqe 1: ok
    it is close-on-exec non-blocking\x20
    cqe 1: ok
    it is\x20
    cqe 1: ok
    it is close-on-exec\x20
    cqe 1: ok
    it is non-blocking\x20
    cqe 1: ok
    it is close-on-exec non-blocking\x20
    cqe 1: ok
    it is\x20
    cqe 1: ok
    it is close-on-exec\x20
    cqe 1: ok
    it is non-blocking\x20
    cqe 1: ok
    it is close-on-exec non-blocking\x20
");

/// An ACCEPT's CQE has SOCK_NONEMPTY if the listener's queue holds another connection. A unix
/// listener never reports SOCK_NONEMPTY.
fn more_is_queued(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let clients: Vec<OwnedFd> = (0..3).map(|_| net::connected(family, &address)).collect();
        t.say(format_args!("{family:?}"));
        for user_data in 1..=3 {
            let entry = ring.one(net::accept(listener.as_raw_fd(), user_data));
            taken(t, &entry);
        }
        drop(clients);
    }
}
case!(more_is_queued => "
    V4
    cqe 1: ok SOCK_NONEMPTY
    cqe 2: ok SOCK_NONEMPTY
    cqe 3: ok
    V6
    cqe 1: ok SOCK_NONEMPTY
    cqe 2: ok SOCK_NONEMPTY
    cqe 3: ok
    Unix
    cqe 1: ok
    cqe 2: ok
    cqe 3: ok
");

/// Returns whether the listener's queue holds a connection.
pub fn is_ready(listener: &impl AsRawFd) -> bool {
    let mut one = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one element, a variable of this function.
    unsafe { libc::poll(&raw mut one, 1, 0) == 1 }
}

fn wrong_files(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let (here, _there) = files::sockets();
    let (_listener, address) = net::listener(Family::V4);
    t.entry(&ring.one(net::accept(-1, 1)));
    t.entry(&ring.one(net::accept(reader.as_raw_fd(), 2)));
    t.entry(&ring.one(net::accept(files::memory_file(b"").as_raw_fd(), 3)));
    t.entry(&ring.one(net::accept(here.as_raw_fd(), 4)));
    for family in FAMILIES {
        t.entry(&ring.one(net::accept(net::stream(family).as_raw_fd(), 5)));
        t.entry(&ring.one(net::accept(net::of_kind(family, libc::SOCK_DGRAM).as_raw_fd(), 6)));
    }
    t.entry(&ring.one(net::accept(net::connected(Family::V4, &address).as_raw_fd(), 7)));
    t.entry(&ring.one(net::accept(0, 8).fixed()));
    let numbers = [reader.as_raw_fd()];
    t.result("register", ring.register(super::reg::FILES, numbers.as_ptr(), 1));
    t.entry(&ring.one(net::accept(0, 9).fixed()));
    t.entry(&ring.one(net::accept(1, 10).fixed()));
}
case!(wrong_files => "
    cqe 1: -EBADF
    cqe 2: -ENOTSOCK
    cqe 3: -ENOTSOCK
    cqe 4: -EINVAL
    cqe 5: -EINVAL
    cqe 6: -EOPNOTSUPP
    cqe 5: -EINVAL
    cqe 6: -EOPNOTSUPP
    cqe 5: -EINVAL
    cqe 6: -EOPNOTSUPP
    cqe 7: -EINVAL
    cqe 8: -EBADF
    register = 0
    cqe 9: -ENOTSOCK
    cqe 10: -EBADF
");

fn wrong_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let _client = net::connected(Family::V4, &address);
    let number = listener.as_raw_fd();
    t.entry(&ring.one(net::accept(number, 1).op_flags(1)));
    t.entry(&ring.one(net::accept(number, 2).op_flags(libc::MSG_DONTWAIT as u32)));
    t.entry(&ring.one(net::accept(number, 3).op_flags(u32::MAX)));
    for bit in 3..16 {
        t.entry(&ring.one(net::accept(number, 100 + bit).with(|sqe| sqe.ioprio = 1 << bit)));
    }
    t.say(format_args!("still queued {}", is_ready(&listener)));
}
case!(wrong_flags => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 103: -EINVAL
    cqe 104: -EINVAL
    cqe 105: -EINVAL
    cqe 106: -EINVAL
    cqe 107: -EINVAL
    cqe 108: -EINVAL
    cqe 109: -EINVAL
    cqe 110: -EINVAL
    cqe 111: -EINVAL
    cqe 112: -EINVAL
    cqe 113: -EINVAL
    cqe 114: -EINVAL
    cqe 115: -EINVAL
    still queued true
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let clients: Vec<OwnedFd> = (0..4).map(|_| net::connected(Family::V4, &address)).collect();
    let fields = fields! {
        len = 1, buf_index = 1, file_index = 1, addr3 = 1,
        "buffer select" flags |= sqe_flags::BUFFER_SELECT,
    };
    t.each_named(&mut ring, net::accept(listener.as_raw_fd(), 1), &fields);
    drop(clients);
}
case!(reserved_fields => "
    len: -EINVAL
    buf_index: -EINVAL
    file_index: -ENXIO
    addr3: ok
    buffer select: -EOPNOTSUPP
");
