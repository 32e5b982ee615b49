//! Readiness of a ring with deferred task work.

use super::{IN, poll_once};
use crate::files;
use crate::ring::{self, Ring};
use crate::sqe::poll;
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use usring_uapi::io_uring as u;

const ROUNDS: u32 = 200;

/// Queued deferred task work makes the ring's descriptor readable, although its CQE is not yet
/// posted.
fn deferred(t: &mut Transcript) {
    let flags = ring::DEFER;
    let mut ring = Ring::flags(8, flags);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), IN, 1));
    ring.submit();
    t.say(poll_once(ring.fd, IN, 0));
    files::put(&writer, b"x");
    t.say(poll_once(ring.fd, IN, 5000));
    t.say(format_args!("cqes {}", ring.ready()));
    t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    t.say(poll_once(ring.fd, IN, 0));
}
case!(deferred => "
    0 -
    1 IN
    cqes 0
    get events = 0
    cqe 1: 1
    0 -
");

/// poll(2) with a timeout of 0 reports queued deferred task work, too.
fn deferred_seen_without_waiting(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER);
    let (reader, writer) = files::pipe();
    t.say(poll_once(ring.fd, IN, 0));
    for user_data in 0..3 {
        ring.push(poll(reader.as_raw_fd(), IN, user_data));
        ring.submit();
        t.say(poll_once(ring.fd, IN, 0));
        files::put(&writer, b"x");
        t.say(format_args!("seen {}", crate::time::until(|| poll_once(ring.fd, IN, 0).starts_with('1'))));
        // The descriptor stays readable until the ring's owner calls io_uring_enter(2).
        let seen = (0..100).filter(|_| poll_once(ring.fd, IN, 0).starts_with('1')).count();
        t.say(format_args!("readable {seen} of 100 times"));
        t.result("get events", ring.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&ring.reap());
        t.say(poll_once(ring.fd, IN, 0));
        t.say(format_args!("{:?}", files::take(&reader, 1).map(|bytes| bytes.len())));
    }
}
case!(deferred_seen_without_waiting => "
    0 -
    0 -
    seen true
    readable 100 of 100 times
    get events = 0
    cqe 0: 1
    0 -
    Ok(1)
    0 -
    seen true
    readable 100 of 100 times
    get events = 0
    cqe 1: 1
    0 -
    Ok(1)
    0 -
    seen true
    readable 100 of 100 times
    get events = 0
    cqe 2: 1
    0 -
    Ok(1)
");

/// Another thread polls the ring's descriptor for the first time, at the moment when the owner
/// returns from io_uring_enter(2). Task work that is queued later must make the descriptor
/// readable. The case polls without sleeping, because Linux 6.18 does not wake a thread that
/// already sleeps in poll(2).
fn deferred_polled_as_it_is_left(t: &mut Transcript) {
    let mut signalled = 0;
    for round in 0..ROUNDS {
        let mut ring = Ring::flags(8, ring::DEFER);
        let (reader, writer) = files::pipe();
        ring.push(poll(reader.as_raw_fd(), IN, 1));
        let (begins, fd) = (AtomicBool::new(false), ring.fd);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !begins.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                (0..round * 20).for_each(|_| std::hint::spin_loop());
                poll_once(fd, IN, 0)
            });
            begins.store(true, Ordering::Release);
            ring.submit();
        });
        files::put(&writer, b"x");
        signalled += u32::from(crate::time::until(|| poll_once(fd, IN, 0).starts_with('1')));
    }
    t.say(format_args!("signalled {signalled} of {ROUNDS} times"));
}
case!(deferred_polled_as_it_is_left => "signalled 200 of 200 times");
