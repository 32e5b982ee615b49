//! io_uring_enter(2) with EXT_ARG: relative and absolute timeouts, the minimum wait, and the checks
//! of the EXT_ARG structure.

use std::os::fd::AsRawFd;
use std::time::Duration;

use usring_uapi::{Timespec, io_uring as u};

use crate::files;
use crate::memory::{BAD, zeroed};
use crate::ring::{self, Ring};
use crate::sqe::{nop, poll, timeout};
use crate::time::{milliseconds, on_clock};
use crate::transcript::{Transcript, timed};

const WAIT: u32 = u::IORING_ENTER_GETEVENTS | u::IORING_ENTER_EXT_ARG;

type Argument = u::io_uring_getevents_arg;

fn until(time: &Timespec) -> Argument {
    let mut argument: Argument = zeroed();
    argument.ts = &raw const *time as u64;
    argument
}

fn wait(ring: &Ring, complete: u32, flags: u32, argument: &Argument) -> i32 {
    ring.enter_with(0, complete, WAIT | flags, (&raw const *argument).cast(), size_of::<Argument>())
}

fn time_out(t: &mut Transcript) {
    let ring = Ring::new(4);
    let (answer, waited) = timed(|| wait(&ring, 1, 0, &until(&milliseconds(30))));
    t.result("nothing comes", answer);
    t.between("waited", waited, 30, 30_000);
}
case!(time_out => "
    nothing comes = -ETIME
    waited: after 30 to 30000 ms
");

fn zero_time_out(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("zero", wait(&ring, 1, 0, &until(&milliseconds(0))));
    ring.push(nop(1));
    ring.submit();
    t.result("zero, one is there", wait(&ring, 1, 0, &until(&milliseconds(0))));
    t.result("zero, two wanted", wait(&ring, 2, 0, &until(&milliseconds(0))));
    // A zeroed EXT_ARG structure sets no timeout. A wait with it is the plain wait.
    t.result("no time, one is there", wait(&ring, 1, 0, &zeroed()));
}
case!(zero_time_out => "
    zero = -ETIME
    zero, one is there = 0
    zero, two wanted = 0
    no time, one is there = 0
");

fn argument_sizes(t: &mut Transcript) {
    let ring = Ring::new(4);
    let time = milliseconds(10);
    let argument = until(&time);
    for size in [0, 8, 16, 23, 24, 25, 32, 64, 4096] {
        let answer = ring.enter_with(0, 1, WAIT, (&raw const argument).cast(), size);
        t.result(format_args!("size {size}"), answer);
    }
}
case!(argument_sizes => "
    size 0 = -EINVAL
    size 8 = -EINVAL
    size 16 = -EINVAL
    size 23 = -EINVAL
    size 24 = -ETIME
    size 25 = -EINVAL
    size 32 = -EINVAL
    size 64 = -EINVAL
    size 4096 = -EINVAL
");

fn bad_pointers(t: &mut Transcript) {
    let ring = Ring::new(4);
    let size = size_of::<Argument>();
    t.result("argument null", ring.enter_with(0, 1, WAIT, std::ptr::null(), size));
    t.result("argument unmapped", ring.enter_with(0, 1, WAIT, BAD as *const _, size));
    let mut argument: Argument = zeroed();
    argument.ts = BAD;
    t.result("time unmapped", wait(&ring, 1, 0, &argument));
    let mut argument: Argument = zeroed();
    argument.sigmask = BAD;
    argument.sigmask_sz = 8;
    t.result("mask unmapped", wait(&ring, 1, 0, &argument));
    let mask = 0u64;
    argument.sigmask = &raw const mask as u64;
    argument.sigmask_sz = 7;
    t.result("mask of 7 bytes", wait(&ring, 1, 0, &argument));
    // The kernel checks the EXT_ARG structure before it checks the CQ for completions. So a call
    // with a bad structure fails, although the CQ has enough CQEs.
    let mut ring = Ring::new(4);
    ring.push(nop(1));
    ring.submit();
    t.result("argument null, one is there", ring.enter_with(0, 1, WAIT, std::ptr::null(), size));
    ring.push(nop(2));
    ring.forget_pending();
    t.result("argument null, one to submit", ring.enter_with(1, 2, WAIT, std::ptr::null(), size));
    t.in_order(&ring.reap());
}
case!(bad_pointers => "
    argument null = -EFAULT
    argument unmapped = -EFAULT
    time unmapped = -EFAULT
    mask unmapped = -EFAULT
    mask of 7 bytes = -EINVAL
    argument null, one is there = -EFAULT
    argument null, one to submit = 1
    cqe 1: 0
    cqe 2: 0
");

/// The kernel accepts an invalid timespec as the timeout of io_uring_enter(2), but refuses it in a
/// TIMEOUT request. The manual page does not mention this difference.
fn bad_timespec(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut attempt = |name: &str, tv_sec, tv_nsec| {
        let time = Timespec { tv_sec, tv_nsec };
        t.result(name, wait(&ring, 1, 0, &until(&time)));
    };
    attempt("nanoseconds negative", 0, -1);
    attempt("seconds negative", -1, 0);
    attempt("nanoseconds a second", 0, 1_000_000_000);
}
case!(bad_timespec => "
    nanoseconds negative = -ETIME
    seconds negative = -ETIME
    nanoseconds a second = -ETIME
");

fn enough_cqes_are_there(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(nop(1));
    ring.push(nop(2));
    ring.submit();
    let (answer, waited) = timed(|| wait(&ring, 2, 0, &until(&crate::time::LONG)));
    t.result("two wanted, two there", answer);
    t.between("waited", waited, 0, 30_000);
    t.result("none wanted", wait(&ring, 0, 0, &until(&crate::time::LONG)));
    t.in_order(&ring.reap());
}
case!(enough_cqes_are_there => "
    two wanted, two there = 0
    waited: after 0 to 30000 ms
    none wanted = 0
    cqe 1: 0
    cqe 2: 0
");

fn absolute(t: &mut Transcript) {
    let ring = Ring::new(4);
    let time = on_clock(libc::CLOCK_MONOTONIC, 30);
    let (answer, waited) = timed(|| wait(&ring, 1, u::IORING_ENTER_ABS_TIMER, &until(&time)));
    t.result("until 30 ms from now", answer);
    t.between("waited", waited, 0, 30_000);
    t.reached(libc::CLOCK_MONOTONIC, &time);
}
case!(absolute => "
    until 30 ms from now = -ETIME
    waited: after 0 to 30000 ms
    the time has come: true
");

fn absolute_in_the_past(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(1);
    let (answer, waited) = timed(|| wait(&ring, 1, u::IORING_ENTER_ABS_TIMER, &until(&time)));
    t.result("until boot", answer);
    t.between("waited", waited, 0, 30_000);
    ring.push(nop(1));
    ring.submit();
    t.result("until boot, one is there", wait(&ring, 1, u::IORING_ENTER_ABS_TIMER, &until(&time)));
    t.result("ABS_TIMER alone", ring.enter(0, 0, u::IORING_ENTER_ABS_TIMER));
}
case!(absolute_in_the_past => "
    until boot = -ETIME
    waited: after 0 to 30000 ms
    until boot, one is there = 0
    ABS_TIMER alone = 0
");

/// Makes `count` eventfds and a ring with a poll request on each. Starts a thread that writes to
/// the eventfds 3 ms later.
fn later(count: usize) -> (Ring, Vec<std::os::fd::OwnedFd>, std::thread::JoinHandle<()>) {
    let mut ring = Ring::new(8);
    let events: Vec<_> = (0..count).map(|_| files::eventfd(0)).collect();
    for (index, event) in events.iter().enumerate() {
        ring.push(poll(event.as_raw_fd(), libc::POLLIN, index as u64 + 1));
    }
    ring.submit();
    let numbers: Vec<i32> = events.iter().map(AsRawFd::as_raw_fd).collect();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(3));
        for number in numbers {
            let one = 1u64;
            // SAFETY: the value has eight readable bytes. The caller keeps the descriptor open.
            unsafe { libc::write(number, (&raw const one).cast(), 8) };
        }
    });
    (ring, events, thread)
}

/// io_uring_enter(2) waits for eight completions, and only one arrives. Once the minimum time
/// (`min_wait_usec`) has passed, one completion ends the wait.
fn min_wait_returns_with_one(t: &mut Transcript) {
    let (mut ring, _events, thread) = later(1);
    let time = milliseconds(30_000);
    let mut argument = until(&time);
    argument.min_wait_usec = 60_000;
    let (answer, waited) = timed(|| wait(&ring, 8, 0, &argument));
    t.result("eight wanted, one comes", answer);
    t.between("waited", waited, 55, 30_000);
    t.in_order(&ring.reap());
    let _ = thread.join();
}
case!(min_wait_returns_with_one => "
    eight wanted, one comes = 0
    waited: after 55 to 30000 ms
    cqe 1: 1
");

fn min_wait_without_any(t: &mut Transcript) {
    let ring = Ring::new(4);
    let time = milliseconds(60);
    let mut argument = until(&time);
    argument.min_wait_usec = 10_000;
    let (answer, waited) = timed(|| wait(&ring, 8, 0, &argument));
    t.result("eight wanted, none comes", answer);
    t.between("waited", waited, 55, 30_000);
}
case!(min_wait_without_any => "
    eight wanted, none comes = -ETIME
    waited: after 55 to 30000 ms
");

fn min_wait_full_batch(t: &mut Transcript) {
    let (mut ring, _events, thread) = later(3);
    let time = milliseconds(50_000);
    let mut argument = until(&time);
    argument.min_wait_usec = 45_000_000;
    let (answer, waited) = timed(|| wait(&ring, 3, 0, &argument));
    t.result("three wanted, three come", answer);
    t.between("waited", waited, 0, 30_000);
    t.sorted(&ring.reap());
    let _ = thread.join();
}
case!(min_wait_full_batch => "
    three wanted, three come = 0
    waited: after 0 to 30000 ms
    cqe 1: 1
    cqe 2: 1
    cqe 3: 1
");

fn ext_arg_without_getevents(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    ring.push(nop(1));
    ring.forget_pending();
    let only = u::IORING_ENTER_EXT_ARG;
    // The kernel cannot read the EXT_ARG structure, so the call does not wait.
    t.result("submit, bad argument", ring.enter_with(1, 0, only, BAD as *const _, 24));
    t.in_order(&ring.reap());
}
case!(ext_arg_without_getevents => "
    submit, bad argument = 1
    cqe 1: 0
");

/// EXT_ARG_REG refers to a registered wait region. No region is registered, so the call fails.
fn registered_argument(t: &mut Transcript) {
    let ring = Ring::new(4);
    let flags = WAIT | u::IORING_ENTER_EXT_ARG_REG;
    t.result("size 64", ring.enter_with(0, 1, flags, std::ptr::null(), 64));
    t.result("size 24", ring.enter_with(0, 1, flags, std::ptr::null(), 24));
}
case!(registered_argument => "
    size 64 = -EFAULT
    size 24 = -EINVAL
");

fn own_timeout_wakes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let time = milliseconds(20);
    ring.push(timeout(&time, 0, 0, 1));
    t.result("wait without a limit", ring.submit_and_wait(1));
    t.in_order(&ring.reap());
}
case!(own_timeout_wakes => "
    wait without a limit = 1
    cqe 1: -ETIME
");

fn another_thread_wakes(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let mut ring = Ring::new(4);
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    let start = std::time::Instant::now();
    let thread = std::thread::spawn(move || {
        crate::time::long_enough_to_notice();
        files::put(&writer, b"x");
        writer
    });
    t.result("wait", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.between("waited", start.elapsed(), 30, 30_000);
    t.say(format_args!("cqes {}", ring.ready()));
    let events = ring.reap().first().map_or(0, |entry| entry.res);
    t.say(format_args!("events {}", crate::names::events(events)));
    drop(thread.join());
}
case!(another_thread_wakes => "
    wait = 0
    waited: after 30 to 30000 ms
    cqes 1
    events IN
");

/// Waits for eight completions. `minimum` is the minimum wait and `limit` the timeout, in
/// milliseconds. Prints whether the wait took at least `least` milliseconds.
fn limited(t: &mut Transcript, ring: &mut Ring, minimum: u32, limit: Option<i64>, flags: u32, least: u64) {
    let time = match (limit, flags) {
        (Some(limit), u::IORING_ENTER_ABS_TIMER) => on_clock(libc::CLOCK_MONOTONIC, limit),
        (limit, _) => milliseconds(limit.unwrap_or(0)),
    };
    let mut argument: Argument = zeroed();
    if limit.is_some() {
        argument = until(&time);
    }
    argument.min_wait_usec = minimum * 1000;
    let (answer, waited) = timed(|| wait(ring, 8, flags, &argument));
    t.result(format_args!("min {minimum} limit {limit:?} flags {flags}"), answer);
    t.between("waited", waited, least, 20_000);
    t.in_order(&ring.reap());
}

/// io_uring_enter(2) waits for the whole minimum time (`min_wait_usec`), even if the timeout of the
/// call is shorter.
fn min_wait_over_the_time_out(t: &mut Transcript) {
    for flags in ring::BOTH {
        for timer in [0, u::IORING_ENTER_ABS_TIMER] {
            let mut ring = Ring::flags(8, flags);
            limited(t, &mut ring, 300, Some(100), timer, 299);
            limited(t, &mut ring, 300, Some(300), timer, 299);
            ring.push(nop(1));
            ring.submit();
            limited(t, &mut ring, 300, Some(100), timer, 299);
            let later = milliseconds(50);
            ring.push(timeout(&later, 0, 0, 2));
            ring.submit();
            limited(t, &mut ring, 300, Some(100), timer, 49);
        }
    }
}
case!(min_wait_over_the_time_out => include_str!("enter_wait/min_wait_over_the_time_out.txt"));

/// If a call has a minimum time (`min_wait_usec`) but no timeout, it returns once that time has
/// passed, even without a completion.
fn min_wait_alone(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(8, flags);
        limited(t, &mut ring, 100, None, 0, 99);
        ring.push(nop(1));
        ring.submit();
        limited(t, &mut ring, 100, None, 0, 99);
    }
}
case!(min_wait_alone => "
    min 100 limit None flags 0 = -ETIME
    waited: after 99 to 20000 ms
    no cqe
    min 100 limit None flags 0 = 0
    waited: after 99 to 20000 ms
    cqe 1: 0
    min 100 limit None flags 0 = -ETIME
    waited: after 99 to 20000 ms
    no cqe
    min 100 limit None flags 0 = 0
    waited: after 99 to 20000 ms
    cqe 1: 0
");

fn min_wait_with_one_there(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(8, flags);
        ring.push(nop(1));
        ring.submit();
        limited(t, &mut ring, 100, Some(30_000), 0, 99);
        // A completion arrives within the minimum time. The wait goes on until that time has
        // passed.
        let event = files::eventfd(0);
        ring.push(poll(event.as_raw_fd(), libc::POLLIN, 2));
        ring.submit();
        let writer = event.try_clone().expect("a duplicate");
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            files::put(&writer, &1u64.to_ne_bytes());
        });
        limited(t, &mut ring, 400, Some(30_000), 0, 399);
        let _ = thread.join();
        // A completion arrives after the minimum time, and ends the wait at once.
        ring.push(poll(event.as_raw_fd(), libc::POLLIN, 3));
        files::event_count(&event);
        ring.submit();
        let writer = event.try_clone().expect("a duplicate");
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            files::put(&writer, &1u64.to_ne_bytes());
        });
        limited(t, &mut ring, 20, Some(30_000), 0, 150);
        let _ = thread.join();
    }
}
case!(min_wait_with_one_there => "
    min 100 limit Some(30000) flags 0 = 0
    waited: after 99 to 20000 ms
    cqe 1: 0
    min 400 limit Some(30000) flags 0 = 0
    waited: after 399 to 20000 ms
    cqe 2: 1
    min 20 limit Some(30000) flags 0 = 0
    waited: after 150 to 20000 ms
    cqe 3: 1
    min 100 limit Some(30000) flags 0 = 0
    waited: after 99 to 20000 ms
    cqe 1: 0
    min 400 limit Some(30000) flags 0 = 0
    waited: after 399 to 20000 ms
    cqe 2: 1
    min 20 limit Some(30000) flags 0 = 0
    waited: after 150 to 20000 ms
    cqe 3: 1
");

fn min_wait_zero_time_out(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(8, flags);
        limited(t, &mut ring, 100, Some(0), 0, 99);
        limited(t, &mut ring, 100, Some(-5), u::IORING_ENTER_ABS_TIMER, 99);
        limited(t, &mut ring, 0, Some(0), 0, 0);
    }
}
case!(min_wait_zero_time_out => "
    min 100 limit Some(0) flags 0 = -ETIME
    waited: after 99 to 20000 ms
    no cqe
    min 100 limit Some(-5) flags 32 = -ETIME
    waited: after 99 to 20000 ms
    no cqe
    min 0 limit Some(0) flags 0 = -ETIME
    waited: after 0 to 20000 ms
    no cqe
    min 100 limit Some(0) flags 0 = -ETIME
    waited: after 99 to 20000 ms
    no cqe
    min 100 limit Some(-5) flags 32 = -ETIME
    waited: after 99 to 20000 ms
    no cqe
    min 0 limit Some(0) flags 0 = -ETIME
    waited: after 0 to 20000 ms
    no cqe
");

/// The expiry of a TIMEOUT request ends a wait, even before the wait's minimum time has passed.
fn min_wait_own_timeout(t: &mut Transcript) {
    for flags in ring::BOTH {
        let mut ring = Ring::flags(8, flags);
        let soon = milliseconds(30);
        ring.push(timeout(&soon, 0, 0, 1));
        ring.submit();
        let argument = Argument { min_wait_usec: 9_000_000, ..until(&milliseconds(9_000)) };
        let (answer, waited) = timed(|| wait(&ring, 8, 0, &argument));
        t.result("eight wanted, a timeout comes", answer);
        t.between("waited", waited, 29, 8_000);
        t.in_order(&ring.reap());
    }
}
case!(min_wait_own_timeout => "
    eight wanted, a timeout comes = 0
    waited: after 29 to 8000 ms
    cqe 1: -ETIME
    eight wanted, a timeout comes = 0
    waited: after 29 to 8000 ms
    cqe 1: -ETIME
");
