//! Tests of the null device, which completes requests after its latency and touches no memory.

mod common;

use common::Subject;
use common::harness::{Rig, Traffic, transfer};
use common::wait_limit::repeat_until_good;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use usring_device::spec::parse;
use usring_device::{Completions, DeviceRequest, Driver, Operation, OwnSupply, QueueOptions, Submission};
use usring_sys::plain::IoVector;

fn open(text: &str) -> Box<dyn Driver> {
    parse(text).unwrap().open(Box::new(OwnSupply)).unwrap()
}

fn subject(text: &'static str) -> Subject {
    Subject { open: Box::new(move || open(text)), keeps_data: false, touches_memory: false }
}

mod at_once {
    use super::*;
    any_driver!(subject("null:size=1T"));
}

mod after_ten_microseconds {
    use super::*;
    any_driver!(subject("null:size=1G,latency=10us,block=4096"));
}

mod after_a_drawn_time {
    use super::*;
    any_driver!(subject("null:size=1G,latency=uniform(1us,50us)"));
}

const POLLED: QueueOptions = QueueOptions { depth: 64, interrupts: false };

/// Memory that cannot be accessed.
static NOWHERE: IoVector = IoVector { base: 8, length: 4096 };

fn read(token: u32) -> DeviceRequest<'static> {
    transfer(token, Operation::Read, 0, core::slice::from_ref(&NOWHERE))
}

#[test]
fn a_null_device_does_not_access_memory() {
    let driver = open("null:size=1G");
    let mut rig = Rig::new(&*driver, POLLED);
    assert_eq!(rig.run(&read(3)), 4096);
    assert_eq!(rig.run(&DeviceRequest { operation: Operation::Write, ..read(3) }), 4096);
}

#[test]
fn latencies_of_many_requests_run_concurrently_from_the_doorbell() {
    let driver = open("null:size=1G,latency=20ms");
    for interrupts in [false, true] {
        let mut rig = Rig::new(&*driver, QueueOptions { interrupts, ..POLLED });
        let attempt = || {
            (0..POLLED.depth).for_each(|token| rig.submit(&read(token)));
            let start = Instant::now();
            rig.queue.ring_doorbell();
            let mut done = 0;
            while done < POLLED.depth as usize {
                done += rig.wait().len();
                assert!(start.elapsed() >= Duration::from_micros(19_980), "a completion before its latency");
            }
            start.elapsed()
        };
        // If the requests ran one after the other, they would take more than a second.
        repeat_until_good(attempt, |took| *took < Duration::from_millis(20 * 30));
    }
}

#[test]
fn without_latency_the_next_poll_returns_every_completion() {
    let driver = open("null:size=1G");
    let mut queue = driver.open_queue(POLLED).unwrap();
    let mut completions = Completions::new();
    for token in 0..POLLED.depth {
        assert_eq!(queue.submit(&read(token)), Submission::Accepted);
    }
    assert_eq!(queue.submit(&read(0)), Submission::Full);
    queue.ring_doorbell();
    queue.poll(&mut completions);
    let tokens: Vec<u32> = completions.as_slice().iter().map(|completion| completion.token).collect();
    assert_eq!(tokens, (0..POLLED.depth).collect::<Vec<_>>());
}

#[test]
fn a_poll_returns_the_completions_that_fit_and_keeps_the_rest() {
    for text in ["null:size=1G", "null:size=1G,latency=1ns", "null:size=1G,latency=uniform(0ns,1ns)"] {
        let driver = open(text);
        let mut queue = driver.open_queue(QueueOptions { depth: 1000, interrupts: false }).unwrap();
        let mut seen = BTreeSet::new();
        for token in 0..1000 {
            assert_eq!(queue.submit(&read(token)), Submission::Accepted);
        }
        queue.ring_doorbell();
        let mut completions = Completions::new();
        let start = Instant::now();
        while seen.len() < 1000 {
            completions.clear();
            queue.poll(&mut completions);
            for completion in completions.as_slice() {
                assert!(seen.insert(completion.token), "{} twice", completion.token);
            }
            assert!(start.elapsed() < common::harness::WAIT_LIMIT);
        }
    }
}

fn order(text: &str) -> Vec<u32> {
    let driver = open(text);
    let mut rig = Rig::new(&*driver, POLLED);
    (0..POLLED.depth).for_each(|token| rig.submit(&read(token)));
    rig.queue.ring_doorbell();
    let mut order = Vec::new();
    while order.len() < POLLED.depth as usize {
        order.extend(rig.wait().iter().map(|completion| completion.token));
    }
    order
}

#[test]
fn random_latencies_change_the_order_and_a_seed_reproduces_it() {
    let in_order: Vec<u32> = (0..POLLED.depth).collect();
    assert_eq!(order("null:size=1G,latency=100us"), in_order);
    for latency in ["uniform(1us,900us)", "exponential(200us)", "normal(500us,200us)"] {
        let seeded = |seed: u32| order(&format!("null:size=1G,latency={latency},latency-seed={seed}"));
        assert_ne!(seeded(1), in_order, "{latency}");
        assert_eq!(seeded(1), seeded(1), "{latency}");
        assert_ne!(seeded(1), seeded(2), "{latency}");
    }
}

#[test]
fn the_interrupt_comes_early_for_a_later_request_that_is_due_first() {
    let driver = open("null:size=1G,latency=uniform(1ms,10s),latency-seed=4");
    let mut rig = Rig::new(&*driver, QueueOptions { depth: 256, interrupts: true });
    rig.submit(&read(0));
    rig.queue.ring_doorbell();
    assert!(rig.queue.arm_interrupt());
    // Of these 255 requests with random latencies, at least one completes before request 0.
    (1..256).for_each(|token| rig.submit(&read(token)));
    rig.queue.ring_doorbell();
    let number = rig.queue.interrupt().unwrap();
    assert!(common::harness::is_readable(number, common::harness::WAIT_LIMIT));
    assert_ne!(rig.wait()[0].token, 0);
}

#[test]
fn a_poll_that_finds_completions_clears_the_interrupt() {
    let driver = open("null:size=1G,latency=1ms");
    let mut rig = Rig::new(&*driver, QueueOptions { depth: 4, interrupts: true });
    for _ in 0..10 {
        assert_eq!(rig.run(&read(0)), 4096);
        assert!(!common::harness::is_readable(rig.queue.interrupt().unwrap(), Duration::ZERO));
    }
}

#[test]
fn traffic_at_the_end_of_a_huge_device_works() {
    let driver = open("null:size=8388600T,block=4096");
    let end = driver.geometry().size;
    let part = end - (1 << 20)..end;
    Traffic { part, options: POLLED, requests: 500, keeps_data: false, seed: 1 }.run(&*driver);
}
