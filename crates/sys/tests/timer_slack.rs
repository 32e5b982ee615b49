//! Short sleeps: as long as asked for, ended by a signal, and without a trace
//! in the thread that slept.
#![cfg(not(loom))]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use usring_sys::timer_slack::{overshoot, sleep_precisely};
use usring_sys::{Errno, SystemCall, signals, wait};
use usring_uapi::general as linux;

const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;

fn control(option: u64, value: u64) -> u64 {
    SystemCall::new(linux::__NR_prctl, [option, value, 0, 0, 0]).run().unwrap()
}

/// The median of a few sleeps. (A timer may also fire early in its slack, for
/// it shares the interrupt of another.)
fn typical(sleep: impl Fn()) -> Duration {
    let one = || {
        let start = Instant::now();
        sleep();
        start.elapsed()
    };
    let mut times: Vec<_> = (0..21).map(|_| one()).collect();
    times.sort();
    times[times.len() / 2]
}

#[test]
fn a_precise_sleep_does_not_wait_for_the_slack() {
    const SPAN: u64 = 20_000;
    const SLACK: u64 = 50_000_000;
    control(PR_SET_TIMERSLACK, SLACK);
    let plain = typical(|| wait::nanosleep(SPAN).unwrap());
    let precise = typical(|| sleep_precisely(SPAN).unwrap());
    assert!(precise >= Duration::from_nanos(SPAN), "{precise:?}");
    assert!(precise < plain / 2, "precise {precise:?}, plain {plain:?}");
    assert_eq!(control(PR_GET_TIMERSLACK, 0), SLACK, "the program's slack is its own");
}

#[test]
fn the_overshoot_is_measured_once() {
    let measured = overshoot();
    assert!(measured > 0 && measured <= 60_000, "{measured} ns");
    let start = Instant::now();
    assert_eq!((0..1000).map(|_| overshoot()).max(), Some(measured));
    assert!(start.elapsed() < Duration::from_millis(100), "a thousand measurements take a third of a second");
}

#[test]
fn a_signal_ends_a_sleep_early() {
    assert!(wait::catch_worker_interrupts());
    let (tell, told) = mpsc::channel();
    let (done, ended) = mpsc::channel();
    let sleeper = thread::spawn(move || {
        tell.send(signals::thread_id()).unwrap();
        done.send(sleep_precisely(60_000_000_000)).unwrap();
    });
    let thread = told.recv().unwrap();
    for _ in 0..1000 {
        // One that comes before the sleep finds nothing to end.
        wait::interrupt_worker(thread);
        if let Ok(answer) = ended.recv_timeout(Duration::from_millis(10)) {
            assert_eq!(answer, Err(Errno::EINTR));
            return sleeper.join().unwrap();
        }
    }
    panic!("the sleep was not interrupted");
}
