//! An ACCEPT that waits for a connection: descriptor limits, cancellation, and the other events
//! that end the wait.

use super::is_ready;
use crate::cases::socket::{sparse, taken, without_numbers};
use crate::files;
use crate::net::{self, FAMILIES, Family};
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel, close, link_timeout, nop};
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::{Timespec, io_uring as u, sqe_flags};

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
case!(do_not_wait => "
    cqe 1: -EAGAIN
    cqe 1: -EAGAIN
    cqe 1: ok
    cqe 1: -EAGAIN
    cqe 1: -EAGAIN
    cqe 1: -EAGAIN
    cqe 1: ok
    cqe 1: -EAGAIN
    cqe 1: -EAGAIN
    cqe 1: -EAGAIN
    cqe 1: ok
    cqe 1: -EAGAIN
");

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
case!(poll_first => "
    cqe 1: ok
    no cqe
    cqe 1: ok
    cqe 1: ok
    no cqe
    cqe 1: ok
    cqe 1: ok
    no cqe
    cqe 1: ok
");

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
case!(poll_first_without_waiting => "
    cqe 1: -EAGAIN
    cqe 1: -EAGAIN
    still queued true
");

/// An ACCEPT that finds no free descriptor number gets -EMFILE. The connection stays in the
/// listener's queue.
fn too_many(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for family in FAMILIES {
        let (listener, address) = net::listener(family);
        let client = net::connected(family, &address);
        let entry = without_numbers(|| ring.one(net::accept(listener.as_raw_fd(), 1)));
        t.entry(&entry);
        let entry = ring.one(net::accept(listener.as_raw_fd(), 2));
        let Some(server) = taken(t, &entry) else { continue };
        t.say(format_args!("data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
    }
}
case!(too_many => "
    cqe 1: -EMFILE
    cqe 2: ok
    data passes true
    cqe 1: -EMFILE
    cqe 2: ok
    data passes true
    cqe 1: -EMFILE
    cqe 2: ok
    data passes true
");

/// The kernel allocates the descriptor number before it looks for a connection. So without a free
/// number an ACCEPT gets -EMFILE at once, even if no connection is there.
fn too_many_while_waiting(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, _address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    let answer = without_numbers(|| ring.submit());
    t.result("submit", answer);
    t.in_order(&ring.reap());
}
case!(too_many_while_waiting => "
    submit = 1
    cqe 1: -EMFILE
");

fn cancelled(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.submit();
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
    // After the cancel, no request accepts this connection.
    let client = net::connected(Family::V4, &address);
    t.say(format_args!("still queued {}", is_ready(&listener)));
    drop((client, listener, ring));
    t.say(format_args!("nothing left open {}", crate::time::until(|| files::open_numbers() == before)));
}
case!(cancelled => "
    cqe 2: 0
    cqe 1: -ECANCELED
    still queued true
    nothing left open true
");

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
case!(cancelled_by_descriptor => "
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 9: 3
");

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
case!(link_timeout_expires as link_timeout => "
    cqe 1: -ECANCELED
    cqe 2: -ETIME
    cqe 3: ok
    cqe 4: -ECANCELED
");

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
case!(linked => "
    no cqe
    cqe 1: ok
    cqe 2: ok
    cqe 3: -EBADF
    cqe 4: -ECANCELED
");

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
case!(drained => "
    no cqe
    cqe 1: ok
    cqe 2: ok
");

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
            t.say(format_args!("data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
        }
        let _other = net::connected(family, &address);
        let entry = ring.one(net::accept(listener.as_raw_fd(), 2).forced_async());
        taken(t, &entry);
    }
}
case!(forced_async => "
    no cqe
    cqe 1: ok
    data passes true
    cqe 2: ok
    no cqe
    cqe 1: ok
    data passes true
    cqe 2: ok
    no cqe
    cqe 1: ok
    data passes true
    cqe 2: ok
");

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
case!(skip_success => "
    no cqe
    cqe 2: 0
    cqe 3: -EBADF
");

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
case!(listener_shut_down => "
    no cqe
    shutdown = 0
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    no cqe
    shutdown = 0
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    no cqe
    shutdown = 0
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

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
case!(nonblocking_listener_shut_down => "
    no cqe
    shutdown = 0
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    no cqe
    shutdown = 0
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    no cqe
    shutdown = 0
    cqe 1: -EAGAIN
    cqe 2: -EAGAIN
");

/// A waiting ACCEPT keeps the listener open after the program has closed the listener's descriptor.
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
            t.say(format_args!("data passes {}", net::delivers_byte(&client, server.as_raw_fd())));
        }
        // The listener was open only because of the ACCEPT. The ACCEPT has completed, so the kernel
        // refuses a new connection.
        let late = net::stream(family);
        let refused = crate::time::until(|| net::connect_now(late.as_raw_fd(), &address) == -libc::ECONNREFUSED);
        t.say(format_args!("refused {refused}"));
    }
}
case!(listener_closed => "
    no cqe
    cqe 1: ok
    data passes true
    refused true
    no cqe
    cqe 1: ok
    data passes true
    refused true
    no cqe
    cqe 1: ok
    data passes true
    refused true
");

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
case!(listener_closed_and_number_reused => "
    cqe 2: 0
    same number true
    no cqe
    cqe 1: ok
    still queued true
");

fn ring_closes(t: &mut Transcript) {
    let before = files::open_numbers_after_a_ring();
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
case!(ring_closes => "
    no cqe
    still queued true
    nothing left open true
");

/// ACCEPT returns a connection that its peer reset before the ACCEPT.
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
case!(peer_has_gone => "
    cqe 1: ok
    V4 reads Some(Err(-104))
    cqe 1: ok
    V6 reads Some(Err(-104))
    cqe 1: ok
    Unix reads Some(Ok(0))
");

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(net::accept(listener.as_raw_fd(), 1));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    t.say(format_args!("it came {}", ring.wait_in_memory(1)));
    for entry in ring.reap() {
        taken(t, &entry);
    }
}
case!(watched_in_memory => "
    it came true
    cqe 1: ok
");

fn deferred(t: &mut Transcript) {
    let setup = ring::DEFER;
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
case!(deferred => "
    no cqe
    cqe 1: ok
");

fn registered_listener(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    let numbers = [listener.as_raw_fd()];
    t.result("register", ring.register(crate::cases::reg::FILES, numbers.as_ptr(), 1));
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
case!(registered_listener => "
    register = 0
    no cqe
    cqe 1: ok
    cqe 2: ok
");

/// SO_RCVTIMEO limits blocking calls only: an ACCEPT request waits longer than that limit.
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
case!(receive_timeout => "
    no cqe
    cqe 1: ok
");
