//! CONNECT: immediate, after a wait, refused, cancelled.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, Timespec, io_uring as u, sqe_flags};

use super::accept::is_ready;
use super::socket::sparse;
use crate::case::{Case, case};
use crate::files;
use crate::memory::{BAD, KERNEL_HALF};
use crate::net::{self, Address, FAMILIES, Family};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, link_timeout, nop, write};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("connect.connects", connects),
    case("connect.nonblocking_socket", nonblocking_socket),
    case("connect.stays_blocking", stays_blocking),
    case("connect.refused", refused),
    case("connect.connected_already", connected_already),
    case("connect.wrong_files", wrong_files),
    case("connect.wrong_addresses", wrong_addresses),
    case("connect.bad_address_ends_batch", bad_address_ends_batch),
    case("connect.address_may_be_reused", address_may_be_reused),
    case("connect.reserved_fields", reserved_fields),
    case("connect.datagrams", datagrams),
    case("connect.sequenced_packets", sequenced_packets),
    case("connect.waits_for_room", waits_for_room),
    case("connect.waits_cancelled", waits_cancelled),
    case("connect.waits_link_timeout", waits_link_timeout),
    case("connect.waits_and_ring_closes", waits_and_ring_closes),
    case("connect.begun_by_a_call", begun_by_a_call),
    case("connect.unix_waits_for_room", unix_waits_for_room),
    case("connect.unix_nonblocking_has_no_room", unix_nonblocking_has_no_room),
    case("connect.unix_waits_and_ring_closes", unix_waits_and_ring_closes),
    case("connect.unix_listener_goes", unix_listener_goes),
    case("connect.unix_path", unix_path),
    case("connect.linked_write", linked_write),
    case("connect.forced_async", forced_async),
    case("connect.direct_descriptor", direct_descriptor),
    case("connect.skip_success", skip_success),
    case("connect.deferred", deferred),
    case("connect.many", many),
];

fn accepted(listener: &OwnedFd) -> OwnedFd {
    // SAFETY: the call asks for no address. The descriptor is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut())) }
}

fn connects(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        ring.push(net::connect(client.as_raw_fd(), &address, 1));
        t.result("submit", ring.submit());
        t.in_order(&ring.wait(1));
        let server = accepted(&listener);
        t.say(format_args!("{family:?} data passes {}", net::passes(&client, server.as_raw_fd())));
    }
}

fn nonblocking_socket(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        files::set_nonblocking(&client, true);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        let server = accepted(&listener);
        t.say(format_args!("{family:?} data passes {}", net::passes(&client, server.as_raw_fd())));
        t.say(format_args!("it is {}", super::socket::describe(client.as_raw_fd())));
    }
}

fn stays_blocking(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (_listener, address) = net::listener(family);
        let client = net::stream(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        t.say(format_args!("it is {}", super::socket::describe(client.as_raw_fd())));
    }
}

fn refused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let address = net::deserted(family);
        let client = net::stream(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        // The socket may try again.
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 2)));
        let (_listener, address) = net::listener(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 3)));
    }
}

fn connected_already(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::connected(family, &address);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        t.entry(&ring.one(net::connect(listener.as_raw_fd(), &address, 2)));
        let by_ring = net::stream(family);
        t.entry(&ring.one(net::connect(by_ring.as_raw_fd(), &address, 3)));
        t.entry(&ring.one(net::connect(by_ring.as_raw_fd(), &address, 4)));
        t.result("connect(2)", net::connect_now(by_ring.as_raw_fd(), &address));
    }
}

fn wrong_files(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_listener, address) = net::listener(Family::V4);
    let (reader, _writer) = files::pipe();
    t.entry(&ring.one(net::connect(-1, &address, 1)));
    t.entry(&ring.one(net::connect(reader.as_raw_fd(), &address, 2)));
    t.entry(&ring.one(net::connect(files::memory_file(b"").as_raw_fd(), &address, 3)));
    t.entry(&ring.one(net::connect(0, &address, 4).fixed()));
    t.entry(&ring.one(net::connect(net::stream(Family::Unix).as_raw_fd(), &address, 5)));
    t.entry(&ring.one(net::connect(net::stream(Family::V6).as_raw_fd(), &address, 6)));
}

