//! Multishot ACCEPT: one completion per connection, until it ends.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, Timespec, io_uring as u, sqe_flags};

use super::accept::is_ready;
use super::socket::{describe, taken, without_numbers};
use crate::case::{Case, case, differs};
use crate::files;
use crate::memory::BAD;
use crate::net::{self, Address, FAMILIES, Family};
use crate::ring::{Entry, Ring};
use crate::sqe::{Change, cancel, link_timeout, nop};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("accept_multishot.connections_are_there", connections_are_there),
    case("accept_multishot.one_by_one", one_by_one),
    case("accept_multishot.bursts", bursts),
    case("accept_multishot.flags", flags),
    case("accept_multishot.with_other_flags", with_other_flags),
    case("accept_multishot.peer_address", peer_address),
    case("accept_multishot.peer_address_wrong", peer_address_wrong),
    case("accept_multishot.cancelled", cancelled),
    case("accept_multishot.cancelled_by_descriptor", cancelled_by_descriptor),
    case("accept_multishot.link_timeout", link_timeout_bounds_its_life),
    case("accept_multishot.linked", linked),
    case("accept_multishot.holds_drain", holds_drain),
    case("accept_multishot.skip_success", skip_success),
    case("accept_multishot.forced_async", forced_async),
    case("accept_multishot.overflow", overflow),
    case("accept_multishot.overflow_loses_nothing", overflow_loses_nothing),
    case("accept_multishot.too_many", too_many),
    case("accept_multishot.listener_shut_down", listener_shut_down),
    differs(
        "accept_multishot.unix_listener_shut_down",
        unix_listener_shut_down,
        "the end of a unix listener ends the request, as that of any other does",
    ),
    case("accept_multishot.listener_closed", listener_closed),
    case("accept_multishot.ring_closes", ring_closes),
    case("accept_multishot.wrong_files", wrong_files),
    case("accept_multishot.two_on_one_listener", two_on_one_listener),
    case("accept_multishot.single_beside_it", single_beside_it),
    case("accept_multishot.watched_in_memory", watched_in_memory),
    case("accept_multishot.deferred", deferred),
    case("accept_multishot.sq_thread", sq_thread),
    case("accept_multishot.registered_listener", registered_listener),
    case("accept_multishot.many_connections", many_connections),
];

pub fn multishot(fd: i32, user_data: u64) -> Sqe {
    net::accept(fd, user_data).with(|sqe| sqe.ioprio = u::IORING_ACCEPT_MULTISHOT as u16)
}

/// Prints completions and takes ownership of their descriptors.
fn all(t: &mut Transcript, entries: &[Entry]) -> Vec<OwnedFd> {
    if entries.is_empty() {
        t.say("no cqe");
    }
    entries.iter().filter_map(|entry| taken(t, entry)).collect()
}

fn connections_are_there(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = Ring::new(4);
        let (listener, address) = net::listener(family);
        let clients: Vec<OwnedFd> = (0..3).map(|_| net::connected(family, &address)).collect();
        ring.push(multishot(listener.as_raw_fd(), 1));
        t.result("submit", ring.submit());
        let servers = all(t, &ring.wait(3));
        for (client, server) in clients.iter().zip(&servers) {
            t.say(format_args!("{family:?} of its own client {}", net::passes(client, server.as_raw_fd())));
        }
    }
}

fn one_by_one(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = Ring::new(4);
        let (listener, address) = net::listener(family);
        ring.push(multishot(listener.as_raw_fd(), 1));
        t.result("submit", ring.submit());
        t.in_order(&ring.reap());
        for _ in 0..4 {
            let client = net::connected(family, &address);
            for server in all(t, &ring.wait(1)) {
                t.say(format_args!("{family:?} data passes {}", net::passes(&client, server.as_raw_fd())));
            }
        }
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
    }
}

/// Connections that arrive while the program does other work. (How many CQEs say that more are
/// queued depends on when the ring polls.)
fn bursts(t: &mut Transcript) {
    let setup = u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN;
    for family in FAMILIES {
        let mut ring = Ring::flags(32, setup);
        let (listener, address) = net::listener(family);
        ring.push(multishot(listener.as_raw_fd(), 1));
        ring.submit();
        for count in [3, 1, 5] {
            let clients: Vec<OwnedFd> = (0..count).map(|_| net::connected(family, &address)).collect();
            let servers = all(t, &ring.wait(count));
            for (client, server) in clients.iter().zip(&servers) {
                t.say(format_args!("{family:?} of its own client {}", net::passes(client, server.as_raw_fd())));
            }
        }
    }
}

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u32;
    ring.push(multishot(listener.as_raw_fd(), 1).op_flags(flags));
    ring.submit();
    for _ in 0..2 {
        let _client = net::connected(Family::V4, &address);
        for server in all(t, &ring.wait(1)) {
            t.say(format_args!("it is {}", describe(server.as_raw_fd())));
        }
    }
}

