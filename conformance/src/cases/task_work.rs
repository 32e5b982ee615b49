//! When the CQE of a request that has waited becomes visible. Setup flags decide when the kernel
//! runs the task work that posts it.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use super::reg;
use crate::files;
use crate::names;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, poll, timeout};
use crate::time::{milliseconds, until};
use crate::transcript::Transcript;

const FLAG: u32 = u::IORING_SETUP_TASKRUN_FLAG;

/// Makes a ring with `flags` and a pipe. Submits a poll of the pipe's reading end. Returns the
/// ring, the reading end and the writing end.
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
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
    t.in_order(&ring.reap());
}
case!(default_without_entering => "
    seen true
    cqe 1: 1
");

/// On a ring without setup flags, a thread that spins without any system call sees the CQE.
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
case!(default_woken_by_another_thread => "cqe 1: 1");

/// On a ring with DEFER_TASKRUN, only an io_uring_enter(2) with GETEVENTS posts the CQE.
fn deferred_only_in_getevents(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(ring::DEFER);
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
case!(deferred_only_in_getevents => "
    after other calls: ready 0
    enter(0, 0, 0) = 0
    ready 0
    submit = 1
    cqe 2: 0
    get events = 0
    cqe 1: 1
");

/// On a ring with TASKRUN_FLAG, a flag in the SQ ring shows that deferred task work is queued.
fn deferred_shows_flag(t: &mut Transcript) {
    for flags in [ring::DEFER, ring::DEFER | FLAG] {
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
case!(deferred_shows_flag => "
    before -
    work waits -
    get events = 0
    after -
    before -
    work waits TASKRUN
    get events = 0
    after -
");

/// On a ring with DEFER_TASKRUN, queued task work signals the eventfd before the CQE is posted.
fn deferred_eventfd_fires(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(ring::DEFER);
    let event = files::eventfd(0);
    let number = event.as_raw_fd();
    t.result("register", ring.register(reg::EVENTFD, &raw const number, 1));
    files::put(&writer, b"x");
    t.say(format_args!("signalled {}", until(|| files::event_count(&event) > 0)));
    t.in_order(&ring.reap());
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}
case!(deferred_eventfd_fires => "
    register = 0
    signalled true
    no cqe
    get events = 0
    cqe 1: 1
");

/// With DEFER_TASKRUN, a thread that waits for N CQEs sleeps until N items of task work are queued.
fn deferred_wait_for_several(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER);
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
            // SAFETY: the value has eight readable bytes. The case keeps the descriptor open.
            unsafe { libc::write(number, (&raw const one).cast(), 8) };
        }
    });
    t.result("wait for 3", ring.enter(0, 3, u::IORING_ENTER_GETEVENTS));
    t.sorted(&ring.reap());
    let _ = thread.join();
}
case!(deferred_wait_for_several => "
    wait for 3 = 0
    cqe 1: 1
    cqe 2: 1
    cqe 3: 1
");

fn deferred_inline_is_at_once(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER);
    ring.push(nop(1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(deferred_inline_is_at_once => "
    submit = 1
    cqe 1: 0
");

fn deferred_submit_and_wait(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    let time = milliseconds(10);
    ring.push(timeout(&time, 0, 0, 2));
    t.result("submit and wait for 2", ring.submit_and_wait(2));
    t.in_order(&ring.reap());
}
case!(deferred_submit_and_wait => "
    submit and wait for 2 = 2
    cqe 1: 1
    cqe 2: -ETIME
");

fn deferred_timeouts(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER);
    let time = milliseconds(5);
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.say(format_args!("ready {}", ring.ready()));
    t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}
case!(deferred_timeouts => "
    ready 0
    get events = 0
    cqe 1: -ETIME
");

fn deferred_other_thread_wakes(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(ring::DEFER);
    let thread = std::thread::spawn(move || {
        crate::time::long_enough_to_notice();
        files::put(&writer, b"x");
        writer
    });
    t.result("wait", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    drop(thread.join());
}
case!(deferred_other_thread_wakes => "
    wait = 0
    cqe 1: 1
");

/// On a ring with DEFER_TASKRUN, a wait for zero completions runs the queued task work.
fn deferred_zero_wait(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(ring::DEFER | FLAG);
    files::put(&writer, b"x");
    until(|| ring.sq_flags() != 0);
    t.result("wait for 0", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    let limit = std::time::Duration::from_millis(10);
    t.result("wait for 1, none left", ring.enter_for(0, 1, limit));
}
case!(deferred_zero_wait => "
    wait for 0 = 0
    cqe 1: 1
    wait for 1, none left = -ETIME
");

/// Closing a ring runs its deferred task work.
fn deferred_teardown(t: &mut Transcript) {
    let (ring, reader, writer) = polling(ring::DEFER | FLAG);
    files::put(&writer, b"x");
    until(|| ring.sq_flags() != 0);
    drop(reader);
    drop(ring);
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&mut entry, 1, 30_000) };
    t.say(format_args!("file let go {}", entry.revents & libc::POLLERR != 0));
}
case!(deferred_teardown => "file let go true");

/// On a ring with COOP_TASKRUN, task work runs at the thread's next system call of any kind.
fn cooperative(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(u::IORING_SETUP_COOP_TASKRUN);
    files::put(&writer, b"x");
    t.say(format_args!("seen {}", until(|| ring.ready() > 0)));
    t.in_order(&ring.reap());
}
case!(cooperative => "
    seen true
    cqe 1: 1
");

fn cooperative_flag(t: &mut Transcript) {
    let flags = u::IORING_SETUP_COOP_TASKRUN | FLAG;
    let (mut ring, _reader, writer) = polling(flags);
    t.say(format_args!("before {}", names::sq_flags(ring.sq_flags())));
    let thread = std::thread::spawn(move || {
        files::put(&writer, b"x");
        writer
    });
    // This thread spins and makes no system call that would run task work. So either
    // IORING_SQ_TASKRUN or the CQE must become visible in memory.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while ring.sq_flags() & u::IORING_SQ_TASKRUN == 0 && ring.ready() == 0 && std::time::Instant::now() < deadline {
        std::hint::spin_loop();
    }
    let signalled = ring.sq_flags() & u::IORING_SQ_TASKRUN != 0 || ring.ready() > 0;
    t.say(format_args!("signalled {signalled}"));
    t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    t.say(format_args!("after {}", names::sq_flags(ring.sq_flags())));
    drop(thread.join());
}
case!(cooperative_flag => "
    before -
    signalled true
    get events = 0
    cqe 1: 1
    after -
");

fn flag_goes_away(t: &mut Transcript) {
    let (mut ring, _reader, writer) = polling(ring::DEFER | FLAG);
    for round in 0..3 {
        files::put(&writer, b"x");
        t.say(format_args!("signalled {}", until(|| ring.sq_flags() != 0)));
        let entries = ring.wait(1);
        t.in_order(&entries);
        t.say(format_args!("flags {}", names::sq_flags(ring.sq_flags())));
        let _ = files::take(&_reader, 10);
        ring.push(poll(_reader.as_raw_fd(), libc::POLLIN, round + 2));
        ring.submit();
    }
}
case!(flag_goes_away => "
    signalled true
    cqe 1: 1
    flags -
    signalled true
    cqe 2: 1
    flags -
    signalled true
    cqe 3: 1
    flags -
");

/// On a ring with DEFER_TASKRUN, the CQE of a worker's request is posted only when the owner calls
/// io_uring_enter(2).
fn deferred_workers(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER | FLAG);
    let file = files::memory_file(b"0123");
    let mut buffer = [0u8; 4];
    ring.push(crate::sqe::read(file.as_raw_fd(), &mut buffer, 0, 1).forced_async());
    ring.submit();
    until(|| ring.sq_flags() != 0);
    t.say(format_args!("ready {}", ring.ready()));
    t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}
case!(deferred_workers => "
    ready 0
    get events = 0
    cqe 1: 4
");

/// The CQ already contains as many CQEs as the call waits for. So the wait ends, and queued task
/// work need not run.
fn deferred_wait_is_enough(t: &mut Transcript) {
    let (mut ring, _reader, _writer) = polling(ring::DEFER);
    ring.push(nop(2));
    ring.push(nop(3));
    t.result("submit", ring.submit());
    t.result("wait for 2", ring.enter(0, 2, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}
case!(deferred_wait_is_enough => "
    submit = 2
    wait for 2 = 0
    cqe 2: 0
    cqe 3: 0
");

/// Kinds of rings for which the kernel runs task work in any system call of the thread. If the call
/// sleeps, the kernel interrupts it. Each entry has a name and the setup flags.
const INTERRUPTING: [(&str, u32); 2] = [("default", 0), ("cooperative", u::IORING_SETUP_COOP_TASKRUN)];

/// Starts a thread that writes to the pipe `writer` after a pause. The thread returns `writer`.
fn written_later(writer: OwnedFd) -> std::thread::JoinHandle<OwnedFd> {
    std::thread::spawn(move || {
        crate::time::long_enough_to_notice();
        files::put(&writer, b"x");
        writer
    })
}

/// Submits a poll of `reader` and, linked to it, a write to `event`. When the poll completes, only
/// task work of this thread can start the write.
fn write_by_task_work(ring: &mut Ring, reader: &OwnedFd, event: &OwnedFd, one: &[u8; 8]) {
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1).linked());
    ring.push(crate::sqe::write(event.as_raw_fd(), one, 0, 2));
    ring.submit();
}

/// A thread sleeps in read(2) on an eventfd. Only the thread's own task work writes to that
/// eventfd. The task work must run nevertheless, so that the read returns.
fn sleeper_in_another_call(t: &mut Transcript) {
    let one = 1u64.to_ne_bytes();
    for (name, flags) in INTERRUPTING {
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
case!(sleeper_in_another_call => "
    default
    read Ok(8)
    cqe 1: 1
    cqe 2: 8
    cooperative
    read Ok(8)
    cqe 1: 1
    cqe 2: 8
");

/// On a ring with DEFER_TASKRUN, task work does not run while the owner sleeps in another system
/// call. It runs only when the owner calls io_uring_enter(2).
fn deferred_sleeper_in_another_call(t: &mut Transcript) {
    let one = 1u64.to_ne_bytes();
    let mut ring = Ring::flags(8, ring::DEFER);
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
case!(deferred_sleeper_in_another_call => "
    sleeps until its time is up = 0
    ready 0
    cqe 1: 1
    cqe 2: 8
    count 1
");

/// A thread that sleeps in read(2) of the ring's registered eventfd wakes when a request completes.
fn eventfd_wakes_a_sleeper(t: &mut Transcript) {
    for (name, flags) in INTERRUPTING.into_iter().chain([("deferred", ring::DEFER)]) {
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
case!(eventfd_wakes_a_sleeper => "
    default
    register = 0
    read Ok(8)
    cqe 1: 1
    cooperative
    register = 0
    read Ok(8)
    cqe 1: 1
    deferred
    register = 0
    read Ok(8)
    cqe 1: 1
");

/// A thread sleeps in read(2) of the eventfd that is registered with the ring. It wakes when
/// another thread sends a message to that ring.
fn message_wakes_an_eventfd_sleeper(t: &mut Transcript) {
    for (name, flags) in INTERRUPTING.into_iter().chain([("deferred", ring::DEFER)]) {
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
case!(message_wakes_an_eventfd_sleeper => "
    default
    register = 0
    read Ok(8)
    cqe 5: 6
    sent = 0
    cooperative
    register = 0
    read Ok(8)
    cqe 5: 6
    sent = 0
    deferred
    register = 0
    read Ok(8)
    cqe 5: 6
    sent = 0
");

const OWN_CALLS: u32 = 200;

/// The program makes a file ready by its own write(2). The next io_uring_enter(2) must post the
/// CQE, even without GETEVENTS, and even if another thread is about to post it.
fn own_write_is_seen_by_enter(t: &mut Transcript) {
    for (name, flags) in INTERRUPTING {
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
case!(own_write_is_seen_by_enter => "
    default: 200 of 200
    cooperative: 200 of 200
");

/// The program closes the writing end of a pipe. The next io_uring_enter(2) posts the CQE of the
/// read that waits for the pipe.
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
case!(own_close_is_seen_by_enter => "200 of 200");

/// The CQ already contains a CQE, so an io_uring_enter(2) with GETEVENTS does not wait. It must
/// nevertheless post the CQE that the program's own write has caused.
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
case!(own_write_is_seen_beside_a_completion => "200 of 200");

/// The program waits on the ring many times in a row and then makes a file ready by its own
/// write(2). The next io_uring_enter(2) must post the CQE.
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
case!(own_write_is_seen_after_many_waits => "20 of 20");

/// Submits a chain to a ring with deferred task work. On the kernel, a submission without GETEVENTS
/// completes only the chain's first request.
fn chain_on_a_deferring_ring(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER);
    ring.push(nop(1).linked());
    ring.push(nop(2));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
}
case!(chain_on_a_deferring_ring => "
    submit = 2
    cqe 1: 0
    get events = 0
    cqe 2: 0
", usring => "
    submit = 2
    cqe 1: 0
    cqe 2: 0
    get events = 0
    no cqe
", because "the call that submits a chain also starts its later requests");