fn wrong_addresses(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_listener, address) = net::listener(Family::V4);
    let at = address.at();
    let lengths = [0, 1, 2, 15, 128, 129, 1 << 31, u64::from(u32::MAX), 1 << 32 | 16];
    let bad = [(BAD, 16), (0, 16), (0, 0), (KERNEL_HALF, 16), (u64::MAX - 8, 16)];
    for (address, length) in lengths.into_iter().map(|length| (at, length)).chain(bad) {
        let client = net::stream(Family::V4);
        let connect = sqe_with(client.as_raw_fd(), address, length);
        let entry = ring.one(connect);
        t.result(format_args!("length {length:#x}"), entry.res);
    }
    let mut other = address;
    other.bytes[0] = 77;
    t.entry(&ring.one(net::connect(net::stream(Family::V4).as_raw_fd(), &other, 2)));
    // Port 0 of this machine, and an address that cannot be reached.
    t.entry(&ring.one(net::connect(net::stream(Family::V4).as_raw_fd(), &Address::v4(0), 3)));
    let mut broadcast = address;
    broadcast.bytes[4..8].copy_from_slice(&[255; 4]);
    t.entry(&ring.one(net::connect(net::stream(Family::V4).as_raw_fd(), &broadcast, 4)));
    t.entry(&ring.one(net::connect(net::stream(Family::Unix).as_raw_fd(), &Family::Unix.any(), 5)));
}

fn sqe_with(fd: i32, address: u64, length: u64) -> Sqe {
    Sqe { addr: address, off: length, ..net::connect(fd, &Address::v4(0), 1) }
}

fn bad_address_ends_batch(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let client = net::stream(Family::V4);
    ring.push(sqe_with(client.as_raw_fd(), BAD, 16));
    ring.push(nop(2));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}

/// The program may reuse the address when the call has returned.
fn address_may_be_reused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        let mut copy = Box::new(address);
        let mut byte = [0u8; 1];
        ring.push(crate::sqe::read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
        ring.push(net::connect(client.as_raw_fd(), &copy, 2));
        ring.submit();
        copy.bytes = [0xff; 128];
        std::hint::black_box(&mut copy);
        files::put(&writer, b"x");
        t.in_order(&ring.wait(2));
        let server = accepted(&listener);
        t.say(format_args!("data passes {}", net::passes(&client, server.as_raw_fd())));
    }
}

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    type Field = (&'static str, fn(&mut Sqe));
    let fields: [Field; 7] = [
        ("len", |sqe| sqe.len = 1),
        ("op_flags", |sqe| sqe.op_flags = 1),
        ("buf_index", |sqe| sqe.buf_index = 1),
        ("file_index", |sqe| sqe.file_index = 1),
        ("ioprio", |sqe| sqe.ioprio = 1),
        ("addr3", |sqe| sqe.addr3 = 1),
        ("buffer select", |sqe| sqe.flags |= sqe_flags::BUFFER_SELECT),
    ];
    let (_listener, address) = net::listener(Family::V4);
    for (name, set) in fields {
        let client = net::stream(Family::V4);
        let entry = ring.one(net::connect(client.as_raw_fd(), &address, 1).with(set));
        t.say(format_args!("{name}: {}", crate::names::outcome(i64::from(entry.res))));
    }
}

fn datagrams(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (here, there) = (net::of_kind(family, libc::SOCK_DGRAM), net::of_kind(family, libc::SOCK_DGRAM));
        assert_eq!(net::bind(&there, &family.any()), 0);
        let address = net::address_of(there.as_raw_fd());
        t.entry(&ring.one(net::connect(here.as_raw_fd(), &address, 1)));
        t.say(format_args!("{family:?} data passes {}", net::passes(&here, there.as_raw_fd())));
        t.entry(&ring.one(net::connect(here.as_raw_fd(), &address, 2)));
        t.say(format_args!("it is {}", super::socket::describe(here.as_raw_fd())));
    }
    // A peer with a socket of another kind.
    let (_listener, address) = net::listener(Family::Unix);
    let here = net::of_kind(Family::Unix, libc::SOCK_DGRAM);
    t.entry(&ring.one(net::connect(here.as_raw_fd(), &address, 3)));
}

