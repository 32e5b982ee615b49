//! Rings with SQPOLL: the SQ thread submits. io_uring_enter(2) only wakes the SQ thread, and waits
//! for completions.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u};

use super::reg;
use crate::files;
use crate::names;
use crate::ring::{Entry, Ring};
use crate::sqe::{Change, close, nop, poll, read, sqe, timeout, write};
use crate::syscalls;
use crate::time::{LONG, milliseconds, until};
use crate::transcript::Transcript;

const SQPOLL: u32 = u::IORING_SETUP_SQPOLL;

/// Makes a ring with SQPOLL. Its SQ thread falls asleep after `idle` milliseconds without work.
pub(super) fn ring(idle: u32) -> Ring {
    ring_with(8, idle, 0)
}

fn ring_with(entries: u32, idle: u32, flags: u32) -> Ring {
    Ring::with(entries, |params| {
        params.flags = SQPOLL | flags;
        params.sq_thread_idle = idle;
    })
    .expect("a ring with a thread")
}

pub(super) fn asleep(ring: &Ring) -> bool {
    ring.sq_flags() & u::IORING_SQ_NEED_WAKEUP != 0
}

/// Publishes the pushed SQEs. If the SQ thread sleeps, wakes it, as liburing does.
pub(super) fn hand_over(ring: &mut Ring) {
    let count = ring.forget_pending();
    if asleep(ring) {
        ring.enter(count, 0, u::IORING_ENTER_SQ_WAKEUP);
    }
}

/// Submits `sqes` and waits for one CQE of each. Returns the CQEs, sorted by user_data.
pub(super) fn run(ring: &mut Ring, sqes: &[Sqe]) -> Vec<Entry> {
    for sqe in sqes {
        ring.push(*sqe);
    }
    hand_over(ring);
    let mut entries = ring.wait(sqes.len());
    entries.sort_by_key(|entry| entry.user_data);
    entries
}

