//! READ_MULTISHOT: a read that stays armed and takes a provided buffer each time.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::buffers::{Group, SIZE, group_of, incremental_group_of};
use crate::case::{Case, case};
use crate::files;
use crate::memory::Pages;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, link_timeout, nop, sqe};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("read_multishot.pipe", pipe),
    case("read_multishot.data_is_there", data_is_there),
    case("read_multishot.socket", socket),
    case("read_multishot.eventfd", eventfd),
    case("read_multishot.wrong", wrong),
    case("read_multishot.file_that_is_not_polled", not_polled),
    case("read_multishot.end_of_file", end_of_file),
    case("read_multishot.end_of_file_at_once", end_of_file_at_once),
    case("read_multishot.no_buffers", no_buffers),
    case("read_multishot.buffers_run_out", buffers_run_out),
    case("read_multishot.error", error),
    case("read_multishot.cancelled", cancelled),
    case("read_multishot.cancelled_by_file", cancelled_by_file),
    case("read_multishot.overflow", overflow),
    case("read_multishot.link_timeout", bounded),
    case("read_multishot.link", link),
    case("read_multishot.drain", drain),
    case("read_multishot.skip_success", skip_success),
    case("read_multishot.fixed_file", fixed_file),
    case("read_multishot.descriptor_closes", descriptor_closes),
    case("read_multishot.ring_closes", ring_closes),
    case("read_multishot.forced_async", forced_async),
    case("read_multishot.terminal", terminal),
    case("read_multishot.first_generation", first_generation),
    case("read_multishot.incremental", incremental),
    case("read_multishot.many_at_once", many_at_once),
    case("read_multishot.two_on_one_pipe", two_on_one_pipe),
    case("read_multishot.deferred", deferred),
    case("read_multishot.without_entering", without_entering),
    case("read_multishot.sq_thread", sq_thread),
    case("read_multishot.devices", devices),
];

const GROUP: u16 = 3;

fn multishot(fd: i32, user_data: u64) -> Sqe {
    sqe(opcode::READ_MULTISHOT, fd, user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = GROUP)
}

/// Makes a ring with a group of `buffers` buffers.
fn ring_of(memory: &Pages, buffers: u16, flags: u32) -> (Ring, Group) {
    let ring = Ring::flags(16, flags);
    let mut group = group_of(&ring, memory, 128, GROUP);
    group.add_slots(0..buffers);
    (ring, group)
}

fn pipe(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    for text in ["one", "two", "three"] {
        files::put(&writer, text.as_bytes());
        t.in_order(&ring.wait(1));
    }
    t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
}

/// More data than one buffer holds: one completion per buffer.
fn data_is_there(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"0123456789abcdefghijklmnopqrstuvwxyzABCD");
    ring.push(multishot(reader.as_raw_fd(), 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(3));
    files::put(&writer, b"0123456789abcdefghijklmnopqrstuv");
    t.in_order(&ring.wait(2));
    t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
}

fn socket(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    for length in [1, 16, 17] {
        files::put(&writer, &[b'x'; 20][..length]);
        t.in_order(&ring.wait(length.div_ceil(16)));
    }
    drop(writer);
    t.in_order(&ring.wait(1));
}

fn eventfd(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let event = files::eventfd(0);
    ring.push(multishot(event.as_raw_fd(), 1));
    ring.submit();
    for count in [1u64, 5] {
        files::put(&event, &count.to_ne_bytes());
        t.in_order(&ring.wait(1));
    }
}

fn wrong(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    let good = multishot(reader.as_raw_fd(), 1);
    t.entry(&ring.one(good.with(|sqe| sqe.flags = 0)));
    t.entry(&ring.one(good.with(|sqe| sqe.addr = group.buffers.at(0))));
    t.entry(&ring.one(good.with(|sqe| sqe.len = 8)));
    t.entry(&ring.one(good.op_flags(1 << 31)));
    t.entry(&ring.one(good.with(|sqe| sqe.ioprio = 0xffff)));
    t.entry(&ring.one(good.with(|sqe| sqe.buf_index = 9)));
    t.entry(&ring.one(good.with(|sqe| sqe.fd = -1)));
    t.entry(&ring.one(good.with(|sqe| sqe.fd = writer.as_raw_fd())));
    t.say(group.text(0));
}

fn not_polled(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let file = files::memory_file(b"content");
    t.entry(&ring.one(multishot(file.as_raw_fd(), 1)));
    let root = std::fs::File::open("/").expect("/");
    t.entry(&ring.one(multishot(root.as_raw_fd(), 2)));
    // The refused request has taken no buffer.
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    ring.push(multishot(reader.as_raw_fd(), 3));
    ring.submit();
    t.in_order(&ring.wait(1));
}

