//! SOCKET, BIND, LISTEN and SHUTDOWN: a socket from its creation to its end.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::case::{Case, case, differs};
use crate::files;
use crate::memory::BAD;
use crate::net::{self, FAMILIES, Family};
use crate::ring::Ring;
use crate::sqe::{Change, nop, read};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("socket.made", made),
    case("socket.flags", flags),
    case("socket.wrong", wrong),
    case("socket.reserved_fields", reserved_fields),
    case("socket.direct", direct),
    case("socket.direct_allocates", direct_allocates),
    case("socket.direct_close_on_exec", direct_close_on_exec),
    case("socket.direct_without_table", direct_without_table),
    case("socket.too_many", too_many),
    differs("socket.no_number_is_free", no_number_is_free, "a direct descriptor has an ordinary number for a moment"),
    case("socket.forced_async", forced_async),
    case("socket.skip_success", skip_success),
    case("socket.polled_ring", polled_ring),
    case("socket.server_in_a_chain", server_in_a_chain),
    case("socket.both_ends_by_an_sq_thread", both_ends_by_an_sq_thread),
    case("socket.bind", bind),
    case("socket.bind_wrong", bind_wrong),
    case("socket.bind_twice", bind_twice),
    case("socket.bind_reserved_fields", bind_reserved_fields),
    case("socket.listen", listen),
    case("socket.listen_wrong", listen_wrong),
    case("socket.listen_reserved_fields", listen_reserved_fields),
    case("socket.shutdown", shutdown),
    case("socket.shutdown_wrong", shutdown_wrong),
    case("socket.shutdown_breaks_no_chain", shutdown_breaks_no_chain),
    case("socket.shutdown_reserved_fields", shutdown_reserved_fields),
    case("socket.shutdown_ends_a_read", shutdown_ends_a_read),
];

/// `IORING_FILE_INDEX_ALLOC` as the SQE's field holds it.
pub const ALLOCATE: u32 = u32::MAX;

/// Makes a ring with an empty table of this many slots.
pub fn sparse(slots: u32) -> Ring {
    sparse_with(slots, 0)
}

pub fn sparse_with(slots: u32, setup: u32) -> Ring {
    let ring = Ring::flags(8, setup);
    let numbers = vec![-1i32; slots as usize];
    assert_eq!(ring.register(reg::FILES, numbers.as_ptr(), slots), 0);
    ring
}

/// Prints the completion of a request whose result is a new descriptor. Returns that descriptor, if
/// there is one.
pub fn taken(t: &mut Transcript, entry: &crate::ring::Entry) -> Option<OwnedFd> {
    let result = crate::names::outcome(i64::from(entry.res));
    let flags = if entry.flags == 0 { String::new() } else { format!(" {}", crate::names::cqe_flags(entry.flags)) };
    t.say(format_args!("cqe {}: {result}{flags}", entry.user_data));
    // SAFETY: the descriptor is new, and nothing else owns it.
    (entry.res >= 0).then(|| unsafe { OwnedFd::from_raw_fd(entry.res) })
}

/// Returns the flags of a descriptor and its file, as far as they can be queried.
pub fn describe(fd: i32) -> String {
    // SAFETY: the call touches no memory.
    let (own, status) = unsafe { (libc::fcntl(fd, libc::F_GETFD), libc::fcntl(fd, libc::F_GETFL)) };
    let word = |set: bool, name: &'static str| if set { name } else { "" };
    format!(
        "{}{}",
        word(own & libc::FD_CLOEXEC != 0, "close-on-exec "),
        word(status & libc::O_NONBLOCK != 0, "non-blocking ")
    )
}

fn option(fd: i32, name: i32) -> i32 {
    let mut value = -1;
    let mut size = 4u32;
    // SAFETY: the value is a variable of this function.
    unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut size) };
    value
}

fn made(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            let entry = ring.one(net::socket(family.number(), kind, 0, 1));
            let Some(fd) = taken(t, &entry) else { continue };
            let same = option(fd.as_raw_fd(), libc::SO_DOMAIN) == family.number();
            t.say(format_args!("{family:?} {same} kind {}", option(fd.as_raw_fd(), libc::SO_TYPE) == kind));
        }
    }
}

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for flags in [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
        let entry = ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM | flags, libc::IPPROTO_TCP, 1));
        if let Some(fd) = taken(t, &entry) {
            t.say(format_args!("it is {}", describe(fd.as_raw_fd())));
        }
    }
}

