//! Tests of waiting on a channel (a queue pair with one user). They check the results of `pause`
//! under each policy, and the lengths of the sleeps if a device has a known latency.
#![cfg(not(loom))]

mod test_device;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use test_device::driver;
use test_device::wait_limit::{WAIT_LIMIT, repeat_until_good};
use usring_device::{
    Channel, Completions, Device, DeviceRequest, NamedFile, Operation, Pause, PollPolicy, QueueOptions, Submission,
    WaiterKind,
};
use usring_sys::clock::Nanoseconds;
use usring_sys::timer_slack::sleep_precisely;

const MICROSECOND: u64 = 1_000;
const POLLED: QueueOptions = QueueOptions { depth: 64, interrupts: false };
use PollPolicy::{Classic, HybridAdaptive, HybridFixed, Interrupt};

fn submit(channel: &mut Channel, token: u32) {
    let request = DeviceRequest {
        token,
        operation: Operation::Flush,
        durable: false,
        registered: false,
        offset: 0,
        length: 0,
        segments: &[],
        file: NamedFile::default(),
    };
    assert_eq!(channel.submit(&request), Submission::Accepted);
}

/// Serializes tests that measure time, because two at once would disturb each other's times.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A typical user of a channel. It keeps `depth` requests in flight: it waits for at least one
/// completion, and submits one new request for each completion.
struct User {
    _turn: MutexGuard<'static, ()>,
    channel: Channel,
    completions: Completions,
    depth: u32,
}

#[derive(Debug, Default)]
struct Work {
    requests: u64,
    looks: u64,
    waits: u64,
    sleeps: Vec<Nanoseconds>,
    /// Number of waits whose sleep ended before the device had completed the request.
    short: u64,
}

impl Work {
    /// Returns the median sleep of all waits; 0 if most waits did not sleep.
    fn typical_sleep(&self) -> Nanoseconds {
        let mut sleeps = self.sleeps.clone();
        sleeps.resize(self.waits as usize, 0);
        sleeps.sort_unstable();
        sleeps[sleeps.len() / 2]
    }

    /// Returns whether most waits sleep at least `least` and wake before the request has completed.
    /// Not all waits have to pass, because on a busy machine the device seems slower than it is.
    fn sleeps_for_most(&self, least: Nanoseconds) -> bool {
        self.typical_sleep() >= least && 2 * self.short > self.waits
    }
}

impl User {
    fn new(device: &Device, waiter: WaiterKind, depth: u32) -> User {
        let _turn = alone();
        let mut channel = device.open_channel_for(waiter, POLLED).unwrap();
        (0..depth).for_each(|token| submit(&mut channel, token));
        channel.ring_doorbell();
        User { _turn, channel, completions: Completions::new(), depth }
    }

    fn wait(&mut self, work: &mut Work) {
        let mut wait = self.channel.begin_wait();
        let (mut slept, mut is_short) = (false, false);
        work.waits += 1;
        self.completions.clear();
        loop {
            self.channel.poll(&mut self.completions);
            work.looks += 1;
            if !self.completions.as_slice().is_empty() {
                break;
            }
            match self.channel.pause(&mut wait) {
                Pause::Spin => {
                    is_short = slept;
                    std::hint::spin_loop();
                }
                Pause::Sleep(span) => {
                    assert!(!slept, "a wait sleeps once");
                    slept = true;
                    work.sleeps.push(span);
                    // Simulates the sleep by spinning. After a real sleep on a busy machine, the
                    // thread would get the processor back late, and would measure that delay.
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_nanos(span) {
                        std::hint::spin_loop();
                    }
                }
                Pause::Interrupt => panic!("the queue pair has no interrupts"),
            }
        }
        work.short += u64::from(is_short);
        work.requests += self.completions.as_slice().len() as u64;
    }

    fn work(&mut self, requests: u64) -> Work {
        let mut work = Work::default();
        while work.requests < requests {
            self.wait(&mut work);
            for completion in self.completions.as_slice() {
                submit(&mut self.channel, completion.token);
            }
            self.channel.ring_doorbell();
            assert_eq!(self.channel.in_flight(), self.depth);
        }
        work
    }

