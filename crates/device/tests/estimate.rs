//! Tests of the three estimates with given latencies.
#![cfg(not(loom))]

use usring_device::Operation::{Flush, Read, Write};
use usring_device::estimate::{Bucket, Expectations, HalfMean, RingEstimate};
use usring_sys::ticks::{self, Ticks};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// Overshoot of the timer, as measured on ordinary machines.
const OVERSHOOT: u64 = 3 * MICROSECOND;

fn reads(length: u64) -> Bucket {
    Bucket::of(Read, length)
}

/// Serves requests one at a time on a device of constant latency. Returns the time slept and the
/// time polled for the last request.
fn serve(expectations: &mut Expectations, requests: usize, latency: u64) -> (u64, u64) {
    let bucket = reads(4096);
    let mut last = (0, 0);
    for _ in 0..requests {
        let slept = match expectations.sleep(bucket, 0, true, OVERSHOOT) {
            0 => 0,
            sleep => sleep + OVERSHOOT,
        };
        let seen = latency.max(slept);
        let asleep = if slept >= latency { slept } else { 0 };
        expectations.begin_look();
        expectations.record(bucket, seen, asleep);
        last = (slept, seen - slept);
    }
    last
}

#[test]
fn directions_and_sizes_are_told_apart_and_the_largest_share() {
    assert_ne!(reads(512), Bucket::of(Write, 512));
    assert_ne!(reads(4096), reads(8192));
    assert_eq!(reads(4096), reads(8191));
    assert_eq!(reads(64 << 10), reads(1 << 30));
    assert_ne!(reads(64 << 10), Bucket::of(Write, 64 << 10));
    assert_ne!(Bucket::of(Flush, 0), Bucket::of(Write, 64 << 10));
}

#[test]
fn half_the_mean_of_the_window_before_is_slept() {
    ticks::calibrate();
    let start = Ticks::now();
    let at = |span| start.after(span);
    let mut mean = HalfMean::default();
    mean.record(reads(4096), 80 * MICROSECOND, at(0));
    mean.record(reads(4096), 120 * MICROSECOND, at(50 * MILLISECOND));
    assert_eq!(mean.sleep(reads(4096)), 0, "the first window has not ended");
    mean.record(reads(4096), 500 * MICROSECOND, at(101 * MILLISECOND));
    assert_eq!(mean.sleep(reads(4096)), 50 * MICROSECOND);
    assert_eq!(mean.sleep(reads(512)), 0, "nothing of that size was read");
    assert_eq!(mean.sleep(Bucket::of(Write, 4096)), 0);
    mean.record(reads(512), MICROSECOND, at(210 * MILLISECOND));
    assert_eq!(mean.sleep(reads(4096)), 250 * MICROSECOND, "it rises with the device");
    mean.record(reads(512), MICROSECOND, at(320 * MILLISECOND));
    assert_eq!(mean.sleep(reads(4096)), 250 * MICROSECOND, "and stays where nothing was read");
    mean.record(Bucket::of(Flush, 0), 9 * MILLISECOND, at(330 * MILLISECOND));
    assert_eq!(mean.sleep(Bucket::of(Flush, 0)), 0, "blk-mq has no estimate of it");
}

#[test]
fn a_rings_estimate_starts_without_sleep_and_only_falls() {
    let mut estimate = RingEstimate::new();
    assert_eq!(estimate.sleep(), 0);
    estimate.record(80 * MICROSECOND, 0);
    assert_eq!(estimate.sleep(), 40 * MICROSECOND);
    estimate.record(82 * MICROSECOND, 40 * MICROSECOND);
    assert_eq!(estimate.sleep(), 21 * MICROSECOND, "what was slept does not count");
    estimate.record(900 * MICROSECOND, 0);
    assert_eq!(estimate.sleep(), 21 * MICROSECOND, "a slower device is not learnt");
}

#[test]
fn an_even_device_is_slept_for_until_shortly_before_it_is_done() {
    let mut expectations = Expectations::default();
    assert_eq!(expectations.sleep(reads(4096), 0, true, OVERSHOOT), 0, "nothing is known");
    for latency in [60, 100, 5_000] {
        let latency = latency * MICROSECOND;
        let (slept, spun) = serve(&mut expectations, 200, latency);
        assert!(slept < latency && spun < latency / 10, "of {latency} ns {slept} slept and {spun} spun");
    }
}

#[test]
fn a_device_that_gets_slower_or_faster_is_learnt_again() {
    let mut expectations = Expectations::default();
    for latency in [100, 2_000, 30, 400_000, 50] {
        let latency = latency * MICROSECOND;
        let (slept, spun) = serve(&mut expectations, 150, latency);
        assert!(slept < latency && spun < latency / 4, "of {latency} ns {slept} slept and {spun} spun");
    }
}

#[test]
fn a_fast_device_is_not_slept_for() {
    let mut expectations = Expectations::default();
    serve(&mut expectations, 200, 5 * MICROSECOND);
    assert_eq!(expectations.sleep(reads(4096), 0, true, OVERSHOOT), 0);
}

#[test]
fn an_old_request_is_slept_for_only_as_long_as_it_has_left() {
    let mut expectations = Expectations::default();
    serve(&mut expectations, 200, 100 * MICROSECOND);
    let young = expectations.sleep(reads(4096), 0, false, OVERSHOOT);
    let half = expectations.sleep(reads(4096), 50 * MICROSECOND, false, OVERSHOOT);
    assert_eq!(young - half, 50 * MICROSECOND);
    assert_eq!(expectations.sleep(reads(4096), 95 * MICROSECOND, false, OVERSHOOT), 0, "it would not pay");
    assert_eq!(expectations.sleep(reads(4096), 200 * MICROSECOND, false, OVERSHOOT), 0);
}

#[test]
fn with_several_in_flight_an_uneven_device_is_not_slept_for() {
    let mut expectations = Expectations::default();
    for request in 0..1000u64 {
        expectations.begin_look();
        expectations.record(reads(4096), (10 + request * 37 % 180) * MICROSECOND, 0);
    }
    assert_eq!(expectations.sleep(reads(4096), 0, false, OVERSHOOT), 0, "the next may be done at any moment");
    let alone = expectations.sleep(reads(4096), 0, true, OVERSHOOT);
    assert!((30..60).contains(&(alone / MICROSECOND)), "{alone} ns is not half the mean");
}

#[test]
fn with_many_in_flight_the_sleeps_are_no_longer_than_the_device_takes_for_all() {
    const EVEN: u64 = 200 * MICROSECOND;
    let mut expectations = Expectations::default();
    // One sleep and one poll for all 32 requests; the poll comes no earlier than the sleep ends.
    let mut serve = |latency: u64| {
        let slept = match expectations.sleep(reads(4096), 0, false, OVERSHOOT) {
            0 => 0,
            sleep => sleep + OVERSHOOT,
        };
        let asleep = if slept >= latency { slept } else { 0 };
        expectations.begin_look();
        (0..32).for_each(|_| expectations.record(reads(4096), latency.max(slept), asleep));
        slept
    };
    let all = (0..100).map(|_| serve(EVEN)).sum::<u64>();
    assert!((50 * EVEN..100 * EVEN).contains(&all), "{all} ns");
    // After a delay of the whole machine the estimate recovers soon.
    serve(300 * EVEN);
    let all = (0..20).map(|_| serve(EVEN)).sum::<u64>();
    assert!(all < 30 * EVEN, "{all} ns");
}