fn wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(net::socket(9999, libc::SOCK_STREAM, 0, 1)));
    t.entry(&ring.one(net::socket(-1, libc::SOCK_STREAM, 0, 2)));
    t.entry(&ring.one(net::socket(libc::AF_INET, 15, 0, 3)));
    t.entry(&ring.one(net::socket(libc::AF_INET, 0, 0, 4)));
    t.entry(&ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP, 5)));
    t.entry(&ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM, -1, 6)));
    t.entry(&ring.one(net::socket(libc::AF_UNIX, libc::SOCK_STREAM, 77, 7)));
    t.entry(&ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM | 0x1000_0000, 0, 8)));
    t.entry(&ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM | 0x100, 0, 9)));
    t.entry(&ring.one(net::socket(libc::AF_INET, -1, 0, 10)));
    // Neither has an effect: the domain is no file, and the kind is an int.
    taken(t, &ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, 11).fixed()));
    taken(t, &ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, 12).with(|sqe| sqe.off |= 1 << 40)));
}

/// Sets each field that the operation does not use, one at a time.
fn reserved(t: &mut Transcript, ring: &mut Ring, sqe: Sqe) {
    type Field = (&'static str, fn(&mut Sqe));
    let fields: [Field; 8] = [
        ("addr", |sqe| sqe.addr = 1),
        ("off", |sqe| sqe.off = 1),
        ("len", |sqe| sqe.len = 1),
        ("op_flags", |sqe| sqe.op_flags = 1),
        ("buf_index", |sqe| sqe.buf_index = 1),
        ("ioprio", |sqe| sqe.ioprio = 1),
        ("addr3", |sqe| sqe.addr3 = 1),
        ("buffer select", |sqe| sqe.flags |= usring_uapi::sqe_flags::BUFFER_SELECT),
    ];
    for (name, set) in fields {
        let entry = ring.one(sqe.with(set));
        t.say(format_args!("{name}: {}", crate::names::outcome(i64::from(entry.res))));
    }
    let entry = ring.one(sqe.with(|sqe| sqe.file_index = 1));
    t.say(format_args!("file_index: {}", crate::names::outcome(i64::from(entry.res))));
}

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    reserved(t, &mut ring, net::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0, 1));
}

/// The result for a fixed slot is 0.
fn direct(t: &mut Transcript) {
    let mut ring = sparse(2);
    let stream = |slot: u32, user_data| {
        net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, user_data).with(|sqe| sqe.file_index = slot)
    };
    t.entry(&ring.one(stream(1, 1)));
    t.entry(&ring.one(stream(2, 2)));
    t.entry(&ring.one(stream(2, 3)));
    t.entry(&ring.one(stream(3, 4)));
    let mut byte = [0u8; 1];
    t.entry(&ring.one(read(0, &mut byte, 0, 5).fixed()));
}

fn direct_allocates(t: &mut Transcript) {
    let mut ring = sparse(2);
    for user_data in 1..=3 {
        let socket = net::socket(libc::AF_INET6, libc::SOCK_DGRAM, 0, user_data);
        t.entry(&ring.one(socket.with(|sqe| sqe.file_index = ALLOCATE)));
    }
}

fn direct_close_on_exec(t: &mut Transcript) {
    let mut ring = sparse(2);
    for (user_data, flags) in [(1, libc::SOCK_CLOEXEC), (2, libc::SOCK_NONBLOCK)] {
        let socket = net::socket(libc::AF_INET, libc::SOCK_STREAM | flags, 0, user_data);
        t.entry(&ring.one(socket.with(|sqe| sqe.file_index = 1)));
    }
}

fn direct_without_table(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (user_data, slot) in [(1, 1), (2, ALLOCATE)] {
        let socket = net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, user_data);
        t.entry(&ring.one(socket.with(|sqe| sqe.file_index = slot)));
    }
}

/// Runs `work` while this process may open no further descriptor.
pub fn without_numbers<T>(work: impl FnOnce() -> T) -> T {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is a variable of this function.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let before = limit.rlim_cur;
    limit.rlim_cur = 3;
    // SAFETY: the limit is a variable of this function.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let value = work();
    limit.rlim_cur = before;
    // SAFETY: the limit is a variable of this function.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    value
}