fn sequenced_packets(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let listener = net::of_kind(Family::Unix, libc::SOCK_SEQPACKET);
    assert_eq!(net::bind(&listener, &Family::Unix.any()), 0);
    // SAFETY: the call touches no memory.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 4) }, 0);
    let client = net::of_kind(Family::Unix, libc::SOCK_SEQPACKET);
    t.entry(&ring.one(net::connect(client.as_raw_fd(), &net::address_of(listener.as_raw_fd()), 1)));
    let entry = ring.one(net::accept(listener.as_raw_fd(), 2));
    if let Some(server) = super::socket::taken(t, &entry) {
        t.say(format_args!("data passes {}", net::passes(&client, server.as_raw_fd())));
    }
}

/// Fills a listener's queue. A full queue drops the SYN of a new connection, and the client repeats
/// it after a second. Returns the connections in the queue.
fn full(listener: &OwnedFd, address: &Address) -> Vec<OwnedFd> {
    let mut clients = Vec::new();
    loop {
        let client = net::stream(Family::V4);
        files::set_nonblocking(&client, true);
        net::connect_now(client.as_raw_fd(), address);
        let mut one = libc::pollfd { fd: client.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: the array has one element.
        let done = unsafe { libc::poll(&raw mut one, 1, 30) == 1 };
        if !done {
            return clients;
        }
        clients.push(client);
        assert!(clients.len() < 64, "a queue of {} never fills", listener.as_raw_fd());
    }
}

fn waits_for_room(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    t.result("submit", ring.submit());
    t.entry(&ring.one(nop(2)));
    t.say(format_args!("it is {}", super::socket::describe(client.as_raw_fd())));
    for _ in &queued {
        drop(accepted(&listener));
    }
    t.in_order(&ring.wait(1));
    t.result("connect(2)", net::connect_now(client.as_raw_fd(), &address));
}

fn waits_cancelled(t: &mut Transcript) {
    let before = files::settled_numbers();
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
    drop((queued, client, listener, ring));
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}

fn waits_link_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    let time = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    ring.push(net::connect(client.as_raw_fd(), &address, 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    drop(queued);
}

fn waits_and_ring_closes(t: &mut Transcript) {
    let before = files::settled_numbers();
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    let mut ring = Ring::new(4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    ring.submit();
    t.in_order(&ring.reap());
    drop(ring);
    drop((queued, client, listener));
    let gone = crate::time::until(|| files::open_numbers() == before);
    t.say(format_args!("nothing left open {gone}"));
}

/// The program has started the connection by a call of its own.
fn begun_by_a_call(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::V4, 1);
    let queued = full(&listener, &address);
    let client = net::stream(Family::V4);
    files::set_nonblocking(&client, true);
    t.result("connect(2)", net::connect_now(client.as_raw_fd(), &address));
    t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
    drop(queued);
}

/// Fills the queue of a unix listener, so that further connects wait.
fn unix_full(listener: &OwnedFd) -> Vec<OwnedFd> {
    let address = net::address_of(listener.as_raw_fd());
    let mut clients = Vec::new();
    loop {
        let client = net::stream(Family::Unix);
        files::set_nonblocking(&client, true);
        if net::connect_now(client.as_raw_fd(), &address) != 0 {
            return clients;
        }
        clients.push(client);
    }
}

fn unix_waits_for_room(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::Unix, 1);
    let queued = unix_full(&listener);
    let client = net::stream(Family::Unix);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    t.result("submit", ring.submit());
    t.entry(&ring.one(nop(2)));
    for _ in 0..=queued.len() {
        crate::time::until(|| is_ready(&listener));
        drop(accepted(&listener));
    }
    t.in_order(&ring.wait(1));
}

/// For unix sockets O_NONBLOCK counts: there is nothing to poll for.
fn unix_nonblocking_has_no_room(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::Unix, 1);
    let queued = unix_full(&listener);
    let client = net::stream(Family::Unix);
    files::set_nonblocking(&client, true);
    t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
    drop(queued);
}