/// With DONTWAIT the request ends when no connection is left. With POLL_FIRST it does not.
fn with_other_flags(t: &mut Transcript) {
    for (other, ends) in [(u::IORING_ACCEPT_DONTWAIT, 1), (u::IORING_ACCEPT_POLL_FIRST, 0)] {
        for queued in [0, 2] {
            let mut ring = Ring::new(4);
            let (listener, address) = net::listener(Family::V4);
            let clients: Vec<OwnedFd> = (0..queued).map(|_| net::connected(Family::V4, &address)).collect();
            ring.push(multishot(listener.as_raw_fd(), 1).with(|sqe| sqe.ioprio |= other as u16));
            ring.submit();
            t.say(format_args!("with {queued} queued"));
            all(t, &ring.wait(queued + ends));
            let _late = net::connected(Family::V4, &address);
            t.say("then one more");
            crate::time::long_enough_to_notice();
            all(t, &ring.wait(1 - ends));
            drop(clients);
        }
    }
}

/// All completions share the memory for the address, which holds the last one.
fn peer_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in [Family::V4, Family::V6] {
        let (listener, address) = net::listener(family);
        let mut room = Box::new(Address::room(128));
        ring.push(multishot(listener.as_raw_fd(), 1).with(|sqe| (sqe.addr, sqe.off) = (room.at(), room.length_at())));
        ring.submit();
        for _ in 0..2 {
            let client = net::connected(family, &address);
            let servers = all(t, &ring.wait(1));
            room = std::hint::black_box(room);
            let peer = net::address_of(client.as_raw_fd());
            let length = room.length as usize;
            t.say(format_args!("{family:?} {length} {}", room.bytes[..length] == peer.bytes[..length]));
            drop(servers);
        }
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.in_order(&ring.wait(2));
    }
}

/// If the address cannot be written, the first connection is lost and the multishot ends with
/// -EFAULT. A later connection stays queued.
fn peer_address_wrong(t: &mut Transcript) {
    let before = files::settled_numbers();
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1).with(|sqe| (sqe.addr, sqe.off) = (BAD, BAD)));
    ring.submit();
    t.in_order(&ring.reap());
    let client = net::connected(Family::V4, &address);
    t.in_order(&ring.wait(1));
    let late = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.say(format_args!("still queued {}", is_ready(&listener)));
    drop((client, late, listener, ring));
    let gone = crate::time::until(|| files::open_numbers() == before);
    t.say(format_args!("nothing left open {gone}"));
}

fn cancelled(t: &mut Transcript) {
    let before = files::settled_numbers();
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.submit();
    let client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
    let late = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.say(format_args!("still queued {}", is_ready(&listener)));
    drop((client, late, listener, ring));
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}

fn cancelled_by_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (listener, _address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.push(net::accept(listener.as_raw_fd(), 2));
    ring.submit();
    let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_ALL;
    ring.push(cancel(0, flags, 9).with(|sqe| sqe.fd = listener.as_raw_fd()));
    ring.submit();
    t.sorted(&ring.wait(3));
}

fn link_timeout_bounds_its_life(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let time = Timespec { tv_sec: 1, tv_nsec: 0 };
    ring.push(multishot(listener.as_raw_fd(), 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
    let mut entries = ring.wait(2);
    entries.sort_by_key(|entry| entry.user_data);
    all(t, &entries);
    let _late = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}

/// A linked request starts when the multishot ends. An end by cancellation breaks the chain.
fn linked(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1).linked());
    ring.push(nop(2));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    ring.push(cancel(1, 0, 3));
    ring.submit();
    t.sorted(&ring.wait(3));
}

fn holds_drain(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
    ring.push(nop(3));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    // SAFETY: the call touches no memory.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
    t.sorted(&ring.wait(3));
}

fn skip_success(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    ring.submit();
    all(t, &ring.reap());
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.arrived(1));
}

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1).forced_async());
    ring.submit();
    for _ in 0..2 {
        let _client = net::connected(Family::V4, &address);
        all(t, &ring.wait(1));
    }
}

/// The CQE that does not fit comes without MORE, and is the last.
fn overflow(t: &mut Transcript) {
    let setup = u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN;
    for family in FAMILIES {
        let mut ring = Ring::flags(2, setup);
        let (listener, address) = net::listener(family);
        ring.push(multishot(listener.as_raw_fd(), 1));
        ring.submit();
        let clients: Vec<OwnedFd> = (0..7).map(|_| net::connected(family, &address)).collect();
        ring.enter(0, 1, u::IORING_ENTER_GETEVENTS);
        t.say(format_args!("there {} {}", ring.ready(), crate::names::sq_flags(ring.sq_flags())));
        let mut servers = all(t, &ring.reap());
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        servers.extend(all(t, &ring.reap()));
        t.say(format_args!("still queued {}", is_ready(&listener)));
        for (client, server) in clients.iter().zip(&servers) {
            t.say(format_args!("{family:?} of its own client {}", net::passes(client, server.as_raw_fd())));
        }
    }
}

