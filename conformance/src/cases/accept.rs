//! ACCEPT of one connection: its wait, the new descriptor, the report of the peer, and its other
//! endings.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, Timespec, io_uring as u, sqe_flags};

use super::socket::{describe, sparse, taken, without_numbers};
use crate::case::{Case, case};
use crate::files;
use crate::net::{self, FAMILIES, Family};
use crate::ring::Ring;
use crate::sqe::{Change, cancel, close, link_timeout, nop};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("accept.connection_is_there", connection_is_there),
    case("accept.waits_for_connection", waits_for_connection),
    case("accept.nonblocking_listener_waits_too", nonblocking_listener_waits_too),
    case("accept.order_of_connections", order_of_connections),
    case("accept.several_wait", several_wait),
    case("accept.flags", flags),
    case("accept.more_is_queued", more_is_queued),
    case("accept.wrong_files", wrong_files),
    case("accept.wrong_flags", wrong_flags),
    case("accept.reserved_fields", reserved_fields),
    case("accept.do_not_wait", do_not_wait),
    case("accept.poll_first", poll_first),
    case("accept.poll_first_without_waiting", poll_first_without_waiting),
    case("accept.too_many", too_many),
    case("accept.too_many_while_waiting", too_many_while_waiting),
    case("accept.cancelled", cancelled),
    case("accept.cancelled_by_descriptor", cancelled_by_descriptor),
    case("accept.link_timeout", link_timeout_expires),
    case("accept.linked", linked),
    case("accept.drained", drained),
    case("accept.forced_async", forced_async),
    case("accept.skip_success", skip_success),
    case("accept.listener_shut_down", listener_shut_down),
    case("accept.nonblocking_listener_shut_down", nonblocking_listener_shut_down),
    case("accept.listener_closed", listener_closed),
    case("accept.listener_closed_and_number_reused", listener_closed_and_number_reused),
    case("accept.ring_closes", ring_closes),
    case("accept.peer_has_gone", peer_has_gone),
    case("accept.watched_in_memory", watched_in_memory),
    case("accept.deferred", deferred),
    case("accept.registered_listener", registered_listener),
    case("accept.receive_timeout", receive_timeout),
];

fn connection_is_there(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::connected(family, &address);
        ring.push(net::accept(listener.as_raw_fd(), 1));
        t.result("submit", ring.submit());
        for entry in ring.reap() {
            let Some(server) = taken(t, &entry) else { continue };
            t.say(format_args!("{family:?} data passes {}", net::passes(&client, server.as_raw_fd())));
        }
    }
}

fn waits_for_connection(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        ring.push(net::accept(listener.as_raw_fd(), 1));
        t.result("submit", ring.submit());
        // Other requests are not delayed.
        ring.push(nop(2));
        ring.submit();
        t.in_order(&ring.reap());
        let client = net::connected(family, &address);
        for entry in ring.wait(1) {
            let Some(server) = taken(t, &entry) else { continue };
            t.say(format_args!("{family:?} data passes {}", net::passes(&client, server.as_raw_fd())));
        }
    }
}

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
            t.say(format_args!("of its own client {}", net::passes(client, server.as_raw_fd())));
        }
    }
}

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

/// SOCK_NONEMPTY: another connection waits after this one.
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

/// Returns whether the listener's queue holds a connection.
pub fn is_ready(listener: &impl AsRawFd) -> bool {
    let mut one = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one element.
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

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let clients: Vec<OwnedFd> = (0..4).map(|_| net::connected(Family::V4, &address)).collect();
    type Field = (&'static str, fn(&mut Sqe));
    let fields: [Field; 5] = [
        ("len", |sqe| sqe.len = 1),
        ("buf_index", |sqe| sqe.buf_index = 1),
        ("file_index", |sqe| sqe.file_index = 1),
        ("addr3", |sqe| sqe.addr3 = 1),
        ("buffer select", |sqe| sqe.flags |= sqe_flags::BUFFER_SELECT),
    ];
    for (name, set) in fields {
        let entry = ring.one(net::accept(listener.as_raw_fd(), 1).with(set));
        t.say(format_args!("{name}: {}", crate::names::outcome(i64::from(entry.res))));
    }
    drop(clients);
}

fn do_not_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let accept = net::accept(listener.as_raw_fd(), 1).with(|sqe| sqe.ioprio = u::IORING_ACCEPT_DONTWAIT as u16);
        t.entry(&ring.one(accept));
        t.entry(&ring.one(accept.forced_async()));
        let _client = net::connected(family, &address);
        let entry = ring.one(accept);
        taken(t, &entry);
        t.entry(&ring.one(accept));
    }
}

