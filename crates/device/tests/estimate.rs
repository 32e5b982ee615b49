//! Tests of the three latency estimates, with latencies that the tests choose.
#![cfg(not(loom))]

use usring_device::Operation::{Flush, Read, Write};
use usring_device::estimate::{Bucket, Expectations, HalfMean, RingEstimate};
use usring_sys::ticks::{self, Ticks};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// How much longer than requested a sleep takes, as measured on ordinary machines.
const OVERSHOOT: u64 = 3 * MICROSECOND;

fn reads(length: u64) -> Bucket {
    Bucket::of(Read, length)
}

/// Simulates requests, one at a time, on a device of constant latency. Returns how long the user
/// slept, and how long it polled, for the last request.
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
        expectations.begin_poll();
        expectations.record(bucket, seen, asleep);
        last = (slept, seen - slept);
    }
    last
}

#[test]
fn latency_buckets_separate_directions_and_sizes_below_64_kib() {
    assert_ne!(reads(512), Bucket::of(Write, 512));
    assert_ne!(reads(4096), reads(8192));
    assert_eq!(reads(4096), reads(8191));
    assert_eq!(reads(64 << 10), reads(1 << 30));
    assert_ne!(reads(64 << 10), Bucket::of(Write, 64 << 10));
    assert_ne!(Bucket::of(Flush, 0), Bucket::of(Write, 64 << 10));
}

#[test]
fn the_sleep_is_half_the_mean_latency_of_the_last_window() {
    ticks::calibrate();
    let start = Ticks::now();
    let at = |span| start.after(span);
    let mut mean = HalfMean::default();
    mean.record(reads(4096), 80 * MICROSECOND, at(0));
    mean.record(reads(4096), 120 * MICROSECOND, at(50 * MILLISECOND));
    assert_eq!(mean.sleep(reads(4096)), 0, "the first window has not ended");
    mean.record(reads(4096), 500 * MICROSECOND, at(101 * MILLISECOND));
    assert_eq!(mean.sleep(reads(4096)), 50 * MICROSECOND);
    assert_eq!(mean.sleep(reads(512)), 0, "no request of that size has completed");
    assert_eq!(mean.sleep(Bucket::of(Write, 4096)), 0);
    mean.record(reads(512), MICROSECOND, at(210 * MILLISECOND));
    assert_eq!(mean.sleep(reads(4096)), 250 * MICROSECOND, "the estimate rises with the latency");
    mean.record(reads(512), MICROSECOND, at(320 * MILLISECOND));
    assert_eq!(mean.sleep(reads(4096)), 250 * MICROSECOND, "without completions the estimate stays");
    mean.record(Bucket::of(Flush, 0), 9 * MILLISECOND, at(330 * MILLISECOND));
    assert_eq!(mean.sleep(Bucket::of(Flush, 0)), 0, "blk-mq has no estimate for a flush");
}

#[test]
fn a_rings_estimate_starts_without_sleep_and_only_falls() {
    let mut estimate = RingEstimate::new();
    assert_eq!(estimate.sleep(), 0);
    estimate.record(80 * MICROSECOND, 0);
    assert_eq!(estimate.sleep(), 40 * MICROSECOND);
    estimate.record(82 * MICROSECOND, 40 * MICROSECOND);
    assert_eq!(estimate.sleep(), 21 * MICROSECOND, "the time slept is subtracted");
    estimate.record(900 * MICROSECOND, 0);
    assert_eq!(estimate.sleep(), 21 * MICROSECOND, "the estimate does not rise");
}

#[test]
fn a_wait_for_a_constant_latency_sleeps_until_shortly_before_its_end() {
    let mut expectations = Expectations::default();
    assert_eq!(expectations.sleep(reads(4096), 0, true, OVERSHOOT), 0, "no request has completed");
    for latency in [60, 100, 5_000] {
        let latency = latency * MICROSECOND;
        let (slept, spun) = serve(&mut expectations, 200, latency);
        assert!(slept < latency && spun < latency / 10, "of {latency} ns {slept} slept and {spun} spun");
    }
}

#[test]
fn the_estimate_adapts_to_a_slower_and_to_a_faster_device() {
    let mut expectations = Expectations::default();
    for latency in [100, 2_000, 30, 400_000, 50] {
        let latency = latency * MICROSECOND;
        let (slept, spun) = serve(&mut expectations, 150, latency);
        assert!(slept < latency && spun < latency / 4, "of {latency} ns {slept} slept and {spun} spun");
    }
}

#[test]
fn a_wait_for_a_fast_device_does_not_sleep() {
    let mut expectations = Expectations::default();
    serve(&mut expectations, 200, 5 * MICROSECOND);
    assert_eq!(expectations.sleep(reads(4096), 0, true, OVERSHOOT), 0);
}

#[test]
fn the_sleep_for_an_old_request_is_only_its_remaining_time() {
    let mut expectations = Expectations::default();
    serve(&mut expectations, 200, 100 * MICROSECOND);
    let young = expectations.sleep(reads(4096), 0, false, OVERSHOOT);
    let half = expectations.sleep(reads(4096), 50 * MICROSECOND, false, OVERSHOOT);
    assert_eq!(young - half, 50 * MICROSECOND);
    assert_eq!(expectations.sleep(reads(4096), 95 * MICROSECOND, false, OVERSHOOT), 0, "too short to sleep");
    assert_eq!(expectations.sleep(reads(4096), 200 * MICROSECOND, false, OVERSHOOT), 0);
}

#[test]
fn a_wait_for_several_requests_of_variable_latency_does_not_sleep() {
    let mut expectations = Expectations::default();
    for request in 0..1000u64 {
        expectations.begin_poll();
        expectations.record(reads(4096), (10 + request * 37 % 180) * MICROSECOND, 0);
    }
    assert_eq!(expectations.sleep(reads(4096), 0, false, OVERSHOOT), 0, "the next request may complete at any moment");
    let alone = expectations.sleep(reads(4096), 0, true, OVERSHOOT);
    assert!((30..60).contains(&(alone / MICROSECOND)), "{alone} ns is not half the mean");
}

#[test]
fn sleeps_with_many_requests_in_flight_do_not_exceed_the_device_time() {
    const EVEN: u64 = 200 * MICROSECOND;
    let mut expectations = Expectations::default();
    // For all 32 requests together, the user sleeps once and then polls once.
    let mut serve = |latency: u64| {
        let slept = match expectations.sleep(reads(4096), 0, false, OVERSHOOT) {
            0 => 0,
            sleep => sleep + OVERSHOOT,
        };
        let asleep = if slept >= latency { slept } else { 0 };
        expectations.begin_poll();
        (0..32).for_each(|_| expectations.record(reads(4096), latency.max(slept), asleep));
        slept
    };
    let all = (0..100).map(|_| serve(EVEN)).sum::<u64>();
    assert!((50 * EVEN..100 * EVEN).contains(&all), "{all} ns");
    // Simulates a delay of the whole machine. The estimate must recover soon after it.
    serve(300 * EVEN);
    let all = (0..20).map(|_| serve(EVEN)).sum::<u64>();
    assert!(all < 30 * EVEN, "{all} ns");
}
