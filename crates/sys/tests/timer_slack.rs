//! Tests short sleeps: they are not too short, a signal ends them, and the thread's timer slack is
//! restored afterwards.
#![cfg(not(loom))]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use usring_sys::timer_slack::{overshoot, sleep_precisely};
use usring_sys::{Errno, SystemCall, signals, wait};
use usring_uapi::general as linux;

/// Longest wait of a test.
const TEST_LIMIT: Duration = Duration::from_secs(50);

const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;

fn control(option: u64, value: u64) -> u64 {
    SystemCall::new(linux::__NR_prctl, [option, value, 0, 0, 0]).run().unwrap()
}

/// Returns another thread's timer slack, in nanoseconds.
fn slack_of(thread: u32) -> u64 {
    std::fs::read_to_string(format!("/proc/{thread}/timerslack_ns")).unwrap().trim().parse().unwrap()
}

#[test]
fn an_interrupted_precise_sleep_restores_the_programs_timer_slack() {
    const SLACK: u64 = 50_000_000;
    assert!(wait::catch_worker_interrupts());
    let (sender, receiver) = mpsc::channel();
    let sleeper = thread::spawn(move || {
        control(PR_SET_TIMERSLACK, SLACK);
        sender.send(signals::thread_id()).unwrap();
        let slept = sleep_precisely(60_000_000_000);
        (slept, control(PR_GET_TIMERSLACK, 0))
    });
    let thread = receiver.recv().unwrap();
    let start = Instant::now();
    while slack_of(thread) != 1 {
        assert!(start.elapsed() < TEST_LIMIT, "{} ns", slack_of(thread));
        thread::yield_now();
    }
    while !sleeper.is_finished() {
        assert!(start.elapsed() < TEST_LIMIT, "the sleep was not interrupted");
        // A signal that arrives before the sleep begins does not end the sleep. So this loop sends
        // the signal again and again.
        wait::interrupt_worker(thread);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(sleeper.join().unwrap(), (Err(Errno::EINTR), SLACK), "the sleep ends with EINTR and restores the slack");
}

#[test]
fn a_precise_sleep_is_never_too_short() {
    const SPAN: u64 = 20_000;
    for _ in 0..20 {
        let start = Instant::now();
        sleep_precisely(SPAN).unwrap();
        assert!(start.elapsed() >= Duration::from_nanos(SPAN), "{:?}", start.elapsed());
    }
}

#[test]
fn the_sleep_overshoot_is_measured_only_once() {
    let measured = overshoot();
    assert!(measured <= 60_000, "{measured} ns");
    assert!((0..1000).all(|_| overshoot() == measured), "the overshoot was measured again");
}