    /// Waits until all requests in flight have completed.
    fn finish(mut self) {
        while self.channel.in_flight() > 0 {
            self.wait(&mut Work::default());
        }
    }
}

fn latency(microseconds: u64) -> (Device, std::sync::Arc<test_device::Controls>, usring_device::PolicyWord) {
    let driver = driver(64 << 10);
    driver.controls.latency.store(microseconds * MICROSECOND, Relaxed);
    driver.device(Classic)
}

#[test]
fn a_classic_wait_spins_and_never_sleeps() {
    let (device, ..) = latency(300);
    let mut user = User::new(&device, WaiterKind::Ring, 1);
    let attempt = || {
        let work = user.work(100);
        assert!(work.sleeps.is_empty());
        work
    };
    repeat_until_good(attempt, |work| work.looks > 5 * work.requests);
    user.finish();
}

#[test]
fn a_hybrid_wait_sleeps_for_most_of_a_constant_latency() {
    let (device, _, policy) = latency(400);
    policy.set(HybridAdaptive);
    let mut user = User::new(&device, WaiterKind::Ring, 1);
    repeat_until_good(|| user.work(20), |work| work.sleeps_for_most(200 * MICROSECOND));
    user.finish();
}

#[test]
fn hybrid_sleeps_adapt_to_a_slower_and_to_a_faster_device() {
    let (device, controls, policy) = latency(100);
    policy.set(HybridAdaptive);
    let mut user = User::new(&device, WaiterKind::Ring, 1);
    // Each of these latencies is well above the delay of a timer on a busy machine (at most 60 µs).
    for microseconds in [300, 1_200, 400] {
        controls.latency.store(microseconds * MICROSECOND, Relaxed);
        repeat_until_good(|| user.work(20), |work| work.sleeps_for_most(microseconds * 400));
    }
    user.finish();
}

#[test]
fn a_wait_for_a_fast_device_does_not_sleep() {
    let (device, _, policy) = latency(2);
    policy.set(HybridAdaptive);
    let mut user = User::new(&device, WaiterKind::Ring, 1);
    repeat_until_good(|| user.work(500).typical_sleep(), |sleep| *sleep == 0);
    user.work(500);
    repeat_until_good(|| user.work(500).typical_sleep(), |sleep| *sleep == 0);
    user.finish();
}

/// However many requests are in flight, a wait sleeps at most once. The tests of `estimate` check
/// the total length of the sleeps.
#[test]
fn a_hybrid_wait_with_many_requests_in_flight_sleeps_once() {
    let (device, _, policy) = latency(200);
    policy.set(HybridAdaptive);
    let mut user = User::new(&device, WaiterKind::Ring, 32);
    // `User::wait` checks that each wait sleeps at most once.
    repeat_until_good(|| user.work(3_000).sleeps.len(), |sleeps| *sleeps > 0);
    user.finish();
}

#[test]
fn a_calls_wait_sleeps_for_half_the_mean_latency_of_the_last_window() {
    const LATENCY: u64 = 1_000;
    let _turn = alone();
    let (device, _, policy) = latency(LATENCY);
    policy.set(HybridAdaptive);
    let bytes = [0u8; 4096];
    let segment = usring_sys::plain::IoVector { base: bytes.as_ptr().expose_provenance() as u64, length: 4096 };
    let mut channel = device.open_channel_for(WaiterKind::Call, POLLED).unwrap();
    let mut completions = Completions::new();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut call = || {
        let submitted = Instant::now();
        let request = DeviceRequest {
            token: 3,
            operation: Operation::Write,
            durable: false,
            registered: false,
            offset: 0,
            length: 4096,
            segments: &[segment],
            file: NamedFile::default(),
        };
        assert_eq!(channel.submit(&request), Submission::Accepted);
        channel.ring_doorbell();
        let pause = channel.pause(&mut channel.begin_wait());
        completions.clear();
        while completions.as_slice().is_empty() {
            channel.poll(&mut completions);
        }
        longest = longest.max(submitted.elapsed());
        pause
    };
    while start.elapsed() < Duration::from_millis(80) {
        // The latency estimate has windows of 100 ms, and the first may end during this call.
        let pause = call();
        assert!(pause == Pause::Spin || start.elapsed() > Duration::from_millis(100), "a sleep in the first window");
    }
    let mut last = Pause::Spin;
    while start.elapsed() < Duration::from_millis(350) || last == Pause::Spin {
        assert!(start.elapsed() < WAIT_LIMIT, "no call sleeps");
        last = call();
    }
    // The upper limit is half of the longest call: on a busy machine some calls take longer than
    // the device's latency.
    let halves = LATENCY * 500..=longest.as_nanos() as u64 / 2 + 1;
    assert!(matches!(last, Pause::Sleep(span) if halves.contains(&span)), "{last:?} is not in {halves:?}");
}

