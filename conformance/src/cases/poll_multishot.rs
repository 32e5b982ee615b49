//! Multishot POLL_ADD: edges, levels, and how it ends.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u};

use super::poll::events;
use super::reg;
use crate::case::{Case, case, differs};
use crate::files;
use crate::net::{self, Family};
use crate::ring::{Entry, Ring};
use crate::sqe::{Change, cancel, nop, poll, poll_remove, read, write};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("poll_multishot.first_by_level", first_by_level),
    case("poll_multishot.several_of_one_batch", several_of_one_batch),
    case("poll_multishot.taken_in_its_batch", taken_in_its_batch),
    case("poll_multishot.chain_of_its_batch", chain_of_its_batch),
    case("poll_multishot.later_by_edge", later_by_edge),
    case("poll_multishot.none_when_idle", none_when_idle),
    case("poll_multishot.removed", removed),
    case("poll_multishot.cancelled", cancelled),
    case("poll_multishot.hang_up", hang_up),
    case("poll_multishot.level_triggered", level_triggered),
    case("poll_multishot.update_keeps_armed", update_keeps_armed),
    case("poll_multishot.update_to_multishot", update_to_multishot),
    case("poll_multishot.own_eventfd_ends_it", own_eventfd_ends_it),
    case("poll_multishot.eventfd_semaphore", eventfd_counts),
    case("poll_multishot.holds_drain", holds_drain),
    case("poll_multishot.with_skip_success", with_skip_success),
    case("poll_multishot.ring_closes", ring_closes),
    case("poll_multishot.descriptor_closes", descriptor_closes),
    case("poll_multishot.set_with_own_ring", set_with_own_ring),
    case("poll_multishot.own_ring", own_ring),
    case("poll_multishot.ring_that_watches_back", ring_that_watches_back),
    differs(
        "poll_multishot.ring_with_completions",
        ring_with_completions,
        "what a ring held before cannot be told from what comes",
    ),
    case("poll_multishot.set_with_another_ring", set_with_another_ring),
    case("poll_multishot.set_with_own_eventfd", set_with_own_eventfd),
];

const IN: i16 = libc::POLLIN;

fn multishot(fd: i32, wanted: i16, user_data: u64) -> Sqe {
    poll(fd, wanted, user_data).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI)
}

fn show(t: &mut Transcript, entries: &[Entry]) {
    for entry in entries {
        events(t, entry);
    }
    if entries.is_empty() {
        t.say("no cqe");
    }
}

/// Polls of one file that is ready, submitted together: each reports the readiness once.
fn several_of_one_batch(t: &mut Transcript) {
    for count in 1..4 {
        let mut ring = Ring::new(8);
        let (_reader, writer) = files::sockets();
        for user_data in 1..=count {
            ring.push(multishot(writer.as_raw_fd(), libc::POLLOUT, user_data));
        }
        t.result("submit", ring.submit());
        t.sorted(&ring.wait(count as usize));
        // A second report would have arrived by now.
        ring.one(nop(100));
        ring.push(nop(101));
        ring.submit();
        t.sorted(&ring.wait(1));
    }
}

/// A poll reports the event that it begins with, though the next request of the batch takes it.
fn taken_in_its_batch(t: &mut Transcript) {
    for flags in [0, u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN] {
        let mut ring = Ring::flags(8, flags);
        let (listener, address) = net::listener(Family::V4);
        let _client = net::connected(Family::V4, &address);
        ring.push(multishot(listener.as_raw_fd(), IN, 1));
        ring.push(net::accept(listener.as_raw_fd(), 2).with(|sqe| sqe.ioprio = u::IORING_ACCEPT_DONTWAIT as u16));
        ring.submit();
        let entries: Vec<Entry> = ring.wait(2);
        let accepted = entries.iter().any(|entry| entry.user_data == 2 && entry.res >= 0);
        t.say(format_args!("accepted: {accepted}"));
        t.sorted(&entries.into_iter().filter(|entry| entry.user_data == 1).collect::<Vec<_>>());
        let (reader, writer) = files::sockets();
        files::put(&writer, b"x");
        let mut byte = [0u8; 1];
        ring.push(multishot(reader.as_raw_fd(), IN, 3));
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 4));
        ring.submit();
        t.sorted(&ring.wait(2));
        // Only what comes later is reported from then on.
        show_all(t, &mut ring);
        wake(t, &mut ring, &writer);
    }
}