/// The first NOP wakes the SQ thread. From then on, the SQ thread polls the SQ for its idle time.
/// So it submits the next SQEs without a call by the program.
fn takes_entries_by_itself(t: &mut Transcript) {
    let mut ring = ring(2000);
    t.sorted(&run(&mut ring, &[nop(1)]));
    ring.push(nop(2));
    ring.push(nop(3));
    ring.forget_pending();
    t.say(format_args!("seen {}", ring.wait_in_memory(2)));
    t.in_order(&ring.reap());
    t.say(format_args!("sq head {}", ring.sq_head()));
}
case!(takes_entries_by_itself => "
    cqe 1: 0
    seen true
    cqe 2: 0
    cqe 3: 0
    sq head 3
");

/// On a ring with SQPOLL, io_uring_enter(2) returns the number of SQEs that it was asked to submit,
/// even if the SQ is empty.
fn enter_submits_nothing(t: &mut Transcript) {
    let ring = ring(2000);
    t.result("enter(0)", ring.enter(0, 0, 0));
    t.result("enter(5), none written", ring.enter(5, 0, 0));
    t.result("enter(1000), none written", ring.enter(1000, 0, 0));
    t.result("enter(3), wakeup", ring.enter(3, 0, u::IORING_ENTER_SQ_WAKEUP));
}
case!(enter_submits_nothing => "
    enter(0) = 0
    enter(5), none written = 5
    enter(1000), none written = 1000
    enter(3), wakeup = 3
");

fn needs_wakeup_when_idle(t: &mut Transcript) {
    let mut ring = ring(20);
    t.say(format_args!("falls asleep {}", until(|| asleep(&ring))));
    ring.push(nop(1));
    ring.forget_pending();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.result("wakeup", ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP));
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
    t.in_order(&ring.reap());
    t.say(format_args!("falls asleep again {}", until(|| asleep(&ring))));
}
case!(needs_wakeup_when_idle => "
    falls asleep true
    no cqe
    wakeup = 1
    seen true
    cqe 1: 0
    falls asleep again true
");

/// An idle time of 0 means one second.
fn default_idle(t: &mut Transcript) {
    let mut ring = ring(0);
    let start = std::time::Instant::now();
    t.sorted(&run(&mut ring, &[nop(1)]));
    t.say(format_args!("falls asleep {}", until(|| asleep(&ring))));
    t.between("after", start.elapsed(), 900, 30_000);
}
case!(default_idle => "
    cqe 1: 0
    falls asleep true
    after: after 900 to 30000 ms
");

fn stays_awake_while_busy(t: &mut Transcript) {
    let mut ring = ring(1000);
    t.sorted(&run(&mut ring, &[nop(99)]));
    let mut slept = false;
    for round in 0..30 {
        ring.push(nop(round));
        ring.forget_pending();
        slept |= !ring.wait_in_memory(1);
        ring.reap();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    t.say(format_args!("slept {slept}"));
}
case!(stays_awake_while_busy => "
    cqe 99: 0
    slept false
");

fn wake_without_work(t: &mut Transcript) {
    let mut ring = ring(10);
    t.say(format_args!("falls asleep {}", until(|| asleep(&ring))));
    t.result("wakeup", ring.enter(0, 0, u::IORING_ENTER_SQ_WAKEUP));
    t.say(format_args!("falls asleep again {}", until(|| asleep(&ring))));
    t.sorted(&run(&mut ring, &[nop(1)]));
}
case!(wake_without_work => "
    falls asleep true
    wakeup = 0
    falls asleep again true
    cqe 1: 0
");

fn waiter_is_woken(t: &mut Transcript) {
    let mut ring = ring(2000);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    hand_over(&mut ring);
    let thread = std::thread::spawn(move || {
        crate::time::long_enough_to_notice();
        files::put(&writer, b"x");
        writer
    });
    t.result("wait", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    drop(thread.join());
}
case!(waiter_is_woken => "
    wait = 0
    cqe 1: 1
");

/// With SQ_WAIT, io_uring_enter(2) waits until the SQ has room for an SQE.
fn sq_wait(t: &mut Transcript) {
    let mut ring = ring_with(2, 2000, 0);
    t.result("room at once", ring.enter(0, 0, u::IORING_ENTER_SQ_WAIT));
    for round in 0..50 {
        while ring.sq_tail().wrapping_sub(ring.sq_head()) == 2 {
            let answer = ring.enter(0, 0, u::IORING_ENTER_SQ_WAIT);
            if answer != 0 {
                t.result("SQ_WAIT", answer);
            }
        }
        ring.push(nop(round));
        hand_over(&mut ring);
        ring.reap();
    }
    let drained = until(|| ring.sq_head() == ring.sq_tail());
    t.say(format_args!("all taken {drained}"));
}
case!(sq_wait => "
    room at once = 0
    all taken true
");

/// An SQE with an unknown opcode completes with -EINVAL. The SQ thread then submits the next SQE.
fn bad_sqe(t: &mut Transcript) {
    let mut ring = ring(2000);
    t.sorted(&run(&mut ring, &[nop(1), sqe(200, -1, 2), nop(3)]));
}
case!(bad_sqe => "
    cqe 1: 0
    cqe 2: -EINVAL
    cqe 3: 0
");

fn chains(t: &mut Transcript) {
    let mut ring = ring(2000);
    let file = files::memory_file(b"");
    let fd = file.as_raw_fd();
    ring.push(write(fd, b"ab", 0, 1).linked());
    ring.push(write(fd, b"cd", 2, 2));
    hand_over(&mut ring);
    t.in_order(&ring.wait(2));
    t.say(files::text(&file));
}
case!(chains => "
    cqe 1: 2
    cqe 2: 2
    abcd
");

/// A CLOSE is executed by the SQ thread. The file must be closed before the CQE is posted.
fn file_closed_before_cqe(t: &mut Transcript) {
    let mut ring = ring(2000);
    let mut early = 0;
    for round in 0..100 {
        let (reader, writer) = files::pipe();
        ring.push(close(std::os::fd::IntoRawFd::into_raw_fd(writer), round));
        hand_over(&mut ring);
        if !ring.wait_in_memory(1) {
            break;
        }
        let answer = ring.reap().first().map_or(-1, |entry| entry.res);
        files::set_nonblocking(&reader, true);
        // The pipe's only writing end is closed, so the read gets the end of the file instead of
        // -EAGAIN.
        early += u32::from(answer != 0 || files::take(&reader, 1) != Ok(Vec::new()));
    }
    t.say(format_args!("CQEs before the close: {early}"));
}
case!(file_closed_before_cqe => "CQEs before the close: 0");

/// With SQPOLL_NONFIXED, requests may use ordinary descriptors.
fn plain_descriptors(t: &mut Transcript) {
    let mut ring = ring(2000);
    let file = files::memory_file(b"0123456789");
    let mut buffer = [0u8; 4];
    t.sorted(&run(&mut ring, &[read(file.as_raw_fd(), &mut buffer, 2, 1)]));
    t.say(String::from_utf8_lossy(&buffer).into_owned());
    t.sorted(&run(&mut ring, &[read(9999, &mut buffer, 0, 2), read(-1, &mut buffer, 0, 3)]));
    let number = file.as_raw_fd();
    t.result("register", ring.register(reg::FILES, &raw const number, 1));
    t.sorted(&run(&mut ring, &[read(0, &mut buffer, 4, 4).fixed()]));
}
case!(plain_descriptors => "
    cqe 1: 4
    2345
    cqe 2: -EBADF
    cqe 3: -EBADF
    register = 0
    cqe 4: 4
");

fn late_completions(t: &mut Transcript) {
    let mut ring = ring(20);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
    hand_over(&mut ring);
    t.say(format_args!("falls asleep {}", until(|| asleep(&ring))));
    // Now the SQ thread sleeps. The requests must complete nevertheless.
    files::put(&writer, b"xy");
    t.say(format_args!("seen {}", ring.wait_in_memory(2)));
    t.sorted(&ring.reap());
}
case!(late_completions => "
    falls asleep true
    seen true
    cqe 1: 1
    cqe 2: 1
");

fn timeouts(t: &mut Transcript) {
    let mut ring = ring(10);
    let time = milliseconds(40);
    ring.push(timeout(&time, 0, 0, 1));
    hand_over(&mut ring);
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
    t.in_order(&ring.reap());
    t.sorted(&run(&mut ring, &[timeout(&LONG, 0, 0, 2), crate::sqe::timeout_remove(2, 3)]));
}
case!(timeouts => "
    seen true
    cqe 1: -ETIME
    cqe 2: -ECANCELED
    cqe 3: 0
");

fn overflow(t: &mut Transcript) {
    let mut ring = Ring::with(8, |params| {
        params.flags = SQPOLL | u::IORING_SETUP_CQSIZE;
        params.sq_thread_idle = 2000;
        params.cq_entries = 8;
    })
    .expect("a ring with a thread");
    for round in 0..20 {
        until(|| ring.sq_tail().wrapping_sub(ring.sq_head()) < 8);
        ring.push(nop(round));
        hand_over(&mut ring);
    }
    until(|| ring.sq_head() == ring.sq_tail());
    let flagged = until(|| ring.sq_flags() & u::IORING_SQ_CQ_OVERFLOW != 0);
    t.say(format_args!("ready {} overflown {flagged}", ring.ready()));
    let mut all = ring.reap();
    while all.len() < 20 {
        t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        all.extend(ring.reap());
    }
    let ordered = all.iter().enumerate().all(|(index, entry)| entry.user_data == index as u64);
    t.say(format_args!("all {} in order {ordered}", all.len()));
}
case!(overflow => "
    ready 8 overflown true
    get events = 0
    get events = 0
    all 20 in order true
");

fn disabled_until_enabled(t: &mut Transcript) {
    let mut ring = ring_with(8, 2000, u::IORING_SETUP_R_DISABLED);
    ring.push(nop(1));
    ring.forget_pending();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.result("enter", ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP));
    t.result("enable", ring.register::<u8>(reg::ENABLE_RINGS, std::ptr::null(), 0));
    ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
    t.in_order(&ring.reap());
}
case!(disabled_until_enabled => "
    no cqe
    enter = -EBADFD
    enable = 0
    seen true
    cqe 1: 0
");

fn attach(fd: i32, idle: u32) -> Result<Ring, i32> {
    Ring::with(8, |params| {
        params.flags = SQPOLL | u::IORING_SETUP_ATTACH_WQ;
        params.sq_thread_idle = idle;
        params.wq_fd = fd as u32;
    })
}

/// Two rings share an SQ thread. It sleeps only when neither ring has had work for the idle time.
fn attached(t: &mut Transcript) {
    let mut first = ring(20);
    let mut second = attach(first.fd, 20).expect("an attached ring");
    t.sorted(&run(&mut first, &[nop(1), nop(2)]));
    t.sorted(&run(&mut second, &[nop(3), nop(4)]));
    t.say(format_args!("both asleep {}", until(|| asleep(&first) && asleep(&second))));
    t.sorted(&run(&mut second, &[nop(5)]));
    t.say(format_args!("both asleep {}", until(|| asleep(&first) && asleep(&second))));
    t.sorted(&run(&mut first, &[nop(6)]));
}
case!(attached => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    both asleep true
    cqe 5: 0
    both asleep true
    cqe 6: 0
");

/// Two rings share an SQ thread. The ring for which the SQ thread was made is closed. The SQ thread
/// goes on to serve the second ring.
fn attached_to_closed(t: &mut Transcript) {
    let mut first = ring(20);
    // SAFETY: the call touches no memory.
    let duplicate = unsafe { libc::dup(first.fd) };
    t.result("close the first number", first.close());
    let mut second = attach(duplicate, 20).expect("an attached ring");
    t.result("close the duplicate", syscalls::close(duplicate));
    t.sorted(&run(&mut second, &[nop(1), nop(2)]));
    let mut third = attach(second.fd, 20).expect("an attached ring");
    drop(second);
    drop(first);
    t.sorted(&run(&mut third, &[nop(3), nop(4)]));
    t.say(format_args!("asleep {}", until(|| asleep(&third))));
    t.sorted(&run(&mut third, &[nop(5)]));
}
case!(attached_to_closed => "
    close the first number = 0
    close the duplicate = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    asleep true
    cqe 5: 0
");

fn ring_closes(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    for round in 0..20 {
        let mut ring = ring(2000);
        let mut byte = [0u8; 1];
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, round));
        hand_over(&mut ring);
        until(|| ring.sq_head() == ring.sq_tail());
    }
    files::put(&writer, b"kept");
    let left = files::take(&reader, 8).map_or(0, |bytes| bytes.len());
    t.say(format_args!("bytes left {left}"));
}
case!(ring_closes => "bytes left 4");

fn other_threads_submit(t: &mut Transcript) {
    let mut ring = ring_with(64, 50, u::IORING_SETUP_SINGLE_ISSUER);
    let fd = ring.fd;
    for user_data in 0..32 {
        ring.push(nop(user_data));
    }
    ring.forget_pending();
    // On a ring with SQPOLL, SINGLE_ISSUER does not reserve io_uring_enter(2) for one thread.
    let answer = std::thread::spawn(move || syscalls::enter(fd, 32, 0, u::IORING_ENTER_SQ_WAKEUP, std::ptr::null(), 0));
    t.result("enter in another thread", answer.join().unwrap_or(-1));
    t.say(format_args!("seen {}", ring.wait_in_memory(32)));
}
case!(other_threads_submit => "
    enter in another thread = 32
    seen true
");

fn many_rounds(t: &mut Transcript) {
    let mut ring = ring_with(32, 1, 0);
    let mut wrong = 0;
    // The idle time is 1 ms, and so are the pauses, about. So the SQ thread often falls asleep at
    // the moment at which the case wakes it.
    for round in 0..300u64 {
        for slot in 0..8 {
            ring.push(nop(round * 8 + slot));
        }
        hand_over(&mut ring);
        let entries = ring.wait(8);
        wrong += u32::from(entries.len() != 8);
        if round % 10 == 0 {
            std::thread::sleep(std::time::Duration::from_micros(round * 10));
        }
    }
    t.say(format_args!("rounds with a loss: {wrong}"));
}
case!(many_rounds => "rounds with a loss: 0");

fn register_while_running(t: &mut Transcript) {
    let mut ring = ring(2000);
    let file = files::memory_file(b"0123456789");
    let number = file.as_raw_fd();
    let mut lost = 0;
    for round in 0..50 {
        let mut byte = [0u8; 1];
        lost += u32::from(ring.register(reg::FILES, &raw const number, 1) != 0);
        let entries = run(&mut ring, &[read(0, &mut byte, 3, round).fixed()]);
        lost += u32::from(entries.len() != 1 || entries[0].res != 1);
        let none: *const u8 = std::ptr::null();
        lost += u32::from(ring.register(reg::UNREGISTER_FILES, none, 0) != 0);
    }
    t.say(format_args!("wrong {lost}"));
}
case!(register_while_running => "wrong 0");

/// A signal to the process arrives while the program's thread blocks it. The SQ thread must not
/// take it, so it stays pending.
fn signals_go_elsewhere(t: &mut Transcript) {
    let mut ring = ring(50);
    // SAFETY: the calls change only this thread's signal mask, and send a blocked signal to this
    // process.
    unsafe {
        let mut set: libc::sigset_t = crate::memory::zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::kill(libc::getpid(), libc::SIGUSR1);
    }
    t.sorted(&run(&mut ring, &[nop(1)]));
    crate::time::long_enough_to_notice();
    // SAFETY: `set` is a variable of this function.
    let pending = unsafe {
        let mut set: libc::sigset_t = crate::memory::zeroed();
        libc::sigpending(&mut set);
        libc::sigismember(&set, libc::SIGUSR1)
    };
    t.say(format_args!("still pending {pending}"));
    t.say(format_args!("flags {}", names::sq_flags(ring.sq_flags() & u::IORING_SQ_CQ_OVERFLOW)));
}
case!(signals_go_elsewhere => "
    cqe 1: 0
    still pending 1
    flags -
");

/// CLOSE refuses the descriptor of its own ring, and every duplicate of that descriptor.
fn closes_its_ring(t: &mut Transcript) {
    const LOW: i32 = 200;
    let mut ring = Ring::flags(4, u::IORING_SETUP_SQPOLL);
    // SAFETY: the call touches no memory. The number `LOW` was free before.
    assert_eq!(unsafe { libc::dup2(ring.fd, LOW) }, LOW);
    syscalls::close(std::mem::replace(&mut ring.fd, LOW));
    ring.push(close(LOW, 1));
    ring.enter(0, 0, u::IORING_ENTER_SQ_WAKEUP);
    t.in_order(&ring.wait(1));
    ring.push(nop(2));
    ring.enter(0, 0, u::IORING_ENTER_SQ_WAKEUP);
    t.in_order(&ring.wait(1));
}
case!(closes_its_ring => "
    cqe 1: -EBADF
    cqe 2: 0
");
