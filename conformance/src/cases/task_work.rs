//! When late completions become visible: the modes in which task work runs.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use super::reg;
use crate::case::{Case, case};
use crate::files;
use crate::names;
use crate::ring::Ring;
use crate::sqe::{Change, nop, poll, timeout};
use crate::time::{milliseconds, until};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("task_work.default_without_entering", default_without_entering),
    case("task_work.default_woken_by_another_thread", default_woken_by_another_thread),
    case("task_work.deferred_only_in_getevents", deferred_only_in_getevents),
    case("task_work.deferred_shows_flag", deferred_shows_flag),
    case("task_work.deferred_eventfd_fires", deferred_eventfd_fires),
    case("task_work.deferred_wait_for_several", deferred_wait_for_several),
    case("task_work.deferred_inline_is_at_once", deferred_inline_is_at_once),
    case("task_work.deferred_submit_and_wait", deferred_submit_and_wait),
    case("task_work.deferred_timeouts", deferred_timeouts),
    case("task_work.deferred_other_thread_wakes", deferred_other_thread_wakes),
    case("task_work.deferred_zero_wait", deferred_zero_wait),
    case("task_work.deferred_teardown", deferred_teardown),
    case("task_work.cooperative", cooperative),
    case("task_work.cooperative_flag", cooperative_flag),
    case("task_work.flag_goes_away", flag_goes_away),
    case("task_work.deferred_workers", deferred_workers),
    case("task_work.deferred_wait_is_enough", deferred_wait_is_enough),
    case("task_work.sleeper_in_another_call", sleeper_in_another_call),
    case("task_work.sleeper_is_told_by_event", sleeper_is_told_by_event),
    case("task_work.sleeper_is_told_of_message", sleeper_is_told_of_message),
    case("task_work.deferred_sleeper_in_another_call", deferred_sleeper_in_another_call),
    case("task_work.own_write_is_seen_by_enter", own_write_is_seen_by_enter),
    case("task_work.own_close_is_seen_by_enter", own_close_is_seen_by_enter),
    case("task_work.own_write_is_seen_beside_a_completion", own_write_is_seen_beside_a_completion),
    case("task_work.own_write_is_seen_after_many_waits", own_write_is_seen_after_many_waits),
];

const DEFER: u32 = u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN;
const FLAG: u32 = u::IORING_SETUP_TASKRUN_FLAG;

/// Makes a ring with a poll on the reading end of a pipe.
fn polling(flags: u32) -> (Ring, OwnedFd, OwnedFd) {
    let mut ring = Ring::flags(8, flags);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    (ring, reader, writer)
}

fn default_without_entering(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(0);
    files::put(&writer, b"x");
    t.say(format_args!("seen {}", ring.watch(1)));
    t.in_order(&ring.reap());
}

/// Even a thread that spins without a system call sees the completion.
fn default_woken_by_another_thread(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(0);
    let thread = std::thread::spawn(move || {
        files::put(&writer, b"x");
        writer
    });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while ring.ready() == 0 && std::time::Instant::now() < deadline {
        std::hint::spin_loop();
    }
    t.in_order(&ring.reap());
    drop(thread.join());
}

/// No other call of the thread makes the completion visible.
fn deferred_only_in_getevents(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(DEFER);
    files::put(&writer, b"x");
    crate::time::long_enough_to_notice();
    t.say(format_args!("after other calls: ready {}", ring.ready()));
    t.result("enter(0, 0, 0)", ring.enter(0, 0, 0));
    t.say(format_args!("ready {}", ring.ready()));
    ring.push(nop(2));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}

/// Pending work is visible in the SQ's flags if the setup asked for that.
fn deferred_shows_flag(t: &mut Transcript) {
    for flags in [DEFER, DEFER | FLAG] {
        let (ring, _reader, writer) = polling(flags);
        t.say(format_args!("before {}", names::sq_flags(ring.sq_flags())));
        files::put(&writer, b"x");
        if flags & FLAG == 0 {
            crate::time::long_enough_to_notice();
        } else {
            until(|| ring.sq_flags() != 0);
        }
        t.say(format_args!("work waits {}", names::sq_flags(ring.sq_flags())));
        t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
        t.say(format_args!("after {}", names::sq_flags(ring.sq_flags())));
    }
}