fn poll_first(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let accept = net::accept(listener.as_raw_fd(), 1).with(|sqe| sqe.ioprio = u::IORING_ACCEPT_POLL_FIRST as u16);
        let _client = net::connected(family, &address);
        let entry = ring.one(accept);
        taken(t, &entry);
        ring.push(accept);
        ring.submit();
        t.in_order(&ring.reap());
        let _other = net::connected(family, &address);
        for entry in ring.wait(1) {
            taken(t, &entry);
        }
    }
}

fn poll_first_without_waiting(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let both = u::IORING_ACCEPT_POLL_FIRST | u::IORING_ACCEPT_DONTWAIT;
    let accept = net::accept(listener.as_raw_fd(), 1).with(|sqe| sqe.ioprio = both as u16);
    t.entry(&ring.one(accept));
    let _client = net::connected(Family::V4, &address);
    t.entry(&ring.one(accept));
    t.say(format_args!("still queued {}", is_ready(&listener)));
}

/// No descriptor number is free: the connection stays queued.
fn too_many(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::connected(family, &address);
        let entry = without_numbers(|| ring.one(net::accept(listener.as_raw_fd(), 1)));
        t.entry(&entry);
        let entry = ring.one(net::accept(listener.as_raw_fd(), 2));
        let Some(server) = taken(t, &entry) else { continue };
        t.say(format_args!("data passes {}", net::passes(&client, server.as_raw_fd())));
    }
}

/// The kernel allocates the descriptor number before it looks for a connection. So the request is
/// refused even without one.
fn too_many_while_waiting(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, _address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    let answer = without_numbers(|| ring.submit());
    t.result("submit", answer);
    t.in_order(&ring.reap());
}

fn cancelled(t: &mut Transcript) {
    let before = files::settled_numbers();
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
    // No request takes this connection.
    let client = net::connected(Family::V4, &address);
    t.say(format_args!("still queued {}", is_ready(&listener)));
    drop((client, listener, ring));
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}

fn cancelled_by_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (listener, _address) = net::listener(Family::V4);
    for user_data in 1..=3 {
        ring.push(net::accept(listener.as_raw_fd(), user_data));
    }
    ring.submit();
    let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_ALL;
    ring.push(cancel(0, flags, 9).with(|sqe| sqe.fd = listener.as_raw_fd()));
    ring.submit();
    t.sorted(&ring.wait(4));
}

fn link_timeout_expires(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let time = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    ring.push(net::accept(listener.as_raw_fd(), 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    let _client = net::connected(Family::V4, &address);
    ring.push(net::accept(listener.as_raw_fd(), 3).linked());
    ring.push(link_timeout(&time, 0, 4));
    ring.submit();
    let mut entries = ring.wait(2);
    entries.sort_by_key(|entry| entry.user_data);
    for entry in entries {
        taken(t, &entry);
    }
}

fn linked(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1).linked());
    ring.push(nop(2));
    ring.submit();
    t.in_order(&ring.reap());
    let _client = net::connected(Family::V4, &address);
    let entries = ring.wait(2);
    for entry in &entries {
        t.say(format_args!("cqe {}: {}", entry.user_data, crate::names::outcome(i64::from(entry.res))));
    }
    // An ACCEPT that fails breaks its chain.
    ring.push(net::accept(-1, 3).linked());
    ring.push(nop(4));
    ring.submit();
    t.sorted(&ring.wait(2));
}

fn drained(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
    ring.submit();
    t.in_order(&ring.reap());
    let _client = net::connected(Family::V4, &address);
    for entry in ring.wait(2) {
        t.say(format_args!("cqe {}: {}", entry.user_data, crate::names::outcome(i64::from(entry.res))));
    }
}

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        ring.push(net::accept(listener.as_raw_fd(), 1).forced_async());
        ring.submit();
        t.in_order(&ring.reap());
        let client = net::connected(family, &address);
        for entry in ring.wait(1) {
            let Some(server) = taken(t, &entry) else { continue };
            t.say(format_args!("data passes {}", net::passes(&client, server.as_raw_fd())));
        }
        let _other = net::connected(family, &address);
        let entry = ring.one(net::accept(listener.as_raw_fd(), 2).forced_async());
        taken(t, &entry);
    }
}

fn skip_success(t: &mut Transcript) {
    let mut ring = sparse(1);
    let (listener, address) = net::listener(Family::V4);
    let _client = net::connected(Family::V4, &address);
    let accept = net::accept(listener.as_raw_fd(), 1).flagged(sqe_flags::CQE_SKIP_SUCCESS);
    ring.push(accept.with(|sqe| sqe.file_index = 1));
    ring.submit();
    t.in_order(&ring.reap());
    t.entry(&ring.one(net::shutdown(0, libc::SHUT_RDWR, 2).fixed()));
    t.entry(&ring.one(net::accept(-1, 3).flagged(sqe_flags::CQE_SKIP_SUCCESS)));
}