fn too_many(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let entry = without_numbers(|| ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, 1)));
    t.entry(&entry);
}

/// A direct descriptor uses no descriptor number of the process.
fn no_number_is_free(t: &mut Transcript) {
    let mut ring = sparse(2);
    let socket = net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, 1).with(|sqe| sqe.file_index = 1);
    let entry = without_numbers(|| ring.one(socket));
    t.entry(&entry);
}

fn forced_async(t: &mut Transcript) {
    let mut ring = sparse(2);
    let socket = net::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0, 1).forced_async();
    let entry = ring.one(socket);
    drop(taken(t, &entry));
    t.entry(&ring.one(socket.with(|sqe| sqe.file_index = 1)));
    let (fd, _) = net::listener(Family::V4);
    t.entry(&ring.one(net::listen(fd.as_raw_fd(), 5, 2).forced_async()));
    t.entry(&ring.one(net::shutdown(fd.as_raw_fd(), libc::SHUT_RD, 3).forced_async()));
    let unbound = net::stream(Family::V4);
    t.entry(&ring.one(net::bind_to(unbound.as_raw_fd(), &Family::V4.any(), 4).forced_async()));
}

fn skip_success(t: &mut Transcript) {
    let mut ring = sparse(2);
    let socket = net::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0, 1).with(|sqe| sqe.file_index = 1);
    ring.push(socket.flagged(usring_uapi::sqe_flags::CQE_SKIP_SUCCESS));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    t.entry(&ring.one(net::shutdown(0, libc::SHUT_RDWR, 2).fixed()));
}

fn polled_ring(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_IOPOLL);
    let (fd, address) = net::listener(Family::V4);
    let number = fd.as_raw_fd();
    t.entry(&ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, 1)));
    t.entry(&ring.one(net::bind_to(number, &address, 2)));
    t.entry(&ring.one(net::listen(number, 1, 3)));
    t.entry(&ring.one(net::shutdown(number, 0, 4)));
    t.entry(&ring.one(net::accept(number, 5)));
    t.entry(&ring.one(net::connect(number, &address, 6)));
}

/// A server made by one submission. Its socket is a direct descriptor.
fn server_in_a_chain(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = sparse(2);
        let any = family.any();
        ring.push(net::socket(family.number(), libc::SOCK_STREAM, 0, 1).with(|sqe| sqe.file_index = 1).linked());
        ring.push(net::bind_to(0, &any, 2).fixed().linked());
        ring.push(net::listen(0, 8, 3).fixed().linked());
        ring.push(net::accept(0, 4).fixed());
        t.result(format_args!("submit for {family:?}"), ring.submit());
        t.in_order(&ring.wait(3));
        // An ordinary descriptor, through which the case asks for the bound address.
        let install = crate::sqe::sqe(opcode::FIXED_FD_INSTALL, 0, 5).fixed();
        let entry = ring.one(install);
        let Some(fd) = taken(t, &entry) else { continue };
        let client = net::connected(family, &net::address_of(fd.as_raw_fd()));
        for entry in ring.wait(1) {
            if let Some(server) = taken(t, &entry) {
                t.say(format_args!("data passes {}", net::passes(&client, server.as_raw_fd())));
            }
        }
    }
}

fn both_ends_by_an_sq_thread(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = super::sq_thread::ring(2000);
        let (listener, address) = net::listener(family);
        let client = net::stream(family);
        let mut byte = [0u8; 1];
        let number = client.as_raw_fd();
        let sqes = [
            net::accept(listener.as_raw_fd(), 1),
            net::connect(number, &address, 2).linked(),
            crate::sqe::write(number, b"x", 0, 3),
        ];
        for entry in super::sq_thread::run(&mut ring, &sqes) {
            t.say(format_args!("cqe {}: {}", entry.user_data, crate::names::outcome(i64::from(entry.res))));
            if entry.user_data == 1 && entry.res >= 0 {
                let [read] = super::sq_thread::run(&mut ring, &[read(entry.res, &mut byte, 0, 4)])[..] else {
                    continue;
                };
                t.entry(&read);
                crate::door::close(entry.res);
            }
        }
    }
}