/// A poll reports what is there before a chain of its batch goes on, and then what the
/// chain brings.
fn chain_of_its_batch(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::sockets();
    ring.push(write(writer.as_raw_fd(), b"x", 0, 1).linked());
    ring.push(write(writer.as_raw_fd(), b"y", 0, 2));
    ring.push(multishot(reader.as_raw_fd(), IN, 3));
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(4));
}

/// A byte into a socket, and what follows from it.
fn wake(t: &mut Transcript, ring: &mut Ring, writer: &std::os::fd::OwnedFd) {
    files::put(writer, b"x");
    let entries = ring.wait(1);
    show(t, &entries);
}

fn first_by_level(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    files::put(&writer, b"x");
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    t.result("submit", ring.submit());
    show(t, &ring.wait(1));
    crate::time::long_enough_to_notice();
    show(t, &ring.reap());
}

/// One completion per wake-up, though the data was not read.
fn later_by_edge(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    for _ in 0..4 {
        wake(t, &mut ring, &writer);
    }
    let _ = files::take(&reader, 100);
    wake(t, &mut ring, &writer);
}

fn none_when_idle(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    wake(t, &mut ring, &writer);
    crate::time::long_enough_to_notice();
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    show(t, &ring.reap());
}

fn removed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    wake(t, &mut ring, &writer);
    ring.push(poll_remove(1, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    show(t, &ring.reap());
}

fn cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    wake(t, &mut ring, &writer);
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}

fn hang_up(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    wake(t, &mut ring, &writer);
    drop(writer);
    show(t, &ring.wait(1));
    // The file stays hung up, but the poll has not ended.
    t.sorted(&ring.run(&[poll_remove(1, 3), nop(4)]));
}

/// Man page: POLL_ADD_LEVEL asks for level-triggered instead of edge-triggered
/// behaviour. The kernel refuses the flag, with and without POLL_ADD_MULTI.
fn level_triggered(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::sockets();
    for flags in [u::IORING_POLL_ADD_LEVEL, u::IORING_POLL_ADD_LEVEL | u::IORING_POLL_ADD_MULTI] {
        ring.push(poll(reader.as_raw_fd(), IN, 1).with(|sqe| sqe.len = flags));
        ring.submit();
        t.in_order(&ring.reap());
    }
}

fn update(target: u64, flags: u32, user_data: u64) -> Sqe {
    poll_remove(target, user_data).with(|sqe| sqe.len = flags)
}

fn update_keeps_armed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    wake(t, &mut ring, &writer);
    let both = u::IORING_POLL_UPDATE_USER_DATA | u::IORING_POLL_ADD_MULTI;
    ring.push(update(1, both, 2).with(|sqe| sqe.off = 10));
    ring.submit();
    // The first check after an update is level-triggered again.
    let mut entries = ring.arrived(2);
    entries.sort_by_key(|entry| entry.user_data);
    show(t, &entries);
    wake(t, &mut ring, &writer);
}

/// The update's POLL_ADD_MULTI is accepted, but has no effect: a single-shot poll stays one.
fn update_to_multishot(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(poll(reader.as_raw_fd(), libc::POLLPRI, 1));
    ring.submit();
    let flags = u::IORING_POLL_UPDATE_EVENTS | u::IORING_POLL_ADD_MULTI;
    t.entry(&ring.one(update(1, flags, 2).op_flags(IN as u32)));
    wake(t, &mut ring, &writer);
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    show(t, &ring.reap());
}