fn overflow_loses_nothing(t: &mut Transcript) {
    let mut ring = Ring::new(2);
    let (listener, address) = net::listener_for(Family::V4, 512);
    let mut clients = Vec::new();
    let mut served = 0;
    let mut armed = false;
    for _ in 0..20 {
        clients.extend((0..10).map(|_| net::connected(Family::V4, &address)));
        if !armed {
            ring.push(multishot(listener.as_raw_fd(), 1));
            ring.submit();
            armed = true;
        }
    }
    let whole = crate::time::until(|| {
        if !armed {
            ring.push(multishot(listener.as_raw_fd(), 1));
            ring.submit();
            armed = true;
        }
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        for entry in ring.reap() {
            armed &= entry.flags & u::IORING_CQE_F_MORE != 0;
            if entry.res >= 0 {
                // SAFETY: the descriptor is new, and nothing else owns it.
                drop(unsafe { OwnedFd::from_raw_fd(entry.res) });
                served += 1;
            }
        }
        served == clients.len()
    });
    t.say(format_args!("whole {whole}, {served} of {}", clients.len()));
}

/// No descriptor number is free.
fn too_many(t: &mut Transcript) {
    for queued in [0, 1] {
        let mut ring = Ring::new(4);
        let (listener, address) = net::listener(Family::V4);
        let clients: Vec<OwnedFd> = (0..queued).map(|_| net::connected(Family::V4, &address)).collect();
        ring.push(multishot(listener.as_raw_fd(), 1));
        let entries = without_numbers(|| {
            ring.submit();
            ring.wait(1)
        });
        all(t, &entries);
        t.say(format_args!("still queued {}", is_ready(&listener)));
        drop(clients);
    }
}

fn listener_shut_down(t: &mut Transcript) {
    for family in [Family::V4, Family::V6] {
        let mut ring = Ring::new(4);
        let (listener, address) = net::listener(family);
        ring.push(multishot(listener.as_raw_fd(), 1));
        ring.submit();
        let _client = net::connected(family, &address);
        all(t, &ring.wait(1));
        ring.push(net::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR, 2));
        ring.submit();
        t.sorted(&ring.wait(2));
    }
}

/// On a unix listener that was shut down the kernel goes on waiting: a non-blocking accept4(2)
/// answers EAGAIN for ever.
fn unix_listener_shut_down(t: &mut Transcript) {
    for blocks in [true, false] {
        let mut ring = Ring::new(4);
        let (listener, _address) = net::listener(Family::Unix);
        files::set_nonblocking(&listener, !blocks);
        ring.push(multishot(listener.as_raw_fd(), 1));
        ring.submit();
        // SAFETY: the call touches no memory.
        t.result("shutdown", unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) });
        crate::time::long_enough_to_notice();
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.in_order(&ring.reap());
    }
}

fn listener_closed(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = Ring::new(4);
        let (listener, address) = net::listener(family);
        ring.push(multishot(listener.as_raw_fd(), 1));
        ring.submit();
        let _client = net::connected(family, &address);
        all(t, &ring.wait(1));
        drop(listener);
        for _ in 0..2 {
            let client = net::connected(family, &address);
            for server in all(t, &ring.wait(1)) {
                t.say(format_args!("{family:?} data passes {}", net::passes(&client, server.as_raw_fd())));
            }
        }
        // With the request the listener is closed.
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.in_order(&ring.wait(2));
        let late = net::stream(family);
        let refused = crate::time::until(|| net::connect_now(late.as_raw_fd(), &address) == -libc::ECONNREFUSED);
        t.say(format_args!("refused {refused}"));
    }
}

