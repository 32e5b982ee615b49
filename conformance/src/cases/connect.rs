//! CONNECT: at once, after a wait, refused, cancelled.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, sqe_flags};

use super::socket::sparse;
use crate::files;
use crate::memory::{BAD, KERNEL_HALF};
use crate::net::{self, Address, FAMILIES, Family};
use crate::ring::{self, Ring};
use crate::sqe::{Change, fields, nop, write};
use crate::transcript::Transcript;

mod waiting;

fn accepted(listener: &OwnedFd) -> OwnedFd {
    // SAFETY: accept(2) gets no address pointer. The descriptor is new, and nothing else owns it.
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
        t.say(format_args!("{family:?} data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
    }
}
case!(connects => "
    submit = 1
    cqe 1: 0
    V4 data passes true
    submit = 1
    cqe 1: 0
    V6 data passes true
    submit = 1
    cqe 1: 0
    Unix data passes true
");

fn nonblocking_socket(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        files::set_nonblocking(&client, true);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        let server = accepted(&listener);
        t.say(format_args!("{family:?} data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
        t.say(format_args!("it is {}", super::socket::describe(client.as_raw_fd())));
    }
}
case!(nonblocking_socket => "
    cqe 1: 0
    V4 data passes true
    it is close-on-exec non-blocking\x20
    cqe 1: 0
    V6 data passes true
    it is close-on-exec non-blocking\x20
    cqe 1: 0
    Unix data passes true
    it is close-on-exec non-blocking\x20
");

fn stays_blocking(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (_listener, address) = net::listener(family);
        let client = net::stream(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        t.say(format_args!("it is {}", super::socket::describe(client.as_raw_fd())));
    }
}
case!(stays_blocking => "
    cqe 1: 0
    it is close-on-exec\x20
    cqe 1: 0
    it is close-on-exec\x20
    cqe 1: 0
    it is close-on-exec\x20
");

fn refused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let address = net::refusing_address(family);
        let client = net::stream(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        // After a failed CONNECT, the socket can be used for another CONNECT.
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 2)));
        let (_listener, address) = net::listener(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 3)));
    }
}
case!(refused => "
    cqe 1: -ECONNREFUSED
    cqe 2: -ECONNREFUSED
    cqe 3: 0
    cqe 1: -ECONNREFUSED
    cqe 2: -ECONNREFUSED
    cqe 3: 0
    cqe 1: -ECONNREFUSED
    cqe 2: -ECONNREFUSED
    cqe 3: 0
");

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
case!(connected_already => "
    cqe 1: -EISCONN
    cqe 2: -EISCONN
    cqe 3: 0
    cqe 4: -EISCONN
    connect(2) = -EISCONN
    cqe 1: -EISCONN
    cqe 2: -EISCONN
    cqe 3: 0
    cqe 4: -EISCONN
    connect(2) = -EISCONN
    cqe 1: -EISCONN
    cqe 2: -EINVAL
    cqe 3: 0
    cqe 4: -EISCONN
    connect(2) = -EISCONN
");

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
case!(wrong_files => "
    cqe 1: -EBADF
    cqe 2: -ENOTSOCK
    cqe 3: -ENOTSOCK
    cqe 4: -EBADF
    cqe 5: -EINVAL
    cqe 6: -EINVAL
");

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
    // The first CONNECT goes to port 0 of this machine, the second to the broadcast address.
    t.entry(&ring.one(net::connect(net::stream(Family::V4).as_raw_fd(), &Address::v4(0), 3)));
    let mut broadcast = address;
    broadcast.bytes[4..8].copy_from_slice(&[255; 4]);
    t.entry(&ring.one(net::connect(net::stream(Family::V4).as_raw_fd(), &broadcast, 4)));
    t.entry(&ring.one(net::connect(net::stream(Family::Unix).as_raw_fd(), &Family::Unix.any(), 5)));
}
case!(wrong_addresses => "
    length 0x0 = -EINVAL
    length 0x1 = -EINVAL
    length 0x2 = -EINVAL
    length 0xf = -EINVAL
    length 0x80 = 0
    length 0x81 = -EINVAL
    length 0x80000000 = -EINVAL
    length 0xffffffff = -EINVAL
    length 0x100000010 = 0
    length 0x10 = -EFAULT
    length 0x10 = -EFAULT
    length 0x0 = -EINVAL
    length 0x10 = -EFAULT
    length 0x10 = -EFAULT
    cqe 2: -EAFNOSUPPORT
    cqe 3: -ECONNREFUSED
    cqe 4: -ENETUNREACH
    cqe 5: -EINVAL
");

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
case!(bad_address_ends_batch => "
    submit = 1
    cqe 1: -EFAULT
");

/// The program may reuse the memory of the address once io_uring_enter(2) has returned: CONNECT has
/// copied the address.
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
        t.say(format_args!("data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
    }
}
case!(address_may_be_reused => "
    cqe 1: 1
    cqe 2: 0
    data passes true
    cqe 1: 1
    cqe 2: 0
    data passes true
    cqe 1: 1
    cqe 2: 0
    data passes true
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let fields = fields! {
        len = 1, op_flags = 1, buf_index = 1, file_index = 1, ioprio = 1, addr3 = 1,
        "buffer select" flags |= sqe_flags::BUFFER_SELECT,
    };
    let (_listener, address) = net::listener(Family::V4);
    for (name, set) in fields {
        let client = net::stream(Family::V4);
        let entry = ring.one(net::connect(client.as_raw_fd(), &address, 1).with(set));
        t.say(format_args!("{name}: {}", crate::names::outcome(i64::from(entry.res))));
    }
}
case!(reserved_fields => "
    len: -EINVAL
    op_flags: -EINVAL
    buf_index: -EINVAL
    file_index: -EINVAL
    ioprio: -EINVAL
    addr3: ok
    buffer select: -EOPNOTSUPP
");

fn datagrams(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (here, there) = (net::of_kind(family, libc::SOCK_DGRAM), net::of_kind(family, libc::SOCK_DGRAM));
        assert_eq!(net::bind(&there, &family.any()), 0);
        let address = net::address_of(there.as_raw_fd());
        t.entry(&ring.one(net::connect(here.as_raw_fd(), &address, 1)));
        t.say(format_args!("{family:?} data passes {}", net::delivers_byte(&here, there.as_raw_fd())));
        t.entry(&ring.one(net::connect(here.as_raw_fd(), &address, 2)));
        t.say(format_args!("it is {}", super::socket::describe(here.as_raw_fd())));
    }
    // The client's socket is a datagram socket, and the listener's is a stream socket.
    let (_listener, address) = net::listener(Family::Unix);
    let here = net::of_kind(Family::Unix, libc::SOCK_DGRAM);
    t.entry(&ring.one(net::connect(here.as_raw_fd(), &address, 3)));
}
case!(datagrams => "
    cqe 1: 0
    V4 data passes true
    cqe 2: 0
    it is close-on-exec\x20
    cqe 1: 0
    V6 data passes true
    cqe 2: 0
    it is close-on-exec\x20
    cqe 1: 0
    Unix data passes true
    cqe 2: 0
    it is close-on-exec\x20
    cqe 3: -ECONNREFUSED
");

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
        t.say(format_args!("data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
    }
}
case!(sequenced_packets => "
    cqe 1: 0
    cqe 2: ok
    data passes true
");

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
    t.say(format_args!("data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
}
case!(unix_path => "
    cqe 1: -ENOENT
    cqe 2: 0
    cqe 3: -ECONNREFUSED
    cqe 4: 0
    cqe 5: 0
    data passes true
");

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
        let nobody = net::refusing_address(family);
        ring.push(net::connect(other.as_raw_fd(), &nobody, 3).linked());
        ring.push(write(other.as_raw_fd(), b"hello", 0, 4));
        ring.submit();
        t.in_order(&ring.wait(2));
    }
}
case!(linked_write => "
    cqe 1: 0
    cqe 2: 5
    Ok(5)
    cqe 3: -ECONNREFUSED
    cqe 4: -ECANCELED
    cqe 1: 0
    cqe 2: 5
    Ok(5)
    cqe 3: -ECONNREFUSED
    cqe 4: -ECANCELED
    cqe 1: 0
    cqe 2: 5
    Ok(5)
    cqe 3: -ECONNREFUSED
    cqe 4: -ECANCELED
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1).forced_async()));
        let server = accepted(&listener);
        t.say(format_args!("data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
        let other = net::stream(family);
        t.entry(&ring.one(net::connect(other.as_raw_fd(), &net::refusing_address(family), 2).forced_async()));
    }
}
case!(forced_async => "
    cqe 1: 0
    data passes true
    cqe 2: -ECONNREFUSED
    cqe 1: 0
    data passes true
    cqe 2: -ECONNREFUSED
    cqe 1: 0
    data passes true
    cqe 2: -ECONNREFUSED
");

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
case!(direct_descriptor => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 5
    Ok(5)
    cqe 1: 0
    cqe 2: 0
    cqe 3: 5
    Ok(5)
    cqe 1: 0
    cqe 2: 0
    cqe 3: 5
    Ok(5)
");

fn skip_success(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let client = net::stream(Family::V4);
    ring.push(net::connect(client.as_raw_fd(), &address, 1).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    ring.submit();
    drop(accepted(&listener));
    t.in_order(&ring.reap());
}
case!(skip_success => "no cqe");

fn deferred(t: &mut Transcript) {
    let mut ring = Ring::flags(4, ring::DEFER);
    for family in FAMILIES {
        let (_listener, address) = net::listener(family);
        let client = net::stream(family);
        t.entry(&ring.one(net::connect(client.as_raw_fd(), &address, 1)));
        let other = net::stream(family);
        t.entry(&ring.one(net::connect(other.as_raw_fd(), &net::refusing_address(family), 2)));
    }
}
case!(deferred => "
    cqe 1: 0
    cqe 2: -ECONNREFUSED
    cqe 1: 0
    cqe 2: -ECONNREFUSED
    cqe 1: 0
    cqe 2: -ECONNREFUSED
");

fn many(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
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
case!(many => "
    V4 connected 50
    V6 connected 50
    Unix connected 50
    nothing left open true
");