/// The eventfd is signalled when the work is queued, before the CQE is posted.
fn deferred_eventfd_fires(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(DEFER);
    let event = files::eventfd(0);
    let number = event.as_raw_fd();
    t.result("register", ring.register(reg::EVENTFD, &raw const number, 1));
    files::put(&writer, b"x");
    t.say(format_args!("told {}", until(|| files::event_count(&event) > 0)));
    t.in_order(&ring.reap());
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}

/// The waiter sleeps until as many items as it wants are queued.
fn deferred_wait_for_several(t: &mut Transcript) {
    let mut ring = Ring::flags(8, DEFER);
    let events: Vec<OwnedFd> = (0..3).map(|_| files::eventfd(0)).collect();
    for (index, event) in events.iter().enumerate() {
        ring.push(poll(event.as_raw_fd(), libc::POLLIN, index as u64 + 1));
    }
    ring.submit();
    let numbers: Vec<i32> = events.iter().map(AsRawFd::as_raw_fd).collect();
    let thread = std::thread::spawn(move || {
        for number in numbers {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let one = 1u64;
            // SAFETY: eight readable bytes; the case holds the descriptor.
            unsafe { libc::write(number, (&raw const one).cast(), 8) };
        }
    });
    t.result("wait for 3", ring.enter(0, 3, u::IORING_ENTER_GETEVENTS));
    t.sorted(&ring.reap());
    let _ = thread.join();
}