fn ring_closes(t: &mut Transcript) {
    let before = files::settled_numbers();
    let (listener, address) = net::listener(Family::V4);
    let mut ring = Ring::new(4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.submit();
    let client = net::connected(Family::V4, &address);
    let servers = all(t, &ring.wait(1));
    drop(ring);
    let late = net::connected(Family::V4, &address);
    crate::time::long_enough_to_notice();
    t.say(format_args!("still queued {}", is_ready(&listener)));
    drop((listener, client, late, servers));
    let gone = crate::time::until(|| files::open_numbers() == before);
    t.say(format_args!("nothing left open {gone}"));
}

fn wrong_files(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let (here, _there) = files::sockets();
    t.entry(&ring.one(multishot(-1, 1)));
    t.entry(&ring.one(multishot(reader.as_raw_fd(), 2)));
    t.entry(&ring.one(multishot(here.as_raw_fd(), 3)));
    t.entry(&ring.one(multishot(net::stream(Family::V4).as_raw_fd(), 4)));
    t.entry(&ring.one(multishot(net::of_kind(Family::V4, libc::SOCK_DGRAM).as_raw_fd(), 5)));
}

/// Each connection is accepted once, by either request.
fn two_on_one_listener(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.push(multishot(listener.as_raw_fd(), 2));
    ring.submit();
    let mut count = 0;
    for _ in 0..6 {
        let client = net::connected(Family::V4, &address);
        for entry in ring.wait(1) {
            if entry.res >= 0 {
                // SAFETY: the descriptor is new, and nothing else owns it.
                let server = unsafe { OwnedFd::from_raw_fd(entry.res) };
                count += usize::from(net::passes(&client, server.as_raw_fd()));
            }
        }
    }
    t.say(format_args!("served {count}"));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}

fn single_beside_it(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.push(multishot(listener.as_raw_fd(), 2));
    ring.submit();
    let mut count = 0;
    let mut singles = 0;
    for _ in 0..4 {
        let client = net::connected(Family::V4, &address);
        for entry in ring.wait(1) {
            singles += usize::from(entry.user_data == 1);
            if entry.res >= 0 {
                // SAFETY: the descriptor is new, and nothing else owns it.
                let server = unsafe { OwnedFd::from_raw_fd(entry.res) };
                count += usize::from(net::passes(&client, server.as_raw_fd()));
            }
        }
    }
    t.say(format_args!("served {count}, the single at most once {}", singles <= 1));
}

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.submit();
    for _ in 0..3 {
        let _client = net::connected(Family::V4, &address);
        t.say(format_args!("it came {}", ring.watch(1)));
        all(t, &ring.reap());
    }
}

fn deferred(t: &mut Transcript) {
    let setup = u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN | u::IORING_SETUP_TASKRUN_FLAG;
    let mut ring = Ring::flags(8, setup);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.submit();
    for _ in 0..2 {
        let _client = net::connected(Family::V4, &address);
        crate::time::until(|| ring.sq_flags() & u::IORING_SQ_TASKRUN != 0);
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
        t.say(crate::names::sq_flags(ring.sq_flags()));
        all(t, &ring.wait(1));
    }
}

fn sq_thread(t: &mut Transcript) {
    let mut ring = super::sq_thread::ring(2000);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    super::sq_thread::hand_over(&mut ring);
    for _ in 0..3 {
        let _client = net::connected(Family::V4, &address);
        t.say(format_args!("it came {}", ring.watch(1)));
        all(t, &ring.reap());
    }
}

fn registered_listener(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let numbers = [listener.as_raw_fd()];
    t.result("register", ring.register(super::reg::FILES, numbers.as_ptr(), 1));
    drop(listener);
    ring.push(multishot(0, 1).fixed());
    ring.submit();
    for _ in 0..3 {
        let _client = net::connected(Family::V4, &address);
        all(t, &ring.wait(1));
    }
    // The request still holds the file after the table has released it.
    t.result("unregister", ring.register(super::reg::UNREGISTER_FILES, std::ptr::null::<u8>(), 0));
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
}

fn many_connections(t: &mut Transcript) {
    let before = files::settled_numbers();
    let mut ring = Ring::new(256);
    let (listener, address) = net::listener_for(Family::V4, 512);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.submit();
    let mut served = 0;
    for _ in 0..20 {
        let clients: Vec<OwnedFd> = (0..50).map(|_| net::connected(Family::V4, &address)).collect();
        for entry in ring.wait(clients.len()) {
            if entry.res >= 0 && entry.flags & u::IORING_CQE_F_MORE != 0 {
                // SAFETY: the descriptor is new, and nothing else owns it.
                drop(unsafe { OwnedFd::from_raw_fd(entry.res) });
                served += 1;
            }
        }
    }
    t.say(format_args!("served {served}"));
    t.in_order(&ring.reap());
    drop(listener);
    ring.push(cancel(1, 0, 2));
    ring.submit();
    // The request may be polling for more at this moment.
    let mut ended = ring.wait(2);
    ended.sort_by_key(|entry| entry.user_data);
    for entry in ended {
        let allowed = if entry.user_data == 1 { [-libc::ECANCELED; 2] } else { [0, -libc::EALREADY] };
        t.say(format_args!("{}: as it should {}", entry.user_data, allowed.contains(&entry.res)));
    }
    drop(ring);
    let gone = crate::time::until(|| files::open_numbers() == before);
    t.say(format_args!("nothing left open {gone}"));
}