fn unix_waits_and_ring_closes(t: &mut Transcript) {
    let before = files::settled_numbers();
    let (listener, address) = net::listener_for(Family::Unix, 1);
    let queued = unix_full(&listener);
    let client = net::stream(Family::Unix);
    let mut ring = Ring::new(4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    drop((ring, queued, client, listener));
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}

fn unix_listener_goes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener_for(Family::Unix, 1);
    let queued = unix_full(&listener);
    let client = net::stream(Family::Unix);
    ring.push(net::connect(client.as_raw_fd(), &address, 1));
    t.result("submit", ring.submit());
    drop(listener);
    t.in_order(&ring.wait(1));
    drop(queued);
}

fn unix_path(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = files::Scratch::new();
    let path = scratch.path_of("socket");
    let mut named: libc::sockaddr_un = crate::memory::zeroed();
    named.sun_family = libc::AF_UNIX as u16;
    for (place, byte) in named.sun_path.iter_mut().zip(path.as_bytes_with_nul()) {
        *place = *byte as libc::c_char;
    }
    let address = Address::of(&named, size_of_val(&named));
    let listener = net::stream(Family::Unix);
    t.entry(&ring.one(net::connect(net::stream(Family::Unix).as_raw_fd(), &address, 1)));
    t.entry(&ring.one(net::bind_to(listener.as_raw_fd(), &address, 2)));
    t.entry(&ring.one(net::connect(net::stream(Family::Unix).as_raw_fd(), &address, 3)));
    t.entry(&ring.one(net::listen(listener.as_raw_fd(), 4, 4)));
    let client = net::stream(Family::Unix);
    t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 5)));
    let server = accepted(&listener);
    t.say(format_args!("data passes {}", net::passes(&client, server.as_raw_fd())));
}

fn linked_write(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        ring.push(net::connect(client.as_raw_fd(), &address, 1).linked());
        ring.push(write(client.as_raw_fd(), b"hello", 0, 2));
        ring.submit();
        t.in_order(&ring.wait(2));
        let server = accepted(&listener);
        t.say(format_args!("{:?}", files::take(&server, 10).map(|bytes| bytes.len())));
        let other = net::stream(family);
        let nobody = net::deserted(family);
        ring.push(net::connect(other.as_raw_fd(), &nobody, 3).linked());
        ring.push(write(other.as_raw_fd(), b"hello", 0, 4));
        ring.submit();
        t.in_order(&ring.wait(2));
    }
}

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1).forced_async()));
        let server = accepted(&listener);
        t.say(format_args!("data passes {}", net::passes(&client, server.as_raw_fd())));
        let other = net::stream(family);
        t.entry(&ring.one(net::connect(other.as_raw_fd(), &net::deserted(family), 2).forced_async()));
    }
}

fn direct_descriptor(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = sparse(1);
        let (listener, address) = net::listener(family);
        ring.push(net::socket(family.number(), libc::SOCK_STREAM, 0, 1).with(|sqe| sqe.file_index = 1).linked());
        ring.push(net::connect(0, &address, 2).fixed().linked());
        ring.push(write(0, b"hello", 0, 3).fixed());
        ring.submit();
        t.in_order(&ring.wait(3));
        let server = accepted(&listener);
        t.say(format_args!("{:?}", files::take(&server, 10).map(|bytes| bytes.len())));
    }
}

fn skip_success(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let client = net::stream(Family::V4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    ring.submit();
    drop(accepted(&listener));
    t.in_order(&ring.reap());
}

fn deferred(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN);
    for family in FAMILIES {
        let (_listener, address) = net::listener(family);
        let client = net::stream(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        let other = net::stream(family);
        t.entry(&ring.one(net::connect(other.as_raw_fd(), &net::deserted(family), 2)));
    }
}

fn many(t: &mut Transcript) {
    let before = files::settled_numbers();
    let mut ring = Ring::new(64);
    for family in FAMILIES {
        let (listener, address) = net::listener_for(family, 256);
        let clients: Vec<OwnedFd> = (0..50).map(|_| net::stream(family)).collect();
        for (user_data, client) in clients.iter().enumerate() {
            ring.push(net::connect(client.as_raw_fd(), &address, user_data as u64));
        }
        ring.submit();
        let entries = ring.wait(50);
        let good = entries.iter().filter(|entry| entry.res == 0).count();
        for _ in 0..good {
            drop(accepted(&listener));
        }
        t.say(format_args!("{family:?} connected {good}"));
    }
    drop(ring);
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}