fn end_of_file(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    drop(writer);
    t.in_order(&ring.wait(1));
}

fn end_of_file_at_once(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"0123456789abcdefghij");
    drop(writer);
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    t.in_order(&ring.wait(3));
}

/// The error comes at once, although there is no data to read.
fn no_buffers(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 0, 0);
    let (reader, _writer) = files::pipe();
    t.entry(&ring.one(multishot(reader.as_raw_fd(), 1)));
}

fn buffers_run_out(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 2, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    files::put(&writer, &[b'y'; 40]);
    t.in_order(&ring.wait(2));
    group.add_slots(2..5);
    ring.push(multishot(reader.as_raw_fd(), 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}

fn error(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 1, 0);
    group.add_at(crate::memory::BAD, SIZE, 7);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
}

fn cancelled(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
    files::put(&writer, b"left");
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}

fn cancelled_by_file(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, _writer) = files::pipe();
    for user_data in 1..=2 {
        ring.push(multishot(reader.as_raw_fd(), user_data));
    }
    ring.submit();
    let flags = u::IORING_ASYNC_CANCEL_FD | u::IORING_ASYNC_CANCEL_ALL;
    ring.push(cancel(0, flags, 9).with(|sqe| sqe.fd = reader.as_raw_fd()));
    ring.submit();
    t.sorted(&ring.wait(3));
}

/// The completion that does not fit is the last, and no data is lost.
fn overflow(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 4;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..16);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    for sent in 1..=7 {
        files::put(&writer, b"x");
        // Waits for each byte's completion before it writes the next one.
        crate::time::until(|| {
            ring.enter(0, 0, 0);
            ring.ready() == sent || ring.sq_flags() & u::IORING_SQ_CQ_OVERFLOW != 0
        });
    }
    crate::time::long_enough_to_notice();
    t.say(format_args!("ready {}", ring.ready()));
    t.in_order(&ring.reap());
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    t.in_order(&ring.reap());
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}

/// The timeout bounds the whole life of the request, whatever data has arrived.
fn bounded(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    let time = crate::time::milliseconds(1000);
    ring.push(multishot(reader.as_raw_fd(), 1).linked());
    ring.push(link_timeout(&time, 0, 2));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    t.sorted(&ring.wait(2));
}

fn link(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1).linked());
    ring.push(nop(2));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    drop(writer);
    t.in_order(&ring.wait(2));
    // An end by an error breaks the chain.
    let (reader, _writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 3).linked());
    ring.push(nop(4));
    ring.submit();
    ring.push(cancel(3, 0, 5));
    ring.submit();
    t.sorted(&ring.wait(3));
}

fn drain(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    drop(writer);
    t.in_order(&ring.wait(2));
}

/// Only the last completion belongs to the request itself.
fn skip_success(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.arrived(1));
    drop(writer);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}

fn fixed_file(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    let numbers = [reader.as_raw_fd()];
    t.result("register", ring.register(reg::FILES, numbers.as_ptr(), 1));
    drop(reader);
    ring.push(multishot(0, 1).fixed());
    ring.submit();
    for _ in 0..2 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
    drop(writer);
    t.in_order(&ring.wait(1));
}

fn descriptor_closes(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    drop(reader);
    for _ in 0..2 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    // The end of the request has closed the file.
    // SAFETY: the call installs no handler and touches no memory.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let gone = crate::time::until(|| files::put(&writer, b"x") < 0);
    t.say(format_args!("reader gone: {gone}"));
}

fn ring_closes(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    drop(ring);
    crate::time::long_enough_to_notice();
    files::put(&writer, b"yz");
    t.say(format_args!("{} bytes left", files::take(&reader, 10).map_or(0, |bytes| bytes.len())));
}

fn forced_async(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), 1).forced_async());
    ring.submit();
    for _ in 0..3 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    drop(writer);
    t.in_order(&ring.wait(1));
}

/// A file that cannot tell in advance whether a read would wait.
fn terminal(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, 0);
    let (program, keyboard) = files::terminal();
    ring.push(multishot(program.as_raw_fd(), 1));
    ring.submit();
    for line in ["one\n", "two\nthree\n"] {
        files::put(&keyboard, line.as_bytes());
        t.in_order(&ring.wait(line.lines().count()));
    }
    t.say(format_args!("{:?} {:?} {:?}", group.text(0), group.text(1), group.text(2)));
}

