//! BIND and LISTEN on sockets of each family.

use super::reserved;
use crate::files;
use crate::memory::BAD;
use crate::net::{self, FAMILIES, Family};
use crate::ring::Ring;
use crate::sqe::Change;
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;

fn bind(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let fd = net::stream(family);
        t.entry(&ring.one(net::bind_to(fd.as_raw_fd(), &family.any(), 1)));
        let address = net::address_of(fd.as_raw_fd());
        t.say(format_args!("{family:?}: {}", i32::from(address.family()) == family.number()));
    }
}
case!(bind => "
    cqe 1: 0
    V4: true
    cqe 1: 0
    V6: true
    cqe 1: 0
    Unix: true
");

fn bind_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let any = Family::V4.any();
    let (reader, _writer) = files::pipe();
    t.entry(&ring.one(net::bind_to(reader.as_raw_fd(), &any, 1)));
    t.entry(&ring.one(net::bind_to(-1, &any, 2)));
    let at = any.at();
    let lengths = [(at, 0), (at, 2), (at, 15), (at, 128), (at, 129), (at, u64::from(u32::MAX)), (at, 1 << 32 | 16)];
    for (address, length) in [(BAD, 16), (0, 16), (0, 0)].into_iter().chain(lengths) {
        let fd = net::stream(Family::V4);
        let bind = net::bind_to(fd.as_raw_fd(), &any, 3).with(|sqe| (sqe.addr, sqe.off) = (address, length));
        let entry = ring.one(bind);
        t.result(format_args!("length {length:#x}"), entry.res);
    }
    let fd = net::stream(Family::V4);
    t.entry(&ring.one(net::bind_to(fd.as_raw_fd(), &Family::Unix.any(), 4)));
    // The address is not one of this machine.
    let mut foreign = any;
    foreign.bytes[4..8].copy_from_slice(&[192, 0, 2, 1]);
    t.entry(&ring.one(net::bind_to(fd.as_raw_fd(), &foreign, 5)));
    // The kernel copies the address when it takes the SQE. If the address is bad, the batch ends
    // with this SQE.
    ring.push(net::bind_to(fd.as_raw_fd(), &any, 6).with(|sqe| sqe.addr = BAD));
    ring.push(crate::sqe::nop(7));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(bind_wrong => "
    cqe 1: -ENOTSOCK
    cqe 2: -EBADF
    length 0x10 = -EFAULT
    length 0x10 = -EFAULT
    length 0x0 = -EINVAL
    length 0x0 = -EINVAL
    length 0x2 = -EINVAL
    length 0xf = -EINVAL
    length 0x80 = 0
    length 0x81 = -EINVAL
    length 0xffffffff = -EINVAL
    length 0x100000010 = 0
    cqe 4: -EINVAL
    cqe 5: -EADDRNOTAVAIL
    submit = 1
    cqe 6: -EFAULT
");

fn bind_twice(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (fd, address) = net::listener(family);
        let other = net::stream(family);
        t.entry(&ring.one(net::bind_to(other.as_raw_fd(), &address, 1)));
        t.entry(&ring.one(net::bind_to(fd.as_raw_fd(), &family.any(), 2)));
    }
}
case!(bind_twice => "
    cqe 1: -EADDRINUSE
    cqe 2: -EINVAL
    cqe 1: -EADDRINUSE
    cqe 2: -EINVAL
    cqe 1: -EADDRINUSE
    cqe 2: 0
");

fn bind_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let fd = net::stream(Family::V4);
    let any = Family::V4.any();
    reserved(t, &mut ring, net::bind_to(fd.as_raw_fd(), &any, 1));
}
case!(bind_reserved_fields => "
    addr: -EFAULT
    off: -EINVAL
    len: -EINVAL
    op_flags: -EINVAL
    buf_index: -EINVAL
    ioprio: -EINVAL
    addr3: ok
    buffer select: -EOPNOTSUPP
    file_index: -EINVAL
");

fn listen(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let fd = net::stream(family);
        assert_eq!(net::bind(&fd, &family.any()), 0);
        t.entry(&ring.one(net::listen(fd.as_raw_fd(), 4, 1)));
        t.entry(&ring.one(net::listen(fd.as_raw_fd(), 0, 2)));
        t.entry(&ring.one(net::listen(fd.as_raw_fd(), u32::MAX, 3)));
        drop(net::connected(family, &net::address_of(fd.as_raw_fd())));
    }
}
case!(listen => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
");

fn listen_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    t.entry(&ring.one(net::listen(reader.as_raw_fd(), 1, 1)));
    t.entry(&ring.one(net::listen(-1, 1, 2)));
    let datagrams = net::of_kind(Family::V4, libc::SOCK_DGRAM);
    t.entry(&ring.one(net::listen(datagrams.as_raw_fd(), 1, 3)));
    let (_listener, address) = net::listener(Family::V4);
    let client = net::connected(Family::V4, &address);
    t.entry(&ring.one(net::listen(client.as_raw_fd(), 1, 4)));
    // These sockets were not bound. LISTEN on an inet socket chooses a port. LISTEN on a unix
    // socket is refused, because the socket has no name.
    t.entry(&ring.one(net::listen(net::stream(Family::V4).as_raw_fd(), 1, 5)));
    t.entry(&ring.one(net::listen(net::stream(Family::Unix).as_raw_fd(), 1, 6)));
}
case!(listen_wrong => "
    cqe 1: -ENOTSOCK
    cqe 2: -EBADF
    cqe 3: -EOPNOTSUPP
    cqe 4: -EINVAL
    cqe 5: 0
    cqe 6: -EINVAL
");

fn listen_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (fd, _) = net::listener(Family::V4);
    reserved(t, &mut ring, net::listen(fd.as_raw_fd(), 1, 1));
}
case!(listen_reserved_fields => "
    addr: -EINVAL
    off: -EINVAL
    len: ok
    op_flags: -EINVAL
    buf_index: -EINVAL
    ioprio: -EINVAL
    addr3: ok
    buffer select: -EOPNOTSUPP
    file_index: -EINVAL
");