fn deferred_inline_is_at_once(t: &mut Transcript) {
    let mut ring = Ring::flags(8, DEFER);
    ring.push(nop(1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}

fn deferred_submit_and_wait(t: &mut Transcript) {
    let mut ring = Ring::flags(8, DEFER);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    let time = milliseconds(10);
    ring.push(timeout(&time, 0, 0, 2));
    t.result("submit and wait for 2", ring.submit_and_wait(2));
    t.in_order(&ring.reap());
}

fn deferred_timeouts(t: &mut Transcript) {
    let mut ring = Ring::flags(8, DEFER);
    let time = milliseconds(5);
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.say(format_args!("ready {}", ring.ready()));
    t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}

fn deferred_other_thread_wakes(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(DEFER);
    let thread = std::thread::spawn(move || {
        crate::time::long_enough_to_notice();
        files::put(&writer, b"x");
        writer
    });
    t.result("wait", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    drop(thread.join());
}

/// A wait for zero completions runs the queued work.
fn deferred_zero_wait(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(DEFER | FLAG);
    files::put(&writer, b"x");
    until(|| ring.sq_flags() != 0);
    t.result("wait for 0", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    let limit = std::time::Duration::from_millis(10);
    t.result("wait for 1, none left", ring.enter_for(0, 1, limit));
}

/// Work that is queued when the ring is closed runs then.
fn deferred_teardown(t: &mut Transcript) {
    let (ring, reader, writer) = polling(DEFER | FLAG);
    files::put(&writer, b"x");
    until(|| ring.sq_flags() != 0);
    drop(reader);
    drop(ring);
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&mut entry, 1, 30_000) };
    t.say(format_args!("file let go {}", entry.revents & libc::POLLERR != 0));
}

/// COOP_TASKRUN: the work runs at the thread's next system call, of any kind.
fn cooperative(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(u::IORING_SETUP_COOP_TASKRUN);
    files::put(&writer, b"x");
    t.say(format_args!("seen {}", until(|| ring.ready() > 0)));
    t.in_order(&ring.reap());
}

fn cooperative_flag(t: &mut Transcript) {
    let flags = u::IORING_SETUP_COOP_TASKRUN | FLAG;
    let (mut ring, _reader, writer) = polling(flags);
    t.say(format_args!("before {}", names::sq_flags(ring.sq_flags())));
    let thread = std::thread::spawn(move || {
        files::put(&writer, b"x");
        writer
    });
    // Spins without a call that would run the work. Either the flag or the completion itself must
    // become visible.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while ring.sq_flags() & u::IORING_SQ_TASKRUN == 0 && ring.ready() == 0 && std::time::Instant::now() < deadline {
        std::hint::spin_loop();
    }
    let told = ring.sq_flags() & u::IORING_SQ_TASKRUN != 0 || ring.ready() > 0;
    t.say(format_args!("told {told}"));
    t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    t.say(format_args!("after {}", names::sq_flags(ring.sq_flags())));
    drop(thread.join());
}

fn flag_goes_away(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(DEFER | FLAG);
    for round in 0..3 {
        files::put(&writer, b"x");
        t.say(format_args!("told {}", until(|| ring.sq_flags() != 0)));
        let entries = ring.wait(1);
        t.in_order(&entries);
        t.say(format_args!("flags {}", names::sq_flags(ring.sq_flags())));
        let _ = files::take(&_reader, 10);
        ring.push(poll(_reader.as_raw_fd(), libc::POLLIN, round + 2));
        ring.submit();
    }
}

/// Completions of workers wait for the owner as well.
fn deferred_workers(t: &mut Transcript) {
    let mut ring = Ring::flags(8, DEFER | FLAG);
    let file = files::memory_file(b"0123");
    let mut buffer = [0u8; 4];
    ring.push(crate::sqe::read(file.as_raw_fd(), &mut buffer, 0, 1).forced_async());
    ring.submit();
    until(|| ring.sq_flags() != 0);
    t.say(format_args!("ready {}", ring.ready()));
    t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}

/// A CQE already in the queue ends a wait for one; queued work need not run.
fn deferred_wait_is_enough(t: &mut Transcript) {
    let (mut ring, _reader, _writer) = polling(DEFER);
    ring.push(nop(2));
    ring.push(nop(3));
    t.result("submit", ring.submit());
    t.result("wait for 2", ring.enter(0, 2, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}

/// The two kinds of rings whose thread is notified in any system call.
const TELLING: [(&str, u32); 2] = [("default", 0), ("cooperative", u::IORING_SETUP_COOP_TASKRUN)];

/// Writes to a pipe a little later, from another thread.
fn written_later(writer: OwnedFd) -> std::thread::JoinHandle<OwnedFd> {
    std::thread::spawn(move || {
        crate::time::long_enough_to_notice();
        files::put(&writer, b"x");
        writer
    })
}

/// Submits a poll, and a linked write to `event`. So only task work writes to `event`.
fn write_by_task_work(ring: &mut Ring, reader: &OwnedFd, event: &OwnedFd, one: &[u8; 8]) {
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1).linked());
    ring.push(crate::sqe::write(event.as_raw_fd(), one, 0, 2));
    ring.submit();
}

/// The thread sleeps in read(2) on data that only its own task work will write.
fn sleeper_in_another_call(t: &mut Transcript) {
    let one = 1u64.to_ne_bytes();
    for (name, flags) in TELLING {
        t.say(name);
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::pipe();
        let event = files::eventfd(0);
        files::set_nonblocking(&event, false);
        write_by_task_work(&mut ring, &reader, &event, &one);
        let writing = written_later(writer);
        t.say(format_args!("read {:?}", files::take(&event, 8).map(|bytes| bytes.len())));
        t.in_order(&ring.wait(2));
        drop(writing.join());
    }
}

/// The owner of a ring with deferred task work is not notified there: it has to enter.
fn deferred_sleeper_in_another_call(t: &mut Transcript) {
    let one = 1u64.to_ne_bytes();
    let mut ring = Ring::flags(8, DEFER);
    let (reader, writer) = files::pipe();
    let event = files::eventfd(0);
    write_by_task_work(&mut ring, &reader, &event, &one);
    let writing = written_later(writer);
    let mut entry = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry.
    t.result("sleeps until its time is up", unsafe { libc::poll(&mut entry, 1, 150) });
    let _writer = writing.join();
    t.say(format_args!("ready {}", ring.ready()));
    t.in_order(&ring.wait(2));
    t.say(format_args!("count {}", files::event_count(&event)));
}

/// The thread sleeps on the ring's own registered eventfd.
fn sleeper_is_told_by_event(t: &mut Transcript) {
    for (name, flags) in TELLING.into_iter().chain([("deferred", DEFER)]) {
        t.say(name);
        let (mut ring, _reader, writer) = polling(flags);
        let event = files::eventfd(0);
        files::set_nonblocking(&event, false);
        let number = event.as_raw_fd();
        t.result("register", ring.register(reg::EVENTFD, &raw const number, 1));
        let writing = written_later(writer);
        t.say(format_args!("read {:?}", files::take(&event, 8).map(|bytes| bytes.len())));
        t.in_order(&ring.wait(1));
        drop(writing.join());
    }
}

/// The thread sleeps on the registered eventfd, and another thread's ring sends a message.
fn sleeper_is_told_of_message(t: &mut Transcript) {
    for (name, flags) in TELLING.into_iter().chain([("deferred", DEFER)]) {
        t.say(name);
        let mut ring = Ring::flags(8, flags);
        let event = files::eventfd(0);
        files::set_nonblocking(&event, false);
        let number = event.as_raw_fd();
        t.result("register", ring.register(reg::EVENTFD, &raw const number, 1));
        let fd = ring.fd;
        let sender = std::thread::spawn(move || {
            crate::time::long_enough_to_notice();
            Ring::new(8).one(super::message_ring::message(fd, 5, 6, 7)).res
        });
        t.say(format_args!("read {:?}", files::take(&event, 8).map(|bytes| bytes.len())));
        t.in_order(&ring.wait(1));
        t.result("sent", sender.join().unwrap_or(1));
    }
}

const OWN_CALLS: u32 = 200;

/// The program's own call makes a file ready. The next enter, which has nothing to do, finds the
/// completion every time, even if another thread is about to bring it.
fn own_write_is_seen_by_enter(t: &mut Transcript) {
    for (name, flags) in TELLING {
        let mut ring = Ring::flags(8, flags);
        let (reader, writer) = files::pipe();
        let mut byte = [0u8; 1];
        let mut seen = 0;
        for round in 0..OWN_CALLS {
            let polls = round % 2 == 0;
            ring.push(match polls {
                true => poll(reader.as_raw_fd(), libc::POLLIN, 1),
                false => crate::sqe::read(reader.as_raw_fd(), &mut byte, 0, 1),
            });
            ring.submit();
            files::put(&writer, b"x");
            ring.enter(0, 0, 0);
            seen += u32::from(ring.ready() == 1);
            ring.wait(1);
            if polls {
                let _ = files::take(&reader, 1);
            }
        }
        t.say(format_args!("{name}: {seen} of {OWN_CALLS}"));
    }
}

/// The program's call closes the other end.
fn own_close_is_seen_by_enter(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let mut byte = [0u8; 1];
    let mut seen = 0;
    for _ in 0..OWN_CALLS {
        let (reader, writer) = files::pipe();
        ring.push(crate::sqe::read(reader.as_raw_fd(), &mut byte, 0, 1));
        ring.submit();
        drop(writer);
        ring.enter(0, 0, 0);
        seen += u32::from(ring.ready() == 1);
        ring.wait(1);
    }
    t.say(format_args!("{seen} of {OWN_CALLS}"));
}

/// The queue already holds a completion, and enter asks for events without waiting.
fn own_write_is_seen_beside_a_completion(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut seen = 0;
    for _ in 0..OWN_CALLS {
        ring.push(nop(2));
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
        ring.submit();
        files::put(&writer, b"x");
        ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        seen += u32::from(ring.ready() == 2);
        ring.wait(2);
        let _ = files::take(&reader, 1);
    }
    t.say(format_args!("{seen} of {OWN_CALLS}"));
}

/// Before that the program has waited in the ring many times in a row.
fn own_write_is_seen_after_many_waits(t: &mut Transcript) {
    let mut seen = 0;
    for _ in 0..20 {
        let (mut ring, _reader, writer) = polling(0);
        for _ in 0..100 {
            ring.push(nop(2));
            ring.submit_and_wait(1);
            ring.reap();
        }
        files::put(&writer, b"x");
        ring.enter(0, 0, 0);
        seen += u32::from(ring.ready() == 1);
    }
    t.say(format_args!("{seen} of 20"));
}
