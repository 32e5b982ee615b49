//! TIMEOUT: when timeouts expire. (The conformance cases cover flags, counts and removal.)

use crate::ring::{IoUring, opcode, types};
use crate::support::*;
use std::time::{Duration, Instant};
use types::TimeoutFlags;

const TIME: i32 = negative(libc::ETIME);
const FAR: Duration = Duration::from_secs(1000);

fn ring() -> IoUring {
    IoUring::new(64).unwrap()
}

/// Returns the present time of a clock.
fn now(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure.
    assert_eq!(unsafe { libc::clock_gettime(clock, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_timeout_expires_when_its_time_has_come() {
    bounded(|| {
        let (mut ring, time) = (ring(), timespec(Duration::from_millis(30)));
        let before = Instant::now();
        assert_eq!(result(&mut ring, opcode::Timeout::new(&time).build()), TIME);
        let passed = before.elapsed();
        assert!(passed >= Duration::from_millis(30), "{passed:?}");
    });
}

/// Submits four timeouts, the latest first, and checks that they expire in the order of their
/// times. `order` returns their user data in the order of expiry. On a busy machine the earliest
/// may expire before all are submitted. In that case the function tries again with later times.
fn order_of_four(ring: &mut IoUring, mut order: impl FnMut(&mut IoUring) -> Vec<u64>) {
    let mut lead = Duration::from_millis(60);
    loop {
        // The times are absolute, so that a pause between the submissions does not change the
        // order.
        let base = now(libc::CLOCK_MONOTONIC) + lead;
        let times = [60, 0, 40, 20].map(|ms| timespec(base + Duration::from_millis(ms)));
        for (index, time) in (0..).zip(&times) {
            submit(ring, &[opcode::Timeout::new(time).flags(TimeoutFlags::ABS).build().user_data(index)]);
        }
        let in_time = now(libc::CLOCK_MONOTONIC) < base;
        let found = order(ring);
        if in_time {
            return assert_eq!(found, [1, 3, 2, 0]);
        }
        lead *= 2;
    }
}

#[test]
fn timeouts_expire_in_the_order_of_their_times() {
    bounded(|| order_of_four(&mut ring(), |ring| collect(ring, 4).iter().map(|done| done.user_data).collect()));
}

#[test]
fn an_expired_timeout_ends_a_wait_for_more() {
    bounded(|| {
        let (mut ring, time) = (ring(), timespec(Duration::from_millis(10)));
        push(&mut ring, &[opcode::Timeout::new(&time).build().user_data(1)]);
        assert_eq!(ring.submit_and_wait(4).unwrap(), 1);
        assert_eq!(collect(&mut ring, 1)[0].result, TIME);
    });
}

#[test]
fn hundreds_of_timeouts_all_expire() {
    bounded(|| {
        let mut ring = IoUring::new(512).unwrap();
        let times: Vec<_> = (0..512).map(|index| timespec(Duration::from_micros(index * 37 % 20_000))).collect();
        let entries: Vec<_> =
            (0..).zip(&times).map(|(index, time)| opcode::Timeout::new(time).build().user_data(index)).collect();
        let done = run(&mut ring, &entries);
        assert!(done.iter().map(|done| done.user_data).eq(0..512));
        assert!(done.iter().all(|done| done.result == TIME));
    });
}

#[test]
fn timers_end_in_order_while_no_thread_is_in_enter() {
    bounded(|| {
        let (mut ring, far) = (ring(), timespec(FAR));
        submit(&mut ring, &[opcode::Timeout::new(&far).build().user_data(9)]);
        order_of_four(&mut ring, |ring| {
            let mut order = Vec::new();
            eventually("four have ended", || {
                // No thread enters the ring. The test only reads the CQ in memory.
                order.extend(ring.completion().map(|done| done.user_data()));
                order.len() == 4
            });
            order
        });
    });
}