fn listener_shut_down(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, _address) = net::listener(family);
        ring.push(net::accept(listener.as_raw_fd(), 1));
        ring.submit();
        t.in_order(&ring.reap());
        // SAFETY: the call touches no memory.
        t.result("shutdown", unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) });
        t.in_order(&ring.wait(1));
        t.entry(&ring.one(net::accept(listener.as_raw_fd(), 2)));
    }
}

fn nonblocking_listener_shut_down(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, _address) = net::listener(family);
        files::set_nonblocking(&listener, true);
        ring.push(net::accept(listener.as_raw_fd(), 1));
        ring.submit();
        t.in_order(&ring.reap());
        // SAFETY: the call touches no memory.
        t.result("shutdown", unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) });
        t.in_order(&ring.wait(1));
        t.entry(&ring.one(net::accept(listener.as_raw_fd(), 2)));
    }
}

/// The request still holds the listener open.
fn listener_closed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        ring.push(net::accept(listener.as_raw_fd(), 1));
        ring.submit();
        drop(listener);
        t.in_order(&ring.reap());
        let client = net::connected(family, &address);
        for entry in ring.wait(1) {
            let Some(server) = taken(t, &entry) else { continue };
            t.say(format_args!("data passes {}", net::passes(&client, server.as_raw_fd())));
        }
        // The listener is closed now.
        let late = net::stream(family);
        let refused = crate::time::until(|| net::connect_now(late.as_raw_fd(), &address) == -libc::ECONNREFUSED);
        t.say(format_args!("refused {refused}"));
    }
}

fn listener_closed_and_number_reused(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let number = listener.as_raw_fd();
    ring.push(net::accept(number, 1));
    ring.submit();
    t.entry(&ring.one(close(number, 2)));
    std::mem::forget(listener);
    let (other, other_address) = net::listener(Family::V4);
    t.say(format_args!("same number {}", other.as_raw_fd() == number));
    let _client = net::connected(Family::V4, &other_address);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    let _client = net::connected(Family::V4, &address);
    for entry in ring.wait(1) {
        taken(t, &entry);
    }
    t.say(format_args!("still queued {}", is_ready(&other)));
}

fn ring_closes(t: &mut Transcript) {
    let before = files::settled_numbers();
    let (listener, address) = net::listener(Family::V4);
    let mut ring = Ring::new(4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.submit();
    t.in_order(&ring.reap());
    drop(ring);
    let client = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.say(format_args!("still queued {}", is_ready(&listener)));
    drop((listener, client));
    let gone = crate::time::until(|| files::open_numbers() == before);
    t.say(format_args!("nothing left open {gone}"));
}

/// ACCEPT takes a connection that its peer has reset before.
fn peer_has_gone(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::connected(family, &address);
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the option's value lives through the call.
        unsafe {
            let size = size_of::<libc::linger>() as u32;
            libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size);
        }
        drop(client);
        let entry = ring.one(net::accept(listener.as_raw_fd(), 1));
        let server = taken(t, &entry);
        let read = server.map(|server| files::take(&server, 1).map(|bytes| bytes.len()));
        t.say(format_args!("{family:?} reads {read:?}"));
    }
}

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    t.say(format_args!("it came {}", ring.watch(1)));
    for entry in ring.reap() {
        taken(t, &entry);
    }
}

fn deferred(t: &mut Transcript) {
    let setup = u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN;
    let mut ring = Ring::flags(4, setup);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    for entry in ring.wait(1) {
        taken(t, &entry);
    }
}

fn registered_listener(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let numbers = [listener.as_raw_fd()];
    t.result("register", ring.register(super::reg::FILES, numbers.as_ptr(), 1));
    drop(listener);
    ring.push(net::accept(0, 1).fixed());
    ring.submit();
    t.in_order(&ring.reap());
    let _client = net::connected(Family::V4, &address);
    for entry in ring.wait(1) {
        taken(t, &entry);
    }
    let _client = net::connected(Family::V4, &address);
    let entry = ring.one(net::accept(0, 2).fixed());
    taken(t, &entry);
}

/// SO_RCVTIMEO applies to blocking calls; a request goes on waiting.
fn receive_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let time = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    // SAFETY: the option's value lives through the call.
    unsafe {
        let (size, place) = (size_of::<libc::timeval>() as u32, (&raw const time).cast());
        libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, place, size);
    }
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    let _client = net::connected(Family::V4, &address);
    for entry in ring.wait(1) {
        taken(t, &entry);
    }
}
