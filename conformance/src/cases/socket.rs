//! SOCKET, BIND, LISTEN and SHUTDOWN: the requests that make a socket, name it, let it listen, and
//! shut it down.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::files;
use crate::net::{self, FAMILIES, Family};
use crate::ring::Ring;
use crate::sqe::{Change, fields, nop, read};
use crate::transcript::Transcript;

mod bind_listen;

/// `IORING_FILE_INDEX_ALLOC` as the SQE's field holds it.
pub const ALLOCATE: u32 = u32::MAX;

/// Makes a ring and registers `slots` empty slots for files.
pub fn sparse(slots: u32) -> Ring {
    sparse_with(slots, 0)
}

pub fn sparse_with(slots: u32, setup: u32) -> Ring {
    let ring = Ring::flags(8, setup);
    let numbers = vec![-1i32; slots as usize];
    assert_eq!(ring.register(reg::FILES, numbers.as_ptr(), slots), 0);
    ring
}

/// Prints the CQE of a request whose result is a new descriptor. Returns the descriptor if the
/// request has succeeded.
pub fn taken(t: &mut Transcript, entry: &crate::ring::Entry) -> Option<OwnedFd> {
    let result = crate::names::outcome(i64::from(entry.res));
    let flags = if entry.flags == 0 { String::new() } else { format!(" {}", crate::names::cqe_flags(entry.flags)) };
    t.say(format_args!("cqe {}: {result}{flags}", entry.user_data));
    // SAFETY: the descriptor is new, and nothing else owns it.
    (entry.res >= 0).then(|| unsafe { OwnedFd::from_raw_fd(entry.res) })
}