fn first_generation(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(8);
    let provide = |count, first: u64, user_data| {
        sqe(opcode::PROVIDE_BUFFERS, count, user_data).with(|sqe| {
            sqe.addr = buffers.at(first as usize * SIZE as usize);
            sqe.len = SIZE;
            sqe.off = first;
            sqe.buf_index = GROUP;
        })
    };
    t.entry(&ring.one(provide(3, 0, 1)));
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 2));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    ring.push(cancel(2, 0, 3));
    ring.submit();
    t.in_order(&ring.wait(2));
    ring.push(multishot(reader.as_raw_fd(), 4));
    ring.submit();
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
    files::put(&writer, b"z");
    t.in_order(&ring.wait(1));
}

fn incremental(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(8);
    let mut group = incremental_group_of(&ring, &memory, 4, GROUP);
    group.add_slots(0..2);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    t.say(group.state(0));
    for length in [5, 6, 7] {
        files::put(&writer, &[b'x'; 8][..length]);
        t.in_order(&ring.wait(if length == 7 { 2 } else { 1 }));
        t.say(format_args!("{}, {}", group.state(0), group.state(1)));
    }
    drop(writer);
    t.in_order(&ring.wait(1));
}

/// Far more data than one time slice takes, while other sockets have data, too.
fn many_at_once(t: &mut Transcript) {
    let memory = Pages::new(2);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 1024;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 512, GROUP);
    for slot in 0..400u16 {
        let address = group.buffers.at(usize::from(slot));
        group.add_at(address, 1, slot);
    }
    let (reader, writer) = files::pipe();
    let (other, other_writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.push(multishot(other.as_raw_fd(), 2));
    ring.submit();
    files::put(&writer, &[b'x'; 300]);
    files::put(&other_writer, b"y");
    let entries = ring.wait(301);
    let of = |user_data| entries.iter().filter(move |entry| entry.user_data == user_data && entry.res == 1);
    let more = entries.iter().all(|entry| entry.flags & u::IORING_CQE_F_MORE != 0);
    t.say(format_args!("{} and {}, all with more: {more}", of(1).count(), of(2).count()));
    drop(writer);
    t.in_order(&ring.wait(1));
}

/// Each byte goes to one of the reads.
fn two_on_one_pipe(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 64, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    let mut bytes = 0;
    for _ in 0..8 {
        files::put(&writer, b"x");
        bytes += ring.wait(1).iter().map(|entry| entry.res).sum::<i32>();
    }
    t.say(format_args!("{bytes} bytes"));
    drop(writer);
    let ends = ring.wait(2);
    t.say(format_args!("{} ends, {} with more", ends.len(), ends.iter().filter(|end| end.flags != 0).count()));
}

fn deferred(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE | u::IORING_SETUP_DEFER_TASKRUN | u::IORING_SETUP_SINGLE_ISSUER;
        params.cq_entries = 128;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..120);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    t.result("submit", ring.submit());
    files::put(&writer, &[b'x'; 1600]);
    crate::time::long_enough_to_notice();
    t.say(format_args!("ready {}", ring.ready()));
    t.result("get events", ring.enter(0, 100, u::IORING_ENTER_GETEVENTS));
    let entries = ring.reap();
    t.say(format_args!("{} completions, {} bytes", entries.len(), entries.iter().map(|entry| entry.res).sum::<i32>()));
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}

/// The thread is never inside the ring, and yet all data arrives.
fn without_entering(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 128;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..120);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    files::put(&writer, &[b'x'; 1600]);
    t.say(format_args!("all there: {}", ring.watch(100)));
    files::put(&writer, &[b'x'; 160]);
    t.say(format_args!("more: {}", ring.watch(110)));
}

fn sq_thread(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE | u::IORING_SETUP_SQPOLL;
        params.cq_entries = 128;
        params.sq_thread_idle = 10;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..120);
    let (reader, writer) = files::pipe();
    files::put(&writer, &[b'x'; 800]);
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.forget_pending();
    ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
    t.say(format_args!("all there: {}", ring.watch(50)));
    crate::time::long_enough_to_notice();
    files::put(&writer, &[b'x'; 160]);
    t.say(format_args!("more: {}", ring.watch(60)));
}

/// Character devices, of which some can be waited for.
fn devices(t: &mut Transcript) {
    for path in ["/dev/zero", "/dev/null", "/dev/full", "/dev/urandom"] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 2, 0);
        let file = std::fs::File::open(path).expect("it is there");
        ring.push(multishot(file.as_raw_fd(), 1));
        ring.submit();
        t.say(path);
        t.in_order(&ring.wait(1));
        ring.push(multishot(file.as_raw_fd(), 2).forced_async());
        ring.submit();
        t.in_order(&ring.wait(1));
    }
}
