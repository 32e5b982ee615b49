//! Events that end a multishot ACCEPT, and conditions under which it accepts no connection for a
//! while.

use super::{all, multishot};
use crate::cases::accept::is_ready;
use crate::cases::socket::without_numbers;
use crate::files;
use crate::net::{self, FAMILIES, Family};
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel};
use crate::transcript::Transcript;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use usring_uapi::io_uring as u;

/// The CQ is full, so the multishot's next CQE goes to the backlog. This CQE lacks the flag F_MORE,
/// because it is the multishot's last one.
fn overflow(t: &mut Transcript) {
    let setup = ring::DEFER;
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
            t.say(format_args!("{family:?} of its own client {}", net::delivers_byte(client, server.as_raw_fd())));
        }
    }
}
case!(overflow => include_str!("overflow.txt"));

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
case!(overflow_loses_nothing => "whole true, 200 of 200");

/// A multishot that finds no free descriptor number ends with -EMFILE, whether a connection is
/// queued or not.
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
case!(too_many => "
    cqe 1: -EMFILE
    still queued false
    cqe 1: -EMFILE
    still queued true
");

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
case!(listener_shut_down => "
    cqe 1: ok MORE
    cqe 1: -EINVAL
    cqe 2: 0
    cqe 1: ok MORE
    cqe 1: -EINVAL
    cqe 2: 0
");

/// On the kernel, the shutdown of a unix listener does not end a multishot, which waits for ever.
/// The reason is that a non-blocking accept4(2) on such a listener returns EAGAIN.
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
case!(unix_listener_shut_down => "
    shutdown = 0
    no cqe
    shutdown = 0
    no cqe
", usring => "
    shutdown = 0
    cqe 1: -EINVAL
    shutdown = 0
    cqe 1: -EINVAL
", because "the end of a unix listener ends the request, as that of any other does");

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
                t.say(format_args!("{family:?} data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
            }
        }
        // Now the listener is open only because of the request. So the end of the request closes
        // the listener.
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.in_order(&ring.wait(2));
        let late = net::stream(family);
        let refused = crate::time::until(|| net::connect_now(late.as_raw_fd(), &address) == -libc::ECONNREFUSED);
        t.say(format_args!("refused {refused}"));
    }
}
case!(listener_closed => "
    cqe 1: ok MORE
    cqe 1: ok MORE
    V4 data passes true
    cqe 1: ok MORE
    V4 data passes true
    cqe 2: 0
    cqe 1: -ECANCELED
    refused true
    cqe 1: ok MORE
    cqe 1: ok MORE
    V6 data passes true
    cqe 1: ok MORE
    V6 data passes true
    cqe 2: 0
    cqe 1: -ECANCELED
    refused true
    cqe 1: ok MORE
    cqe 1: ok MORE
    Unix data passes true
    cqe 1: ok MORE
    Unix data passes true
    cqe 2: 0
    cqe 1: -ECANCELED
    refused true
");

fn ring_closes(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
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
case!(ring_closes => "
    cqe 1: ok MORE
    still queued true
    nothing left open true
");

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
case!(wrong_files => "
    cqe 1: -EBADF
    cqe 2: -ENOTSOCK
    cqe 3: -EINVAL
    cqe 4: -EINVAL
    cqe 5: -EOPNOTSUPP
");

/// Two multishots on one listener: the kernel gives each connection to one of them.
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
                count += usize::from(net::delivers_byte(&client, server.as_raw_fd()));
            }
        }
    }
    t.say(format_args!("served {count}"));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(two_on_one_listener => "
    served 6
    no cqe
");

fn single_accept_beside_a_multishot(t: &mut Transcript) {
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
                count += usize::from(net::delivers_byte(&client, server.as_raw_fd()));
            }
        }
    }
    t.say(format_args!("served {count}, the single at most once {}", singles <= 1));
}
case!(single_accept_beside_a_multishot => "served 4, the single at most once true");

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    ring.submit();
    for _ in 0..3 {
        let _client = net::connected(Family::V4, &address);
        t.say(format_args!("it came {}", ring.wait_in_memory(1)));
        all(t, &ring.reap());
    }
}
case!(watched_in_memory => "
    it came true
    cqe 1: ok MORE
    it came true
    cqe 1: ok MORE
    it came true
    cqe 1: ok MORE
");

fn deferred(t: &mut Transcript) {
    let setup = ring::DEFER | u::IORING_SETUP_TASKRUN_FLAG;
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
case!(deferred => "
    no cqe
    TASKRUN
    cqe 1: ok MORE
    no cqe
    TASKRUN
    cqe 1: ok MORE
");

fn sq_thread(t: &mut Transcript) {
    let mut ring = crate::cases::sq_thread::ring(2000);
    let (listener, address) = net::listener(Family::V4);
    ring.push(multishot(listener.as_raw_fd(), 1));
    crate::cases::sq_thread::hand_over(&mut ring);
    for _ in 0..3 {
        let _client = net::connected(Family::V4, &address);
        t.say(format_args!("it came {}", ring.wait_in_memory(1)));
        all(t, &ring.reap());
    }
}
case!(sq_thread => "
    it came true
    cqe 1: ok MORE
    it came true
    cqe 1: ok MORE
    it came true
    cqe 1: ok MORE
");

fn registered_listener(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let numbers = [listener.as_raw_fd()];
    t.result("register", ring.register(crate::cases::reg::FILES, numbers.as_ptr(), 1));
    drop(listener);
    ring.push(multishot(0, 1).fixed());
    ring.submit();
    for _ in 0..3 {
        let _client = net::connected(Family::V4, &address);
        all(t, &ring.wait(1));
    }
    // The multishot keeps the listener open even after the program has unregistered the files.
    t.result("unregister", ring.register(crate::cases::reg::UNREGISTER_FILES, std::ptr::null::<u8>(), 0));
    let _client = net::connected(Family::V4, &address);
    all(t, &ring.wait(1));
}
case!(registered_listener => "
    register = 0
    cqe 1: ok MORE
    cqe 1: ok MORE
    cqe 1: ok MORE
    unregister = 0
    cqe 1: ok MORE
");

fn many_connections(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
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
    // If the multishot is running at the moment of the cancel, the cancel gets -EALREADY.
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
case!(many_connections => "
    served 1000
    no cqe
    1: as it should true
    2: as it should true
    nothing left open true
");
