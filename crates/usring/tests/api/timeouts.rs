//! TIMEOUT and TIMEOUT_REMOVE.

use crate::ring::{IoUring, opcode, types};
use crate::support::*;
use std::time::{Duration, Instant};
use types::TimeoutFlags;

const TIME: i32 = negative(libc::ETIME);
const CANCELED: i32 = negative(libc::ECANCELED);
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
/// times. `order` returns the user data as they expire. On a busy machine the earliest may expire
/// before all are submitted. The test then tries again with more time.
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
fn absolute_times_of_each_clock_are_understood() {
    bounded(|| {
        let mut ring = ring();
        let clocks = [
            (libc::CLOCK_MONOTONIC, TimeoutFlags::empty()),
            (libc::CLOCK_REALTIME, TimeoutFlags::REALTIME),
            (libc::CLOCK_BOOTTIME, TimeoutFlags::BOOTTIME),
        ];
        for (clock, flag) in clocks {
            let time = timespec(now(clock) + Duration::from_millis(15));
            let before = Instant::now();
            let entry = opcode::Timeout::new(&time).flags(flag | TimeoutFlags::ABS).build();
            assert_eq!(result(&mut ring, entry), TIME);
            assert!(before.elapsed() >= Duration::from_millis(10), "{clock}: {:?}", before.elapsed());
            let past = timespec(now(clock) - Duration::from_millis(15));
            let entry = opcode::Timeout::new(&past).flags(flag | TimeoutFlags::ABS).build();
            assert_eq!(result(&mut ring, entry), TIME, "what has passed expires at once");
        }
        let time = timespec(FAR);
        let both = opcode::Timeout::new(&time).flags(TimeoutFlags::REALTIME | TimeoutFlags::BOOTTIME).build();
        assert_eq!(result(&mut ring, both), negative(libc::EINVAL));
    });
}

#[test]
fn a_timeout_may_count_completions() {
    bounded(|| {
        let (mut ring, time) = (ring(), timespec(FAR));
        submit(&mut ring, &[opcode::Timeout::new(&time).count(2).build().user_data(9)]);
        submit(&mut ring, &[nop(1)]);
        assert_eq!(collect(&mut ring, 1)[0].user_data, 1);
        stays_quiet(&mut ring);
        submit(&mut ring, &[nop(2)]);
        let mut done = collect(&mut ring, 2);
        done.sort_by_key(|done| done.user_data);
        assert_eq!((done[0].user_data, done[1].user_data, done[1].result), (2, 9, 0));
    });
}

#[test]
fn a_timeout_is_removed_and_updated() {
    bounded(|| {
        let (mut ring, far, near) = (ring(), timespec(FAR), timespec(Duration::from_millis(10)));
        assert_eq!(result(&mut ring, opcode::TimeoutRemove::new(1).build()), negative(libc::ENOENT));
        submit(&mut ring, &[opcode::Timeout::new(&far).build().user_data(1)]);
        let mut done = run(&mut ring, &[opcode::TimeoutRemove::new(1).build().user_data(2)]);
        done.extend(collect(&mut ring, 1));
        done.sort_by_key(|done| done.user_data);
        assert_eq!((done[0].result, done[1].result), (CANCELED, 0));
        submit(&mut ring, &[opcode::Timeout::new(&far).build().user_data(3)]);
        let update = opcode::TimeoutUpdate::new(3, &near).build().user_data(4);
        submit(&mut ring, &[update]);
        let done = collect(&mut ring, 2);
        assert_eq!((done[0].user_data, done[0].result), (4, 0));
        assert_eq!((done[1].user_data, done[1].result), (3, TIME));
    });
}

#[test]
fn a_multishot_timeout_repeats() {
    bounded(|| {
        let (mut ring, time) = (ring(), timespec(Duration::from_millis(5)));
        let three = opcode::Timeout::new(&time).count(3).flags(TimeoutFlags::MULTISHOT).build().user_data(1);
        submit(&mut ring, &[three]);
        let done = collect(&mut ring, 3);
        assert!(done.iter().all(|done| done.result == TIME));
        assert_eq!(done.iter().map(Done::has_more).collect::<Vec<_>>(), [true, true, false]);
        let for_ever = opcode::Timeout::new(&time).flags(TimeoutFlags::MULTISHOT).build().user_data(2);
        submit(&mut ring, &[for_ever]);
        assert!(collect(&mut ring, 5).iter().all(Done::has_more));
        submit(&mut ring, &[opcode::TimeoutRemove::new(2).build().user_data(3)]);
        loop {
            let done = collect(&mut ring, 1)[0];
            if done.user_data == 2 && !done.has_more() {
                break assert_eq!(done.result, CANCELED);
            }
        }
    });
}

#[test]
fn invalid_times_are_refused() {
    bounded(|| {
        let mut ring = ring();
        let negative_time = types::Timespec::new().sec(u64::MAX);
        assert_eq!(result(&mut ring, opcode::Timeout::new(&negative_time).build()), negative(libc::EINVAL));
        let longest = types::Timespec::new().sec(i64::MAX as u64).nsec(999_999_999);
        submit(&mut ring, &[opcode::Timeout::new(&longest).build().user_data(1)]);
        stays_quiet(&mut ring);
    });
}

#[test]
fn tv_nsec_of_more_than_a_second_is_accepted() {
    bounded(|| {
        let (mut ring, time) = (ring(), types::Timespec::new().nsec(1_050_000_000));
        let before = Instant::now();
        assert_eq!(result(&mut ring, opcode::Timeout::new(&time).build()), TIME);
        assert!(before.elapsed() >= Duration::from_millis(1050));
    });
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
fn the_timespec_may_be_reused_as_soon_as_the_request_is_submitted() {
    bounded(|| {
        let (mut ring, mut time) = (ring(), timespec(Duration::from_millis(10)));
        submit(&mut ring, &[opcode::Timeout::new(&time).build()]);
        time = std::hint::black_box(timespec(FAR));
        assert_eq!(collect(&mut ring, 1)[0].result, TIME);
        let _ = time;
    });
}

#[test]
fn a_timeout_fires_while_no_thread_is_in_enter() {
    bounded(|| {
        let (mut ring, time) = (ring(), timespec(Duration::from_millis(10)));
        submit(&mut ring, &[opcode::Timeout::new(&time).build().user_data(7)]);
        eventually("the completion is seen in memory", || !ring.completion().is_empty());
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
                // No thread enters the ring here; the test only looks at the CQ in memory.
                order.extend(ring.completion().map(|done| done.user_data()));
                order.len() == 4
            });
            order
        });
    });
}