/// A wake-up that the ring itself causes would repeat for ever, so the poll ends.
fn own_eventfd_ends_it(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    let number = event.as_raw_fd();
    t.result("register eventfd", ring.register(reg::EVENTFD, &raw const number, 1));
    ring.push(multishot(number, IN, 1));
    t.result("submit", ring.submit());
    ring.push(nop(2));
    ring.submit();
    let is_end = |entry: &Entry| entry.user_data == 1 && entry.flags == 0;
    let mut entries = Vec::new();
    let mut look = || {
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        entries.extend(ring.reap());
        entries.iter().any(is_end)
    };
    crate::time::until(&mut look);
    crate::time::long_enough_to_notice();
    look();
    let ended = entries.iter().filter(|entry| is_end(entry)).count();
    let nops = entries.iter().filter(|entry| entry.user_data == 2).count();
    t.say(format_args!("poll ended {ended} times, {nops} nop"));
    t.say(format_args!("bounded {}", entries.len() < 8));
}

fn eventfd_counts(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let event = files::eventfd(0);
    ring.push(multishot(event.as_raw_fd(), IN, 1));
    ring.submit();
    for _ in 0..3 {
        files::put(&event, &1u64.to_ne_bytes());
        let entries = ring.wait(1);
        show(t, &entries);
    }
    t.say(format_args!("count {}", files::event_count(&event)));
    crate::time::long_enough_to_notice();
    show(t, &ring.reap());
}

fn holds_drain(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.push(nop(2).flagged(usring_uapi::sqe_flags::IO_DRAIN));
    ring.push(nop(3));
    t.result("submit", ring.submit());
    wake(t, &mut ring, &writer);
    crate::time::long_enough_to_notice();
    show(t, &ring.reap());
    // Only closing the ring or ending the poll releases them. A cancel request would queue behind
    // the drain; the synchronous cancel does not.
    let mut registration: u::io_uring_sync_cancel_reg = crate::memory::zeroed();
    registration.addr = 1;
    registration.fd = -1;
    registration.timeout.tv_sec = -1;
    registration.timeout.tv_nsec = -1;
    t.result("cancel", ring.register(reg::SYNC_CANCEL, &raw const registration, 1));
    t.sorted(&ring.wait(3));
}

fn with_skip_success(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let skip = usring_uapi::sqe_flags::CQE_SKIP_SUCCESS;
    let entry = multishot(reader.as_raw_fd(), IN, 1).flagged(skip);
    ring.push(entry);
    t.result("submit", ring.submit());
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    show(t, &ring.reap());
}

fn ring_closes(t: &mut Transcript) {
    let (reader, writer) = files::sockets();
    let mut ring = Ring::new(4);
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    wake(t, &mut ring, &writer);
    drop(ring);
    files::put(&writer, b"x");
    t.say(format_args!("bytes left {}", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}

/// The request holds the file, not the descriptor number.
fn descriptor_closes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    drop(reader);
    wake(t, &mut ring, &writer);
    wake(t, &mut ring, &writer);
    drop(writer);
    show(t, &ring.wait(1));
}

/// Makes an epoll set that watches these descriptors for input.
fn set_of(numbers: &[i32]) -> std::os::fd::OwnedFd {
    // SAFETY: the descriptor is new, and nothing else owns it.
    let set = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(libc::epoll_create1(0)) };
    for number in numbers {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both numbers are open, and the event is a variable of this function.
        assert_eq!(unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, *number, &mut event) }, 0);
    }
    set
}

/// Prints all completions until none arrive any more.
fn show_all(t: &mut Transcript, ring: &mut Ring) {
    crate::time::long_enough_to_notice();
    let mut entries = ring.reap();
    ring.enter_for(0, 1, std::time::Duration::from_millis(30));
    entries.extend(ring.reap());
    entries.sort_by_key(|entry| entry.user_data);
    t.say(format_args!("{} come", if entries.len() > 4 { "many".to_string() } else { entries.len().to_string() }));
    entries.truncate(4);
    for entry in &entries {
        if entry.user_data == 1 { events(t, entry) } else { t.entry(entry) }
    }
}

