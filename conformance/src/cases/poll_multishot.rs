//! Multishot POLL_ADD: which CQEs are level-triggered and which are edge-triggered, and how the
//! poll ends.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u};

use super::poll::events;
use super::reg;
use crate::files;
use crate::net::{self, Family};
use crate::ring::{self, Entry, Ring};
use crate::sqe::{Change, cancel, nop, poll, poll_remove, read, write};
use crate::transcript::Transcript;

mod own_ring;

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

/// One batch submits several multishot polls of one ready file. Each poll reports the readiness
/// once.
fn several_of_one_batch(t: &mut Transcript) {
    for count in 1..4 {
        let mut ring = Ring::new(8);
        let (_reader, writer) = files::sockets();
        for user_data in 1..=count {
            ring.push(multishot(writer.as_raw_fd(), libc::POLLOUT, user_data));
        }
        t.result("submit", ring.submit());
        t.sorted(&ring.wait(count as usize));
        // If a poll reported the readiness twice, its second CQE would be here by now.
        ring.one(nop(100));
        ring.push(nop(101));
        ring.submit();
        t.sorted(&ring.wait(1));
    }
}
case!(several_of_one_batch => "
    submit = 1
    cqe 1: 4 MORE
    cqe 101: 0
    submit = 2
    cqe 1: 4 MORE
    cqe 2: 4 MORE
    cqe 101: 0
    submit = 3
    cqe 1: 4 MORE
    cqe 2: 4 MORE
    cqe 3: 4 MORE
    cqe 101: 0
");

/// A file is ready when its poll starts. The poll reports this readiness, even if the next request
/// of the batch consumes the data or the connection.
fn taken_in_its_batch(t: &mut Transcript) {
    for flags in ring::BOTH {
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
        // The poll checks the file's state only at its start. Afterwards it reports new events
        // only.
        show_all(t, &mut ring);
        wake(t, &mut ring, &writer);
    }
}
case!(taken_in_its_batch => "
    accepted: true
    cqe 1: 1 MORE
    cqe 3: 1 MORE
    cqe 4: 1
    0 come
    cqe 3: IN MORE
    accepted: true
    cqe 1: 1 MORE
    cqe 3: 1 MORE
    cqe 4: 1
    0 come
    cqe 3: IN MORE
");

/// A poll first reports the readiness that it finds at its start. Then it reports an event that a
/// chain of this batch causes.
fn chain_of_its_batch(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::sockets();
    ring.push(write(writer.as_raw_fd(), b"x", 0, 1).linked());
    ring.push(write(writer.as_raw_fd(), b"y", 0, 2));
    ring.push(multishot(reader.as_raw_fd(), IN, 3));
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(4));
}
case!(chain_of_its_batch => "
    submit = 3
    cqe 1: 1
    cqe 2: 1
    cqe 3: 1 MORE
    cqe 3: 1 MORE
");

/// Writes a byte to the socket `writer`. Prints the completions that follow.
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
case!(first_by_level => "
    submit = 1
    cqe 1: IN MORE
    no cqe
");

/// Each wake-up of the file causes one CQE, even if the program has not read the earlier data.
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
case!(later_by_edge => "
    cqe 1: IN MORE
    cqe 1: IN MORE
    cqe 1: IN MORE
    cqe 1: IN MORE
    cqe 1: IN MORE
");

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
case!(none_when_idle => "
    cqe 1: IN MORE
    get events = 0
    no cqe
");

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
case!(removed => "
    cqe 1: IN MORE
    cqe 1: -ECANCELED
    cqe 2: 0
    no cqe
");

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
case!(cancelled => "
    cqe 1: IN MORE
    cqe 2: 0
    cqe 1: -ECANCELED
");

fn hang_up(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), IN, 1));
    ring.submit();
    wake(t, &mut ring, &writer);
    drop(writer);
    show(t, &ring.wait(1));
    // The file stays in the state POLLHUP, and the poll is nevertheless still armed.
    t.sorted(&ring.run(&[poll_remove(1, 3), nop(4)]));
}
case!(hang_up => "
    cqe 1: IN MORE
    cqe 1: IN|HUP|RDHUP MORE
    cqe 1: -ECANCELED
    cqe 3: 0
    cqe 4: 0
");

/// The kernel refuses POLL_ADD_LEVEL, with and without POLL_ADD_MULTI. According to the manual
/// page, this flag asks for level-triggered events.
fn level_triggered(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::sockets();
    for flags in [u::IORING_POLL_ADD_LEVEL, u::IORING_POLL_ADD_LEVEL | u::IORING_POLL_ADD_MULTI] {
        ring.push(poll(reader.as_raw_fd(), IN, 1).with(|sqe| sqe.len = flags));
        ring.submit();
        t.in_order(&ring.reap());
    }
}
case!(level_triggered => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
");

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
    // After an update, the poll checks the file's state again, so it reports the unread data once
    // more.
    let mut entries = ring.reap_in_memory(2);
    entries.sort_by_key(|entry| entry.user_data);
    show(t, &entries);
    wake(t, &mut ring, &writer);
}
case!(update_keeps_armed => "
    cqe 1: IN MORE
    cqe 2: - -
    cqe 10: IN MORE
    cqe 10: IN MORE
");

/// The kernel accepts POLL_ADD_MULTI in an update but ignores it: a single-shot poll stays
/// single-shot.
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
case!(update_to_multishot => "
    cqe 2: 0
    cqe 1: IN -
    no cqe
");

/// A poll waits for the eventfd that its own ring signals. When a CQE of the poll has signalled
/// that eventfd, the poll ends. Otherwise each of its CQEs would cause the next.
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
    let mut poll_once = || {
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        entries.extend(ring.reap());
        entries.iter().any(is_end)
    };
    crate::time::until(&mut poll_once);
    crate::time::long_enough_to_notice();
    poll_once();
    let ended = entries.iter().filter(|entry| is_end(entry)).count();
    let nops = entries.iter().filter(|entry| entry.user_data == 2).count();
    t.say(format_args!("poll ended {ended} times, {nops} nop"));
    t.say(format_args!("bounded {}", entries.len() < 8));
}
case!(own_eventfd_ends_it => "
    register eventfd = 0
    submit = 1
    poll ended 1 times, 1 nop
    bounded true
");

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
case!(eventfd_counts as eventfd_semaphore => "
    cqe 1: IN MORE
    cqe 1: IN MORE
    cqe 1: IN MORE
    count 3
    no cqe
");

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
    // The drain holds back both NOPs until the poll ends. It would also hold back a CANCEL request,
    // so the case uses the synchronous cancel.
    let mut registration: u::io_uring_sync_cancel_reg = crate::memory::zeroed();
    registration.addr = 1;
    registration.fd = -1;
    registration.timeout.tv_sec = -1;
    registration.timeout.tv_nsec = -1;
    t.result("cancel", ring.register(reg::SYNC_CANCEL, &raw const registration, 1));
    t.sorted(&ring.wait(3));
}
case!(holds_drain => "
    submit = 3
    cqe 1: IN MORE
    no cqe
    cancel = 0
    cqe 1: -ECANCELED
    cqe 2: 0
    cqe 3: 0
");

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
case!(with_skip_success => "
    submit = 1
    cqe 1: -EINVAL -
");

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
case!(ring_closes => "
    cqe 1: IN MORE
    bytes left 2
");

/// A poll keeps its file open, so it does not end when the program closes the descriptor.
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
case!(descriptor_closes => "
    cqe 1: IN MORE
    cqe 1: IN MORE
    cqe 1: IN|HUP|RDHUP MORE
");

/// Waits for 30 ms and prints all completions that have arrived.
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