fn bind(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let fd = net::stream(family);
        t.entry(&ring.one(net::bind_to(fd.as_raw_fd(), &family.any(), 1)));
        let address = net::address_of(fd.as_raw_fd());
        t.say(format_args!("{family:?}: {}", i32::from(address.family()) == family.number()));
    }
}

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
    // An address that does not belong to this machine.
    let mut foreign = any;
    foreign.bytes[4..8].copy_from_slice(&[192, 0, 2, 1]);
    t.entry(&ring.one(net::bind_to(fd.as_raw_fd(), &foreign, 5)));
    // A bad address is detected when the entry is read, and ends its batch.
    ring.push(net::bind_to(fd.as_raw_fd(), &any, 6).with(|sqe| sqe.addr = BAD));
    ring.push(crate::sqe::nop(7));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}

fn bind_twice(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (fd, address) = net::listener(family);
        let other = net::stream(family);
        t.entry(&ring.one(net::bind_to(other.as_raw_fd(), &address, 1)));
        t.entry(&ring.one(net::bind_to(fd.as_raw_fd(), &family.any(), 2)));
    }
}

fn bind_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let fd = net::stream(Family::V4);
    let any = Family::V4.any();
    reserved(t, &mut ring, net::bind_to(fd.as_raw_fd(), &any, 1));
}

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
    // Without a bind an inet socket gets a port, and a unix socket has no name.
    t.entry(&ring.one(net::listen(net::stream(Family::V4).as_raw_fd(), 1, 5)));
    t.entry(&ring.one(net::listen(net::stream(Family::Unix).as_raw_fd(), 1, 6)));
}

fn listen_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (fd, _) = net::listener(Family::V4);
    reserved(t, &mut ring, net::listen(fd.as_raw_fd(), 1, 1));
}

fn shutdown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut byte = [0u8; 1];
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::connected(family, &address);
        // SAFETY: the call asks for no address. The descriptor is new, and nothing else owns it.
        let server = unsafe {
            OwnedFd::from_raw_fd(libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()))
        };
        t.entry(&ring.one(net::shutdown(client.as_raw_fd(), libc::SHUT_WR, 1)));
        t.entry(&ring.one(read(server.as_raw_fd(), &mut byte, 0, 2)));
        t.say(format_args!("the other way {}", net::passes(&server, client.as_raw_fd())));
        t.entry(&ring.one(net::shutdown(client.as_raw_fd(), libc::SHUT_RD, 3)));
        t.entry(&ring.one(net::shutdown(server.as_raw_fd(), libc::SHUT_RDWR, 4)));
        t.entry(&ring.one(net::shutdown(server.as_raw_fd(), libc::SHUT_RDWR, 5)));
    }
}

fn shutdown_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let (here, _there) = files::sockets();
    t.entry(&ring.one(net::shutdown(reader.as_raw_fd(), 0, 1)));
    t.entry(&ring.one(net::shutdown(-1, 0, 2)));
    t.entry(&ring.one(net::shutdown(here.as_raw_fd(), 3, 3)));
    t.entry(&ring.one(net::shutdown(here.as_raw_fd(), -1, 4)));
    t.entry(&ring.one(net::shutdown(net::stream(Family::V4).as_raw_fd(), 2, 5)));
    t.entry(&ring.one(net::shutdown(net::stream(Family::Unix).as_raw_fd(), 2, 6)));
    t.entry(&ring.one(net::shutdown(3, 2, 7).fixed()));
}

fn shutdown_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (here, _there) = files::sockets();
    reserved(t, &mut ring, net::shutdown(here.as_raw_fd(), 0, 1));
}

fn shutdown_ends_a_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (here, _there) = files::sockets();
    let mut byte = [0u8; 1];
    ring.push(read(here.as_raw_fd(), &mut byte, 0, 1));
    ring.push(net::shutdown(here.as_raw_fd(), libc::SHUT_RD, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}

/// Errors of SHUTDOWN do not count as failures: chains continue, and CQE_SKIP_SUCCESS applies.
fn shutdown_breaks_no_chain(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let socket = net::stream(Family::V4);
    for flags in [0, sqe_flags::CQE_SKIP_SUCCESS] {
        ring.push(net::shutdown(socket.as_raw_fd(), 7, 1).flagged(flags).linked());
        ring.push(nop(2));
        ring.submit();
        t.sorted(&ring.wait(if flags == 0 { 2 } else { 1 }));
    }
}