/// Returns, as text, the flags of a descriptor, of its open file, and of the socket.
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
    // SAFETY: the value and its size are variables of this function.
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
case!(made => "
    cqe 1: ok
    V4 true kind true
    cqe 1: ok
    V4 true kind true
    cqe 1: ok
    V6 true kind true
    cqe 1: ok
    V6 true kind true
    cqe 1: ok
    Unix true kind true
    cqe 1: ok
    Unix true kind true
");

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for flags in [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
        let entry = ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM | flags, libc::IPPROTO_TCP, 1));
        if let Some(fd) = taken(t, &entry) {
            t.say(format_args!("it is {}", describe(fd.as_raw_fd())));
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
");

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
    // FIXED_FILE has no effect: in a SOCKET, `fd` is the domain, and no file. The upper half of
    // `off` has no effect either, because the socket's type is in the lower 32 bits.
    taken(t, &ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, 11).fixed()));
    taken(t, &ring.one(net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, 12).with(|sqe| sqe.off |= 1 << 40)));
}
case!(wrong => "
    cqe 1: -EAFNOSUPPORT
    cqe 2: -EAFNOSUPPORT
    cqe 3: -EINVAL
    cqe 4: -ESOCKTNOSUPPORT
    cqe 5: -EPROTONOSUPPORT
    cqe 6: -EINVAL
    cqe 7: -EPROTONOSUPPORT
    cqe 8: -EINVAL
    cqe 9: -EINVAL
    cqe 10: -EINVAL
    cqe 11: ok
    cqe 12: ok
");

/// Submits `sqe` several times, each time with a different unused field set. Prints the results.
fn reserved(t: &mut Transcript, ring: &mut Ring, sqe: Sqe) {
    let fields = fields! {
        addr = 1, off = 1, len = 1, op_flags = 1, buf_index = 1, ioprio = 1, addr3 = 1,
        "buffer select" flags |= sqe_flags::BUFFER_SELECT, file_index = 1,
    };
    t.each_named(ring, sqe, &fields);
}

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    reserved(t, &mut ring, net::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0, 1));
}
case!(reserved_fields => "
    addr: -EINVAL
    off: ok
    len: ok
    op_flags: -EINVAL
    buf_index: -EINVAL
    ioprio: -EINVAL
    addr3: ok
    buffer select: -EOPNOTSUPP
    file_index: -ENXIO
");

/// If the SQE of a SOCKET names a slot, the result is 0, not the slot's number.
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
case!(direct => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: -EINVAL
    cqe 5: -ENOTCONN
");

fn direct_allocates(t: &mut Transcript) {
    let mut ring = sparse(2);
    for user_data in 1..=3 {
        let socket = net::socket(libc::AF_INET6, libc::SOCK_DGRAM, 0, user_data);
        t.entry(&ring.one(socket.with(|sqe| sqe.file_index = ALLOCATE)));
    }
}
case!(direct_allocates => "
    cqe 1: 0
    cqe 2: 1
    cqe 3: -ENFILE
");

fn direct_close_on_exec(t: &mut Transcript) {
    let mut ring = sparse(2);
    for (user_data, flags) in [(1, libc::SOCK_CLOEXEC), (2, libc::SOCK_NONBLOCK)] {
        let socket = net::socket(libc::AF_INET, libc::SOCK_STREAM | flags, 0, user_data);
        t.entry(&ring.one(socket.with(|sqe| sqe.file_index = 1)));
    }
}
case!(direct_close_on_exec => "
    cqe 1: -EINVAL
    cqe 2: 0
");

fn direct_without_table(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for (user_data, slot) in [(1, 1), (2, ALLOCATE)] {
        let socket = net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, user_data);
        t.entry(&ring.one(socket.with(|sqe| sqe.file_index = slot)));
    }
}
case!(direct_without_table => "
    cqe 1: -ENXIO
    cqe 2: -ENFILE
");

/// Runs `work` while this process has no free descriptor number. Its limit of open files is 3
/// meanwhile, and the descriptors 0 to 2 are open.
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
case!(too_many => "cqe 1: -EMFILE");

/// A SOCKET into a slot needs no descriptor number, so it succeeds even if the process has none
/// free.
fn no_number_is_free(t: &mut Transcript) {
    let mut ring = sparse(2);
    let socket = net::socket(libc::AF_INET, libc::SOCK_STREAM, 0, 1).with(|sqe| sqe.file_index = 1);
    let entry = without_numbers(|| ring.one(socket));
    t.entry(&entry);
}
case!(no_number_is_free => "cqe 1: 0", usring => "cqe 1: -EMFILE", because
    "a direct descriptor has an ordinary number for a moment");

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
case!(forced_async => "
    cqe 1: ok
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
");

fn skip_success(t: &mut Transcript) {
    let mut ring = sparse(2);
    let socket = net::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0, 1).with(|sqe| sqe.file_index = 1);
    ring.push(socket.flagged(usring_uapi::sqe_flags::CQE_SKIP_SUCCESS));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    t.entry(&ring.one(net::shutdown(0, libc::SHUT_RDWR, 2).fixed()));
}
case!(skip_success => "
    submit = 1
    no cqe
    cqe 2: 0
");

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
case!(polled_ring => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 4: -EINVAL
    cqe 5: -EINVAL
    cqe 6: -EINVAL
");

/// One submission makes a server by a chain of four requests: SOCKET into a slot, BIND, LISTEN and
/// ACCEPT.
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
        // The case needs a descriptor of the socket for getsockname(2). FIXED_FD_INSTALL makes one
        // from the slot.
        let install = crate::sqe::sqe(opcode::FIXED_FD_INSTALL, 0, 5).fixed();
        let entry = ring.one(install);
        let Some(fd) = taken(t, &entry) else { continue };
        let client = net::connected(family, &net::address_of(fd.as_raw_fd()));
        for entry in ring.wait(1) {
            if let Some(server) = taken(t, &entry) {
                t.say(format_args!("data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
            }
        }
    }
}
case!(server_in_a_chain => "
    submit for V4 = 4
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 5: ok
    cqe 4: ok
    data passes true
    submit for V6 = 4
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 5: ok
    cqe 4: ok
    data passes true
    submit for Unix = 4
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 5: ok
    cqe 4: ok
    data passes true
");

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
                crate::syscalls::close(entry.res);
            }
        }
    }
}
case!(both_ends_by_an_sq_thread => "
    cqe 1: ok
    cqe 4: 1
    cqe 2: ok
    cqe 3: ok
    cqe 1: ok
    cqe 4: 1
    cqe 2: ok
    cqe 3: ok
    cqe 1: ok
    cqe 4: 1
    cqe 2: ok
    cqe 3: ok
");

fn shutdown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut byte = [0u8; 1];
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::connected(family, &address);
        // SAFETY: accept(2) gets no address pointer. The descriptor is new, and nothing else owns
        // it.
        let server = unsafe {
            OwnedFd::from_raw_fd(libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()))
        };
        t.entry(&ring.one(net::shutdown(client.as_raw_fd(), libc::SHUT_WR, 1)));
        t.entry(&ring.one(read(server.as_raw_fd(), &mut byte, 0, 2)));
        t.say(format_args!("the other way {}", net::delivers_byte(&server, client.as_raw_fd())));
        t.entry(&ring.one(net::shutdown(client.as_raw_fd(), libc::SHUT_RD, 3)));
        t.entry(&ring.one(net::shutdown(server.as_raw_fd(), libc::SHUT_RDWR, 4)));
        t.entry(&ring.one(net::shutdown(server.as_raw_fd(), libc::SHUT_RDWR, 5)));
    }
}
case!(shutdown => "
    cqe 1: 0
    cqe 2: 0
    the other way true
    cqe 3: 0
    cqe 4: 0
    cqe 5: -ENOTCONN
    cqe 1: 0
    cqe 2: 0
    the other way true
    cqe 3: 0
    cqe 4: 0
    cqe 5: -ENOTCONN
    cqe 1: 0
    cqe 2: 0
    the other way true
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
");

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
case!(shutdown_wrong => "
    cqe 1: -ENOTSOCK
    cqe 2: -EBADF
    cqe 3: -EINVAL
    cqe 4: -EINVAL
    cqe 5: -ENOTCONN
    cqe 6: 0
    cqe 7: -EBADF
");

fn shutdown_reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (here, _there) = files::sockets();
    reserved(t, &mut ring, net::shutdown(here.as_raw_fd(), 0, 1));
}
case!(shutdown_reserved_fields => "
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

fn shutdown_ends_a_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (here, _there) = files::sockets();
    let mut byte = [0u8; 1];
    ring.push(read(here.as_raw_fd(), &mut byte, 0, 1));
    ring.push(net::shutdown(here.as_raw_fd(), libc::SHUT_RD, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(shutdown_ends_a_read => "
    cqe 1: 0
    cqe 2: 0
");

/// A failed SHUTDOWN does not count as a failed request. So the request that is linked to the
/// SHUTDOWN starts. CQE_SKIP_SUCCESS suppresses the CQE of the SHUTDOWN.
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
case!(shutdown_breaks_no_chain => "
    cqe 1: -EINVAL
    cqe 2: 0
    cqe 2: 0
");