/// The completion that reports the set makes the ring readable, and so the set. That ends the poll.
fn set_with_own_ring(t: &mut Transcript) {
    for flags in [0, u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN, u::IORING_SETUP_COOP_TASKRUN] {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::pipe();
        let set = set_of(&[ring.fd, reader.as_raw_fd()]);
        ring.push(multishot(set.as_raw_fd(), IN, 1));
        t.result("submit", ring.submit());
        t.say("a completion");
        ring.push(nop(2));
        ring.submit();
        show_all(t, &mut ring);
        t.say("another file of the set");
        files::put(&writer, b"x");
        show_all(t, &mut ring);
        t.say("a completion");
        ring.push(nop(3));
        ring.submit();
        show_all(t, &mut ring);
    }
}

/// The ring polls itself without a set in between.
fn own_ring(t: &mut Transcript) {
    for flags in [0, u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN] {
        let mut ring = Ring::flags(8, flags);
        ring.push(multishot(ring.fd, IN, 1));
        t.result("submit", ring.submit());
        show_all(t, &mut ring);
        for user_data in [2, 3] {
            ring.push(nop(user_data));
            ring.submit();
            show_all(t, &mut ring);
        }
    }
}

/// Two rings, each of which polls the other.
fn ring_that_watches_back(t: &mut Transcript) {
    let (mut one, mut other) = (Ring::new(8), Ring::new(8));
    one.push(multishot(other.fd, IN, 1));
    t.result("submit", one.submit());
    other.push(multishot(one.fd, IN, 1));
    t.result("submit", other.submit());
    other.push(nop(2));
    other.submit();
    for _ in 0..2 {
        t.say("one");
        show_all(t, &mut one);
        t.say("the other");
        show_all(t, &mut other);
    }
}

/// The polled ring, the poll's own or another one, has completions.
fn ring_with_completions(t: &mut Transcript) {
    for own in [true, false] {
        let (mut ring, mut other) = (Ring::new(8), Ring::new(8));
        let watched = if own { ring.fd } else { other.fd };
        let mut complete = |ring: &mut Ring, user_data| {
            let ring = if own { ring } else { &mut other };
            ring.push(nop(user_data));
            ring.submit();
        };
        complete(&mut ring, 2);
        ring.push(multishot(watched, IN, 1));
        t.result("submit", ring.submit());
        show_all(t, &mut ring);
        complete(&mut ring, 3);
        show_all(t, &mut ring);
        complete(&mut ring, 4);
        show_all(t, &mut ring);
    }
}

/// The set first reports a pipe, which ends nothing, and then a ring.
fn set_with_another_ring(t: &mut Transcript) {
    let (mut ring, mut other) = (Ring::new(8), Ring::new(8));
    let (reader, writer) = files::pipe();
    let set = set_of(&[other.fd, reader.as_raw_fd()]);
    ring.push(multishot(set.as_raw_fd(), IN, 1));
    t.result("submit", ring.submit());
    for _ in 0..2 {
        files::put(&writer, b"x");
        show_all(t, &mut ring);
    }
    for user_data in [2, 3] {
        other.push(nop(user_data));
        other.submit();
        show_all(t, &mut ring);
    }
}

/// The set holds an eventfd that signals the ring's completions.
fn set_with_own_eventfd(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    let number = event.as_raw_fd();
    assert_eq!(ring.register(reg::EVENTFD, &raw const number, 1), 0);
    let set = set_of(&[event.as_raw_fd()]);
    ring.push(multishot(set.as_raw_fd(), IN, 1));
    t.result("submit", ring.submit());
    for user_data in [2, 3] {
        ring.push(nop(user_data));
        ring.submit();
        show_all(t, &mut ring);
    }
}