#[test]
fn a_fixed_sleep_counts_from_the_oldest_request() {
    let (device, controls, policy) = latency(0);
    // This latency is much longer than the time that this thread may wait for a processor on a busy
    // machine.
    const SPAN: u64 = 2_000_000_000;
    policy.set(HybridFixed(SPAN));
    let mut channel = device.open_channel(POLLED).unwrap();
    assert_eq!(channel.pause(&mut channel.begin_wait()), Pause::Spin, "no request is in flight");
    let asked = |channel: &mut Channel| {
        let mut wait = channel.begin_wait();
        let first = channel.pause(&mut wait);
        assert_eq!(channel.pause(&mut wait), Pause::Spin, "a wait sleeps once");
        match first {
            Pause::Sleep(span) => span,
            _ => 0,
        }
    };
    submit(&mut channel, 0);
    channel.ring_doorbell();
    let young = asked(&mut channel);
    assert!(young > 0 && young <= SPAN);
    sleep_precisely(10_000_000).unwrap();
    submit(&mut channel, 1);
    channel.ring_doorbell();
    assert!(asked(&mut channel) + 10_000_000 <= young, "the sleep depends on the oldest request");
    sleep_precisely(SPAN).unwrap();
    assert_eq!(asked(&mut channel), 0);
    // The third request is still in flight when the first two requests have completed.
    controls.latency.store(SPAN / 10, Relaxed);
    submit(&mut channel, 2);
    channel.ring_doorbell();
    let mut completions = Completions::new();
    channel.poll(&mut completions);
    assert_eq!((completions.as_slice().len(), channel.in_flight()), (2, 1));
    assert!(asked(&mut channel) > SPAN / 2, "the sleep depends on the oldest request in flight");
    while channel.in_flight() > 0 {
        channel.poll(&mut completions);
    }
}

#[test]
fn a_policy_may_change_with_requests_in_flight() {
    let (device, controls, policy) = latency(20);
    let mut user = User::new(&device, WaiterKind::Ring, 16);
    let spans = [Classic, HybridAdaptive, Interrupt, HybridFixed(5_000), HybridAdaptive, Interrupt, Classic];
    for round in 0..400 {
        controls.latency.store((round % 5) * 10 * MICROSECOND, Relaxed);
        policy.set(spans[round as usize % spans.len()]);
        user.work(1 + round % 40);
    }
    user.finish();
}

#[test]
fn interrupts_are_offered_where_the_queue_pair_has_them() {
    let (device, _, policy) = latency(0);
    policy.set(Interrupt);
    let mut channel = device.open_channel(QueueOptions { depth: 4, interrupts: true }).unwrap();
    assert_eq!(channel.pause(&mut channel.begin_wait()), Pause::Interrupt);
    let mut polled = device.open_channel(POLLED).unwrap();
    assert_eq!(polled.pause(&mut polled.begin_wait()), Pause::Spin, "the queue pair was opened without interrupts");
    assert!(Pause::Spin < Pause::Sleep(1) && Pause::Sleep(1) < Pause::Sleep(2) && Pause::Sleep(2) < Pause::Interrupt);
}
