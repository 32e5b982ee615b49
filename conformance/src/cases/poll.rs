//! Single-shot POLL_ADD, and POLL_REMOVE: events, removal, update.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u};

use crate::files;
use crate::names;
use crate::ring::{Entry, Ring};
use crate::sqe::{Change, fields, nop, poll, poll_remove};
use crate::transcript::Transcript;

const IN: i16 = libc::POLLIN;
const OUT: i16 = libc::POLLOUT;

/// Prints a CQE whose result is a mask of poll events, with the names of these events.
pub fn events(t: &mut Transcript, entry: &Entry) {
    let flags = names::cqe_flags(entry.flags);
    t.say(format_args!("cqe {}: {} {flags}", entry.user_data, names::events(entry.res)));
}

fn all_events(t: &mut Transcript, mut entries: Vec<Entry>) {
    entries.sort_by_key(|entry| entry.user_data);
    for entry in &entries {
        events(t, entry);
    }
    if entries.is_empty() {
        t.say("no cqe");
    }
}

fn ready_at_once(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    ring.push(poll(reader.as_raw_fd(), IN, 1));
    ring.push(poll(writer.as_raw_fd(), OUT, 2));
    t.result("submit", ring.submit());
    all_events(t, ring.reap());
}
case!(ready_at_once => "
    submit = 2
    cqe 1: IN -
    cqe 2: OUT -
");

fn waits_for_event(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), IN, 1));
    t.result("submit", ring.submit());
    all_events(t, ring.reap());
    files::put(&writer, b"x");
    all_events(t, ring.wait(1));
    // The poll was single-shot, so a further byte causes no completion.
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    all_events(t, ring.reap());
}
case!(waits_for_event => "
    submit = 1
    no cqe
    cqe 1: IN -
    no cqe
");

fn only_asked_events(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets();
    files::put(&there, b"x");
    let fd = here.as_raw_fd();
    for events in [IN, OUT, IN | OUT, IN | libc::POLLRDNORM, OUT | libc::POLLWRNORM] {
        let entry = ring.one(poll(fd, events, 1));
        self::events(t, &entry);
    }
}
case!(only_asked_events => "
    cqe 1: IN -
    cqe 1: OUT -
    cqe 1: IN|OUT -
    cqe 1: IN|RDNORM -
    cqe 1: OUT|WRNORM -
");

/// A poll reports POLLERR and POLLHUP even if its mask does not contain them.
fn hang_up_and_error_always(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), 0, 1));
    ring.submit();
    all_events(t, ring.reap());
    drop(writer);
    all_events(t, ring.wait(1));
    let (reader, writer) = files::pipe();
    drop(reader);
    events(t, &ring.one(poll(writer.as_raw_fd(), 0, 2)));
    events(t, &ring.one(poll(writer.as_raw_fd(), OUT, 3)));
    let (here, there) = files::sockets();
    drop(there);
    events(t, &ring.one(poll(here.as_raw_fd(), IN, 4)));
    let halves = libc::POLLRDHUP | IN;
    events(t, &ring.one(poll(here.as_raw_fd(), halves, 5)));
}
case!(hang_up_and_error_always => "
    no cqe
    cqe 1: HUP -
    cqe 2: ERR -
    cqe 3: OUT|ERR -
    cqe 4: IN|HUP|RDHUP -
    cqe 5: IN|HUP|RDHUP -
");

fn always_ready(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"x");
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let root = std::fs::File::open("/").expect("/");
    for fd in [file.as_raw_fd(), null.as_raw_fd(), root.as_raw_fd()] {
        events(t, &ring.one(poll(fd, IN, 1)));
        events(t, &ring.one(poll(fd, IN | OUT, 2)));
    }
}
case!(always_ready as file_that_is_always_ready => "
    cqe 1: IN -
    cqe 2: IN|OUT -
    cqe 1: IN -
    cqe 2: IN|OUT -
    cqe 1: IN -
    cqe 2: IN|OUT -
");

fn bad_descriptors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for fd in [-1, 9999, i32::MAX] {
        events(t, &ring.one(poll(fd, IN, 1)));
    }
    events(t, &ring.one(poll(0, IN, 2).fixed()));
}
case!(bad_descriptors => "
    cqe 1: -EBADF -
    cqe 1: -EBADF -
    cqe 1: -EBADF -
    cqe 2: -EBADF -
");

fn remove(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), IN, 1));
    ring.submit();
    ring.push(poll_remove(1, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.entry(&ring.one(poll_remove(1, 3)));
}
case!(remove => "
    cqe 1: -ECANCELED
    cqe 2: 0
    no cqe
    cqe 3: -ENOENT
");

fn remove_unknown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(poll_remove(77, 1)));
    // POLL_REMOVE does not find a waiting read.
    let (reader, _writer) = files::pipe();
    let mut buffer = [0u8; 1];
    ring.push(crate::sqe::read(reader.as_raw_fd(), &mut buffer, 0, 5));
    ring.submit();
    t.entry(&ring.one(poll_remove(5, 2)));
}
case!(remove_unknown => "
    cqe 1: -ENOENT
    cqe 2: -ENOENT
");

fn remove_first_of_equals(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), IN, 1));
    ring.push(poll(reader.as_raw_fd(), IN, 1));
    ring.submit();
    ring.push(poll_remove(1, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    ring.push(poll_remove(1, 3));
    ring.submit();
    t.sorted(&ring.wait(2));
}
case!(remove_first_of_equals => "
    cqe 1: -ECANCELED
    cqe 2: 0
    cqe 1: -ECANCELED
    cqe 3: 0
");

/// Returns a POLL_REMOVE with the update flags `flags`. It changes the armed poll `target` instead
/// of removing it.
fn update(target: u64, flags: u32, user_data: u64) -> Sqe {
    poll_remove(target, user_data).with(|sqe| sqe.len = flags)
}

const EVENTS: u32 = u::IORING_POLL_UPDATE_EVENTS;
const USER_DATA: u32 = u::IORING_POLL_UPDATE_USER_DATA;

fn update_events(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (here, there) = files::sockets();
    ring.push(poll(here.as_raw_fd(), libc::POLLPRI, 1));
    ring.submit();
    files::put(&there, b"x");
    t.entry(&ring.one(update(1, EVENTS, 2).op_flags(libc::POLLPRI as u32)));
    ring.push(update(1, EVENTS, 3).op_flags(IN as u32));
    ring.submit();
    all_events(t, ring.wait(2));
}
case!(update_events => "
    cqe 2: 0
    cqe 1: IN -
    cqe 3: - -
");

fn update_user_data(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), IN, 1));
    ring.submit();
    t.entry(&ring.one(update(1, USER_DATA, 2).with(|sqe| sqe.off = 10)));
    t.entry(&ring.one(update(1, USER_DATA, 3).with(|sqe| sqe.off = 11)));
    files::put(&writer, b"x");
    all_events(t, ring.wait(1));
    // One call updates both events and user_data.
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLPRI, 1));
    ring.submit();
    let both = update(1, EVENTS | USER_DATA, 4).op_flags(IN as u32);
    t.entry(&ring.one(both.with(|sqe| sqe.off = 12)));
    files::put(&writer, b"x");
    all_events(t, ring.wait(1));
}
case!(update_user_data => "
    cqe 2: 0
    cqe 3: -ENOENT
    cqe 10: IN -
    cqe 4: 0
    cqe 12: IN -
");

fn update_to_ready(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::pipe();
    ring.push(poll(writer.as_raw_fd(), libc::POLLPRI, 1));
    ring.submit();
    ring.push(update(1, EVENTS, 2).op_flags(OUT as u32));
    ring.submit();
    all_events(t, ring.wait(2));
}
case!(update_to_ready => "
    cqe 1: OUT -
    cqe 2: - -
");

fn update_unknown(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(update(1, EVENTS, 2).op_flags(IN as u32)));
    t.entry(&ring.one(update(1, USER_DATA, 3)));
    t.entry(&ring.one(update(1, u::IORING_POLL_ADD_MULTI, 4)));
    t.entry(&ring.one(update(1, 1 << 10, 5)));
    // This update has a new user_data, but not the flag IORING_POLL_UPDATE_USER_DATA.
    t.entry(&ring.one(update(1, EVENTS, 6).with(|sqe| sqe.off = 9)));
    t.entry(&ring.one(poll_remove(1, 7).with(|sqe| sqe.off = 9)));
    t.entry(&ring.one(poll_remove(1, 8).op_flags(IN as u32)));
}
case!(update_unknown => "
    cqe 2: -ENOENT
    cqe 3: -ENOENT
    cqe 4: -EINVAL
    cqe 5: -EINVAL
    cqe 6: -EINVAL
    cqe 7: -EINVAL
    cqe 8: -EINVAL
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::pipe();
    let good = poll(writer.as_raw_fd(), OUT, 1);
    for (_, change) in fields![addr = 1, off = 1, len = 2, len = 1 << 10, buf_index = 1, file_index = 1, ioprio = 1] {
        events(t, &ring.one(good.with(change)));
    }
    let remove = poll_remove(1, 2);
    t.each(&mut ring, remove, &fields![buf_index = 1, file_index = 1, ioprio = 1, fd = 5]);
}
case!(reserved_fields => "
    cqe 1: -EINVAL -
    cqe 1: -EINVAL -
    cqe 1: -EINVAL -
    cqe 1: -EINVAL -
    cqe 1: -EINVAL -
    cqe 1: OUT -
    cqe 1: -EINVAL -
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -ENOENT
");

fn several_on_one_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    for user_data in 1..=4 {
        ring.push(poll(reader.as_raw_fd(), IN, user_data));
    }
    ring.push(nop(5));
    ring.submit();
    files::put(&writer, b"x");
    all_events(t, ring.wait(5));
}
case!(several_on_one_file => "
    cqe 1: IN -
    cqe 2: IN -
    cqe 3: IN -
    cqe 4: IN -
    cqe 5: - -
");

/// The mask of poll events has 32 bits. The kernel also accepts bits of the upper half, such as
/// EPOLLEXCLUSIVE.
fn wide_events(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (_reader, writer) = files::pipe();
    for upper in [1u32 << 28, 1 << 29, 1 << 30, 1 << 31, 1 << 16] {
        let wide = poll(writer.as_raw_fd(), OUT, 1).op_flags(OUT as u32 | upper);
        events(t, &ring.one(wide));
    }
}
case!(wide_events => "
    cqe 1: OUT -
    cqe 1: OUT -
    cqe 1: OUT -
    cqe 1: OUT -
    cqe 1: OUT -
");

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), IN, 1));
    ring.submit();
    files::put(&writer, b"x");
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
    all_events(t, ring.reap());
}
case!(watched_in_memory => "
    seen true
    cqe 1: IN -
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), IN, 1).forced_async());
    ring.submit();
    crate::time::long_enough_to_notice();
    all_events(t, ring.reap());
    files::put(&writer, b"x");
    all_events(t, ring.wait(1));
}
case!(forced_async => "
    no cqe
    cqe 1: IN -
");

/// A poll for POLLPRI and POLLIN reports out-of-band data. A poll for POLLPRI alone would miss such
/// data, because the kernel's wake-up filter does not wake it. The timing decides whether POLLIN is
/// reported, too.
fn priority_data(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let client = std::net::TcpStream::connect(address).expect("a connection");
    let (server, _) = listener.accept().expect("a connection");
    ring.push(poll(server.as_raw_fd(), libc::POLLPRI | IN, 1));
    ring.submit();
    all_events(t, ring.reap());
    // SAFETY: the buffer has one readable byte.
    unsafe { libc::send(client.as_raw_fd(), c"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    let mut entries = ring.wait(1);
    for entry in &mut entries {
        entry.res &= !i32::from(IN);
    }
    all_events(t, entries);
}
case!(priority_data => "
    no cqe
    cqe 1: PRI -
");

/// A poll for POLLPRI alone.
fn priority_data_alone(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    ring.push(poll(reader.as_raw_fd(), libc::POLLPRI, 1));
    ring.submit();
    // SAFETY: the buffer has one readable byte.
    unsafe { libc::send(writer.as_raw_fd(), c"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    ring.enter_for(0, 1, std::time::Duration::from_secs(1));
    ring.push(poll_remove(1, 2));
    ring.submit();
    let mut entries = ring.wait(2);
    entries.sort_by_key(|entry| entry.user_data);
    all_events(t, entries);
}
case!(priority_data_alone => "
    cqe 1: -ECANCELED -
    cqe 2: - -
", usring => "
    cqe 1: PRI -
    cqe 2: -ENOENT -
", because "a poll for POLLPRI alone hears of urgent data");

/// On the kernel, a multishot poll reports the events that the wake-up names, and does not check
/// the file's state. So when data arrives, it reports POLLPRI as well, but not POLLOUT.
fn several_events_of_a_socket(t: &mut Transcript) {
    for events in [IN | libc::POLLPRI, IN | libc::POLLOUT] {
        let mut ring = Ring::new(4);
        let (reader, writer) = files::sockets();
        ring.push(poll(reader.as_raw_fd(), events, 1).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI));
        ring.submit();
        all_events(t, ring.reap());
        files::put(&writer, b"x");
        all_events(t, ring.wait(1));
    }
}
case!(several_events_of_a_socket => "
    no cqe
    cqe 1: IN|PRI MORE
    cqe 1: OUT MORE
    cqe 1: IN MORE
", usring => "
    no cqe
    cqe 1: IN MORE
    cqe 1: OUT MORE
    cqe 1: IN|OUT MORE
", because "a poll reports the events that hold");

/// A poll with EPOLLEXCLUSIVE completes on its event.
fn exclusive(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let wide = IN as u32 | 1 << 28;
    ring.push(poll(reader.as_raw_fd(), IN, 1).op_flags(wide));
    ring.submit();
    files::put(&writer, b"x");
    all_events(t, ring.wait(1));
}
case!(exclusive => "cqe 1: IN -");

/// A file without poll support counts as ready for reading and writing. The kernel refuses a poll
/// that asks for neither.
fn file_without_such_an_event(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"content");
    for events in [IN, libc::POLLOUT, IN | libc::POLLPRI, libc::POLLPRI, libc::POLLRDHUP, 0] {
        t.entry(&ring.one(poll(file.as_raw_fd(), events, 1)));
        let many = poll(file.as_raw_fd(), events, 2).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI);
        t.entry(&ring.one(many));
    }
}
case!(file_without_such_an_event => "
    cqe 1: 1
    cqe 2: 1
    cqe 1: 4
    cqe 2: 4
    cqe 1: 1
    cqe 2: 1
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");
